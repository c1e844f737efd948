"""Real ``scrapy runspider`` processes of the spiders in ``spiders/``, one variant each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crawls import peers
from lab.cluster import Cluster
from lab.launcher import Forked, fork
from lab.servers import RedisServer, wait_until
from scrapy_redisq import Frontier

SPIDERS = Path(__file__).parent / "spiders"


forked = False
"""Whether workers are forked from a process that has imported Scrapy: for the tests, which want to
see that a benchmark runs, and soon."""


class DidNotRun(Exception):
    """Raised when a crawl ended without a report, or with errors; the text is its log's end."""


@dataclass(frozen=True)
class Variant:
    """A way to schedule requests. ``url_setting`` is where it is told of its Redis server."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    url_setting: str = ""
    peer: bool = False


def _ours(name: str, dupefilter: str) -> Variant:
    settings = {"SCHEDULER": "scrapy_redisq.Scheduler", "DUPEFILTER_CLASS": dupefilter}
    return Variant(name, settings, "REDISQ_URL")


def _peer(name: str, package: str) -> Variant:
    scheduler = f"{package}.scheduler.Scheduler"
    settings = {"SCHEDULER": scheduler, "DUPEFILTER_CLASS": f"{package}.dupefilter.RFPDupeFilter"}
    return Variant(name, settings, "REDIS_URL", peer=True)


MEMORY = Variant("Scrapy in memory")
REDISQ_BLOOM = _ours("scrapy-redisq Bloom", "scrapy_redisq.BloomDupeFilter")
REDISQ_EXACT = _ours("scrapy-redisq exact", "scrapy_redisq.ExactDupeFilter")
SCRAPY_REDIS = _peer("scrapy-redis", "scrapy_redis")
SCRAPY_REDIS_BLOOM = _peer("Scrapy-Redis-BloomFilter", "scrapy_redis_bloomfilter")


class Worker:
    """One process. Its report is what `benchmarks.crawls.spiders.follow.Report` writes.

    ``go``: the file that it waits for before it begins. ``spider``: a file of ``spiders/``, with
    its ``arguments``.
    """

    def __init__(
        self,
        variant: Variant,
        start_url: str,
        folder: Path,
        *,
        redis_port: int = 0,
        settings: Mapping[str, Any] | None = None,
        go: Path | None = None,
        spider: str = "follow",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        number = len(list(folder.glob("worker-*.log")))
        self._report = folder / f"worker-{number}.json"
        self._log = folder / f"worker-{number}.log"
        told = {"start_url": start_url, "report": self._report, **(arguments or {})}
        if go is not None:
            told["go"] = go
        chosen: dict[str, Any] = {**variant.settings}
        if variant.url_setting:
            chosen[variant.url_setting] = f"redis://127.0.0.1:{redis_port}/0"
        chosen.update(settings or {})
        command = ["runspider", str(SPIDERS / f"{spider}.py")]
        for option, given in (("-a", told), ("-s", chosen)):
            for name, value in given.items():
                command += [option, f"{name}={value}"]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")
        }
        self._log.touch()
        self.process: Forked | subprocess.Popen[bytes]
        if forked and not variant.peer:
            self.process = fork("scrapy", command, folder, self._log, environment)
            return
        python = str(peers.python()) if variant.peer else sys.executable
        command = [python, "-m", "scrapy", *command]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def report(self, seconds: float = 600) -> dict[str, Any]:
        """Wait for the end and return the report. Raises `DidNotRun`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DidNotRun(f"no end within {seconds:g} s: {self.log[-2000:]}") from None
        if not self._report.exists():
            raise DidNotRun(self.log[-2000:])
        report: dict[str, Any] = json.loads(self._report.read_text())
        if report["reason"] != "finished" or report["errors"]:
            raise DidNotRun(f"{report}\n{self.log[-2000:]}")
        return report

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def crawl(variant: Variant, start_url: str, server: RedisServer, **options: Any) -> dict[str, Any]:
    """The report of one worker's crawl, into an empty Redis. Raises `DidNotRun`."""
    server.flush()
    with tempfile.TemporaryDirectory(prefix="redisq-bench-") as folder:
        options.setdefault("redis_port", server.port)
        return Worker(variant, start_url, Path(folder), **options).report()


class Fleet:
    """Workers of one frontier on an empty Redis that have all joined, and begin with `begin`.

    A context manager; when it is left none of them is running any more. ``waiting`` False: they
    begin at once.
    """

    def __init__(
        self,
        server: RedisServer | Cluster,
        number: int,
        start_url: str = "http://127.0.0.1/",
        *,
        variant: Variant = REDISQ_BLOOM,
        spider: str = "follow",
        settings: Mapping[str, Any] | None = None,
        waiting: bool = True,
        hosts: str = "",
    ) -> None:
        self.frontier = Frontier.from_url(server.url, spider)
        server.flush()
        self._folder = Path(tempfile.mkdtemp(prefix="redisq-bench-"))
        self._go = self._folder / "go"
        self._options: dict[str, Any] = {
            # Each has a report of its own.
            "settings": {
                "REDISQ_URL": server.url,
                "REDISQ_SAME_ARGUMENTS": False,
                **(settings or {}),
            },
            "go": self._go if waiting else None,
            "spider": spider,
            "arguments": {"hosts": hosts} if hosts else None,
        }
        self._variant, self._start_url = variant, start_url
        self.workers = [self.start() for _ in range(number)]

    def __enter__(self) -> Fleet:
        wait_until(
            lambda: len(self.frontier.status().get("workers", [])) == len(self.workers),
            60,
            f"{len(self.workers)} workers: {self.workers[0].log}",
        )
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:
            worker.kill()
        self.frontier.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> Worker:
        """One more process."""
        return Worker(self._variant, self._start_url, self._folder, **self._options)

    def begin(self) -> None:
        self._go.touch()

    def reports(self, seconds: float = 600) -> list[dict[str, Any]]:
        """Wait until all have ended by themselves. Raises `DidNotRun`."""
        until = time.monotonic() + seconds
        return [worker.report(max(1.0, until - time.monotonic())) for worker in self.workers]
