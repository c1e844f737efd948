"""A worker's place in a run: joining its shards, coming back, taking over, leaving."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import redis.asyncio

from scrapy_redisq.errors import FrontierCorrupt, ServerBusy
from scrapy_redisq.frontier import calls, runs
from scrapy_redisq.frontier.calls import Joined
from scrapy_redisq.frontier.growth import Fill
from scrapy_redisq.frontier.names import number, pairs
from scrapy_redisq.frontier.operations import (
    Delivered,
    Enqueue,
    Letter,
    Link,
    Reply,
)
from scrapy_redisq.frontier.posts import unpack_links
from scrapy_redisq.frontier.runs import Steps, drive_async
from scrapy_redisq.frontier.scripts import (
    AsyncClient,
    Call,
    T,
    execute_and_wait,
    execute_async,
)
from scrapy_redisq.frontier.seen import seen_filter
from scrapy_redisq.frontier.shard_session import (
    HOLD,
    ShardSession,
)
from scrapy_redisq.frontier.slot_names import shard_of
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.frontier.unsafe import MAX_KEPT_BYTES
from scrapy_redisq.frontier.unsent import MAX_OPERATIONS

logger = logging.getLogger(__name__)

AWAY = 5.0
"""Seconds without an answer after which a shard's links are left to their posts."""

MOST_POSTS = 100
"""Of dead workers, that are taken at a time."""


@runtime_checkable
class MayBeAlone(Protocol):
    """The client of a cluster, which knows whether its masters have replicas."""

    def alone_at(self) -> float: ...

    async def look(self) -> None: ...


class RunSession:
    """One worker's sessions in all shards of a run."""

    def __init__(
        self,
        client: AsyncClient,
        terms: Terms,
        primary_vouched: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.terms = terms
        self._primary_vouched = primary_vouched
        self.sessions: list[ShardSession] = []
        self.buried = 0
        """Requests of dead workers that this one made dead letters of."""
        self._told_of: set[int] = set()
        self._take_after = 0.0
        # Kept until a join has been answered: one that is repeated under another id would leave a
        # worker behind that all others wait for until its TTL has passed.
        self._next_id = _new_worker_id()
        self._since = calls.JUST_NOW

    async def run(self, call: Call[T]) -> T:
        """Run one script; raises as `execute_async` does."""
        return await self._heeding_busy(execute_async(self.client, call))

    async def _heeding_busy(self, running: Awaitable[T]) -> T:
        try:
            return await running
        except ServerBusy:
            # After a failover the address leads to another server, but a connection that is open
            # stays with the demoted one, which refuses writes for ever. (A cluster tells who has
            # taken over.)
            if isinstance(self.client, redis.asyncio.Redis):
                # Those in use will be told so themselves; the listener's is of no weight.
                await self.client.connection_pool.disconnect(inuse_connections=False)
            raise

    async def do(self, steps: Steps[T], *, pause: float = 0.0) -> T:
        """Run a procedure of `runs`, with ``pause`` seconds after each call."""
        return await drive_async(self.run, steps, pause=pause)

    # Joining and leaving

    async def join(self) -> Joined:
        """Begin or resume the run and register. Raises as `calls.join` does.

        May be called again if the connection broke, or if workers may come back.
        """
        if self._since == calls.JUST_NOW:
            look = runs.first_look(self.terms.name, self.terms.started, self.terms.config)
            self._since, backend = await self.do(look)
            self.terms = replace(self.terms, config=replace(self.terms.config, backend=backend))
        newcomer = self._newcomer()
        self.joined = await self.do(runs.join(self.terms.name, newcomer))
        self._numbers = self.joined.config.shard_numbers(self.terms.name)
        self._next_id = _new_worker_id()
        self.seen = seen_filter(self.joined.config)
        worker = newcomer.registration.worker
        self.sessions = [
            ShardSession(shard, self.joined, worker, self.terms, self._primary_vouched)
            for shard in self._numbers
        ]
        return self.joined

    def _newcomer(self) -> runs.Newcomer:
        info: dict[str, str | int] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "spider": self.terms.config.spider,
        }
        registration = calls.Registration(
            self._next_id,
            self.terms.lease_ttl,
            info,
            self.terms.limits,
            self.terms.throttle,
            self.terms.release,
            self.terms.settings,
        )
        return runs.Newcomer(
            registration, self.terms.config, self.terms.run, self._since, self.terms.young
        )

    async def rejoin(self, sessions: Sequence[ShardSession]) -> None:
        """Come back to these shards under a new id, after this worker was reaped there or its
        history was lost. The leases of other shards stay.

        Raises `FrontierLost` if the run is gone.
        """
        await self._give_back(sessions, returns=True)
        newcomer = replace(self._newcomer(), config=self.joined.config)
        former = {session.shard: session.worker for session in sessions}
        await self.do(runs.come_back(self.terms.name, newcomer, self.joined.run, former))
        self._next_id = _new_worker_id()
        for session in sessions:
            session.rejoined(self.joined, newcomer.registration.worker)
        if self.sessions[0] in sessions:
            self._told_of.clear()

    async def leave(self, *, complete: bool, missing: bool = False) -> bool:
        """Give back what is held and go; -> True if the run is complete by that.

        ``complete``: as far as this worker knows, everything is finished on all shards.
        ``missing``: or is gone, so that it ends also a run that is kept open.
        """
        await self._give_back(self.sessions[::-1])
        if not complete or (self.terms.run.keep_alive and not missing):
            return False
        return await self.do(runs.conclude(self.terms.name, self.joined.run))

    async def _give_back(self, sessions: Sequence[ShardSession], *, returns: bool = False) -> None:
        """Leave these shards. Raises what one of them did, when all the others are left."""
        problem: Exception | None = None
        for session in sessions:
            call = calls.leave(
                self.terms.name,
                session.shard,
                session.run,
                session.worker,
                dead_max=self.terms.dead_max,
                returns=returns,
            )
            try:
                while await self.run(call):
                    pass
            except TROUBLE as error:
                problem = error
        if problem is not None:
            raise problem

    async def fills(self) -> list[Fill]:
        """How full each shard and its server are."""
        return [
            await self.run(calls.fill(self.terms.name, session.shard)) for session in self.sessions
        ]

    def suspects_to_claim(self) -> int:
        """A worker holds one suspect at a time, so that a request that kills its workers takes no
        others into the dead letters with it."""
        return 0 if any(session.suspects for session in self.sessions) else 1

    # Operations on their way

    def waiting(self) -> int:
        """Enqueues and finishes that Redis has not acknowledged."""
        return sum(map(len, self.sessions))

    def keeps_too_much(self, most: int = MAX_KEPT_BYTES) -> bool:
        """So much may have to be sent again that no more should be taken in now."""
        return any(session.unsafe.bytes() > most for session in self.sessions)

    def enqueues_wait_elsewhere(self, session: ShardSession) -> bool:
        """Whether there are requests that another shard than this has not acknowledged, or may yet
        lose although nobody but this worker would ask for them again."""
        return any(
            other.unacknowledged > 0 or other.unsafe.may_ask_again
            for other in self.sessions
            if other is not session
        )

    def enqueue(self, operation: Enqueue | Letter) -> ShardSession:
        """Take a request, or what becomes of it, for the shard of its slot; -> that."""
        session = self.shard_of(operation.slot)
        session.add(operation)
        return session

    def shard_of(self, slot: str) -> ShardSession:
        """The worker's session in the shard that keeps ``slot``."""
        return self.sessions[shard_of(slot, len(self.sessions))]

    def link_to(self, slot: str, page: ShardSession) -> Link | None:
        """What becomes of a request of ``slot`` that a page of another shard has asked for; None if
        the same log has both."""
        return Link() if self.spread and self.shard_of(slot) is not page else None

    # Exchanges

    @property
    def spread(self) -> bool:
        """Whether there are several shards, on several servers, each with a log of its own."""
        return self.joined.config.has_several_logs

    async def exchange(self, session: ShardSession, call: Call[Reply]) -> Reply:
        """Send an exchange of ``session`` and take in what it brings; raises as `execute_async`."""
        if self.spread and isinstance(self.client, MayBeAlone):
            session.unsafe.alone_at = self.client.alone_at()
            if session.unsafe.is_to_look:
                await self.client.look()
                session.unsafe.alone_at = self.client.alone_at()
        replicas = self._replicas_to_wait_for(session)
        if replicas:
            reply, confirmed = await self._heeding_busy(
                execute_and_wait(self.client, call, replicas)
            )
        else:
            reply, confirmed = await self.run(call), False
        session.received(reply, confirmed=confirmed)
        self._leave_to_posts()
        if self.spread and session.unsafe.has_begun and session.shard not in self._told_of:
            self._told_of.add(session.shard)
            self.sessions[0].begun.add(session.shard)
        return reply

    def _leave_to_posts(self) -> None:
        """Of a shard that is away, links that have a post need not be kept here."""
        for session in self.sessions if self.spread else ():
            if len(session) > MAX_OPERATIONS and session.is_silent(AWAY):
                session.forget_posted()

    def _replicas_to_wait_for(self, session: ShardSession) -> int:
        if not self.spread or not session.is_unsafe:
            return 0
        if self.terms.wait_replicas or session.unsafe.is_alone:
            return self.terms.wait_replicas
        # With nothing else to do it is worth the time: the crawl may be waiting for its end.
        return 0 if any(other.held for other in self.sessions) else 1

    def may_take_posts(self) -> bool:
        """Whether links of posts could be sent soon."""
        return time.monotonic() >= self._take_after and self.waiting() <= MAX_OPERATIONS

    async def deliver(self, session: ShardSession, reply: Reply) -> None:
        """Take posts of a shard that are due, and send their links. Raises as `execute_async`."""
        if reply.post_due != 0 or not self.may_take_posts():
            return
        hold = self.terms.rewind + HOLD
        call = calls.take_posts(
            self.terms.name, session.shard, session.run, most=MOST_POSTS, hold=hold
        )
        for id, post in (await self.run(call)).items():
            try:
                links = unpack_links(id, post)
            except FrontierCorrupt as error:
                logger.error("%s: something else than scrapy-redisq wrote it; it is deleted", error)
                session.add(Delivered(id))
                continue
            if any(self.shard_of(link.slot).is_silent(AWAY) for link in links):
                self._take_after = time.monotonic() + AWAY
                continue
            for link in links:
                self.enqueue(link)
            session.take_over(id, links)

    # Looking after the run

    async def reap(self, session: ShardSession) -> int:
        """Reclaim what dead workers hold on this shard; -> how many requests were touched."""
        reclaimed, dead, _ = await self.run(
            calls.reap(
                self.terms.name,
                session.shard,
                session.run,
                self.terms.max_deliveries,
                self.terms.dead_max,
                ttl=self.terms.lease_ttl,
            )
        )
        self.buried += dead
        if reclaimed or dead:
            logger.info("Took over %d requests of a dead worker, gave up %d", reclaimed, dead)
        return reclaimed + dead

    async def is_complete(self) -> bool:
        """Whether everything is finished on all shards."""
        workers = [session.worker for session in self.sessions] if self.spread else ()
        return await self.do(runs.is_idle(self.terms.name, self._numbers, workers))

    async def left_waiting(self) -> int:
        """How many requests wait although no worker is there; 0 if one is."""
        waiting = 0
        for session in self.sessions:
            status = await self.run(calls.status(self.terms.name, session.shard)) or {}
            if any(worker[1] >= status["now"] for worker in status.get("workers", [])):
                return 0
            counts = pairs(status.get("counts", []))
            waiting += number(counts.get("created", 0)) - number(counts.get("finished", 0))
        return max(0, waiting)

    async def open_shard(self, session: ShardSession) -> None:
        """Open a run that other workers have completed, or a shard that they have sealed, because
        this one has something to add."""
        await self.do(runs.open_shard(self.terms.name, session.shard, session.run))


def _new_worker_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
