"""A crawl that is made up, for pictures and for what a person does in a browser."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import msgspec

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.seeds import SeedReader
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import DownloadResult, Finish
from tests.harness.worker import EXACT, NAME, Worker

HOSTS = [f"{kind}.{name}.example" for kind in ("www", "shop") for name in (
    "albatros", "bookbinder", "codex", "folio", "gutenberg", "incunable", "kiosk", "lexis",
    "marginalia", "octavo",
)]  # fmt: skip
DEAD = [("no gzip", "BadGzipFile", 200)] * 2 + [("Internal Server Error", "HttpError", 500)] * 4
"""Detail, exception and status of dead letters."""


def make_up(frontier: Frontier, client: Any) -> list[Worker]:
    """Twenty hosts, four workers, limits, failures, dead letters, and twenty minutes of past."""
    draw = random.Random(4)
    prefix = key_prefix(NAME, 0)
    workers = []
    for pid in (4021, 4022, 1977, 1978):
        workers.append(Worker(client, NAME, EXACT))
        client.hset(f"{prefix}worker:{workers[-1].id}", "pid", pid)
    for host in HOSTS:
        for n in range(draw.randrange(40, 460)):
            url = f"https://{host}/book/{n}"
            entry = SeedReader().read(url).entry
            workers[0].enqueue(url, slot=host, priority=n % 2, entry=entry)
    while workers[0].waiting():
        workers[0].exchange(0)
    for worker in workers:
        worker.exchange(11, slot_limit=2)
    for number, count in {"created": 18_204, "finished": 18_204, "pages": 18_204, "items": 16_377,
                          "duplicates": 41_880, "errors": 61}.items():  # fmt: skip
        client.hincrby(f"{prefix}counts", number, count)
    session = workers[1].sessions[0]
    for host, status in ((HOSTS[3], 503), (HOSTS[8], 429)):
        session.outgoing.download_results.append(DownloadResult(host, status, 0.0))
    for detail, error, status in DEAD:
        lease, _ = workers[1].holding.popitem()
        session.finish(Finish(lease, "dead", "download", detail, error=error, status=status))
    workers[1].exchange(0)
    frontier.pause(HOSTS[5])
    frontier.limit(HOSTS[1], rate="30/m")
    frontier.limit(HOSTS[7], delay=2.5, concurrency=2)
    run = frontier.status()["run"]
    client.delete(f"{prefix}series:10", f"{prefix}marks")
    client.rpush(f"{prefix}series:10", *samples(run))
    began = int((time.time() - 19 * 60) * 1e6)
    client.hset(f"{prefix}meta", "began", began)
    for at, kind, what in ((began, "began", run), (began + 480_000_000, "release", "2.4.1")):
        client.rpush(f"{prefix}marks", msgspec.msgpack.encode([at, kind, workers[0].id, what]))
    return workers


def samples(run: str, *, minutes: int = 20) -> list[bytes]:
    """The past of the run, as exchanges keep it: samples, each 10 s, for charts to show."""
    now = int(time.time()) // 10 * 10
    found = []
    pages = 0.0
    for n in range(6 * minutes):
        pages += 150 + 60 * math.sin(n / 9) + 25 * math.sin(n * 1.7)
        done, at = int(pages), now - 10 * (6 * minutes - n)
        counts = (
            int(done * 0.78) + 9_000, done, done // 150, 0, done * 2, done // 70, 0, 0,
            done, int(done * 0.9), done // 90,
        )  # fmt: skip
        gauges = (60 + n % 40, 44 + n % 5, 4)
        found.append(msgspec.msgpack.encode([at, run, *counts, *gauges]))
    return found
