"""Memory: bytes of a request that is queued or leased, and of a URL that has been seen."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
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
SLOTS = 20_000
DESIGNED = "as designed"
PEAK_STEPS = 20
"""Looks at the memory between the designed size and three times of it."""

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
            if len(self.member.outbox) == MAX_OPERATIONS:
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


def seen(backend: str, number: int, growing: bool) -> dict[str, float]:
    """Bytes of a URL at the designed size and, if ``growing``, past it, by what it is called."""
    one = Filter(backend, ERROR_RATE, number)
    try:
        one.grow_to(number)
        found = {DESIGNED: one.bytes_each()}
        if growing:
            # Just past it a second layer may have been made.
            looks = [number + number // 200]
            looks += [number + 2 * number * step // PEAK_STEPS for step in range(1, PEAK_STEPS + 1)]
            taken = {}
            for size in looks:
                one.grow_to(size)
                taken[size] = one.bytes_each()
            found["at twice that"] = taken[2 * number]
            found["most to 3 times"] = max(taken.values())
        return found
    finally:
        one.close()


def run(*, quick: bool) -> Result:
    """Weigh everything, two at a time: times play no part here."""
    requests, sizes = (20_000, [200_000]) if quick else (300_000, [1_000_000, 10_000_000])
    peer_requests = 5000 if quick else 50_000
    with ProcessPoolExecutor(2) as pool:
        # The long ones first.
        filters = {
            (backend, size): pool.submit(
                seen, backend, size, backend != "exact" and size == sizes[0]
            )
            for size in reversed(sizes)
            for backend in backends()
        }
        sets = {size: pool.submit(seen_by_set, size) for size in reversed(sizes)}
        queues = {
            (content.name, depth): pool.submit(queued, content, requests, depth)
            for content in CONTENTS
            for depth in (0, 1)
        }
        leases = {
            content.name: pool.submit(leased, content, 20 if quick else 100) for content in CONTENTS
        }
        idle = pool.submit(idle_slot, SLOTS)
        peer = {
            content.name: pool.submit(of_peer, content, peer_requests, seen=False)
            for content in CONTENTS
        }
        peer_seen = pool.submit(of_peer, CONTENTS[0], peer_requests, seen=True)

        rows: list[dict[str, Any]] = []

        def add(what: str, number: int, value: float) -> None:
            rows.append({"what": what, "how many": number, "bytes each": value})

        for content in CONTENTS:
            name = content.name
            add(f"queued: {name}", requests, queues[name, 0].result())
            add("  list-compress-depth 1", requests, queues[name, 1].result())
            add("  leased", (20 if quick else 100) * MAX_CLAIMS, leases[name].result())
            add("  scrapy-redis, queued", peer_requests, peer[name].result())
        add("slot that was used and is empty", SLOTS, idle.result())
        for size in sizes:
            for backend in backends():
                for when, value in filters[backend, size].result().items():
                    add(f"seen, {backend}: {size:,}, {when}", size, value)
            add(f"seen, scrapy-redis: {size:,}, its set", size, sets[size].result())
        add(f"seen, scrapy-redis: {peer_requests:,}", peer_requests, peer_seen.result())
        weighed = {key: future.result() for key, future in filters.items()}
    plain, compressed = (queues[CONTENTS[0].name, depth].result() for depth in (0, 1))
    return Result(
        "memory",
        "Bytes in Redis",
        COLUMNS,
        rows,
        targets=[
            _target("queued request", QUEUED, [plain]),
            _target("queued request, list-compress-depth 1", COMPRESSED, [compressed]),
            _target(
                "seen URL, exact",
                EXACT,
                [weighed["exact", size][DESIGNED] for size in sizes],
            ),
            *_bloom_targets(weighed, sizes),
        ],
        notes=[
            "URLs of 77 bytes, a callback. numbered: only a number differs from one URL to the "
            "next; words: two to four words of 76 at random.",
            f"Bloom filters: error rate {ERROR_RATE:g}; past the designed size they are looked at "
            "in steps of a tenth of it.",
        ],
    )


def _target(what: str, most: float, values: list[float]) -> Target:
    measured = ", ".join(f"{value:.3g} B" for value in values)
    return Target(what, f"≤ {most:g} B", measured, max(values) <= most)


def _bloom_targets(
    weighed: dict[tuple[str, int], dict[str, float]], sizes: list[int]
) -> list[Target]:
    targets = []
    for backend in backends():
        if backend != "exact":
            designed = [weighed[backend, size][DESIGNED] for size in sizes]
            growing = list(weighed[backend, sizes[0]].values())[1:]
            targets.append(_target(f"seen URL, {backend}, designed size", BLOOM, designed))
            targets.append(_target(f"seen URL, {backend}, growing", BLOOM_GROWING, growing))
    return targets
