"""One worker in one shard: what waits to be sent, what it holds, what has been acknowledged.

No network: `ShardSession.call` makes the next exchange, `ShardSession.received` takes
its reply in. Whoever drives it sends the one and hands in the other; if the reply was lost, it
calls again and the same exchange is sent again, under the same number.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.exchange import Cargo, read_reply
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.operations import (
    Delivered,
    DownloadResult,
    Enqueue,
    Finish,
    Lease,
    Letter,
    Operation,
    Post,
    Reply,
    TurnReport,
    result_item,
)
from scrapy_redisq.frontier.scripts import Call, load
from scrapy_redisq.frontier.seen import seen_filter
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.frontier.unsafe import Unsafe
from scrapy_redisq.frontier.unsent import MAX_OPERATIONS, Unsent
from scrapy_redisq.reasons import DeadReason

logger = logging.getLogger(__name__)

MAX_CLAIMS = 100
"""Entries claimed by one exchange."""

MOST_ENTRY_BYTES = 16_000_000
"""Size from which an entry that another program put into a queue is not even fetched, unless the
settings allow larger ones."""

HOLD = 15.0
"""Seconds beyond REDISQ_REWIND for which posts are left to the worker that has sent the links."""

CONDEMNED: DeadReason = "script"
"""Reason of dead letters of what the script cannot take."""


@dataclass
class _Batch:
    """What an exchange carries; kept until it is acknowledged, because it may be sent again."""

    operations: list[Operation]
    local_duplicates: int
    tally: Counter[str]
    download_results: list[DownloadResult]
    statuses: dict[str, int]
    data: dict[str, Any]
    posts: dict[str, list[Enqueue]]
    """Links that it posts, by the lease of their page."""
    begun: list[int]

    @property
    def ends(self) -> int:
        """Leases that end with it."""
        return sum(isinstance(operation, Finish) for operation in self.operations)


class ShardSession:
    """One worker's part in one shard's run.

    ``unsent`` keeps enqueues and finishes until they are sent.
    """

    def __init__(
        self,
        shard: int,
        joined: calls.Joined,
        worker: str,
        terms: Terms,
        primary_vouched: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.name = terms.name
        self.shard = shard
        self.run = joined.run
        self.worker = worker
        self.unsent = Unsent()
        self.local_duplicates = 0
        self.tally: Counter[str] = Counter()
        """What is to be added to counts of the frontier that the worker keeps itself."""
        self.download_results: list[DownloadResult] = []
        """What slots are to be judged by."""
        self.statuses: dict[str, int] = {}
        """Slot -> HTTP status of its last answer, where people do not know it yet."""
        self.unacknowledged = 0
        """Requests that Redis has not acknowledged."""
        self.dead = 0
        """Dead letters of this shard, by the last reply."""
        self.held: dict[str, Lease] = {}
        self.suspects: set[str] = set()
        """Leases that so many workers died with that these may have died of them."""
        self.unsafe = Unsafe(terms.rewind, primary_vouched, spread=joined.config.has_several_logs)
        """What may have to be sent again."""
        self._terms = terms
        self._config = joined.config
        self._script = load("exchange", joined.config.backend)
        self._key = meta_key(terms.name, shard)
        self._seen = seen_filter(joined.config).parameters()
        self._acked = 0
        self._in_flight: _Batch | None = None
        self._limit = MAX_OPERATIONS
        self._probed = False
        self.begun: set[int] = set()
        """Shards that shard 0 is to be told of, as they have begun the run for good."""
        self._answered_at = time.monotonic()
        self._is_repeated = False
        self.may_arrive = False
        """The batch was sent, and not answered. The server may have applied it or will, if that
        arrives late, so nothing else may be sent under its number."""

    def __len__(self) -> int:
        """Operations that Redis has not acknowledged."""
        flying = len(self._in_flight.operations) if self._in_flight else 0
        return len(self.unsent) + flying

    def unended(self) -> int:
        """Leases of which no end waits to be sent, or is on its way."""
        flying = self._in_flight.operations if self._in_flight else ()
        ends = {one.lease for one in (*self.unsent, *flying) if isinstance(one, Finish)}
        return len(self.held.keys() - ends)

    def add(self, operation: Operation) -> None:
        """Take what is to be sent; kept for as long as Redis has not acknowledged it."""
        self.unsent.append(operation)
        self.unacknowledged += operation.number
        if isinstance(operation, Finish):
            self.suspects.discard(operation.lease)
        self.unsafe.waits(operation)

    def finish(self, finish: Finish, links: Sequence[Enqueue] = ()) -> None:
        """Take the end of a lease. It is sent when all requests that came of it have been taken.

        On its own shard the order in the outbox sees to that. Other shards have logs of their own:
        what of ``links`` is not safe there goes with the end of the lease, as a post.
        """
        self.add(replace(finish, links=links) if links else finish)

    def rejoined(self, joined: calls.Joined, worker: str) -> None:
        """Go on as a new worker after the old one was reaped or its history lost.

        Leases are forgotten: other workers have them or will. What was not acknowledged is sent
        again, finishes too: the frontier counts them as stale, and they end nobody's lease. What no
        page stands for is sent again even if it was acknowledged lately: the server may have lost
        it.
        """
        self._take_back()
        again = self.unsafe.rejoined()
        self.unsent.extendleft(reversed(again))
        self.unacknowledged += sum(isinstance(kept, Enqueue) for kept in again)
        self.run, self.worker = joined.run, worker
        self._acked = 0
        self.may_arrive = False
        self.held.clear()
        self.suspects.clear()

    def _take_back(self) -> None:
        if self._in_flight is not None:
            self.unsent.extendleft(reversed(self._in_flight.operations))
            self.local_duplicates += self._in_flight.local_duplicates
            self.tally += self._in_flight.tally
            self.download_results[:0] = self._in_flight.download_results
            self.statuses = {**self._in_flight.statuses, **self.statuses}
            self._in_flight = None

    def call(
        self,
        *,
        want: int = 0,
        most: int | None = None,
        slot_limit: int = MAX_CLAIMS,
        room: Mapping[str, int] | None = None,
        suspects: int = MAX_CLAIMS,
        starting: bool = False,
        seeded: bool = True,
        pages: int = 0,
        items: int = 0,
        turns: Sequence[TurnReport] = (),
        report: str = "",
    ) -> Call[Reply]:
        """The next exchange, or the last one again if its reply never came.

        ``want`` entries are claimed at most, no more than make ``most`` leases of this shard; of
        one slot at most ``slot_limit`` or ``room[slot]``, and of those that may be what their
        workers died of at most ``suspects``.
        ``starting``: this worker may still add start requests, as it may while something waits
        behind this exchange; when it no longer does, ``seeded`` says that they were all added.
        ``pages`` and ``items`` are totals, for people. ``turns``: what was done with the turns.
        ``report``: what this worker tells people of itself.
        """
        self._is_repeated = self._in_flight is not None
        batch = self._in_flight = self._in_flight or self._next_batch()
        if most is not None:
            want = max(0, min(want, most - len(self.held) + batch.ends))
        self.unsafe.sends()
        terms = self._terms
        data = {
            "worker": self.worker,
            "run": self.run,
            "acked": self._acked,
            "ttl": int(terms.lease_ttl * 1e6),
            "dead_max": terms.dead_max,
            "seen": self._seen,
            "held": len(self.held),
            "want": min(want, MAX_CLAIMS),
            "slot_limit": slot_limit,
            "suspect_from": terms.suspect_from,
            "suspects": suspects,
            "max_deliveries": terms.max_deliveries,
            "most_bytes": max(terms.max_entry_bytes + 1, MOST_ENTRY_BYTES),
            "starting": starting or bool(self.unsent),
            "seeded": seeded,
            "pages": pages,
            "items": items,
            "duplicates": batch.local_duplicates,
            **batch.data,
        }
        more = {"room": room, "report": report, "turns": turns, **self._more(batch)}
        data.update({name: value for name, value in more.items() if value})
        return Call.of(
            self._script, self._key, data, lambda reply: read_reply(reply, batch.operations)
        )

    def _next_batch(self) -> _Batch:
        operations = self.unsent.take(self._limit)
        cargo = Cargo(operations, self.held)
        batch = _Batch(
            operations,
            self.local_duplicates,
            self.tally,
            self.download_results,
            self.statuses,
            cargo.data(),
            cargo.posts,
            begun=sorted(self.begun),
        )
        self.local_duplicates, self.tally = 0, Counter()
        self.download_results, self.statuses = [], {}
        return batch

    def _more(self, batch: _Batch) -> dict[str, Any]:
        """What is sent only if there is some."""
        more: dict[str, Any] = {
            "begun": batch.begun,
            "tally": dict(batch.tally),
            "statuses": batch.statuses,
            "results": list(map(result_item, batch.download_results)),
        }
        if batch.download_results:
            back_off = self._terms.back_off
            more["back_off"] = int(back_off.longest * 1e6), back_off.give_up
        if "history" in batch.data:
            more["history_max"] = math.ceil(self._terms.history / self._config.shards)
        if self._config.has_several_logs:
            more["hold"] = int((self._terms.rewind + HOLD) * 1e6)
        return more

    @property
    def is_unsafe(self) -> bool:
        """Whether the server may yet lose what no page of its own stands for, or its begin of the
        run; also of what is on its way there."""
        flying = self._in_flight.operations if self._in_flight else ()
        return self.unsafe.may_lose or any(map(self.unsafe.size_of, flying))

    def is_silent(self, seconds: float) -> bool:
        """Whether the server has not answered for so long, although it was asked again. (Nobody may
        have asked it: by a callback that takes its time.)"""
        return self._is_repeated and time.monotonic() - self._answered_at > seconds

    def forget_posted(self) -> None:
        """Leave to other workers what was not sent yet and has a post, which stands for it."""
        left: list[Operation] = []
        for operation in self.unsent:
            if isinstance(operation, Enqueue) and operation.link and operation.link.post:
                operation.link.post = None
                self.unacknowledged -= 1
                self.unsafe.waits_no_more(operation)
            else:
                left.append(operation)
        self.unsent.keep(left)

    def has_results(self, slot: str) -> bool:
        """What it knows of a slot has not reached the frontier."""
        flying = self._in_flight.download_results if self._in_flight else ()
        return any(result.slot == slot for result in (*self.download_results, *flying))

    def received(self, reply: Reply, *, confirmed: bool = False) -> Reply:
        """Take a reply in. Its ``leases`` become those that were not known before.

        ``confirmed``: replicas have what was sent, and so all before it.
        """
        if reply.status not in {"ok", "replayed"} or self._in_flight is None:
            return reply
        self._answered_at, self._is_repeated, self.may_arrive = time.monotonic(), False, False
        for operation in self._in_flight.operations:
            self.unacknowledged -= operation.number
            if isinstance(operation, Finish):
                self.held.pop(operation.lease, None)
            elif isinstance(operation, (Enqueue, Letter)):
                self.unsafe.acknowledged(operation, self._answered_at)
        self._posted(self._in_flight.posts)
        self.begun.difference_update(self._in_flight.begun)
        self._in_flight = None
        self.unsafe.answered(confirmed=confirmed)
        self._acked += 1
        # After a failure: first nothing, then one operation, then twice as many each time.
        self._probed = self._limit == 0
        self._limit = min(MAX_OPERATIONS, max(1, 2 * self._limit))
        self.dead = reply.dead
        reply.leases = [lease for lease in reply.leases if lease.id not in self.held]
        for lease in reply.leases:
            self.held[lease.id] = lease
            if lease.deliveries >= self._terms.suspect_from:
                self.suspects.add(lease.id)
        return reply

    def _posted(self, posts: Mapping[str, Sequence[Enqueue]]) -> None:
        for lease, links in posts.items():
            unsafe = [one.link for one in links if one.link is not None and not one.link.safe]
            post = Post(lease, len(unsafe), lambda id: self.add(Delivered(id)))
            for link in unsafe:
                link.post = post
            if not unsafe:
                post.delivered(lease)

    def take_over(self, post: str, links: Sequence[Enqueue]) -> None:
        """Say so when what another worker has posted is safe; the links are sent by this worker."""
        self._posted({post: links})

    def failed(self, error: str) -> bool:
        """The script failed, and will again: find the operation at fault, by halving.

        One that fails alone, while an exchange without any passes, becomes a dead letter. -> False
        if it fails without any, too: then none is at fault, and nothing is sent until it passes.
        """
        assert self._in_flight is not None
        number = len(self._in_flight.operations)
        self._take_back()
        self.download_results, self.statuses = [], {}  # they are of use only while they are new
        if number == 0:
            self._limit = 0
            return False
        if number == 1 and self._probed:
            self._condemn(self.unsent.popleft(), error)
        # One by one after an exchange without any, in case all would fail by now.
        self._limit = number // 2
        return True

    def _condemn(self, operation: Operation, error: str) -> None:
        """Make a dead letter of what the script cannot take, or at last leave it out."""
        logger.error("Redis cannot take %.500r, which becomes a dead letter: %s", operation, error)
        self.unsafe.waits_no_more(operation)
        if isinstance(operation, Enqueue):
            self.unacknowledged -= 1
            identity = hashlib.blake2b(operation.entry, digest_size=16).digest()
            letter = Letter("", 0, identity, CONDEMNED, error, entry=operation.entry)
            if operation.link is not None:  # the letter stands for it, and is sent again
                operation.link.is_safe_now()
            self.unsent.appendleft(letter)
            self.unsafe.waits(letter)
        elif isinstance(operation, Finish) and operation.reason != CONDEMNED:
            self.unsent.appendleft(Finish(operation.lease, "dead", CONDEMNED, error))
