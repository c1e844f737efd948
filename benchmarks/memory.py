"""Memory: bytes of a request that is queued or leased, and of a URL that has been seen."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from scrapy import Request

from benchmarks.common import Result, Target
from benchmarks.filters import Filter, backends, used_memory
from benchmarks.load import Books, Clients, join
from benchmarks.peer_queue import url_in_order
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, MAX_OPERATIONS, ShardSession
from scrapy_redisq.serialization.serializer import Serializer
from tests.harness.servers import RedisServer, any_server

COLUMNS = ["what", "how many", "bytes each"]

QUEUED = 115  # bytes, goals
COMPRESSED = 25
EXACT = 10
BLOOM = 5
BLOOM_GROWING = 9

ERROR_RATE = 1e-6
DESIGNED = "as designed"
TWICE, MOST_GROWN = GROWN = ("at twice that", "most to 3 times")
COMPRESSED_ROW = "  list-compress-depth 1"


@dataclass(frozen=True)
class Size:
    """How much is weighed. ``seen``: sizes of dupefilters; ``looks``: at their memory between the
    designed size and three times of it; ``holders``: workers that hold 100 requests each."""

    requests: int
    holders: int
    slots: int
    seen: tuple[int, ...]
    looks: int
    peer_requests: int


FULL = Size(300_000, 100, 20_000, (1_000_000, 10_000_000), 20, 50_000)
QUICK = Size(1_000, 2, 500, (2_000,), 2, 0)

WORDS = re.findall(
    r"\w+",
    """amber anchor apple autumn basket beacon birch bridge candle canyon cedar cherry cloud copper
    coral cotton crystal dawn delta desert ember falcon fern forest garden ginger glacier harbor
    hazel honey indigo island ivory jasmine juniper lagoon lantern lemon linen maple marble meadow
    mint morning nectar oak ocean olive orchid pearl pepper pine plum prairie quartz raven river
    saffron sage silver spruce summit thunder tulip valley velvet violet walnut willow winter""",
)


def url_of_words(number: int) -> str:
    """77 bytes, as titles in a URL: words at random."""
    chance = random.Random(number)
    text = "-".join(chance.choice(WORDS) for _ in range(8))
    return f"https://www.shop{number % 10}.example/books/{number:07d}/{text}"[:72] + ".html"


def meta_of_depth(number: int) -> dict[str, Any]:
    """What Scrapy itself leaves in meta."""
    return {"depth": 4}


def meta_of_fields(number: int) -> dict[str, Any]:
    """Six fields, as a spider hands on what a list of products said."""
    chance = random.Random(number)
    return {
        "depth": 4,
        "category": chance.choice(WORDS),
        "title": f"The {chance.choice(WORDS)} {chance.choice(WORDS)}",
        "price": round(chance.uniform(1, 100), 2),
        "page": chance.randrange(1, 60),
        "listed_by": f"/list/{chance.choice(WORDS)}?page={chance.randrange(60)}",
    }


@dataclass(frozen=True)
class Content:
    """A kind of request. All have a callback."""

    name: str
    url: Callable[[int], str]
    meta: Callable[[int], dict[str, Any]]

    def entries(self, number: int) -> Iterator[bytes]:
        """So many as entries of the frontier."""
        spider = Books()
        serializer = Serializer(spider, max_bytes=1_000_000)
        for i in range(number):
            request = Request(self.url(i), callback=spider.parse_item, meta=self.meta(i))
            yield serializer.dumps(request)

    def lines(self, number: int) -> Iterator[str]:
        """So many as lines of JSON, for the peers."""
        for i in range(number):
            yield json.dumps({"url": self.url(i), "meta": self.meta(i)}) + "\n"


CONTENTS = [
    Content("numbered URL, depth", url_in_order, meta_of_depth),
    Content("URL of words, depth", url_of_words, meta_of_depth),
    Content("URL of words, 6 fields of meta", url_of_words, meta_of_fields),
]


class Measured:
    """A frontier on a server of its own, whose memory is what was not there before."""

    def __init__(self, depth: int = 0) -> None:
        self.server = RedisServer(any_server("redis-7"), "--list-compress-depth", str(depth))
        self.client: redis.Redis = self.server.client()
        self.member = self.worker(0)
        # What is there whatever is queued: scripts, counters.
        self.push([b"first"], slots=1)
        self.finish_all()
        self.before = self.used()

    def worker(self, number: int) -> ShardSession:
        """One more worker."""
        return join(self.client, f"worker-{number}", "exact")[0]

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def used(self) -> int:
        """Bytes in use without the buffers of the connection, which is closed for it."""
        self.client.close()
        return used_memory(self.server)

    def push(self, entries: Iterable[bytes], slots: int) -> None:
        """Enqueue; without fingerprints, for the dupefilter is weighed by itself."""
        for number, entry in enumerate(entries):
            self.member.add(Enqueue(f"shop{number % slots}", 0, entry, None))
            if len(self.member.unsent) == MAX_OPERATIONS:
                self.exchange(self.member)
        self.exchange(self.member)

    def exchange(self, member: ShardSession, want: int = 0) -> list[Lease]:
        """-> what was claimed."""
        return member.received(execute(self.client, member.call(want=want))).leases

    def finish_all(self) -> None:
        """Claim and finish until nothing is left."""
        while leases := self.exchange(self.member, want=MAX_CLAIMS):
            for lease in leases:
                self.member.add(Finish(lease.id, "done"))


def queued(content: Content, number: int, depth: int) -> float:
    """Bytes of a queued request, entry and all that is kept with it."""
    measured = Measured(depth)
    try:
        measured.push(content.entries(number), slots=10)
        return (measured.used() - measured.before) / number
    finally:
        measured.close()


def leased(content: Content, workers: int) -> float:
    """Bytes of a request that one of ``workers`` holds, 100 each, the worker itself included."""
    measured = Measured()
    try:
        measured.push(content.entries(workers * MAX_CLAIMS), slots=10)
        for number in range(1, workers + 1):
            claimed = measured.exchange(measured.worker(number), want=MAX_CLAIMS)
            assert len(claimed) == MAX_CLAIMS
        return (measured.used() - measured.before) / (workers * MAX_CLAIMS)
    finally:
        measured.close()


def idle_slot(slots: int) -> float:
    """Bytes that remain of a slot when its only request has been finished."""
    measured = Measured()
    try:
        measured.push(CONTENTS[0].entries(slots), slots)
        measured.finish_all()
        return (measured.used() - measured.before) / slots
    finally:
        measured.close()


def of_peer(content: Content, number: int, *, seen: bool) -> float:
    """Bytes of a request in scrapy-redis' queue, or of a URL in its dupefilter."""
    server = RedisServer(any_server("redis-7"))
    try:
        before = used_memory(server)
        with tempfile.TemporaryDirectory() as folder, Clients(1, peer=True) as peer:
            file = Path(folder) / "requests"
            with file.open("w", encoding="utf-8") as lines:
                lines.writelines(content.lines(number))
            peer.run(1, job="fill", port=server.port, file=str(file), seen=seen)
        return (used_memory(server) - before) / number
    finally:
        server.close()


def seen_by_set(number: int) -> float:
    """Bytes of a URL in a set of hexadecimal SHA-1, as scrapy-redis' dupefilter keeps it."""
    server = RedisServer(any_server("redis-7"))
    try:
        before = used_memory(server)
        with redis.Redis.from_url(server.unix_url) as client:
            for first in range(0, number, 1000):
                urls = range(first, min(first + 1000, number))
                client.sadd("seen", *(hashlib.sha1(b"%d" % url).hexdigest() for url in urls))
        return (used_memory(server) - before) / number
    finally:
        server.close()


def seen(backend: str, number: int, steps: int) -> dict[str, float]:
    """Bytes of a URL at the designed size and, with ``steps``, past it, by what it is called."""
    one = Filter(backend, ERROR_RATE, number)
    try:
        one.grow_to(number)
        found = {DESIGNED: one.bytes_each()}
        if steps and backend != "exact":
            # Just past it a second layer may have been made.
            looks = [number + number // 200]
            looks += [number + 2 * number * step // steps for step in range(1, steps + 1)]
            taken = {}
            for size in looks:
                one.grow_to(size)
                taken[size] = one.bytes_each()
            found[TWICE] = taken[2 * number]
            found[MOST_GROWN] = max(taken.values())
        return found
    finally:
        one.close()


def run(*, quick: bool) -> Result:
    """Weigh everything, two at a time: times play no part here."""
    size = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2) as pool:
        # The long ones first.
        filters = {
            (backend, number): pool.submit(
                seen, backend, number, size.looks if number == size.seen[0] else 0
            )
            for number in reversed(size.seen)
            for backend in backends()
        }
        sets = {number: pool.submit(seen_by_set, number) for number in reversed(size.seen)}
        requests, held, of_peers = size.requests, size.holders * MAX_CLAIMS, size.peer_requests
        weighed: list[tuple[str, int, Future[float]]] = []
        for content in CONTENTS:
            plain, compressed = (pool.submit(queued, content, requests, n) for n in (0, 1))
            weighed.append((f"queued: {content.name}", requests, plain))
            weighed.append((COMPRESSED_ROW, requests, compressed))
            weighed.append(("  leased", held, pool.submit(leased, content, size.holders)))
            if of_peers:
                peer = pool.submit(of_peer, content, of_peers, seen=False)
                weighed.append(("  scrapy-redis, queued", of_peers, peer))
        idle = pool.submit(idle_slot, size.slots)
        weighed.append(("slot that was used and is empty", size.slots, idle))
        peers_seen = pool.submit(of_peer, CONTENTS[0], of_peers, seen=True) if of_peers else None

        def add(what: str, number: int, value: float) -> None:
            rows.append({"what": what, "how many": number, "bytes each": value})

        for what, number, future in weighed:
            add(what, number, future.result())
        for number in size.seen:
            for backend in backends():
                for when, value in filters[backend, number].result().items():
                    add(f"seen, {backend}: {number:,}, {when}", number, value)
            add(f"seen, scrapy-redis: {number:,}, its set", number, sets[number].result())
        if peers_seen:
            add(f"seen, scrapy-redis: {of_peers:,}", of_peers, peers_seen.result())
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
    """The goals, each for the rows that begin and end so."""
    goals: list[tuple[str, float, str, str | tuple[str, ...]]] = [
        ("queued request", QUEUED, f"queued: {CONTENTS[0].name}", ""),
        ("queued request, list-compress-depth 1", COMPRESSED, COMPRESSED_ROW, ""),
        ("seen URL, exact", EXACT, "seen, exact", DESIGNED),
    ]
    for name in backends()[1:]:
        goals.append((f"seen URL, {name}, designed size", BLOOM, f"seen, {name}", DESIGNED))
        goals.append((f"seen URL, {name}, growing", BLOOM_GROWING, f"seen, {name}", GROWN))
    for what, most, begins, ends in goals:
        values = [
            row["bytes each"]
            for row in rows
            if row["what"].startswith(begins) and row["what"].endswith(ends)
        ]
        if what.startswith("queued"):
            values = values[:1]  # of the first content
        measured = ", ".join(f"{value:.3g} B" for value in values)
        yield Target(what, f"≤ {most:g} B", measured, max(values) <= most)
