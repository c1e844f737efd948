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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.crawls.pages import Pages
from lab.cluster import Cluster
from lab.servers import RedisServer, wait_until
from scrapy_redisq import Frontier

SPIDERS = Path(__file__).parent / "spiders"


class DidNotRun(Exception):
    """Raised when a crawl ended without a report, or with errors; the text is its log's end."""


@dataclass(frozen=True)
class Variant:
    """A way to schedule requests."""

    name: str
    scheduler: str = "scrapy.core.scheduler.Scheduler"
    dupefilter: str = "scrapy.dupefilters.RFPDupeFilter"


OURS = "scrapy_redisq.Scheduler"
MEMORY = Variant("Scrapy in memory")
REDISQ_BLOOM = Variant("scrapy-redisq Bloom", OURS, "scrapy_redisq.BloomDupeFilter")
REDISQ_EXACT = Variant("scrapy-redisq exact", OURS, "scrapy_redisq.ExactDupeFilter")
SCRAPY_REDIS = Variant(
    "scrapy-redis", "scrapy_redis.scheduler.Scheduler", "scrapy_redis.dupefilter.RFPDupeFilter"
)


class Worker:
    """One process. Its report is what `benchmarks.crawls.spiders.follow.Report` writes.

    ``site``: where it begins, if it is not fed by pushes. ``spider``: a file of ``spiders/``, with
    its ``arguments``.
    """

    def __init__(
        self,
        variant: Variant,
        site: Pages | None,
        url: str,
        folder: Path,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        spider: str = "follow",
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        number = len(list(folder.glob("worker-*.log")))
        self._report = folder / f"worker-{number}.json"
        self._log = folder / f"worker-{number}.log"
        chosen = {"SCHEDULER": variant.scheduler, "DUPEFILTER_CLASS": variant.dupefilter}
        chosen["REDIS_URL" if variant is SCRAPY_REDIS else "REDISQ_URL"] = url
        begins = {"start_url": site.start_url, "hosts": site.hosts} if site else {}
        command = [sys.executable, "-m", "scrapy", "runspider", str(SPIDERS / f"{spider}.py")]
        for name, value in {**begins, "report": self._report, **arguments}.items():
            command += ["-a", f"{name}={value}"]
        for name, value in {**chosen, **settings}.items():
            command += ["-s", f"{name}={value}"]
        kept = {name: value for name, value in os.environ.items() if name[:7] != "SCRAPY_"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=kept)

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


def crawl(
    variant: Variant, site: Pages, server: RedisServer | Cluster, *, url: str = "", **options: Any
) -> dict[str, Any]:
    """The report of one worker's crawl of the whole site, into an empty Redis, by another ``url``
    if it is to be reached by a proxy. Raises `DidNotRun`."""
    server.flush()
    with tempfile.TemporaryDirectory(prefix="redisq-bench-") as folder:
        report = Worker(variant, site, url or server.url, Path(folder), **options).report()
    if report["pages"] != site.pages:
        raise DidNotRun(f"{variant.name} fetched {report['pages']} of {site.pages} pages")
    return report


class Fleet:
    """Workers of one frontier on an empty Redis that have all joined, and begin with `begin`.

    A context manager; when it is left none of them is running any more."""

    def __init__(
        self,
        server: RedisServer,
        number: int,
        site: Pages | None = None,
        *,
        variant: Variant = REDISQ_BLOOM,
        spider: str = "follow",
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.frontier = Frontier.from_url(server.url, spider)
        server.flush()
        self._folder = Path(tempfile.mkdtemp(prefix="redisq-bench-"))
        self._go = self._folder / "go"
        self._start = partial(
            Worker,
            variant,
            site,
            server.url,
            self._folder,
            spider=spider,
            # Each has a report of its own.
            settings={"REDISQ_SAME_ARGUMENTS": False, **settings},
            arguments={"go": self._go},
        )
        self.workers = [self._start() for _ in range(number)]

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

    def replace(self, worker: int) -> int:
        """Kill a worker and start another one in its place; -> its pid."""
        killed = self.workers[worker]
        killed.kill()
        self.workers[worker] = self._start()
        return killed.process.pid

    def begin(self) -> None:
        self._go.touch()

    def reports(self, seconds: float = 600) -> list[dict[str, Any]]:
        """Wait until all have ended by themselves. Raises `DidNotRun`."""
        until = time.monotonic() + seconds
        return [worker.report(max(1.0, until - time.monotonic())) for worker in self.workers]
