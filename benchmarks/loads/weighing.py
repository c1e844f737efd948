"""Bytes in Redis of a request that is queued or leased, and of a URL that has been seen."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import redis

from benchmarks.loads.clients import Clients
from benchmarks.loads.contents import CONTENTS, Content
from benchmarks.loads.filters import Filter, used_memory
from benchmarks.loads.members import join
from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, ShardSession

ERROR_RATE = 1e-6
DESIGNED = "as designed"
TWICE, MOST_GROWN = GROWN = ("at twice that", "most to 3 times")


class Measured:
    """A frontier on a server of its own, whose memory is what was not there before."""

    def __init__(self, depth: int = 0) -> None:
        self.server = RedisServer(any_server("redis-7"), "--list-compress-depth", str(depth))
        self.client: redis.Redis = self.server.client()
        self.member = self.worker(0)
        # What is there whatever is queued: scripts, counters.
        self.push([b"first"], slots=1)
        self.finish_all()
        self._before = self._used()

    def worker(self, number: int) -> ShardSession:
        """One more worker."""
        return join(self.client, f"worker-{number}", "exact")[0]

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def taken(self) -> int:
        """Bytes that were not there before."""
        return self._used() - self._before

    def _used(self) -> int:
        """Bytes in use without the buffers of the connection, which is closed for it."""
        self.client.close()
        return used_memory(self.server)

    def push(self, entries: Iterable[bytes], slots: int) -> None:
        """Enqueue; without fingerprints, for the dupefilter is weighed by itself."""
        for number, entry in enumerate(entries):
            self.member.add(Enqueue(f"shop{number % slots}", 0, entry, None))
            if len(self.member) == MAX_OPERATIONS:
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
    with closing(Measured(depth)) as measured:
        measured.push(content.entries(number), slots=10)
        return measured.taken() / number


def leased(content: Content, workers: int) -> float:
    """Bytes of a request that one of ``workers`` holds, 100 each, the worker itself included."""
    with closing(Measured()) as measured:
        measured.push(content.entries(workers * MAX_CLAIMS), slots=10)
        for number in range(1, workers + 1):
            claimed = measured.exchange(measured.worker(number), want=MAX_CLAIMS)
            assert len(claimed) == MAX_CLAIMS
        return measured.taken() / (workers * MAX_CLAIMS)


def idle_slot(slots: int) -> float:
    """Bytes that remain of a slot when its only request has been finished."""
    with closing(Measured()) as measured:
        measured.push(CONTENTS[0].entries(slots), slots)
        measured.finish_all()
        return measured.taken() / slots


def of_peer(content: Content, number: int, *, seen: bool) -> float:
    """Bytes of a request in scrapy-redis' queue, or of a URL in its dupefilter."""
    with closing(RedisServer(any_server("redis-7"))) as server:
        before = used_memory(server)
        with tempfile.TemporaryDirectory() as folder, Clients(1, peer=True) as peer:
            file = Path(folder) / "requests"
            with file.open("w", encoding="utf-8") as lines:
                lines.writelines(content.lines(number))
            peer.run(1, job="fill", port=server.port, file=str(file), seen=seen)
        return (used_memory(server) - before) / number


def seen_by_set(number: int) -> float:
    """Bytes of a URL in a set of hexadecimal SHA-1, as scrapy-redis' dupefilter keeps it."""
    with closing(RedisServer(any_server("redis-7"))) as server:
        before = used_memory(server)
        with redis.Redis.from_url(server.unix_url) as client:
            for first in range(0, number, 1000):
                urls = range(first, min(first + 1000, number))
                client.sadd("seen", *(hashlib.sha1(b"%d" % url).hexdigest() for url in urls))
        return (used_memory(server) - before) / number


def seen(backend: str, number: int, steps: int) -> dict[str, float]:
    """Bytes of a URL at the designed size and, with ``steps``, past it, by what it is called."""
    with closing(Filter(backend, ERROR_RATE, number)) as one:
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
