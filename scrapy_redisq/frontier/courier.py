"""The background task that carries a worker's exchanges to Redis and back.

One asyncio task per worker. It never lets the crawl wait: what the worker wants to send gathers
in its memberships' outboxes, what it may work on is handed over as it arrives. When Redis is
away the task keeps what it has and tries again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_redisq.errors import (
    FrontierCorrupt,
    FrontierInUse,
    FrontierLost,
    RedisqError,
    ServerBusy,
    ServerFull,
)
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig, shard_of
from scrapy_redisq.frontier.membership import (
    MAX_OPERATIONS,
    Enqueue,
    Finish,
    Membership,
    Reply,
)
from scrapy_redisq.frontier.scripts import Call, T, execute_async
from scrapy_redisq.frontier.seen import SeenFilter, seen_filter

logger = logging.getLogger(__name__)

FLUSH = 0.05
"""Seconds that something to send waits for company at most."""

HUNGRY = 0.005
"""Seconds between exchanges of a worker that has nothing left to start."""

IDLE_FIRST, IDLE_LAST = 0.1, 1.0
"""Seconds between exchanges of a worker that finds nothing; they grow from one to the other."""

RETRY_FIRST, RETRY_LAST = 0.1, 2.0
"""Seconds between attempts while Redis is away."""

WARN_EVERY = 30.0
"""Seconds between warnings about the same trouble."""

TROUBLE = (RedisConnectionError, RedisTimeoutError, ServerBusy, OSError)
"""What passes: Redis is away, or says that it takes no commands now."""


FULL_RETRY = 1.0
"""Seconds between attempts to enqueue while Redis is at its maxmemory."""


@dataclass(frozen=True)
class Demand:
    """What a worker could take now: entries in all, of one slot, and of slots it has some of.

    ``hungry``: what it has will not last long, so it is worth an exchange.
    """

    hungry: bool
    want: int
    slot_limit: int
    room: Mapping[str, int]


NOTHING = Demand(False, 0, 0, {})


class Worker(Protocol):
    """What the courier asks of the one it works for (the scheduler)."""

    pages: int
    items: int

    def settle(self) -> None:
        """Put the finishes of what has ended since the last call into the outboxes."""

    def demand(self) -> Demand:
        """How much more it could take."""

    def in_progress(self) -> bool:
        """Whether it works on something, so that finishes are to be expected."""

    def starting(self) -> tuple[bool, bool]:
        """(it may still add start requests or other requests of its own, all start ones were)."""

    def received(self, membership: Membership, reply: Reply) -> None:
        """Take in the leases and the outcomes of enqueues."""

    def forgotten(self, membership: Membership) -> None:
        """The leases of this shard are void, and what is cached about seen URLs."""

    def completed(self) -> None:
        """The whole frontier is finished."""

    def lost(self, error: Exception) -> None:
        """It cannot go on: close without saying that the crawl is finished."""


@dataclass(frozen=True)
class Terms:
    """How a worker takes part. Durations in seconds."""

    name: str
    config: FrontierConfig
    spider: str
    lease_ttl: float
    max_deliveries: int
    dead_max: int
    resume: bool
    keep_seen: bool


class Courier:
    """Joins a run, exchanges until told to stop, and leaves.

    ``complete`` is True once the whole frontier is finished, as far as the last exchange told.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        terms: Terms,
        worker: Worker,
        *,
        revive: Callable[[], object] | None = None,
    ) -> None:
        self.client = client
        self.terms = terms
        self.worker = worker
        self.memberships: list[Membership] = []
        self.joined: calls.Joined | None = None
        self.seen: SeenFilter | None = None
        self.complete = False
        self.away = False
        """Redis did not answer the last exchange."""
        self.exchanges = 0
        self._revive = revive
        self._held_back: deque[tuple[Membership, Finish, dict[int, int]]] = deque()
        self._poked = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._sent_at = 0.0
        self._planned_at = 0.0
        self._idle = IDLE_FIRST
        self._more = True  # the last claim was filled, so there is probably more
        self._woken = False
        self._listening = False
        self._full_until = 0.0
        self._next_due: float | None = None
        self._warned: dict[str, float] = {}

    # Joining

    async def join(self) -> calls.Joined:
        """Begin or resume the run and register. Raises as `calls.join` does."""
        if not self.terms.resume:
            with contextlib.suppress(FrontierInUse):
                await self._clear()
        self.joined = await self._register(self.terms.config)
        self.seen = seen_filter(self.joined.config)
        worker = self._worker_id
        for shard in range(self.joined.config.shards):
            self.memberships.append(
                Membership(
                    self.terms.name,
                    shard,
                    self.joined,
                    worker,
                    ttl=self.terms.lease_ttl,
                    dead_max=self.terms.dead_max,
                    seen=self.seen.parameters(),
                )
            )
        return self.joined

    async def _register(self, config: FrontierConfig, run: str = "") -> calls.Joined:
        """Join under a new id; with ``run`` only if that run is still there."""
        host, pid = socket.gethostname(), os.getpid()
        self._worker_id = f"{host}-{pid}-{secrets.token_hex(4)}"
        info: dict[str, str | int] = {"host": host, "pid": pid, "spider": self.terms.spider}

        again = bool(run)
        run = run or secrets.token_hex(8)

        def call(shard: int, run: str) -> Call[calls.Joined]:
            return calls.join(
                self.terms.name,
                shard,
                config,
                new_run=run,
                worker=self._worker_id,
                info=info,
                ttl=self.terms.lease_ttl,
                follow=shard > 0 and not again,
                again=again,
                keep_seen=self.terms.keep_seen,
            )

        try:
            joined = await self._run(call(0, run))
        except calls.ResetInterrupted:
            await self._clear()
            joined = await self._run(call(0, run))
        for shard in range(1, config.shards):
            await self._run(call(shard, joined.run))
        return joined

    async def _clear(self) -> None:
        for shard in range(self.terms.config.shards):
            status = "more"
            while status == "more":
                status, alive = await self._run(calls.clear(self.terms.name, shard, False))
            if status == "in_use":
                raise FrontierInUse(f"frontier {self.terms.name!r} has {alive} live workers")

    async def _run(self, call: Call[T]) -> T:
        return await execute_async(self.client, call)

    # What the worker hands in

    def encode_fingerprint(self, fingerprint: bytes) -> bytes | str:
        """A request's fingerprint as the run's dupefilter takes it."""
        assert self.seen is not None
        return self.seen.encode(fingerprint)

    def enqueue(self, enqueue: Enqueue) -> None:
        """Take a request for the shard of its slot."""
        shard = shard_of(enqueue.slot, len(self.memberships))
        membership = self.memberships[shard]
        membership.add(enqueue)
        if len(membership) % MAX_OPERATIONS == 0:
            self.poke()

    def finish(self, membership: Membership, finish: Finish) -> None:
        """Take the end of a lease. It is sent when all requests of its page have been taken.

        On the page's own shard the order in the outbox sees to that; for requests that went to
        other shards the finish is held back until those have acknowledged them.
        """
        pending = {
            other.shard: other.enqueued
            for other in self.memberships
            if other is not membership and other.acknowledged < other.enqueued
        }
        if pending:
            self._held_back.append((membership, finish, pending))
        else:
            membership.add(finish)

    def _let_go(self) -> None:
        """Send on the finishes that need not be held back any longer."""
        for _ in range(len(self._held_back)):
            membership, finish, pending = self._held_back.popleft()
            if all(self.memberships[shard].acknowledged >= n for shard, n in pending.items()):
                membership.add(finish)
            else:
                self._held_back.append((membership, finish, pending))

    # Running

    def start(self) -> None:
        """Begin to exchange in the background."""
        self._task = asyncio.ensure_future(self._exchange_until_stopped())
        self._help(self._listen())
        if self.joined is not None and self.joined.trash:
            self._help(self._sweep(self.joined.config.backend))

    def _help(self, coroutine: object) -> None:
        task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    def poke(self) -> None:
        """Something has changed; exchange earlier than planned if that is due."""
        if not self._poked.is_set():
            due = time.monotonic() + self._pause()
            if due < self._planned_at - 0.001:
                self._poked.set()

    def waiting(self) -> int:
        """Enqueues and finishes that Redis has not acknowledged."""
        return sum(len(membership) for membership in self.memberships) + len(self._held_back)

    def _pause(self) -> float:
        """Seconds until the next exchange should be made."""
        since = time.monotonic() - self._sent_at
        if self._full_until:
            return max(0.0, IDLE_FIRST - since)
        waiting = self.waiting()
        if waiting >= MAX_OPERATIONS:
            return 0.0
        hungry = self.worker.demand().hungry
        if hungry and self._more:
            return max(0.0, HUNGRY - since)
        busy = self.worker.in_progress()
        # Without a word from others new work is only found by asking.
        longest = IDLE_LAST if self._listening else 2 * IDLE_FIRST
        pauses = [longest if busy else min(self._idle, longest)]
        if hungry and self._woken:
            pauses.append(IDLE_FIRST)
        if waiting:
            pauses.append(FLUSH if busy and not hungry else HUNGRY)
        if hungry and self._next_due is not None:
            pauses.append(max(HUNGRY, self._next_due))
        return max(0.0, min(pauses) - since)

    async def _exchange_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                await self._wait()
                self.worker.settle()
                if not self._stop.is_set() and self._pause() <= 0:
                    await self._exchange_all_or_wait()
        except Exception as error:
            if not isinstance(error, FrontierLost):
                logger.exception("The exchange with Redis failed in an unexpected way")
            self.worker.lost(error)

    async def _wait(self) -> None:
        pause = self._pause()
        if self.worker.in_progress():
            pause = min(pause, FLUSH)  # look for what has ended, send only if there is some
        if pause > 0:
            self._planned_at = time.monotonic() + pause
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._poked.wait(), pause)
        self._poked.clear()
        self._planned_at = 0.0

    async def _exchange_all_or_wait(self) -> None:
        """One exchange with every shard; if Redis is away, a pause and another try."""
        pause = RETRY_FIRST
        while not self._stop.is_set():
            try:
                await self._exchange_all(self.worker.demand())
            except TROUBLE as error:
                self.away = True
                self._warn("away", "Redis is away, keeping what is buffered: %s", error)
                await self._try_to_revive()
            except FrontierCorrupt as error:
                self._warn("corrupt", "%s", error)
            except RedisError as error:
                self._warn("error", "Redis refused an exchange: %s", error)
            else:
                if self.away:
                    self.away = False
                    logger.warning("Redis answers again; the crawl goes on")
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
            pause = min(pause * 2, RETRY_LAST)

    async def _try_to_revive(self) -> None:
        """An embedded server that died is started again."""
        if self._revive is not None:
            try:
                await asyncio.to_thread(self._revive)
            except RedisqError as error:
                self._warn("revive", "%s", error)

    def _warn(self, kind: str, text: str, *details: object) -> None:
        now = time.monotonic()
        if now - self._warned.get(kind, -WARN_EVERY) >= WARN_EVERY:
            self._warned[kind] = now
            logger.warning(text, *details)

    async def _exchange_all(self, demand: Demand) -> None:
        starting, seeded = self.worker.starting()
        self._let_go()
        self._woken = False
        claimed = 0
        filled = False
        complete = True
        due: list[int] = []
        # The shard with the fewest leases is asked first, so that none is left out.
        order = sorted(self.memberships, key=lambda membership: len(membership.held))
        for membership in order:
            wanted = max(0, demand.want - claimed)
            reply = await self._exchange(
                membership,
                wanted,
                demand,
                starting=starting,
                seeded=seeded,
            )
            claimed += len(reply.leases)
            filled = filled or 0 < wanted <= len(reply.leases)
            complete = complete and reply.complete
            if reply.next_due is not None:
                due.append(reply.next_due)
        self._sent_at = time.monotonic()
        self._more = filled
        self._next_due = min(due) / 1000 if due else None
        if claimed or self.waiting():
            self._idle = IDLE_FIRST
        elif demand.want:
            self._idle = min(self._idle * 2, IDLE_LAST)
        was_complete = self.complete
        self.complete = complete and await self._is_complete()
        if self.complete and not was_complete:
            self.worker.completed()

    async def _exchange(
        self,
        membership: Membership,
        want: int,
        demand: Demand,
        *,
        starting: bool,
        seeded: bool,
    ) -> Reply:
        call = membership.call(
            want=want,
            slot_limit=demand.slot_limit,
            room=demand.room,
            starting=starting,
            seeded=seeded,
            pages=self.worker.pages,
            items=self.worker.items,
        )
        if self._full_until and time.monotonic() >= self._full_until:
            self._full_until, membership.full = 0.0, False
        self.exchanges += 1
        try:
            reply = membership.received(await self._run(call))
        except ServerFull as error:
            if membership.full:
                raise ServerBusy(str(error)) from error
            self._warn("full", "%s: what is found waits; finishing and claiming go on", error)
            membership.refused()
            self._full_until = time.monotonic() + FULL_RETRY
            return await self._exchange(membership, want, demand, starting=starting, seeded=seeded)
        match reply.status:
            case "ok" | "replayed":
                self.worker.received(membership, reply)
            case "lost":
                raise FrontierLost(
                    f"frontier {self.terms.name!r} is gone from Redis or was begun anew by "
                    f"others: this worker's run {membership.run} is no longer there"
                )
            case _:
                await self._rejoin(reply.status)
        if reply.overdue:
            await self._reap(membership)
        return reply

    async def _rejoin(self, status: str) -> None:
        """This worker was reaped, or the server lost what it had acknowledged: join anew."""
        logger.warning(
            "This worker's leases are void (%s); it goes on as a new worker",
            "it gave no sign of life in time" if status == "gone" else "Redis lost recent writes",
        )
        for membership in self.memberships:
            await self._give_back(membership, complete=False)
        assert self.joined is not None
        joined = await self._register(self.joined.config, self.joined.run)
        self._held_back.clear()
        for membership in self.memberships:
            self.worker.forgotten(membership)
            membership.rejoined(joined, self._worker_id)

    async def _give_back(self, membership: Membership, *, complete: bool) -> bool:
        left, run_complete = 1, False
        while left:
            left, run_complete = await self._run(
                calls.leave(
                    self.terms.name, membership.shard, membership.run, membership.worker, complete
                )
            )
        return run_complete

    async def _reap(self, membership: Membership) -> None:
        reclaimed, dead, _ = await self._run(
            calls.reap(
                self.terms.name,
                membership.shard,
                membership.run,
                self.terms.max_deliveries,
                self.terms.dead_max,
            )
        )
        if reclaimed or dead:
            self._more = True
            logger.info("Took over %d requests of a dead worker, gave up %d", reclaimed, dead)

    async def _is_complete(self) -> bool:
        """With several shards, Mattern's four counters: first all finished, then all created."""
        if self.waiting():
            return False
        if len(self.memberships) == 1:
            return True
        shards = range(len(self.memberships))
        first = [await self._run(calls.totals(self.terms.name, shard)) for shard in shards]
        second = [await self._run(calls.totals(self.terms.name, shard)) for shard in shards]
        finished = sum(shard_finished for _, shard_finished, _ in first)
        starting = sum(shard_starting for _, _, shard_starting in first)
        created = sum(shard_created for shard_created, _, _ in second)
        return starting == 0 and finished == created

    # Helpers in the background

    async def _listen(self) -> None:
        """Hear of new work while idle. Where that is not allowed, polling finds it."""
        channels = [
            calls.wake_channel(self.terms.name, shard) for shard in range(len(self.memberships))
        ]
        while True:
            with contextlib.suppress(RedisError, OSError):
                async with self.client.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(*channels)
                    self._listening = True
                    while True:
                        if await channel.get_message(timeout=60) is not None:
                            self._woken = True
                            self.poke()
            self._listening = False
            await asyncio.sleep(IDLE_LAST)

    async def _sweep(self, backend: str | None) -> None:
        """Delete the dupefilters of former runs, a little at a time."""
        for shard in range(len(self.memberships)):
            current = backend
            while current:
                try:
                    current = await self._run(calls.sweep(self.terms.name, shard, current))
                except (RedisError, ServerBusy, ServerFull, FrontierCorrupt, OSError) as error:
                    self._warn("sweep", "could not delete an old dupefilter: %s", error)
                    return
                await asyncio.sleep(HUNGRY)

    # Leaving

    async def stop(self) -> None:
        """End the background task; exchanges under way are awaited, not cut off."""
        self._stop.set()
        self._poked.set()
        for helper in list(self._helpers):
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        if self._task is not None:
            await self._task

    async def leave(self) -> bool:
        """Send what waits, give back what is held, leave. -> True if the run is now complete.

        Tries for ever while Redis is away. A worker that gives up waiting loses nothing: others
        take its leases over when their TTL has passed.
        """
        pause = RETRY_FIRST
        while True:
            try:
                self.worker.settle()
                while self.waiting():
                    await self._exchange_all(NOTHING)
                await self._exchange_all(NOTHING)
                complete = [
                    await self._give_back(membership, complete=self.complete)
                    for membership in reversed(self.memberships)
                ]
                return complete[-1]
            except TROUBLE as error:
                self._warn("away", "Redis is away while closing: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_LAST)
