"""Clients that do the same job at the same time; by itself scrapy-redis' own queue and dupefilter.

By path, not as a part of the package: nothing of it is installed in the environment of the peers.
A client reads one job a line from its standard input, answers ``ready``, waits for a line more,
and answers with what came out, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Job = Callable[[dict[str, Any]], Callable[[], int]]
"""Prepares what a line asks for; -> a step of the work, which says how many requests it was."""


def serve(jobs: Mapping[str, Job]) -> None:
    """Do the jobs that standard input names, each for some seconds, until it ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        step = jobs[asked["job"]](asked)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        done, seconds = 0, 0.0
        while not done or seconds < asked["seconds"]:
            done += step()
            seconds = time.perf_counter() - began
        print(json.dumps({"requests": done, "seconds": seconds}), flush=True)


def url_in_order(number: int) -> str:
    """77 bytes, as the pages of a catalogue: only a number differs."""
    return (
        f"https://www.shop{number % 10}.example/catalogue/garden/items/page-{number:07d}.html"
        "?order=name"
    )


def main() -> None:
    """Serve the one job of scrapy-redis."""
    import redis  # noqa: PLC0415
    from scrapy import Request, Spider  # noqa: PLC0415
    from scrapy_redis.dupefilter import RFPDupeFilter  # noqa: PLC0415
    from scrapy_redis.queue import PriorityQueue  # noqa: PLC0415

    class Books(Spider):
        name = "books"

        def parse_item(self, response: Any) -> None:
            """The callback of all requests."""

    class Entry(bytes):
        """A pickled request, with what a queue asks a request for."""

        priority = 0

    def work(asked: dict[str, Any]) -> Callable[[], int]:
        """Filter, push and pop, one request after the other, as its scheduler does."""
        server, spider = redis.Redis(port=asked["port"]), Books()
        queue = PriorityQueue(server, spider, "books:requests")
        seen = RFPDupeFilter(server, "books:dupefilter")
        numbers = itertools.count(asked["client"] * 1_000_000)

        def request() -> Request:
            url = url_in_order(next(numbers))
            return Request(url, callback=spider.parse_item, meta={"depth": 4})

        pickled = queue._encode_request(request())
        if not asked["whole"]:
            # Without Scrapy's requests: what is pushed is an entry already.
            queue._encode_request = queue._decode_request = lambda entry: entry
            seen.request_fingerprint = lambda entry: os.urandom(20).hex()
        server.ping()

        def one() -> int:
            # Entries unlike each other, or the sorted set would keep one of them.
            item = request() if asked["whole"] else Entry(b"%s%d" % (pickled, next(numbers)))
            if not seen.request_seen(item):
                queue.push(item)
            return int(queue.pop() is not None)

        return one

    serve({"work": work})


if __name__ == "__main__":
    main()
