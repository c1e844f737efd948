"""Processes that begin with Scrapy imported: a fork takes 20 ms, to start Python over a second.

``python -m lab.launcher FD`` imports what a crawl imports, and forks a process for each
job. It has no reactor, thread or connection, so that what it forks differs from a fresh process in
nothing but the time: pid, signals, environment, streams, random numbers and end are its own. `fork`
asks it, from a test.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_asking = threading.Lock()


# In a test


class Forked:
    """A process that a launcher has forked: what tests need of `subprocess.Popen`."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self._lines = answers.makefile("r")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def __del__(self) -> None:
        self._lines.close()
        self._answers.close()

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(["forked", str(self.pid)], timeout)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def fork(
    module: str, arguments: list[str], folder: Path, output: Path, environment: Mapping[str, str]
) -> Forked:
    """``python -m MODULE ARGUMENTS > OUTPUT 2>&1`` in ``folder``."""
    ours, theirs = socket.socketpair()
    with theirs:
        with _asking:
            socket.send_fds(next(_launchers()), [b"."], [theirs.fileno()])
        job = {
            "module": module,
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "output": str(output),
            "environment": dict(environment),
        }
        ours.sendall(json.dumps(job).encode() + b"\n")
    return Forked(ours)


@cache
def _launchers() -> Iterator[socket.socket]:
    """Two in turn: workers of one fleet have different hash seeds, as fresh processes would."""

    def in_turn() -> Iterator[socket.socket]:
        first = _start()
        yield first
        second = _start()
        yield second
        yield from itertools.cycle([first, second])

    return in_turn()


def _start() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "lab.launcher", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )

    def close() -> None:
        ours.close()
        launcher.wait(10)

    atexit.register(close)
    return ours


# In the launcher


def main(control: socket.socket) -> Mapping[str, Any] | None:
    """Fork a process for each job; -> its job, in the forked one, and None at the end."""
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        waited_for: list[Any] = [control, *children]
        ready = select.select(waited_for, [], [])[0]
        if control in ready:
            told, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not told:
                return None
            answers = socket.socket(fileno=descriptors[0])
            with answers.makefile("r") as lines:
                job: dict[str, Any] = json.loads(lines.readline())
            pid = os.fork()
            if pid == 0:
                for ended, (_, other) in children.items():
                    os.close(ended)
                    other.close()
                for each in (control, answers):
                    each.close()
                return job
            answers.sendall(b"%d\n" % pid)
            children[os.pidfd_open(pid)] = pid, answers
        for ended in children.keys() & set(ready):
            pid, answers = children.pop(ended)
            os.close(ended)
            _, status = os.waitpid(pid, 0)
            with answers, contextlib.suppress(ConnectionError):
                answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def run(job: Mapping[str, Any]) -> None:
    """Become the process that was asked for."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # Where it is: see `Crawl.wait`.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [job["folder"], *given]
    sys.argv = [job["module"], *job["arguments"]]
    runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


def prepare() -> None:
    """Import what crawls import, and nothing that is begun by importing it."""
    settings = importlib.import_module("scrapy.settings.default_settings")
    names = {"scrapy.cmdline", "scrapy.crawler", "twisted.internet.asyncioreactor", "redis.asyncio"}
    for name, value in vars(settings).items():
        paths = value if isinstance(value, dict) and name.endswith("_BASE") else [value]
        paths = [*paths, *(value.values() if isinstance(value, dict) else [])]
        names |= {
            path.rpartition(".")[0]
            for path in paths
            if isinstance(path, str) and path.startswith("scrapy.")
        }
    for package in ("scrapy.commands", "scrapy_redisq"):
        path = importlib.import_module(package).__path__
        names |= {module.name for module in pkgutil.walk_packages(path, f"{package}.")}
    # pyarrow begins threads when it is imported; the handler for FTP of Scrapy 2.13 a reactor.
    names = {name for name in names if not (".parquet" in name or name.endswith("handlers.ftp"))}
    for name in sorted(names):
        with contextlib.suppress(ImportError):  # what is optional in Scrapy
            importlib.import_module(name)
    assert "twisted.internet.reactor" not in sys.modules
    assert threading.active_count() == 1
    importlib.import_module("scrapy_redisq.frontier.seen.bitmap_layout").bitmap_layers(1e-6, 10**6)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        given = main(connection)
    if given is not None:
        run(given)
