"""The background task that carries a worker's exchanges to Redis and back.

One asyncio task per worker. It never lets the crawl wait: what the worker wants to send gathers
in its shard sessions, what it may work on is handed over as it arrives. When Redis is away the
task keeps what it has and tries again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_redisq.errors import (
    FrontierCorrupt,
    FrontierLost,
    RedisqError,
    ScriptFailed,
    ServerBusy,
    ServerFull,
)
from scrapy_redisq.frontier import calls, runs
from scrapy_redisq.frontier.listener import Listener
from scrapy_redisq.frontier.operations import (
    Claim,
    Enqueue,
    Finish,
    Letter,
    Reply,
    Settle,
    TurnReport,
)
from scrapy_redisq.frontier.pace import FULL_RETRY, RUNNING_LOW, Pace
from scrapy_redisq.frontier.run_session import NOTHING_SENT, RunSession
from scrapy_redisq.frontier.scripts import Call
from scrapy_redisq.frontier.shard_session import MAX_OPERATIONS, ShardSession
from scrapy_redisq.frontier.worker_protocol import NOTHING, Demand, ServerHelp, Worker

logger = logging.getLogger(__name__)

LOOK_FOR_ENDED = 0.05
"""Seconds between looks for pages that have ended."""

RETRY_FIRST, RETRY_LAST = 0.1, 2.0
"""Seconds between attempts while Redis is away; with a short lease TTL at most an eighth of it, so
that nobody who comes back is taken for dead."""

FAILING = 600.0
"""Seconds after which a worker gives up, if Redis answers and yet no script passes."""

WARN_EVERY = 30.0
"""Seconds between warnings about the same trouble."""

STILL = 10.0
"""Seconds without a claim or a finish after which a worker beside a full Redis stands still."""

TROUBLE = (RedisConnectionError, RedisTimeoutError, ServerBusy, ServerFull, OSError)
"""What passes: Redis is away, or says that it takes no commands now."""


class ExchangeLoop:
    """Exchanges until told to stop.

    `start` says for whom. ``complete`` is True once the whole frontier is finished, as far as the
    last exchange told.
    """

    def __init__(self, run_session: RunSession, server: ServerHelp) -> None:
        self.run_session = run_session
        self.complete = False
        self.exchanges = 0
        self._server = server
        self._pace = Pace(heartbeat=run_session.terms.lease_ttl / 4)
        self._wake_up = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._planned_at = 0.0
        self._away = False
        self._failing_since = 0.0
        self._retry_last = min(RETRY_LAST, run_session.terms.lease_ttl / 8)
        self._warned: dict[str, float] = {}
        self._missing = 0
        self._moved_at = time.monotonic()
        self._stands_still = False
        self._must_rejoin = False

    # What the worker hands in

    def enqueue(self, operation: Enqueue | Letter | Claim | Settle) -> ShardSession:
        """Take a request, or what becomes of one that stays here; it is sent with one of the next
        exchanges. -> for which shard."""
        session = self.run_session.enqueue(operation)
        if len(session) % MAX_OPERATIONS == 0:
            self.wake()
        return session

    def finish(
        self,
        session: ShardSession,
        finish: Finish | Settle,
        sent: Mapping[ShardSession, int] = NOTHING_SENT,
    ) -> None:
        """Take the end of a lease or a claim; ``sent`` as for `RunSession.finish`."""
        self.run_session.finish(session, finish, sent)

    def count(self, name: str, by: int) -> None:
        """Add to a count of the frontier that its workers keep."""
        self.run_session.sessions[0].tally[name] += by

    def waiting(self) -> int:
        """Enqueues and finishes that Redis has not acknowledged."""
        return self.run_session.waiting()

    def wake(self) -> None:
        """Something has changed: exchange earlier than planned if that is due."""
        if (
            not self._wake_up.is_set()
            and time.monotonic() + self._pause() < self._planned_at - 0.001
        ):
            self._wake_up.set()

    def found_more(self) -> None:
        """The worker can take what it could not take before."""
        self._pace.found_more()
        self.wake()

    # Running

    def start(self, worker: Worker) -> None:
        """Begin to exchange for ``worker`` in the background."""
        self.worker = worker
        self._exchanging = asyncio.ensure_future(self._exchange_until_stopped())
        self._help(self._listener().run())
        if self.run_session.joined.trash or self.run_session.joined.former_shards:
            self._help(self._sweep())

    def _help(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._helped)

    def _helped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed("a task in the background", error)

    def _failed(self, what: str, error: Exception) -> None:
        if self._may_warn(what):
            logger.error("An unexpected error in %s", what, exc_info=error)

    async def stop(self) -> None:
        """End the background tasks; an exchange under way is awaited, not cut off."""
        self._stop.set()
        self._wake_up.set()
        # More than once: wait_for() can lose a cancellation before Python 3.12.
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LOOK_FOR_ENDED)
        await self._exchanging

    def _pause(self) -> float:
        waiting = self.waiting()
        demand = self.worker.demand()
        return self._pace.pause(
            low=demand.low,
            within=math.inf if demand.within is None else demand.within,
            urgent=demand.urgent,
            waiting=waiting > 0,
            enqueues=self.run_session.enqueues_waiting(),
            many=waiting >= MAX_OPERATIONS,
            busy=self.worker.is_busy(),
        )

    async def _exchange_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                await self._wait()
                self.worker.collect_ended()
                if not self._stop.is_set() and self._pause() <= 0:
                    await self._exchange_or_retry()
        except Exception as error:
            if not isinstance(error, FrontierLost):
                logger.exception("The exchange with Redis failed in an unexpected way")
            self.worker.lost(error)

    async def _wait(self) -> None:
        pause = self._pause()
        if self.worker.is_busy():
            pause = min(pause, LOOK_FOR_ENDED)
        if pause > 0:
            self._planned_at = time.monotonic() + pause
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake_up.wait(), pause)
        self._wake_up.clear()
        self._planned_at = 0.0

    async def _exchange_or_retry(self) -> None:
        """One exchange with every shard; if Redis is away, again and again."""
        pause = RETRY_FIRST
        while not self._stop.is_set():
            try:
                await self._exchange_all(self.worker.demand())
            except ScriptFailed as error:
                self._warn("corrupt", "%s", error)
                self._failing_since = self._failing_since or time.monotonic()
                if time.monotonic() - self._failing_since > FAILING:
                    raise
            except FrontierCorrupt as error:
                self._warn("corrupt", "%s", error)
            except TROUBLE as error:
                if self._warn("away", "Redis is away, keeping what is buffered: %s", error):
                    self._away = True
                await self._revive()
            except RedisError as error:
                self._warn("refused", "Redis refused an exchange: %s", error)
            else:
                self._failing_since = 0.0
                if self._away:
                    self._away = False
                    logger.warning("Redis answers again; the crawl goes on")
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
            pause = min(pause * 2, self._retry_last)

    async def _revive(self) -> None:
        try:
            await asyncio.to_thread(self._server.revive)
        except RedisqError as error:
            self._warn("revive", "%s", error)

    def _warn(self, kind: str, text: str, error: Exception) -> bool:
        """Log, unless the last warning of this kind was just now; -> whether it was logged."""
        if may := self._may_warn(kind):
            logger.warning(text, self._server.redact(error))
        return may

    def _may_warn(self, kind: str) -> bool:
        now = time.monotonic()
        may = now - self._warned.get(kind, -WARN_EVERY) >= WARN_EVERY
        if may:
            self._warned[kind] = now
        return may

    # One exchange

    async def _exchange_all(self, demand: Demand) -> None:
        self.run_session.release()
        self._pace.woken = False
        replies: list[Reply] = []
        claimed, filled = 0, False
        # The shard with the fewest leases is asked first, so that none is left out.
        order = sorted(self.run_session.sessions, key=lambda shard: len(shard.held))
        for session in order:
            want = max(0, demand.want - claimed)
            reply = await self._exchange(session, want, demand)
            replies.append(reply)
            claimed += len(reply.leases)
            filled = filled or 0 < want <= len(reply.leases)
        self._pace.exchanged(
            claimed=claimed,
            filled=filled,
            low=demand.low,
            next_due=min(
                (reply.next_due for reply in replies if reply.next_due is not None), default=None
            ),
            others_wait=any(reply.waiting for reply in replies),
            overdue_in=min(reply.overdue_in for reply in replies),
        )
        for session, reply in zip(order, replies, strict=True):
            if reply.overdue_in == 0 and await self.run_session.reap(session):
                self._pace.found_more()
        stuck = [reply.stuck for reply in replies if not reply.complete]
        if stuck and (least := min(-1 if known is None else known for known in stuck)) >= 0:
            self.worker.stuck(least)
        was_complete, self.complete = self.complete, await self._is_complete(replies)
        if self.complete and not was_complete:
            self.worker.completed()

    async def _exchange(self, session: ShardSession, want: int, demand: Demand) -> Reply:
        if self._must_rejoin:
            await self._rejoin()
        reply: Reply | None = None
        held = len(session.held)
        while reply is None:
            session.full = self._pace.still_full()
            told = self.worker.turns(session)
            call = self._call(session, want, demand, told)
            self.exchanges += 1
            sent_at = time.monotonic()
            try:
                reply = session.received(await self.run_session.run(call))
            except ServerFull as error:
                if session.full:
                    raise ServerBusy(str(error)) from error
                self._full(error)
                self._pace.full()
                session.refused()
            except ScriptFailed as error:
                if not session.failed(self._server.redact(error)):
                    raise
        if reply.in_the_way:
            self._warn("corrupt", "%s", FrontierCorrupt(reply.in_the_way))
        if reply.leases or len(session.held) < held:
            self._moved_at, self._stands_still = time.monotonic(), False
        if reply.status in {"ok", "replayed"}:
            self.worker.received(session, reply, told, sent_at)
        elif reply.status == "lost":
            raise FrontierLost(
                f"frontier {session.name!r} is gone from Redis or was begun anew by others: "
                f"this worker's run {session.run} is no longer there"
            )
        elif reply.status == "sealed":
            await self.run_session.open_shard(session)
            return await self._exchange(session, want, demand)
        else:
            logger.warning(
                "This worker's leases are void (%s); it goes on as a new worker",
                "no sign of life in time" if reply.status == "gone" else "Redis lost recent writes",
            )
            self.worker.forgotten()
            self._must_rejoin = True
            await self._rejoin()
        return reply

    def _full(self, error: ServerFull) -> None:
        self._warn(
            "full",
            "%s: what is found waits, finishing and claiming go on. Raise its maxmemory, or delete "
            "what is not needed",
            error,
        )
        if time.monotonic() - self._moved_at > STILL and not self._stands_still:
            self._stands_still = True
            logger.warning(
                "For %g s this worker has claimed and finished nothing, as Redis is full: what "
                "pages have found must be stored before they are done. Nothing is lost, and it "
                "goes on when there is room",
                STILL,
            )

    def _call(
        self, session: ShardSession, want: int, demand: Demand, told: list[TurnReport]
    ) -> Call[Reply]:
        starting, seeded = self.worker.starting()
        starting = starting or self.run_session.enqueues_wait_elsewhere(session)
        elsewhere = sum(
            len(other.held) for other in self.run_session.sessions if other is not session
        )
        return session.call(
            want=want,
            most=demand.most - elsewhere,
            slot_limit=demand.slot_limit,
            room=demand.room,
            suspects=self.run_session.suspects_to_claim(),
            starting=starting,
            seeded=seeded,
            pages=self.worker.pages,
            items=self.worker.items,
            turns=told,
            slot_ttl=self.run_session.terms.slot_ttl,
        )

    async def _rejoin(self) -> None:
        """Once it has been said that the leases are void: again and again until it works."""
        await self.run_session.rejoin()
        self._must_rejoin = False
        self.worker.rejoined()

    async def _is_complete(self, replies: list[Reply]) -> bool:
        if self.waiting() or not all(reply.complete for reply in replies):
            return False
        missing = sum(reply.created - reply.finished for reply in replies)
        if missing > 0 and missing != self._missing and await self._find(missing):
            return False
        return len(replies) == 1 or await self.run_session.is_complete()

    async def _find(self, missing: int) -> bool:
        """Nothing is left although requests are missing; -> whether some were found."""
        found = 0
        with contextlib.suppress(ResponseError):  # the user may not SCAN
            found = sum(
                [await self.run_session.recover(shard) for shard in self.run_session.sessions]
            )
        if found:
            logger.warning("Keys of the frontier were deleted; what they kept from sight goes on")
            return True
        self._missing = missing
        logger.warning(
            "%d requests are missing: something else than scrapy-redisq has deleted keys of the "
            "frontier or changed its counts. Nothing else is left",
            missing,
        )
        return False

    # Helpers in the background

    def _listener(self) -> Listener:
        """Hears of new work while idle. Where that is not allowed, asking often finds it."""

        def woken() -> None:
            self._pace.woken = True
            self.wake()

        def listening(yes: bool) -> None:
            self._pace.listening = yes

        return Listener(
            self.run_session.client,
            [
                calls.wake_channel(session.name, session.shard)
                for session in self.run_session.sessions
            ],
            woken=woken,
            announced=self.worker.announced,
            listening=listening,
            failed=lambda error: self._failed("listening for other workers", error),
        )

    async def _sweep(self) -> None:
        """Delete what former runs have left, a little at a time."""
        try:
            await self.run_session.do(
                runs.sweep(self.run_session.terms.name, self.run_session.joined), pause=RUNNING_LOW
            )
        except (RedisError, RedisqError, OSError) as error:
            self._warn("sweep", "An old dupefilter is left to the next crawl: %s", error)

    # Leaving

    async def leave(self) -> bool:
        """Send what waits, give back what is held, leave. -> True if the run is now complete.

        To be called after `stop`. Tries for ever while Redis is away. A worker that gives up
        waiting loses nothing: others take its leases over when their TTL has passed.
        """
        pause = RETRY_FIRST
        sent = False
        while True:
            try:
                if not sent:
                    self.worker.collect_ended()
                    while self.waiting():
                        await self._exchange_all(NOTHING)
                        self.worker.collect_ended()
                        if self._pace.still_full():
                            await asyncio.sleep(FULL_RETRY)
                    await self._exchange_all(NOTHING)
                    # Not again: who has left, but was not told so, would come back to exchange.
                    sent = True
                return await self.run_session.leave(complete=self.complete)
            except TROUBLE as error:
                self._warn("away", "Redis is away while closing: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._retry_last)
