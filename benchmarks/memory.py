"""Memory: bytes of a request that is queued, and of a URL that has been seen."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from scrapy import Request, Spider

from benchmarks.common import Result, Target
from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Enqueue, Finish
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import SeenFilter
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, ShardSession
from scrapy_redisq.frontier.terms import Demand, Terms
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.server.connection import open_server
from scrapy_redisq.server.embedded.binaries import bloom_module

COLUMNS = ["what", "how many", "bytes each"]

COMPRESSED_ROW = "  list-compress-depth 1"
DESIGNED = "as designed"
GROWN = "most to 3 times"

SEEN = (1_000_000, 10_000_000)
"""Sizes of dupefilters."""

ERROR_RATE = 1e-6

BACKENDS = ["exact", "bitmap", *(["redisbloom"] if bloom_module() else [])]
"""The dupefilters that can run on this machine."""

SETTLED = 0.3
"""Seconds without change after which memory counts as settled: Redis cleans up ten times in one."""

WORDS = re.findall(
    r"\w+",
    """amber anchor apple autumn basket beacon birch bridge candle canyon cedar cherry cloud copper
    coral cotton crystal dawn delta desert ember falcon fern forest garden ginger glacier harbor
    hazel honey indigo island ivory jasmine juniper lagoon lantern lemon linen maple marble meadow
    mint morning nectar oak ocean olive orchid pearl pepper pine plum prairie quartz raven river
    saffron sage silver spruce summit thunder tulip valley velvet violet walnut willow winter""",
)

# Contents of requests


class Books(Spider):
    """The spider of the requests."""

    name = "books"

    def parse_item(self, response: Any) -> None:
        """Their callback."""


def url_in_order(number: int) -> str:
    """77 bytes, as the pages of a catalogue: only a number differs."""
    return (
        f"https://www.shop{number % 10}.example/catalogue/garden/items/page-{number:07d}.html"
        "?order=name"
    )


def url_of_words(number: int) -> str:
    """77 bytes, as titles in a URL: words at random."""
    chance = random.Random(number)
    text = "-".join(chance.choice(WORDS) for _ in range(8))
    return f"https://www.shop{number % 10}.example/books/{number:07d}/{text}"[:72] + ".html"


def fields(number: int) -> dict[str, Any]:
    """Six fields of meta, as a spider hands on what a list of products said."""
    chance = random.Random(number)
    return {
        "category": chance.choice(WORDS),
        "title": f"The {chance.choice(WORDS)} {chance.choice(WORDS)}",
        "price": round(chance.uniform(1, 100), 2),
        "page": chance.randrange(1, 60),
        "listed_by": f"/list/{chance.choice(WORDS)}?page={chance.randrange(60)}",
    }


CONTENTS: dict[str, tuple[Callable[[int], str], Callable[[int], dict[str, Any]]]] = {
    "numbered URL, depth": (url_in_order, lambda number: {}),
    "URL of words, depth": (url_of_words, lambda number: {}),
    "URL of words, 6 fields of meta": (url_of_words, fields),
}
"""URL and meta of a request by its number, beside the depth that Scrapy itself leaves in meta."""
USUAL, *_ = CONTENTS
SPIDER = Books()


def requests(content: str, number: int) -> Iterator[Request]:
    url, meta = CONTENTS[content]
    for i in range(number):
        yield Request(url(i), callback=SPIDER.parse_item, meta={"depth": 4, **meta(i)})


# Bytes of each


class Measured(RedisServer):
    """A server with a frontier, and a dupefilter beside it that stands alone; its memory is what
    was not there before."""

    def __init__(self, depth: int = 0, backend: str = "exact", capacity: int = 0) -> None:
        bloom = backend == "redisbloom"
        super().__init__(any_server("redis-7"), "--list-compress-depth", str(depth), bloom=bloom)
        self.redis = self.client()
        self._worker = self._join()
        # What is there whatever is queued or seen: scripts, counters.
        self.push([b"first"])
        self._exchange(want=1)
        self._exchange()
        self._see("before", SeenFilter(backend, ERROR_RATE, 1000), 1)
        self._filter = SeenFilter(backend, ERROR_RATE, capacity)
        self._seen = 0
        self._before = self._used()

    def _join(self) -> ShardSession:
        """A worker that begins the run."""
        config = FrontierConfig(dupefilter="exact", backend="exact")
        registration = calls.Registration("worker", 600.0)
        crawl = calls.crawl("run1")
        joined = execute(self.redis, calls.join(SPIDER.name, 0, crawl, config, registration))
        terms = Terms(SPIDER.name, config, 600, 5, 100, 0)
        run_session = RunSession(None, terms, open_server(self.url))  # type: ignore[arg-type]
        return ShardSession(run_session, 0, joined, "worker")

    def taken(self) -> int:
        """Bytes that were not there before."""
        return self._used() - self._before

    def _used(self) -> int:
        """Bytes allocated once no other client is left, the own connection is closed, and Redis
        has freed and shrunk what it can."""
        self.redis.close()
        lowest, since = sys.maxsize, math.inf
        with self.client() as client:
            client.slowlog_reset()  # on a busy machine it takes as much as a small filter
            while time.monotonic() - since < SETTLED:
                memory = client.info("memory")
                others = client.info("clients")["connected_clients"] - 1
                if others or memory["lazyfree_pending_objects"] or memory["used_memory"] < lowest:
                    lowest, since = memory["used_memory"], time.monotonic()
                time.sleep(0.02)
        return lowest

    def see(self, number: int) -> None:
        """Let the filter record fingerprints that nobody has seen, until so many were."""
        while self._seen < number:
            batch = min(MAX_OPERATIONS, number - self._seen)
            self._see("measured", self._filter, batch)
            self._seen += batch

    def _see(self, generation: str, seen: SeenFilter, number: int) -> None:
        fingerprints = [os.urandom(20) for _ in range(number)]
        execute(self.redis, calls.record_seen(SPIDER.name, generation, seen, fingerprints))

    def push(self, entries: Iterable[bytes]) -> None:
        """Enqueue into ten slots; without fingerprints, for the dupefilter is weighed by itself."""
        for number, entry in enumerate(entries):
            self._worker.add(Enqueue(f"shop{number % 10}", 0, entry, None))
            if len(self._worker) == MAX_OPERATIONS:
                self._exchange()
        self._exchange()

    def _exchange(self, want: int = 0) -> None:
        """What is claimed is finished with the next one."""
        demand = Demand(True, want, MAX_CLAIMS, {}, most=MAX_CLAIMS)
        call = self._worker.call(want, demand)
        for lease in self._worker.received(execute(self.redis, call)).leases:
            self._worker.add(Finish(lease.id, "done"))


def queued(number: int, content: str, depth: int) -> float:
    """Bytes of a queued request, entry and all that is kept with it."""
    with Measured(depth) as measured:
        serializer = Serializer(SPIDER, max_bytes=1_000_000)
        measured.push(map(serializer.dumps, requests(content, number)))
        return measured.taken() / number


def queued_by_peer(number: int, content: str) -> float:
    """Bytes of a request in a sorted set, pickled, as scrapy-redis' queue keeps it."""
    with Measured() as measured:
        for request in requests(content, number):
            pickled = pickle.dumps(request.to_dict(spider=SPIDER), protocol=-1)
            measured.redis.zadd("books:requests", {pickled: 0})
        return measured.taken() / number


def seen_by_peer(number: int) -> float:
    """Bytes of a URL in a set of hexadecimal SHA-1, as scrapy-redis' dupefilter keeps it."""
    with Measured() as measured:
        for first in range(0, number, 1000):
            urls = range(first, min(first + 1000, number))
            measured.redis.sadd("seen", *(hashlib.sha1(b"%d" % url).hexdigest() for url in urls))
        return measured.taken() / number


def seen(number: int, backend: str, sizes: Sequence[int]) -> float:
    """The most bytes of a URL in a filter designed for ``number``, of when it has these sizes."""
    with Measured(backend=backend, capacity=number) as measured:
        most = 0.0
        for size in sizes:
            measured.see(size)
            most = max(most, measured.taken() / size)
        return most


def run(*, quick: bool) -> Result:
    """Weigh everything, two at a time: times play no part here."""
    number, of_peer = (1000, 100) if quick else (300_000, 50_000)
    sizes, steps = ((2_000,), 2) if quick else (SEEN, 20)
    # Just past the designed size a second layer may have been made.
    past = [sizes[0] + sizes[0] // 200]
    past += [sizes[0] + 2 * sizes[0] * step // steps for step in range(1, steps + 1)]
    weighed: list[tuple[str, int, Future[float]]] = []
    with ProcessPoolExecutor(2) as pool:

        def weigh(what: str, many: int, weight: Callable[..., float], *given: Any) -> None:
            weighed.append((what, many, pool.submit(weight, many, *given)))

        for content in CONTENTS:
            weigh(f"queued: {content}", number, queued, content, 0)
            weigh(COMPRESSED_ROW, number, queued, content, 1)
            weigh("  scrapy-redis, queued", of_peer, queued_by_peer, content)
        for size in sizes:
            for each in BACKENDS:
                weigh(f"seen, {each}: {size:,}, {DESIGNED}", size, seen, each, [size])
            weigh(f"seen, scrapy-redis: {size:,}, its set", size, seen_by_peer)
        for each in BACKENDS[1:]:
            weigh(f"seen, {each}: {sizes[0]:,}, {GROWN}", sizes[0], seen, each, past)
        rows = [
            dict(zip(COLUMNS, (what, many, future.result()), strict=True))
            for what, many, future in weighed
        ]
    return Result(
        "memory",
        "Bytes in Redis",
        COLUMNS,
        rows,
        targets=list(_targets(rows)),
        notes=[
            "URLs of 77 bytes, a callback. numbered: only a number differs from one URL to the "
            "next; words: two to four words of 76 at random.",
            f"Bloom filters: error rate {ERROR_RATE:g}; past the designed size they are looked at "
            "in steps of a tenth of it.",
        ],
    )


def _targets(rows: list[dict[str, Any]]) -> Iterator[Target]:
    """The goals in bytes, each for the rows that begin and end so."""
    goals = [
        ("queued request", 115, f"queued: {USUAL}", ""),
        ("queued request, list-compress-depth 1", 25, COMPRESSED_ROW, ""),
        ("seen URL, exact", 10, "seen, exact", DESIGNED),
    ]
    for name in BACKENDS[1:]:
        goals.append((f"seen URL, {name}, designed size", 5, f"seen, {name}", DESIGNED))
        goals.append((f"seen URL, {name}, growing", 9, f"seen, {name}", GROWN))
    for what, most, begins, ends in goals:
        values = [
            row["bytes each"]
            for row in rows
            if row["what"].startswith(begins) and row["what"].endswith(ends)
        ]
        if what.startswith("queued"):
            values = values[:1]  # of the first content
        measured = ", ".join(f"{value:.3g} B" for value in values)
        yield Target.at_most(what, max(values), most, shown=measured, unit=" B")
