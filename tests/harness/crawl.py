"""Real ``scrapy crawl`` processes of the project in ``tests/project``."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lab.launcher import Forked, fork
from lab.servers import RedisServer, wait_until
from lab.site import Site
from scrapy_redisq.control import DeadLetter, Frontier

PROJECT = Path(__file__).parent.parent / "project"


class Crawl:
    """One ``scrapy crawl`` process; its log and what it tells at the end.

    It is forked by a launcher, unless it is to be ``fresh``: then Python reads ``environment``.
    """

    def __init__(
        self,
        spider: str,
        folder: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        feed: bool = True,
        fresh: bool = False,
    ) -> None:
        number = len(list(folder.glob("crawl-*.log")))
        self.log_file = folder / f"crawl-{number}.log"
        self.items_file = folder / f"crawl-{number}.jsonl"
        command = ["crawl", spider]
        if feed:
            command += ["-o", str(self.items_file)]
        for name, value in (settings or {}).items():
            command += ["-s", f"{name}={value}"]
        for name, value in (arguments or {}).items():
            command += ["-a", f"{name}={value}"]
        self.log_file.touch()
        self.process: Forked | subprocess.Popen[bytes]
        environment = {**os.environ, **(environment or {})}
        if not fresh:
            self.process = fork("scrapy", command, PROJECT, self.log_file, environment)
        else:
            with self.log_file.open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "scrapy", *command],
                    cwd=PROJECT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait(self, seconds: float = 60) -> Crawl:
        """Wait for the process to end; fail with its log, and where it is, if it does not."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            if isinstance(self.process, Forked):
                self.process.send_signal(signal.SIGUSR1)
                with suppress(AssertionError):
                    wait_until(lambda: "most recent call first" in self.log, 5, "its stacks")
            self.kill()
            raise AssertionError(f"the crawl did not end in {seconds} s:\n{self.log}") from None
        return self

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Wait until ``text`` is in the log."""
        wait_until(
            lambda: text in self.log or self.process.poll() is not None,
            seconds,
            f"{text!r} in the log:\n{self.log}",
        )
        assert text in self.log, self.log

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> Crawl:
        self.process.send_signal(signal.SIGTERM)
        return self

    def stop(self) -> None:
        """SIGSTOP: the process stands still until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def reason(self) -> str | None:
        """Why the spider was closed."""
        found = re.findall(r"Spider closed \((\w+)\)", self.log)
        return found[-1] if found else None

    @property
    def stats(self) -> dict[str, Any]:
        """Scrapy's stats from the end of the log, without times of the day."""
        start = self.log.rfind("Dumping Scrapy stats:")
        assert start >= 0, self.log
        text = self.log[start:].partition("{")[2]
        text = "{" + text[: text.index("}") + 1]
        text = re.sub(
            r"datetime\.datetime\([\d, ]+, tzinfo=datetime\.timezone\.utc\)", "None", text
        )
        stats = ast.literal_eval(text)
        assert isinstance(stats, dict)
        return stats

    def items(self) -> list[dict[str, Any]]:
        if not self.items_file.exists():
            return []
        lines = self.items_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


def install(folder: Path, *packages: str) -> Path:
    """Install packages without what they need into a folder, for PYTHONPATH; -> it. Where that
    cannot be the test is skipped."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0", "--timeout=10"]
    pip += ["--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr[-300:]}")
    return folder


def constants(given: Mapping[str, float]) -> dict[str, str]:
    """The setting of a crawl that has these values of the package's constants, by their paths."""
    return {"CONSTANTS": json.dumps(given)}


class Run:
    """Starts crawls on a server in a folder, and ends them; what they leave on the server."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self._folder = folder
        self._server = server
        self._started: list[Crawl] = []

    def __call__(
        self,
        spider: str,
        site: Site | None = None,
        settings: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Crawl:
        if site is not None:
            arguments.setdefault("site", site.url)
        given = {"REDISQ_URL": self._server.url, **(settings or {})}
        self._started.append(Crawl(spider, self._folder, settings=given, arguments=arguments))
        return self._started[-1]

    def fleet(
        self,
        number: int,
        spider: str,
        site: Site | None = None,
        settings: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> list[Crawl]:
        """Several workers that begin when all of them have joined."""
        with together(self._folder) as gate:
            given = {**(settings or {}), **gate}
            workers = [self(spider, site, given, **arguments) for _ in range(number)]
            wait_until_joined(workers)
        return workers

    def close(self) -> None:
        for crawl in self._started:
            if crawl.running:
                crawl.kill()

    def frontier(self, name: str = "follow") -> Frontier:
        return Frontier.from_url(self._server.url, name)

    def status(self, name: str = "follow") -> dict[str, Any]:
        with self.frontier(name) as frontier:
            return frontier.status()

    def letters(self, name: str = "follow") -> list[DeadLetter]:
        with self.frontier(name) as frontier:
            return list(frontier.dead())


def finish(workers: Iterable[Crawl]) -> None:
    """Wait until all have ended, and done all that there was, without a traceback."""
    for worker in workers:
        assert worker.wait().reason == "finished", worker.log
        assert "Traceback" not in worker.log, worker.log


@contextmanager
def together(folder: Path) -> Iterator[dict[str, str]]:
    """The settings of workers that begin at the end of the block."""
    gate = folder / f"gate-{len(list(folder.glob('gate-*')))}"
    yield {"FLEET_GATE": str(gate)}
    gate.touch()


def wait_until_joined(workers: Iterable[Crawl]) -> None:
    """Wait until each of them says that it is in a run."""
    for worker in workers:
        worker.wait_for("; dupefilter: ", 60)


JITTER = 0.005
"""Seconds that may lie between a worker's start of a request and its look at the clock."""


def gaps(times: Iterable[float]) -> list[float]:
    """Seconds between each of them and the next one."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


LATENESS = {"EXTENSIONS": json.dumps({"crawls.lateness.Lateness": 1})}
"""Settings of workers whose `lateness` is asked for."""


def lateness(workers: Iterable[Crawl]) -> float:
    """Seconds that workers lost, together, because the machine was busy with others."""
    return sum(worker.stats.get("lateness", 0.0) for worker in workers)


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
        with suppress(OSError):  # the thread has ended
            waited += int(file.read_text().split()[1])
    return waited / 1e9


def several(
    spider: str, site: str, settings: Sequence[Mapping[str, str]], *, in_turn: bool = False
) -> list[str]:
    """Crawl with each of ``settings`` in one process, at once or ``in_turn``; -> why the spiders
    were closed."""
    environment = {**os.environ, "SCRAPY_SETTINGS_MODULE": "crawls.settings"}
    with TemporaryDirectory() as folder:
        file, output = Path(folder, "settings"), Path(folder, "output")
        file.write_text(json.dumps(settings))
        command = [str(file), spider, site, *(["in turn"] if in_turn else [])]
        process = fork("crawls.several", command, PROJECT, output, environment)
        try:
            code = process.wait(240)
        finally:
            process.kill()
        log = output.read_text()
        assert code == 0, log
        assert "Traceback" not in log, log
        reasons = json.loads(file.read_text())
    assert isinstance(reasons, list)
    return reasons
