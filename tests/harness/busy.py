"""How busy the machine is with others, for bounds that would be wrong where it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from lab.servers import RedisServer
from tests.harness.crawl import Crawl, lateness


class Busy:
    """What the machine has kept from a crawl since this was made: 0 where it does nothing else.

    A test adds it to a bound of seconds, which holds as it stands on a machine that is idle.
    ``running``: workers that still do when it asks what was lost.
    """

    def __init__(self, server: RedisServer, running: Iterable[Crawl] = ()) -> None:
        # This process has the site.
        workers = [worker.process.pid for worker in running]
        self._processes = [os.getpid(), server.pid, *workers]
        self._before = self._waited()

    def took(self, workers: Iterable[Crawl] = ()) -> float:
        """Seconds lost by their server, their site, the workers that run, and by ``workers``, which
        had `LATENESS` and have ended."""
        return lateness(workers) + self._waited() - self._before

    def _waited(self) -> float:
        return sum(map(_waited, self._processes))


def _waited(process: int) -> float:
    """Seconds for which threads of a process could have run, and others did. Linux tells it."""
    waited = 0
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            waited += int(file.read_text().split()[1])
    return waited / 1e9
