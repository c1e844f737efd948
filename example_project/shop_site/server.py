"""The bookshop's web server, with a log of every request.

``python -m shop_site.server --port 8000`` serves it until Ctrl-C, for a look with a browser or for
crawls by hand. Beside the shop there are ``/__log`` (JSON: one ``[time, path, status, agent]`` per
request, with the time in seconds since the epoch, and the status 0 until it is answered) and
``/__stats``, which are not logged themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections import Counter

from lab.site import Answer, Hit, Site
from shop_site.catalogue import Catalogue
from shop_site.html import render


class ShopServer(Site):
    """Serves a `Catalogue` from a thread of its own, as a context manager.

    ``delay`` seconds pass before each answer, as on a real site; requests are logged in ``hits``
    when they arrive, so that one whose client is killed meanwhile counts. ``port`` 0 takes a free
    one. OSError if the port is taken.
    """

    def __init__(self, shop: Catalogue, *, port: int = 0, delay: float = 0.0) -> None:
        super().__init__(self._page, port=port)
        self.shop = shop
        self.delay = delay

    def answer(self, hit: Hit) -> Answer:
        hit.path = hit.path.partition("?")[0]
        if hit.path in {"/__log", "/__stats"}:
            self.hits.remove(hit)
            told = self.log() if hit.path == "/__log" else self.stats()
            return Answer(json.dumps(told), content_type="application/json")
        if hit.method in {"GET", "HEAD"}:
            answer = self._page(hit.path)
        else:
            answer = Answer(status=405, headers={"Allow": "GET, HEAD"})
        answer.delay = self.delay
        return answer

    def _page(self, path: str) -> Answer:
        if path in self.shop.pages:
            return Answer(render(self.shop, path))
        if target := self.shop.redirects.get(path):
            return Answer(status=301, headers={"Location": target})
        if path == "/robots.txt":
            return Answer("User-agent: *\nAllow: /\n", content_type="text/plain")
        return Answer("<!doctype html><title>Not found</title><h1>Not found</h1>", 404)

    def log(self) -> list[tuple[float, str, int, str]]:
        """Time, path, status and agent of each request so far."""
        epoch = time.time() - time.monotonic()
        return [(epoch + hit.at, hit.path, hit.status, hit.agent) for hit in self.hits]

    def stats(self) -> dict[str, int]:
        """Counts of the log so far: requests, distinct pages, and paths asked for repeatedly."""
        times = Counter(hit.path for hit in self.hits)
        return {
            "requests": len(self.hits),
            "pages": sum(path in self.shop.pages for path in times),
            "of_pages": len(self.shop.pages),
            "repeated": sum(count > 1 for count in times.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the example bookshop until Ctrl-C.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: a free one")
    parser.add_argument("--pages", type=int, default=2000, help="size of the shop")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args()
    shop = Catalogue(options.pages)
    with ShopServer(shop, port=options.port, delay=options.delay) as server:
        print(f"{len(shop.pages):,} pages at {server.url}/ (Ctrl-C ends)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        print(f"\n{json.dumps(server.stats())}")


if __name__ == "__main__":
    main()
