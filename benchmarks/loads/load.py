"""Workers of a frontier without Scrapy's engine; clients that work as fast as they can."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import redis
from scrapy import Request, Spider
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from benchmarks.loads.peer_queue import serve, url_in_order
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Enqueue, Finish
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import SeenFilter, seen_filter
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, ShardSession
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.serialization.serializer import Serializer

NAME = "books"

PIPELINE = 100
"""Requests that one pipeline carries."""

BARE_FASTEST, FASTEST = 600_000, 150_000
"""Requests a second that nothing here reaches: so many are prepared before the clock runs."""

ENTRY_BYTES = 105
SLOTS = 10


class Books(Spider):
    """The spider of the requests."""

    name = NAME

    def parse_item(self, response: Any) -> None:
        """Their callback."""


def join(
    client: redis.Redis,
    worker: str,
    backend: str,
    limits: Mapping[str, str] | None = None,
) -> tuple[ShardSession, SeenFilter]:
    """Register a worker, beginning the run if it is the first."""
    config = FrontierConfig(dupefilter="exact" if backend == "exact" else "bloom", backend=backend)
    joined = execute(
        client,
        calls.join(
            NAME, 0, calls.crawl("run1"), config, calls.Registration(worker, 600.0, limits=limits)
        ),
    )
    seen = seen_filter(joined.config)
    nothing: Any = None
    terms = Terms(NAME, config, 600, 5, 100, 0)
    member = ShardSession(RunSession(nothing, terms), 0, joined, worker)
    return member, seen


def bare(asked: dict[str, Any]) -> Callable[[], int]:
    """SADD, RPUSH and LPOP in pipelines whose bytes are at hand: what Redis can do at most."""
    connection = socket.create_connection(("127.0.0.1", asked["port"]))
    entry = b"x" * ENTRY_BYTES
    tail = b"*3\r\n$5\r\nRPUSH\r\n$1\r\nq\r\n$%d\r\n%s\r\n*2\r\n$4\r\nLPOP\r\n$1\r\nq\r\n" % (
        len(entry),
        entry,
    )
    sadd = b"*3\r\n$4\r\nSADD\r\n$1\r\ns\r\n$40\r\n%s\r\n%s"
    batches = itertools.cycle(
        [
            b"".join(sadd % (os.urandom(20).hex().encode(), tail) for _ in range(PIPELINE))
            for _ in range(round(asked["seconds"] * BARE_FASTEST / asked["clients"] / PIPELINE))
        ]
    )

    def one_batch() -> int:
        connection.sendall(next(batches))
        lines = 0
        while lines < 4 * PIPELINE:  # :1  :1  $105  xxx
            lines += connection.recv(1 << 16).count(b"\n")
        return PIPELINE

    return one_batch


def bare_redis_py(asked: dict[str, Any]) -> Callable[[], int]:
    """The same by redis-py's pipelines, which is what a program would use."""
    client = redis.Redis(port=asked["port"])
    client.ping()
    entry = b"x" * ENTRY_BYTES

    def one_batch() -> int:
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(PIPELINE):
                pipeline.sadd("s", os.urandom(20))
                pipeline.rpush("q", entry)
                pipeline.lpop("q")
            pipeline.execute()
        return PIPELINE

    return one_batch


def push_claim_finish(asked: dict[str, Any]) -> Callable[[], int]:
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

    prepared = 0 if asked["whole"] else round(asked["seconds"] * FASTEST / asked["clients"])
    source = itertools.chain([at_hand() for _ in range(prepared)], iter(made, None))
    finishing = 0

    def exchange() -> int:
        nonlocal finishing
        for enqueue in itertools.islice(source, MAX_CLAIMS):
            member.add(enqueue)
        reply = member.received(execute(client, member.call(want=MAX_CLAIMS)))
        for lease in reply.leases:
            if asked["whole"]:
                serializer.loads(lease.entry)
            member.add(Finish(lease.id, "done"))
        finished, finishing = finishing, len(reply.leases)
        return finished

    return exchange


if __name__ == "__main__":
    serve({"frontier": push_claim_finish, "bare": bare, "redis-py": bare_redis_py})
