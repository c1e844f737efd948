"""A worker's exchanges with one shard: when the next one is due, and what its reply leads to.

Each shard has a task, a pace and outages of its own, so that one that is away keeps nobody from
exchanging with the others. What concerns several of them is the `ExchangeLoop`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from scrapy_redisq.errors import (
    FrontierLost,
    RedisqError,
    ScriptFailed,
    ServerBusy,
    ServerFull,
)
from scrapy_redisq.frontier.operations import Reply, TurnReport
from scrapy_redisq.frontier.pace import Pace
from scrapy_redisq.frontier.round_trips import RoundTrips
from scrapy_redisq.frontier.scripts import Call
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.trouble import RETRY_FIRST, RETRY_LAST, TROUBLE, Uncertain
from scrapy_redisq.frontier.unsent import MAX_OPERATIONS
from scrapy_redisq.frontier.worker_protocol import Demand

if TYPE_CHECKING:
    from scrapy_redisq.frontier.loop import ExchangeLoop

logger = logging.getLogger(__name__)

FAILING = 600.0
"""Seconds after which a worker gives up, if Redis answers and yet no script passes."""

POSTS_AGAIN = 1_000
"""Milliseconds after which posts that cannot be taken now are looked at again."""

LATE = 0.5
"""Seconds without an answer after which other shards are asked for what is wanted."""

REOPEN_PAUSE = 0.05
"""Seconds before a shard that is sealed again, just after it was opened, is opened once more."""


class ShardLoop:
    """Exchanges with the shard of ``session`` when that is due.

    ``wanted``: entries that the exchange under way may claim, None while there is none.
    ``wants_suspect``: one of them may be a suspect. ``asked_at``: when it was last asked for some
    (time.monotonic()). ``last``: what was said last, None if nothing was since the worker has
    joined. ``is_silent``: the last attempt had no answer, so the next one claims nothing.
    """

    def __init__(self, session: ShardSession, every: ExchangeLoop, lease_ttl: float) -> None:
        self.session = session
        self.pace = Pace(lease_ttl / 4, shards=len(every.run_session.sessions))
        self.wanted: int | None = None
        self.wants_suspect = False
        self.asked_at = 0.0
        self.last: Reply | None = None
        self.is_silent = False
        self._every = every
        self._wake_up = asyncio.Event()
        self._planned_at = 0.0
        self._busy_since = 0.0
        self._away = False
        self._said_starting = False
        self._failing_since = 0.0
        self._retry_last = min(RETRY_LAST, lease_ttl / 8)
        self._trips = RoundTrips()

    def answers(self) -> bool:
        """Whether what it is asked for may be expected soon."""
        late = self._busy_since and time.monotonic() - self._busy_since > LATE
        return not (self.is_silent or late)

    def has_enough(self) -> bool:
        """Whether it surely has what is wanted, as far as is known."""
        return self.pace.has_enough and self.answers()

    def sends_soon(self) -> bool:
        """Whether an exchange is due soon for what waits to be sent."""
        return len(self.session) > 0 and self.pace.has_gathered()

    # When

    @property
    def is_waiting(self) -> bool:
        """It waits until the next exchange is due."""
        return self._planned_at > 0 and not self._wake_up.is_set()

    def wake(self, demand: Demand | None = None) -> None:
        """Something has changed: exchange earlier than planned if that is due."""
        if self.is_waiting and time.monotonic() + self.pause(demand) < self._planned_at - 0.001:
            self._wake_up.set()

    def interrupt(self) -> None:
        """Look at once whether to stop."""
        self._wake_up.set()

    def pause(self, demand: Demand | None = None) -> float:
        """Seconds until the next exchange. ``demand``: the worker's, if it was just asked."""
        demand = demand or self._every.worker.demand()
        waiting = len(self.session)
        is_news = self._said_starting and not self._may_add()[0]
        return self.pace.pause(
            low=demand.low and self._every.may_ask(self),
            within=math.inf if demand.within is None else demand.within,
            urgent=demand.urgent,
            waiting=waiting > 0 or is_news,
            enqueues=self.session.unacknowledged > 0,
            many=waiting >= MAX_OPERATIONS,
            busy=self._every.is_busy(demand),
            starting=self._every.worker.starting()[0],
            proof_at=self.session.unsafe.proof_at,
        )

    async def run(self) -> None:
        """Exchange until the worker stops. Raises what keeps it from going on."""
        while not self._every.stopping:
            await self._wait()
            self._every.worker.collect_ended()
            if not self._every.stopping and self.pause() <= 0:
                await self._exchange_or_retry()

    async def _wait(self) -> None:
        pause = self.pause()
        if pause > 0:
            self._planned_at = time.monotonic() + pause
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake_up.wait(), pause)
        self._wake_up.clear()
        self._planned_at = 0.0

    async def _exchange_or_retry(self) -> None:
        """One exchange; if Redis is away, again and again."""
        pause = RETRY_FIRST
        warn = self._every.warnings.warn
        while not self._every.stopping:
            self._busy_since = time.monotonic()  # also one that asks for nothing may have no answer
            try:
                await self.exchange_surely(self._every.worker.demand())
            except ScriptFailed as error:
                warn("corrupt", "%s", error)
                self._failing_since = self._failing_since or time.monotonic()
                if time.monotonic() - self._failing_since > FAILING:
                    raise
            except Uncertain as error:
                warn("uncertain", "Nothing is left to do, but this worker waits: %s", error)
            except TROUBLE as error:
                self.is_silent = True
                if warn("away", "Redis is away, keeping what is buffered: %s", error):
                    self._away = True
                await self._revive()
            except RedisError as error:
                warn("refused", "Redis refused an exchange: %s", error)
            else:
                self._failing_since = 0.0
                if self.is_silent:
                    self.is_silent = False
                    self.pace.found_more()
                    await asyncio.to_thread(self._every.server.renew_log)
                if self._away:
                    self._away = False
                    logger.warning("Redis answers again; the crawl goes on")
                return
            finally:
                self._busy_since = 0.0
            self.pace.has_enough = False  # other shards are asked meanwhile
            await self._every.stopped_within(pause)
            pause = min(pause * 2, self._retry_last)

    async def _revive(self) -> None:
        try:
            await asyncio.to_thread(self._every.server.revive)
        except RedisqError as error:
            self._every.warnings.warn("revive", "%s", error)

    # One exchange

    async def exchange_surely(self, demand: Demand) -> None:
        """`exchange`; raises `FrontierLost` only if the server that counts has lost it."""
        try:
            await self.exchange(demand)
        except FrontierLost:
            # A replica that has not got it yet says so, too, and a server of former times.
            try:
                await self._every.server.confirm_primary()
            except TROUBLE:
                raise
            except RedisError as error:
                raise ServerBusy(str(error)) from error
            await self.exchange(demand)

    async def exchange(self, demand: Demand) -> None:
        """Send what waits, and claim this shard's share of what is wanted.

        Raises what passes (`TROUBLE`, `Uncertain`), `ScriptFailed`, `FrontierCorrupt` or
        `FrontierLost`.
        """
        await self._every.come_back(self.session)
        self.pace.woken = self.pace.told = self.pace.confirms = False
        want, self.wants_suspect = self._every.share(self, demand)
        self.wanted = want
        if want:
            self.asked_at = time.monotonic()
        try:
            reply = await self._exchange(want, demand)
        finally:
            self.wanted = None
            self._every.landed()
        if reply is None:
            await self._every.come_back(self.session)
            return
        post_due = reply.post_due
        if post_due == 0 and not self._every.run_session.may_take_posts():
            post_due = POSTS_AGAIN
        dues = [due for due in (reply.next_due, post_due) if due is not None]
        self.pace.exchanged(
            claimed=len(reply.leases),
            filled=want <= len(reply.leases) if want else None,
            accepted=len(reply.accepted),
            low=demand.low or demand.rests,
            next_due=min(dues, default=None),
            others_wait=bool(reply.waiting),
            overdue_in=reply.overdue_in,
        )
        await self._look_after_others(reply)
        self._every.wake()
        self.last = reply
        await self._every.exchanged()

    async def _look_after_others(self, reply: Reply) -> None:
        """Take over what dead workers hold, and links that those who sent them may not deliver."""
        run_session = self._every.run_session
        try:
            if reply.overdue_in == 0 and await run_session.reap(self.session):
                self.pace.found_more()
            await run_session.deliver(self.session, reply)
        except ScriptFailed as error:  # they wait, for a key that exchanges can do without
            self._every.warnings.warn("corrupt", "%s", error)

    async def _exchange(self, want: int, demand: Demand) -> Reply | None:
        """-> the reply, None if this worker was taken for dead, or history was lost."""
        every, session = self._every, self.session
        reply: Reply | None = None
        reopen_pause = 0.0
        while reply is None:
            told = every.worker.turns(session)
            call = self._call(want, demand, told)
            every.exchanges += 1
            sent_at = time.monotonic()
            try:
                reply = await every.run_session.exchange(session, call)
            except ScriptFailed as error:
                why = every.server.redact(error)
                if session.may_arrive:
                    self._start_over(f"what was sent before may yet arrive, and fails now: {why}")
                    return None
                if not session.failed(why):
                    raise
            except BaseException as error:
                # It was refused as a whole, or it is not known what became of it.
                session.may_arrive |= not isinstance(error, (ServerBusy, ServerFull))
                raise
            if reply is not None and reply.status == "sealed":
                reply = None
                await every.run_session.open_shard(session)
                # Again and again if shard 0 has lost when it was last visited, and its clock is
                # behind.
                await asyncio.sleep(reopen_pause)
                reopen_pause = REOPEN_PAUSE
        self._trips.took(time.monotonic() - sent_at)
        if reply.status in {"ok", "replayed"}:
            every.worker.received(session, reply, told, sent_at)
            return reply
        if reply.status == "lost":
            raise FrontierLost(
                f"frontier {session.name!r} is gone from Redis or was begun anew by others: "
                f"this worker's run {session.run} is no longer there"
            )
        self._start_over(
            "no sign of life in time" if reply.status == "gone" else "Redis lost recent writes"
        )
        return None

    def _start_over(self, why: str) -> None:
        logger.warning("This worker's leases are void (%s); it goes on as a new worker", why)
        self._every.mark_void(self.session)

    def _call(self, want: int, demand: Demand, told: list[TurnReport]) -> Call[Reply]:
        every, session = self._every, self.session
        self._said_starting, seeded = self._may_add()
        session.tally += self._trips.told(at_once=every.stopping)
        return session.call(
            want=want,
            most=demand.most - every.held_elsewhere(self),
            slot_limit=demand.slot_limit,
            room=demand.room,
            suspects=int(self.wants_suspect),
            starting=self._said_starting,
            seeded=seeded,
            pages=every.worker.pages,
            items=every.worker.items,
            turns=told,
            report=every.worker.report() if session is every.run_session.sessions[0] else "",
        )

    def _may_add(self) -> tuple[bool, bool]:
        """(The worker may yet add requests that no page of this shard stands for, all its start
        requests were added.)"""
        starting, seeded = self._every.worker.starting()
        return starting or self._every.run_session.enqueues_wait_elsewhere(self.session), seeded
