"""``make screenshots``: the pictures of docs/dashboard.md, of a crawl that is made up."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import msgspec

from lab.servers import RedisServer, any_server
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.seeds import SeedReader
from scrapy_redisq.frontier.operations import DownloadResult
from tests.dashboard.browser import chromium, remember
from tests.dashboard.served import Served
from tests.harness.worker import EXACT, Worker

DOCS = Path(__file__).parents[2] / "docs"
NAME = "books"
HOSTS = [f"{kind}.{name}.example" for kind in ("www", "shop") for name in (
    "albatros", "bookbinder", "codex", "folio", "gutenberg", "incunable", "kiosk", "lexis",
    "marginalia", "octavo",
)]  # fmt: skip
PICTURES = {"crawl": f"crawl/{NAME}", "hosts": f"crawl/{NAME}/hosts"}


def made_up(frontier: Frontier, client: Any) -> None:
    """Twenty hosts, four workers, limits, failures, and twenty minutes of past."""
    draw = random.Random(4)
    workers = []
    for pid in (4021, 4022, 1977, 1978):
        workers.append(Worker(client, NAME, EXACT))
        client.hset(f"redisq:{{{NAME}:0}}:worker:{workers[-1].id}", "pid", pid)
    for host in HOSTS:
        for n in range(draw.randrange(40, 460)):
            url = f"https://{host}/book/{n}"
            entry = SeedReader().read(url).entry
            workers[0].enqueue(url, slot=host, priority=n % 2, entry=entry)
    while workers[0].waiting():
        workers[0].exchange(0)
    for worker in workers:
        worker.exchange(11, slot_limit=2)
    counts = f"redisq:{{{NAME}:0}}:counts"
    for count, number in {"created": 18_204, "finished": 18_204, "pages": 18_204, "items": 16_377,
                          "duplicates": 41_880, "errors": 61}.items():  # fmt: skip
        client.hincrby(counts, count, number)
    for host, status in ((HOSTS[3], 503), (HOSTS[8], 429)):
        workers[1].sessions[0].download_results.append(DownloadResult(host, status, 0.0))
    workers[1].exchange(0)
    frontier.pause(HOSTS[5])
    frontier.limit(HOSTS[1], rate="30/m")
    frontier.limit(HOSTS[7], delay=2.5, concurrency=2)
    remember(client, NAME, frontier.status()["run"])
    began = int((time.time() - 19 * 60) * 1e6)
    client.hset(f"redisq:{{{NAME}:0}}:meta", "began", began)
    marks = [(began, "began", frontier.status()["run"]), (began + 480_000_000, "release", "2.4.1")]
    client.delete(f"redisq:{{{NAME}:0}}:marks")
    for at, kind, what in marks:
        mark = msgspec.msgpack.encode([at, kind, workers[0].id, what])
        client.rpush(f"redisq:{{{NAME}:0}}:marks", mark)


def main() -> None:
    server = RedisServer(any_server())
    with (
        chromium() as browser,
        server.client() as client,
        Frontier.from_url(server.url, NAME) as frontier,
    ):
        made_up(frontier, client)
        served = Served(server.url)
        for name, path in PICTURES.items():
            page = browser.new_page(
                viewport={"width": 1280, "height": 860}, device_scale_factor=1.5
            )
            page.goto(served.url)
            page.wait_for_selector(".live.up")
            page.goto(f"http://127.0.0.1:{served.port}/#/{path}")
            page.wait_for_selector(".live.up")
            page.wait_for_timeout(1_500)
            page.screenshot(path=DOCS / f"dashboard-{name}.png")
            page.close()
        served.close()
    server.close()


if __name__ == "__main__":
    main()
