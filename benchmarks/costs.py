"""Where one worker's time goes: ``python -m benchmarks.costs [--pages 1500] [--folder DIR]``.

Needs py-spy (``pip install py-spy``). Crawls the generated site, or real pages, with Scrapy in
memory and with scrapy-redisq, once for the CPU time a page and once under py-spy for its shares,
and prints microseconds a page by part. A sample belongs to the innermost part it is in.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import MEMORY, REDISQ_BLOOM, Variant, crawl
from lab.servers import RedisServer, any_server

# Parts and what their frames look like. The innermost frame that fits any of them decides.
PARTS: dict[str, tuple[str, ...]] = {
    "fingerprint": ("scrapy/utils/request.py",),
    "duplicates: look-up": ("scrapy_redisq/frontier/seen/recent_urls.py", "scrapy/dupefilters.py"),
    "duplicates: counting": ("scrapy_redisq/dupefilter.py", "Outbox.duplicate"),
    "serialisation": ("Serializer.dumps", "encode_request"),
    "deserialisation": ("Serializer.loads",),
    "exchange": ("scrapy_redisq/frontier/", "redis/"),
    "finished pages": ("Worker.collect_ended", "scrapy_redisq/worker/in_progress.py"),
    "queue": (
        "scrapy/pqueues.py",
        "scrapy/squeues.py",
        "queuelib/",
        "scrapy_redisq/worker/inbox.py",
    ),
    "scheduler, the rest": (
        "scrapy/core/scheduler.py",
        "scrapy_redisq/scheduler.py",
        "scrapy_redisq/worker/",
    ),
    "page bookkeeping": ("scrapy_redisq/_scrapy/",),
    "Scrapy: wake-ups of the engine": ("_start_scheduled_request", "CallLaterOnce"),
    "Scrapy: signals": ("pydispatch/", "scrapy/signalmanager.py", "scrapy/utils/signal.py"),
    "Scrapy: response.follow": ("follow (scrapy/http", "_follow"),
    "spider: selector, items": ("follow.py",),
    "Scrapy: spider middlewares": ("scrapy/spidermiddlewares/",),
    "Scrapy: engine, scraper": ("scrapy/core/scraper.py", "scrapy/core/engine.py"),
    "Scrapy: downloader": ("scrapy/core/downloader/", "scrapy/downloadermiddlewares/"),
    "Twisted: HTTP and loop": ("twisted/",),
}
BEFORE = ("importlib", "_create_engine", "Scheduler._open", "scrapy_redisq/worker/build.py")
"""What frames of the start look like."""
RATE = "100"
"""Samples a second; py-spy stops the process for each."""


def measure(variant: Variant, site: Pages) -> dict[str, float]:
    """Microseconds of CPU a page by part, and in all."""
    server = RedisServer(any_server("redis-7"))
    try:
        plain = crawl(variant, site.start_url, server)
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "samples.txt"
            spy = [_py_spy(), "record", "--rate", RATE, "--format", "raw"]
            crawl(variant, site.start_url, server, under=[*spy, "--output", str(raw), "--"])
            shares = parts(raw.read_text())
    finally:
        server.close()
    page = plain["cpu"] / plain["pages"] * 1e6
    return {
        **{part: page * share for part, share in shares.items()},
        "exchanges/page": plain["exchanges"] / plain["pages"],
        "total": page,
    }


def parts(samples: str) -> dict[str, float]:
    """Shares by part of py-spy's raw samples, the start of the process left out."""
    counts: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if any(mark in stack for mark in BEFORE) or not any(
            "run_forever" in frame for frame in frames
        ):
            continue
        counts[_part(frames)] += int(count)
    total = sum(counts.values())
    return {part: count / total for part, count in counts.items()}


def _part(frames: list[str]) -> str:
    for frame in reversed(frames):
        for part, marks in PARTS.items():
            if any(mark in frame for mark in marks):
                return part
    return "other"


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if not found:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1500)
    parser.add_argument("--folder", type=Path, help="real pages, such as Debian's python3.11-doc")
    options = parser.parse_args()
    with Pages(options.pages, folder=options.folder) as site:
        memory, ours = measure(MEMORY, site), measure(REDISQ_BLOOM, site)
    table = Table("µs a page", box=box.SIMPLE_HEAD)
    table.add_column("in memory", justify="right")
    table.add_column("scrapy-redisq", justify="right")
    for part in [*PARTS, "other", "total"]:
        if part in memory or part in ours:
            table.add_row(part, f"{memory.get(part, 0):,.0f}", f"{ours.get(part, 0):,.0f}")
    table.add_row("exchanges a page", "", f"{ours['exchanges/page']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
