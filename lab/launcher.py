"""Processes that begin with Scrapy imported: a fork takes 20 ms, to start Python over a second.

``python -m lab.launcher SOCKET`` imports what a crawl imports, and forks a process for each
job. It has no reactor or thread, so that what it forks differs from a fresh process in nothing but
the time: pid, signals, environment, streams, random numbers and end are its own. `fork` asks it,
from a test. Processes of one session have their launchers in common.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.metadata
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
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lab import session

ROOT = Path(__file__).parent.parent
_asking = threading.Lock()
_turns = itertools.cycle(["first", "second"])
"""Of launchers: workers of one fleet have different hash seeds, as fresh processes would."""
_started: list[subprocess.Popen[bytes]] = []


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


def fork(
    module: str, arguments: list[str], folder: Path, output: Path, environment: Mapping[str, str]
) -> Forked:
    """``python -m MODULE ARGUMENTS > OUTPUT 2>&1`` in ``folder``."""
    job = {
        "module": module,
        "arguments": [str(argument) for argument in arguments],
        "folder": str(folder),
        "environment": dict(environment),
    }
    nothing = os.open(os.devnull, os.O_RDONLY)
    told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o666)
    ours, theirs = socket.socketpair()
    try:
        with theirs, _asking:
            streams = [theirs.fileno(), nothing, told, told]
            socket.send_fds(_connect(next(_turns)), [b"."], streams)
    finally:
        os.close(nothing)
        os.close(told)
    ours.sendall(json.dumps(job).encode() + b"\n")
    return Forked(ours)


@cache
def _connect(name: str) -> socket.socket:
    """A connection to a launcher, which is started by the first process that wants one, and ends
    with the last one."""
    path = session.folder() / name
    connection = socket.socket(socket.AF_UNIX)
    atexit.register(connection.close)
    with session.alone(path):
        try:
            connection.connect(str(path))
        except FileNotFoundError:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
                listening.listen()
                launcher = subprocess.Popen(
                    [sys.executable, "-m", "lab.launcher", str(listening.fileno())],
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=ROOT,
                )
            _started.append(launcher)
            connection.connect(str(path))
    return connection


# In the launcher


def main(listening: socket.socket) -> Mapping[str, Any] | None:
    """Fork a process for each job; -> its job, in the forked one, which has its streams, folder
    and environment by then; and None at the end."""
    children: dict[int, tuple[int, socket.socket]] = {}
    asking: list[socket.socket] = [listening.accept()[0]]
    while asking or not _has_ended(listening):
        waited_for: list[Any] = [listening, *asking, *children]
        ready = select.select(waited_for, [], [])[0]
        if listening in ready:
            asking.append(listening.accept()[0])
        for control in [each for each in asking if each in ready]:
            told, descriptors, *_ = socket.recv_fds(control, 1, 4)
            if not told:
                asking.remove(control)
                control.close()
                continue
            answers, streams = socket.socket(fileno=descriptors[0]), descriptors[1:]
            with answers.makefile("r") as lines:
                job: dict[str, Any] = json.loads(lines.readline())
            pid = os.fork()
            if pid == 0:
                for ended, (_, other) in children.items():
                    os.close(ended)
                    other.close()
                for each in (listening, *asking, answers):
                    each.close()
                _become(job, streams)
                return job
            for stream in streams:
                os.close(stream)
            answers.sendall(b"%d\n" % pid)
            children[os.pidfd_open(pid)] = pid, answers
        for ended in children.keys() & set(ready):
            pid, answers = children.pop(ended)
            os.close(ended)
            _, status = os.waitpid(pid, 0)
            with answers, contextlib.suppress(ConnectionError):
                answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    return None


def _has_ended(listening: socket.socket) -> bool:
    """Whether nobody is about to ask; then nobody can any more."""
    path = Path(listening.getsockname())
    with contextlib.suppress(FileNotFoundError), session.alone(path):
        if select.select([listening], [], [], 0)[0]:
            return False
        path.unlink()
    return True


def _become(job: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take over the environment, the folder and the streams that a job comes with."""
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)


def run(job: Mapping[str, Any]) -> int:
    """Run the module that was asked for; -> the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    # Where it is: see `Crawl.wait`.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [job["folder"], *given]
    sys.argv = [job["module"], *job["arguments"]]
    try:
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def leave(code: int) -> None:
    """End as Python does, except for what is shared with the launcher: to take that apart would
    copy all of it first, which takes as long as a small crawl."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def remember() -> None:
    """Find out once what each process would find out anew."""
    # Each crawl reads the metadata of all that is installed, each connection those of redis.
    for read in ("entry_points", "version"):
        setattr(importlib.metadata, read, cache(getattr(importlib.metadata, read)))


def prepare() -> None:
    """Import what crawls import, and nothing that is begun by importing it."""
    remember()
    names = {"twisted.internet.asyncioreactor", "redis.asyncio"}
    for package in ("scrapy", "scrapy_redisq"):
        path = importlib.import_module(package).__path__
        modules = pkgutil.walk_packages(path, f"{package}.", onerror=importlib.import_module)
        names |= {module.name for module in modules}
    # pyarrow begins threads when it is imported. Who runs scrapy.__main__ is warned if it was, too.
    names = {name for name in names if ".parquet" not in name and "__main__" not in name}
    for name in sorted(names):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some are deprecated
                importlib.import_module(name)
        except ImportError as error:
            # What is optional. A circle of ours would not show when it is imported again.
            if (error.name or "").startswith("scrapy_redisq"):
                raise
    # Scrapy loads the commands of all that is installed, whatever they import: pytest, for one.
    for command in importlib.metadata.entry_points(group="scrapy.commands"):
        command.load()
    assert "twisted.internet.reactor" not in sys.modules
    assert threading.active_count() == 1
    importlib.import_module("scrapy.utils.versions").get_versions()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare()
    with socket.socket(fileno=int(sys.argv[1])) as socket_of_all:
        given = main(socket_of_all)
    if given is not None:
        leave(run(given))
