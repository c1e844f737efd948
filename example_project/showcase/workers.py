"""The demo's ``scrapy crawl`` processes: started, watched, killed and cleared away.

Each is started as a person would, and not forked by `lab.launcher`: what it shows is to be real.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
_CLOSED = re.compile(r"Spider closed \((\w+)\)")
_STOP_PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL


class Worker:
    """One ``scrapy crawl books`` process, with its output in a file."""

    def __init__(self, number: int, site: str, settings: Mapping[str, object], log: Path) -> None:
        self.number = number
        self.log = log
        self.killed = False
        self.ended: float | None = None
        command = [sys.executable, "-m", "scrapy", "crawl", "books", "-a", f"site={site}"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        # A project chosen by the environment would be crawled instead of this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SCRAPY_")}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        if self._process.poll() is None:
            return True
        if self.ended is None:
            self.ended = time.monotonic()
        return False

    @property
    def reason(self) -> str:
        """How the process ended, "finished" if all was well; "" while it runs."""
        if self.running:
            return ""
        if self.killed:
            return "killed"
        said = _CLOSED.findall(self.log.read_text(errors="replace"))
        code = self._process.returncode
        if said and code == 0:
            return str(said[-1])
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def last_lines(self, count: int = 15) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-count:]) or "(nothing)"

    def kill(self) -> None:
        """SIGKILL: no farewell to anybody. Returns when the process is gone."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self, deadline: float) -> None:
        """Wait for the end of a process that was told to stop; from ``deadline`` on, force it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew(list[Worker]):
    """All workers of the demo. Left as a context, none of them is running any more."""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        running = [worker for worker in self if worker.running]
        for worker in running:
            worker.stop()
        deadline = time.monotonic() + _STOP_PATIENCE
        for worker in running:
            worker.end(deadline)

    @property
    def running(self) -> bool:
        running = [worker.running for worker in self]  # all are asked: each notes its own end
        return any(running)

    def failed(self) -> Worker | None:
        """A worker that ended as it should not have, if there is one."""
        bad = (worker for worker in self if worker.reason not in {"", "finished", "killed"})
        return next(bad, None)
