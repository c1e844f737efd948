"""Clients without Scrapy's engine: processes that push, claim and finish as fast as they can."""

from __future__ import annotations

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
from benchmarks.loads.members import Books, join
from benchmarks.loads.peer_queue import serve, url_in_order
from scrapy_redisq.frontier.operations import Enqueue, Finish
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS
from scrapy_redisq.serialization.serializer import Serializer

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


if __name__ == "__main__":
    serve(
        {
            "frontier": push_claim_finish,
            "bare": bare,
            "redis-py": bare_redis_py,
        }
    )
