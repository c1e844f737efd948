"""``make screenshots``: the pictures of docs/operate/dashboard.md, of a crawl that is made up."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from lab.servers import RedisServer, any_server
from scrapy_redisq.control import Frontier
from tests.dashboard.browser import chromium
from tests.dashboard.made_up import make_up
from tests.dashboard.served import Served
from tests.harness.worker import NAME

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = {"crawl": f"crawl/{NAME}", "hosts": f"crawl/{NAME}/hosts"}


def main() -> None:
    with (
        RedisServer(any_server()) as server,
        Frontier.from_url(server.url, NAME) as frontier,
        closing(Served(server.url)) as served,
        chromium() as browser,
    ):
        make_up(frontier, frontier.client)
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


if __name__ == "__main__":
    main()
