"""scrapy-redis' own queue and dupefilter without a crawl; runs in the environment of the peers.

By path, not as a part of the package: nothing of it is installed there. A client reads one job a
line from its standard input, answers ``ready``, waits for a line more, and answers with what came
out, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__)

Job = Callable[[dict[str, Any]], Callable[[], dict[str, float]]]
"""Prepares what a line asks for and returns what is to be timed."""


def serve(jobs: Mapping[str, Job]) -> None:
    """Do the jobs that standard input names, until it ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        timed = jobs[asked["job"]](asked)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(timed()), flush=True)


def url_in_order(number: int) -> str:
    """77 bytes, as the pages of a catalogue: only a number differs."""
    return (
        f"https://www.shop{number % 10}.example/catalogue/garden/items/page-{number:07d}.html"
        "?order=name"
    )


def main() -> None:
    """Serve jobs with what scrapy-redis brings."""
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

    class QueueOfEntries(PriorityQueue):  # type: ignore[misc]
        """Its queue without Scrapy's requests: what is pushed is an entry already."""

        def _encode_request(self, request: bytes) -> bytes:
            return request

        def _decode_request(self, encoded_request: bytes) -> bytes:
            return encoded_request

    class DupeFilterOfFingerprints(RFPDupeFilter):  # type: ignore[misc]
        """Its dupefilter without Scrapy's requests."""

        def request_fingerprint(self, request: bytes) -> str:
            return os.urandom(20).hex()

    spider = Books()

    def work(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
        """Filter, push and pop, one request after the other, as its scheduler does."""
        server = redis.Redis(port=asked["port"])
        whole = asked["whole"]
        queue = (PriorityQueue if whole else QueueOfEntries)(server, spider, "books:requests")
        seen = (RFPDupeFilter if whole else DupeFilterOfFingerprints)(server, "books:dupefilter")
        request = Request(url_in_order(1), callback=spider.parse_item, meta={"depth": 4})
        pickled = PriorityQueue(server, spider, "")._encode_request(request)
        server.ping()

        def one(number: int) -> Any:
            if whole:
                return Request(url_in_order(number), callback=spider.parse_item, meta={"depth": 4})
            # Unlike each other, or the sorted set would keep one of them.
            return Entry(b"%s%d" % (pickled, number))

        def timed() -> dict[str, float]:
            began = time.perf_counter()
            done, number = 0, asked["client"] * 1_000_000
            while not done or time.perf_counter() - began < asked["seconds"]:
                item = one(number)
                number += 1
                if not seen.request_seen(item):
                    queue.push(item)
                done += queue.pop() is not None
            seconds = time.perf_counter() - began
            server.close()
            return {"requests": done, "seconds": seconds}

        return timed

    def fill(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
        """Push the requests of a file of JSON lines, or record them as seen."""
        server = redis.Redis(port=asked["port"])
        queue = PriorityQueue(server, spider, "books:requests")
        dupefilter = RFPDupeFilter(server, "books:dupefilter")

        def timed() -> dict[str, float]:
            number = 0
            with Path(asked["file"]).open(encoding="utf-8") as lines:
                for line in lines:
                    fields = json.loads(line)
                    request = Request(
                        fields["url"], callback=spider.parse_item, meta=fields["meta"]
                    )
                    if asked["seen"]:
                        dupefilter.request_seen(request)
                    else:
                        queue.push(request)
                    number += 1
            server.close()
            return {"requests": number}

        return timed

    serve({"work": work, "fill": fill})


if __name__ == "__main__":
    main()
