"""One worker in one shard: operations to send, leases that it holds, and the next exchange.

There is no network in it. `ShardSession.call` makes the next exchange, `ShardSession.received`
takes the reply in, and `scrapy_redisq.frontier.shard_task` stands between them. If the reply was
lost, `call` makes the same exchange again, under the same number.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.exchange import read_reply, result_item
from scrapy_redisq.frontier.limits import LONGEST_PAUSE
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.operations import (
    Delivered,
    Enqueue,
    Finish,
    Lease,
    Letter,
    Operation,
    Post,
    Reply,
    TurnReport,
)
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS, Outgoing
from scrapy_redisq.frontier.pace import Pace
from scrapy_redisq.frontier.resend import Resend
from scrapy_redisq.frontier.scripts import Call, load
from scrapy_redisq.frontier.seen import seen_filter

if TYPE_CHECKING:
    from scrapy_redisq.frontier.run_session import RunSession
    from scrapy_redisq.frontier.terms import Demand

MAX_CLAIMS = 100
"""Entries claimed by one exchange."""

MOST_ENTRY_BYTES = 16_000_000
"""Size from which an entry that another program put into a queue is not even fetched, unless the
settings allow larger ones."""

HOLD = 15.0
"""Seconds beyond REDISQ_REWIND for which posts are left to the worker that has sent the links."""

LATE = 0.5
"""Seconds without an answer after which other shards are asked for what is wanted."""


class ShardSession:
    """One worker's part in one shard.

    ``held``: the leases; ``suspects``: leases of entries that earlier workers may have died of.
    ``dead``: dead letters of the shard. ``is_void``: the worker has to join this shard again.

    The exchange under way began at ``asks_since`` (time.monotonic()). It may claim ``wanted``
    entries (None: no exchange is under way), with ``wants_suspect`` a suspect among them.

    ``asked_at``: when entries were last wanted. ``last``: the last reply since the worker has
    joined. ``said_starting``: the last exchange said that the worker may add requests without a
    page. ``is_silent``: the last one had no answer, so the next one claims nothing.
    """

    def __init__(
        self, run_session: RunSession, shard: int, joined: calls.Joined, worker: str
    ) -> None:
        terms = run_session.terms
        self.run_session = run_session
        self.shard = shard
        self.run_id = joined.run
        self.worker_id = worker
        self.outgoing = Outgoing()
        self.held: dict[str, Lease] = {}
        self.suspects: set[str] = set()
        self.dead = 0
        self.resend = Resend(
            terms.rewind,
            run_session.server.primary_vouched,
            spread=joined.config.has_several_logs,
        )
        self.pace = Pace(terms.lease_ttl / 4, shards=joined.config.shards)
        self.wanted: int | None = None
        self.wants_suspect = False
        self.asked_at = 0.0
        self.last: Reply | None = None
        self.is_silent = False
        self.is_void = False
        self.asks_since = 0.0
        self.said_starting = False
        self._config = joined.config
        self._script = load("exchange", joined.config.backend)
        self._seen = seen_filter(joined.config).parameters()
        self._told_begun: set[int] = set()
        self._wake_up = asyncio.Event()
        self._planned_at = 0.0

    def __len__(self) -> int:
        """Operations that Redis has not acknowledged."""
        return len(self.outgoing)

    # The worker hands in

    def add(self, operation: Operation) -> None:
        """Take an operation; it is kept until Redis has acknowledged it."""
        self.outgoing.append(operation)
        if isinstance(operation, Finish):
            self.suspects.discard(operation.lease)

    def finish(self, finish: Finish, links: Sequence[Enqueue] = ()) -> None:
        """Take the end of a lease, after all requests of its page. Those of ``links``, its requests
        on shards with other logs, that are not safe yet go with it, as a post."""
        self.add(replace(finish, links=links) if links else finish)

    def unended(self) -> int:
        """Leases of which no end waits to be sent, or is on its way."""
        ends = {one.lease for one in self.outgoing if isinstance(one, Finish)}
        return len(self.held.keys() - ends)

    @property
    def is_unsafe(self) -> bool:
        """As `Resend.may_lose`, also of what is on its way there."""
        return self.resend.may_lose or any(map(self.resend.size_of, self.outgoing.flying))

    # An exchange, without any network

    def call(
        self,
        want: int,
        demand: Demand,
        *,
        suspects: int = MAX_CLAIMS,
        starting: bool = False,
        seeded: bool = True,
        turns: Sequence[TurnReport] = (),
        **told: Any,
    ) -> Call[Reply]:
        """The next exchange, or the last one again if its reply never came.

        At most ``want`` entries are claimed, ``suspects`` of them suspects, by the limits of
        ``demand``.
        ``starting``: this worker may still add start requests. Else ``seeded`` says whether all
        were added. ``turns``: how turns were used. ``told``: figures for people (pages, items,
        report).
        """
        terms, outgoing = self.run_session.terms, self.outgoing
        batch = outgoing.batch(self.held, self._begun_to_tell())
        left = demand.most - self.held_elsewhere() - len(self.held) + batch.ends
        self.resend.sends()
        data = {
            "worker": self.worker_id,
            "run": self.run_id,
            "acked": outgoing.acked,
            "seen": self._seen,
            "want": max(0, min(want, left, MAX_CLAIMS)),
            "slot_limit": demand.slot_limit,
            "suspects": suspects,
            "starting": starting or outgoing.has_more,
            "seeded": seeded,
            "pages": 0,
            "items": 0,
            **told,
            **self._terms(),
            **batch.cargo.data(),
        }
        optional = {
            "room": demand.room,
            "turns": turns,
            "begun": batch.begun,
            "tally": dict(batch.tally),
            "results": list(map(result_item, batch.download_results)),
        }
        data.update({name: value for name, value in optional.items() if value})
        if batch.download_results:
            data["back_off"] = int(LONGEST_PAUSE * 1e6), terms.give_up
        if "history" in data:
            data["history_max"] = math.ceil(terms.history / self._config.shards)
        if self._config.has_several_logs:
            data["hold"] = int((terms.rewind + HOLD) * 1e6)
        key = meta_key(terms.name, self.shard)
        return Call.of(self._script, key, data, lambda reply: read_reply(reply, batch.operations))

    def _terms(self) -> dict[str, Any]:
        """The worker's terms, as the script takes them."""
        terms = self.run_session.terms
        return {
            "ttl": int(terms.lease_ttl * 1e6),
            "dead_max": terms.dead_max,
            "suspect_from": terms.suspect_from,
            "most_bytes": max(terms.max_entry_bytes + 1, MOST_ENTRY_BYTES),
        }

    def _begun_to_tell(self) -> list[int]:
        """Shards of which shard 0 does not know yet that they have begun the run for good."""
        if self.shard != 0 or not self._config.has_several_logs:
            return []
        begun = {one.shard for one in self.run_session.sessions if one.resend.has_begun}
        return sorted(begun - self._told_begun)

    def received(self, reply: Reply, *, confirmed: bool = False) -> Reply:
        """Take a reply in. Only new leases stay in its ``leases``. ``confirmed``: replicas have
        this exchange, and all before it."""
        batch = self.outgoing.answered() if reply.status in {"ok", "replayed"} else None
        if batch is None:
            return reply
        now = time.monotonic()
        for operation in batch.operations:
            if isinstance(operation, Finish):
                self.held.pop(operation.lease, None)
            elif isinstance(operation, (Enqueue, Letter)):
                self.resend.acknowledged(operation, now)
        for id, links in batch.cargo.posts.items():
            self.watch_post(id, links)
        self._told_begun.update(batch.begun)
        self.resend.answered(confirmed=confirmed)
        self.dead = reply.dead
        reply.leases = [lease for lease in reply.leases if lease.id not in self.held]
        for lease in reply.leases:
            self.held[lease.id] = lease
            if lease.deliveries >= self.run_session.terms.suspect_from:
                self.suspects.add(lease.id)
        return reply

    def watch_post(self, id: str, links: Sequence[Enqueue]) -> None:
        """Have the post ``id`` removed when all its ``links`` are safe."""
        unsafe = [one.link for one in links if one.link is not None and not one.link.safe]
        post = Post(len(unsafe), lambda: self.add(Delivered(id)))
        for link in unsafe:
            link.post = post
        if not unsafe:
            post.delivered()

    def rejoined(self, run: str, worker: str) -> None:
        """Go on as a new worker. Leases are forgotten: other workers have them or will. Operations
        without an acknowledgement are sent again; finishes among them are stale, and end nobody's
        lease. Requests without a page that were acknowledged lately are sent, too: the server may
        have lost them."""
        self.outgoing.begin_anew()
        self.outgoing.put_first([*self.resend.rejoined()])
        self.run_id, self.worker_id = run, worker
        self.held.clear()
        self.suspects.clear()
        self._told_begun.clear()
        self.is_void = False

    # Facts that it needs of the other shards

    @property
    def _others(self) -> list[ShardSession]:
        return [other for other in self.run_session.sessions if other is not self]

    def _may_ask(self) -> bool:
        """Whether the worker should ask this shard when it runs low.

        Of those that have enough one at a time, by turns: so that as much comes with an exchange as
        if there were but one shard. If none is known to have enough, all of them.
        """
        enough = [one for one in self.run_session.sessions if one.has_enough()]
        return not enough or (
            self is min(enough, key=lambda one: one.asked_at)
            and not any(one.wanted for one in enough)
        )

    def share(self, demand: Demand) -> tuple[int, bool]:
        """How many entries the next exchange may claim, and whether a suspect.

        A shard that has enough gives all that is wanted. Else the demand is parted between the
        shards that may have something, and this one. A shard that does not answer gets no part: it
        would keep that from other shards while it is waited for.
        A worker holds one suspect at a time, so that a request that kills its workers takes no
        others into the dead letters with it.
        """
        if self.is_silent and self._others:
            return 0, False
        others = [other for other in self._others if other.answers()]
        asked = [other for other in others if other.wanted is not None]
        left = demand.want - sum(other.wanted or 0 for other in asked)
        askers = 1
        if not self.has_enough():
            askers += sum(other.pace.may_have_more() for other in others if other not in asked)
        has_suspect = any(one.suspects for one in self.run_session.sessions)
        no_suspect = not has_suspect and not any(other.wants_suspect for other in asked)
        return max(0, math.ceil(left / askers)), no_suspect

    def held_elsewhere(self) -> int:
        """Requests of other shards that the worker has not ended, or may be given right now."""
        return sum(other.unended() + (other.wanted or 0) for other in self._others)

    def adds_elsewhere(self) -> bool:
        """Whether another shard has not acknowledged some requests, or may yet lose some that
        nobody but this worker would ask for again."""
        return any(other.outgoing.bytes > 0 or other.resend.may_ask_again for other in self._others)

    # When

    def answers(self) -> bool:
        """Whether an answer may be expected soon."""
        late = self.asks_since and time.monotonic() - self.asks_since > LATE
        return not (self.is_silent or late)

    def has_enough(self) -> bool:
        """Whether the shard surely has enough entries, as far as is known."""
        return self.pace.has_enough and self.answers()

    @property
    def is_waiting(self) -> bool:
        """Its task waits until the next exchange is due."""
        return self._planned_at > 0 and not self._wake_up.is_set()

    def wake(self, demand: Demand) -> None:
        """Something has changed: exchange earlier than planned if that is due."""
        if self.is_waiting and time.monotonic() + self.pause(demand) < self._planned_at - 0.001:
            self._wake_up.set()

    async def until_due(self, demand: Demand) -> None:
        """Wait for the next exchange, or until something has changed."""
        pause = self.pause(demand)
        if pause > 0:
            self._planned_at = time.monotonic() + pause
            # Not wait_for(), which makes a task of it: this is waited for after each exchange.
            timer = asyncio.get_running_loop().call_later(pause, self._wake_up.set)
            await self._wake_up.wait()
            timer.cancel()
        self._wake_up.clear()
        self._planned_at = 0.0

    def interrupt(self) -> None:
        """Look at once whether to stop."""
        self._wake_up.set()

    def pause(self, demand: Demand) -> float:
        """Seconds until the next exchange of a worker with this ``demand``."""
        run = self.run_session
        waiting = len(self)
        is_news = self.said_starting and not self.may_add()[0]
        # A worker that runs low is busy as soon as a shard that has enough has answered.
        busy = run.worker.is_busy() or (
            demand.low and any(session.has_enough() for session in run.sessions)
        )
        return self.pace.pause(
            low=demand.low and self._may_ask(),
            within=math.inf if demand.within is None else demand.within,
            urgent=demand.urgent,
            waiting=waiting > 0 or is_news,
            enqueues=self.outgoing.bytes > 0,
            others_asked=bool(self._others) and demand.low and not self.share(demand)[0],
            many=waiting >= MAX_OPERATIONS,
            busy=busy,
            starting=run.worker.starting()[0],
            held_back=run.worker.held_back(),
            # The crawl may be waiting for that alone.
            proof_at=-math.inf if busy else run.proof_at(),
        )

    def may_add(self) -> tuple[bool, bool]:
        """(Requests may yet be added that no page of this shard stands for, all start requests were
        added)."""
        starting, seeded = self.run_session.worker.starting()
        return starting or self.adds_elsewhere(), seeded
