"""A site in a process of its own, for measurements."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lab.site import Hit, Site

if TYPE_CHECKING:
    from typing_extensions import Self


class ProcessSite:
    """The `Site` that ``make`` makes, from outside; a context manager.

    ``make`` is sent to the process: a function of a module, or a partial of one. ``first``: it runs
    before all other processes where it may (SCHED_FIFO), so that times are those of arrival and not
    of when it got the processor.
    """

    def __init__(self, make: Callable[[], Site], *, first: bool = False) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._asked, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(make, theirs, first), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._asked.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._asked.close()  # which ends it
        self._process.join(10)

    def url(self, path: str, host: int = 0) -> str:
        return f"http://{address(host)}:{self.port}{path}"

    def hits(self) -> list[Hit]:
        """All requests since the log was emptied, in order of arrival."""
        return sorted(self._ask("hits"), key=lambda hit: hit.at)

    def forget(self) -> None:
        """Empty the log."""
        self._ask("forget")

    def _ask(self, what: str) -> Any:
        self._asked.send(what)
        return self._asked.recv()


def address(host: int) -> str:
    """The IP address of a host, which is its slot, too."""
    return f"127.0.0.{host + 1}"


def _serve(make: Callable[[], Site], asked: Connection, first: bool) -> None:
    if first:
        with contextlib.suppress(AttributeError, OSError):  # other systems, other users
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with make() as site, contextlib.suppress(EOFError, KeyboardInterrupt):
        asked.send(site.port)
        while what := asked.recv():
            asked.send(list(site.hits))
            if what == "forget":
                site.hits.clear()
