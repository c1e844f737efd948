"""One worker process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scrapy_redisq.ops.autoscale.machine import resident

PR_SET_PDEATHSIG = 1
"""Linux' prctl(2)."""


class Process:
    """A worker in a session of its own, so that Ctrl-C reaches it through its starter alone.

    If the starter is killed, even by SIGKILL, Linux sends it SIGTERM: it finishes what it holds and
    ends. Other systems have nothing like it: there it goes on to the end of the run. So does on
    Linux what a wrapper (``sh -c``, ``uv run``) has started in its turn, unless the wrapper passes
    signals on or has become it (``exec``).
    """

    def __init__(self, number: int, command: Sequence[str], log: Path | None = None) -> None:
        self.number = number
        self.log = log
        self.began = time.monotonic()
        self.stopping = self.killed = False
        self._told: float | None = None
        output = log.open("ab") if log else None
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 - it has no threads
            )
        finally:
            if output:
                output.close()

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.began

    @property
    def overdue(self) -> float:
        """Seconds since it was told to stop; 0: it was not."""
        return time.monotonic() - self._told if self._told else 0.0

    @property
    def rss(self) -> int:
        """Bytes of memory that it has."""
        return resident(self.pid)

    def code(self) -> int | None:
        """As a shell would have it: 128 + signal for what a signal has ended; None: it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Send SIGTERM to a worker: its pages in progress end. Twice: the worker ends at once."""
        self.stopping = True
        self._told = self._told or time.monotonic()
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, to all that it has started, too."""
        self.stopping = self.killed = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def has(self, pid: int) -> bool:
        """Whether a process of this machine is this one, or was started by it."""
        try:
            return pid == self.pid or os.getsid(pid) == self.pid
        except (OSError, OverflowError):
            return False


def _dies_with(parent: int) -> Callable[[], None] | None:
    """The first step of a new process: it asks to be told when its parent is no more."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here: after a fork as little as possible is done

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was killed just before
            signal.raise_signal(signal.SIGTERM)

    return ask
