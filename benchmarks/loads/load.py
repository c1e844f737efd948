"""Clients without Scrapy's engine: processes that push, claim and finish as fast as they can."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import redis
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from benchmarks.loads.bare import ENTRY_BYTES, bare, bare_redis_py
from benchmarks.loads.members import NAME, Books, join
from benchmarks.loads.peer_queue import serve, url_in_order
from scrapy_redisq.frontier import calls, runs
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Enqueue, Finish
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import seen_filter
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, ShardSession
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.server.connection import open_server

SLOTS = 10

FASTEST = 150_000
"""Requests a second that nothing here reaches: so many are prepared before the clock runs."""


def push_claim_finish(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Exchanges that each enqueue 100 requests, claim 100 and finish the 100 before.

    Entries and fingerprints are at hand; with ``whole``, they are made of Scrapy's requests and
    become requests again, as in a crawl.
    """
    client = redis.Redis(port=asked["port"])
    member, seen = join(client, f"worker-{asked['client']}", asked["backend"])
    spider = Books()
    serializer = Serializer(spider, max_bytes=1_000_000)
    fingerprinter = RequestFingerprinter.from_crawler(get_crawler(Books))
    numbers = itertools.count(asked["client"] * 1_000_000)

    def at_hand() -> Enqueue:
        """Entries unlike each other, or Lua would make one string for all of them."""
        number = next(numbers)
        entry = (b"%d" % number).ljust(ENTRY_BYTES, b"x")
        return Enqueue(f"shop{number % SLOTS}", 0, entry, seen.encode(os.urandom(20)))

    def made() -> Enqueue:
        number = next(numbers)
        request = Request(url_in_order(number), callback=spider.parse_item, meta={"depth": 4})
        fingerprint = seen.encode(fingerprinter.fingerprint(request))
        return Enqueue(f"shop{number % SLOTS}", 0, serializer.dumps(request), fingerprint)

    if asked["whole"]:
        source = iter(made, None)
    else:
        prepared = round(asked["seconds"] * FASTEST / asked["clients"])
        source = iter([at_hand() for _ in range(prepared)])

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        finished = finishing = 0
        while not finished or time.perf_counter() - began < asked["seconds"]:
            for enqueue in itertools.islice(source, MAX_CLAIMS):
                member.add(enqueue)
            reply = member.received(execute(client, member.call(want=MAX_CLAIMS)))
            finished += finishing
            for lease in reply.leases:
                if asked["whole"]:
                    serializer.loads(lease.entry)
                member.add(Finish(lease.id, "done"))
            finishing = len(reply.leases)
        seconds = time.perf_counter() - began
        client.close()
        return {"requests": finished, "seconds": seconds}

    return timed


def push_claim_finish_of_shards(asked: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """The same with the shards of a frontier in turn, on one server or on a cluster."""
    server = open_server(asked["url"])
    server.wait()
    client = server.client()
    config = FrontierConfig(dupefilter="exact", backend="exact", shards=asked["shards"]).laid_out(
        server.masters
    )
    worker = f"worker-{asked['client']}"
    newcomer = runs.Newcomer(calls.Registration(worker, 600.0), config)
    joined = runs.drive(functools.partial(execute, client), runs.join(NAME, newcomer))
    seen = seen_filter(joined.config)
    members = [
        ShardSession(NAME, shard, joined, worker, ttl=600, dead_max=100, seen=seen.parameters())
        for shard in config.shard_numbers(NAME)
    ]
    slots: dict[int, list[str]] = {member.shard: [] for member in members}
    for slot in (f"shop{number}" for number in itertools.count()):
        theirs = slots[config.shard_of(NAME, slot)]
        if len(theirs) < SLOTS:
            theirs.append(slot)
        elif all(len(some) == SLOTS for some in slots.values()):
            break
    numbers = itertools.count(asked["client"] * 1_000_000)

    def made(slot: str) -> Enqueue:
        entry = (b"%d" % next(numbers)).ljust(ENTRY_BYTES, b"x")
        return Enqueue(slot, 0, entry, seen.encode(os.urandom(20)))

    def exchange(member: ShardSession) -> int:
        """-> how many requests it finished."""
        for slot in itertools.islice(itertools.cycle(slots[member.shard]), MAX_CLAIMS):
            member.add(made(slot))
        finished = len(member.held)
        reply = member.received(execute(client, member.call(want=MAX_CLAIMS)))
        for lease in reply.leases:
            member.add(Finish(lease.id, "done"))
        return finished

    for member in members:
        exchange(member)

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        finished = 0
        # Each as often as the others.
        while not finished or time.perf_counter() - began < asked["seconds"]:
            finished += sum(map(exchange, members))
        seconds = time.perf_counter() - began
        server.close()
        return {"requests": finished, "seconds": seconds}

    return timed


if __name__ == "__main__":
    serve(
        {
            "frontier": push_claim_finish,
            "shards": push_claim_finish_of_shards,
            "bare": bare,
            "redis-py": bare_redis_py,
        }
    )
