"""Real ``scrapy runspider`` processes of the spider in ``spiders/``, one variant each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import peers

SPIDER = Path(__file__).parent / "spiders" / "follow.py"


class DidNotRun(Exception):
    """Raised when a crawl ended without a report, or with errors; the text is its log's end."""


@dataclass(frozen=True)
class Variant:
    """A way to schedule requests. ``url_setting`` is where it is told of its Redis server."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    url_setting: str = ""
    peer: bool = False


MEMORY = Variant("Scrapy in memory")
REDISQ_BLOOM = Variant(
    "scrapy-redisq Bloom",
    {
        "SCHEDULER": "scrapy_redisq.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redisq.BloomDupeFilter",
    },
    "REDISQ_URL",
)
REDISQ_EXACT = Variant(
    "scrapy-redisq exact",
    {
        "SCHEDULER": "scrapy_redisq.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redisq.ExactDupeFilter",
    },
    "REDISQ_URL",
)
SCRAPY_REDIS = Variant(
    "scrapy-redis",
    {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    },
    "REDIS_URL",
    peer=True,
)
SCRAPY_REDIS_BLOOM = Variant(
    "Scrapy-Redis-BloomFilter",
    {
        "SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    },
    "REDIS_URL",
    peer=True,
)


class Worker:
    """One process. Its report is what `benchmarks.spiders.follow.Report` writes.

    ``go``: the file that it waits for before it begins. ``under``: a command to run it under.
    ``spider``: a file of ``spiders/``, with its ``arguments``.
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
        under: Sequence[str] = (),
        spider: Path = SPIDER,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        number = len(list(folder.glob("worker-*.log")))
        self._report = folder / f"worker-{number}.json"
        self._log = folder / f"worker-{number}.log"
        python = str(peers.python()) if variant.peer else sys.executable
        command = [*under, python, "-m", "scrapy", "runspider", str(spider)]
        command += ["-a", f"start_url={start_url}", "-a", f"report={self._report}"]
        for name, value in (arguments or {}).items():
            command += ["-a", f"{name}={value}"]
        if go is not None:
            command += ["-a", f"go={go}"]
        chosen = {**variant.settings, **(settings or {})}
        if variant.url_setting:
            chosen[variant.url_setting] = f"redis://127.0.0.1:{redis_port}/0"
        for name, value in chosen.items():
            command += ["-s", f"{name}={value}"]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")
        }
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
        report["ended"] = time.time()
        return report

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


class Folder:
    """A temporary folder for workers, with the file that they wait for; a context manager."""

    def __enter__(self) -> Folder:
        self.path = Path(tempfile.mkdtemp(prefix="redisq-bench-"))
        self.go = self.path / "go"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
