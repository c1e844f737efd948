"""One worker in a run: joining, coming back, the end, leaving.

There is one asyncio task for each shard (`scrapy_redisq.frontier.shard_task`), so that the crawl
never waits. Operations gather in the shard sessions, and leases are handed over as they arrive.
While Redis is away a task keeps what it has and tries again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import redis.asyncio
from msgspec.structs import replace
from redis.exceptions import RedisError

from scrapy_redisq.errors import (
    ConfigurationMismatch,
    FrontierCorrupt,
    FrontierLost,
    RedisqError,
    ScriptFailed,
    ServerBusy,
)
from scrapy_redisq.frontier import calls, runs, shard_task
from scrapy_redisq.frontier.calls import Joined
from scrapy_redisq.frontier.growth import ServerState, server_state
from scrapy_redisq.frontier.listener import listen
from scrapy_redisq.frontier.names import key_prefix, number, pairs, stats_in
from scrapy_redisq.frontier.operations import Enqueue, Letter, Link, Reply
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS
from scrapy_redisq.frontier.pace import RUNNING_LOW
from scrapy_redisq.frontier.passing_errors import RETRY_FIRST, RETRY_LAST, TROUBLE, Warnings
from scrapy_redisq.frontier.resend import MAX_KEPT_BYTES
from scrapy_redisq.frontier.runs import Steps, drive_async
from scrapy_redisq.frontier.scripts import AsyncClient, Call, T, execute_async
from scrapy_redisq.frontier.seen import SEEN_LATER, seen_filter
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.shards import shard_of
from scrapy_redisq.frontier.terms import NOTHING, Server, Terms, Worker
from scrapy_redisq.tasks import cancel

logger = logging.getLogger(__name__)

LOOK_FOR_ENDED = 0.05
"""Seconds between looks for pages that have ended."""

LOOK_FOR_COMPLETE = 0.25
"""The same for the end of the run, of a worker that has left it."""


class RunSession:
    """One worker's place in a run, with a session in each shard.

    First `join`, then `start` says for whom to exchange, at last `stop` and `leave`.
    ``complete`` is True once the whole frontier is finished, as far as the last exchanges told.
    """

    worker: Worker
    joined: Joined

    def __init__(self, client: AsyncClient, terms: Terms, server: Server) -> None:
        self.client = client
        self.terms = terms
        self.server = server
        self.sessions: list[ShardSession] = []
        self.complete = False
        self.exchanges = 0
        self.buried = 0
        """Requests of dead workers that this one made dead letters of."""
        self.fleet_stats: dict[str, int] | None = None
        """Scrapy's stats of all workers, once this one has left as the last one, and completed the
        run."""
        self.warnings = Warnings(self.server.redact)
        # The same until a join has been answered. A join that is repeated under another id would
        # leave a worker behind, for which all others wait until its TTL has passed.
        self._next_id = _new_worker_id()
        self._since = calls.JUST_NOW
        self._stop = asyncio.Event()
        self._landed = asyncio.Event()
        self._running: list[asyncio.Future[None]] = []
        self._helpers: list[asyncio.Future[None]] = []
        self._missing: int | None = None
        """Requests that were missing when the worker was told that the run is complete."""
        self._looks_for_end = self._certain = False
        self._is_lost = self._answer_lost = False

    # Calls

    async def call(self, call: Call[T]) -> T:
        """Run one script; raises as `execute_async` does."""
        return await self.heeding_busy(execute_async(self.client, call))

    async def heeding_busy(self, running: Awaitable[T]) -> T:
        """Return or raise as ``running`` does."""
        try:
            return await running
        except ServerBusy:
            # After a failover an open connection stays with the demoted server, which refuses
            # writes for ever. A cluster tells who has taken over.
            if isinstance(self.client, redis.asyncio.Redis):
                await self.client.connection_pool.disconnect(inuse_connections=False)
            raise

    async def do(self, steps: Steps[T], *, pause: float = 0.0) -> T:
        """Run a procedure of `runs`, with ``pause`` seconds after each call."""
        return await drive_async(self.call, steps, pause=pause)

    async def confirm_primary(self) -> None:
        """Return if the server that answers is the one that counts. Raises `TROUBLE` if that cannot
        be known now."""
        try:
            await self.server.confirm_primary()
        except RedisError as error:
            raise ServerBusy(str(error)) from error

    async def revive(self) -> None:
        """Start a dead embedded server again."""
        try:
            await asyncio.to_thread(self.server.revive)
        except RedisqError as error:
            self.warnings.warn("revive", "%s", error)

    # Joining, coming back

    async def join(self) -> Joined:
        """Begin or resume the run and register. Raises as `calls.join` does.

        May be called again if the connection broke, or if workers may come back.
        """
        if self._since == calls.JUST_NOW:
            self._since, backend = await self.do(runs.first_look(self.terms))
            config = replace(self.terms.config, backend=backend)
            self.terms = replace(self.terms, config=config)
        registration = self._registration()
        self.joined = await self.do(runs.join(self.terms, registration, self._since))
        self._next_id = _new_worker_id()
        self.seen = seen_filter(self.joined.config)
        self.sessions = [
            ShardSession(self, shard, self.joined, registration.worker)
            for shard in self.joined.config.shard_numbers(self.terms.name)
        ]
        return self.joined

    def _registration(self) -> calls.Registration:
        terms = self.terms
        info: dict[str, str | int] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "spider": terms.config.spider,
        }
        return calls.Registration(
            self._next_id,
            terms.lease_ttl,
            info,
            terms.limits,
            terms.throttle,
            terms.seen_ttl,
            terms.release,
            terms.settings,
        )

    def start_over(self, session: ShardSession, why: str) -> None:
        """The leases of a shard are void: the worker has to `come_back` to it."""
        logger.warning("This worker's leases are void (%s); it goes on as a new worker", why)
        session.is_void = True
        session.last = None
        self.complete, self._certain, self._missing = False, False, None
        self.worker.forgotten([session])

    async def come_back(self, session: ShardSession) -> None:
        """Join a shard again, under a new id. The leases of other shards stay.

        Raises `FrontierLost` if the run is gone.
        """
        await self._give_back(session, returns=True)
        registration, run = self._registration(), self.joined.run
        terms = self.terms.run if session is self.sessions[0] else None
        intent = calls.come_back(run, session.worker_id, self._since, terms)
        name, config = self.terms.name, self.joined.config
        await self.call(calls.join(name, session.shard, intent, config, registration))
        self._next_id = _new_worker_id()
        session.rejoined(run, registration.worker)
        self.worker.rejoined()

    # The worker hands in, and asks

    def enqueue(self, operation: Enqueue | Letter) -> None:
        """Take a request, or the dead letter of one; it is sent with one of the next exchanges."""
        session = self.shard_of(operation.slot)
        session.add(operation)
        self.complete = False
        if len(session) % MAX_OPERATIONS == 0:
            self.wake()

    def count(self, name: str, by: int) -> None:
        """Add to a count of the frontier that its workers keep."""
        self.sessions[0].outgoing.tally[name] += by

    def shard_of(self, slot: str) -> ShardSession:
        """The worker's session in the shard that keeps ``slot``."""
        return self.sessions[shard_of(slot, len(self.sessions))]

    def link_to(self, slot: str, page: ShardSession) -> Link | None:
        """For a request of ``slot`` that a page has asked for; None if the same log has both."""
        several = self.joined.config.has_several_logs
        return Link() if several and self.shard_of(slot) is not page else None

    def waiting(self) -> int:
        """Enqueues and finishes that Redis has not acknowledged."""
        return sum(map(len, self.sessions))

    def keeps_too_much(self, times: int = 1) -> bool:
        """So much is to be sent or may have to be sent again, or so many ``times`` as much, that no
        more should be taken in now."""
        most = times * MAX_KEPT_BYTES
        return any(one.outgoing.bytes + one.resend.bytes > most for one in self.sessions)

    def proof_at(self) -> float:
        """When (time.monotonic()) exchanges may show that no shard can lose anything any more."""
        return max(one.resend.proof_at for one in self.sessions)

    def unfinished(self) -> int:
        """Requests that are not finished, as the last exchanges told, and unsent operations."""
        told = sum(reply.created - reply.finished for reply in self._last_replies())
        return told + self.waiting()

    async def fills(self) -> list[ServerState]:
        """How full each shard and its server are."""
        prefixes = [key_prefix(self.terms.name, session.shard) for session in self.sessions]
        return [await self.call(server_state(prefix)) for prefix in prefixes]

    def holds_any(self, operations: Collection[object]) -> bool:
        """Whether Redis has not acknowledged some of these letters, or of the requests that have
        these tags."""
        return any(
            (one.tag if isinstance(one, Enqueue) else one) in operations
            for session in self.sessions
            for one in session.outgoing
            if isinstance(one, (Enqueue, Letter))
        )

    def nothing_is_due(self) -> bool:
        """Whether no request can be claimed within a second, as the last exchanges told."""
        replies = self._last_replies()
        return len(replies) == len(self.sessions) and all(
            reply.next_due is None or reply.next_due > 1_000 for reply in replies
        )

    def finished(self) -> int:
        """Requests of the run that are finished, as the last exchanges told."""
        return sum(reply.finished for reply in self._last_replies())

    def away(self) -> bool:
        """A shard does not answer."""
        return any(session.is_silent for session in self.sessions)

    def wake(self) -> None:
        """Something has changed: exchange earlier than planned where that is due."""
        if waiting := [session for session in self.sessions if session.is_waiting]:
            demand = self.worker.demand()
            for session in waiting:
                session.wake(demand)

    def found_more(self) -> None:
        """The worker can take more than before."""
        for session in self.sessions:
            session.pace.found_more()
        self.wake()

    # Running

    @property
    def stopping(self) -> bool:
        """The worker has been told to stop."""
        return self._stop.is_set()

    async def stopped_within(self, seconds: float) -> None:
        """Wait so long, or until the worker is told to stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def start(self, worker: Worker) -> None:
        """Begin to exchange for ``worker`` in the background."""
        self.worker = worker
        self._running = [
            asyncio.ensure_future(self.run_part(shard_task.exchange_on, session))
            for session in self.sessions
        ]
        helpers = [listen(self), self.run_part(self._look_for_ended)]
        self._helpers = [asyncio.ensure_future(helper) for helper in helpers]
        if self.joined.trash or self.joined.former_shards or self.terms.seen_ttl:
            self._helpers.append(asyncio.ensure_future(self._sweep()))

    def run_beside(self, part: Callable[..., Awaitable[None]]) -> None:
        """Run a part of the worker in the background, until `stop`."""
        self._helpers.append(asyncio.ensure_future(self.run_part(part)))

    async def run_part(self, part: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a part of the worker that goes on until it is cancelled; if it fails, the worker is
        lost."""
        try:
            await part(*arguments)
        except Exception as error:
            if not isinstance(error, (FrontierLost, FrontierCorrupt, ConfigurationMismatch)):
                logger.exception("The exchange with Redis failed in an unexpected way")
            if not self._is_lost:
                self._is_lost = True
                self.worker.lost(error)

    async def _look_for_ended(self) -> None:
        """One look for all shards: else each shard would look, and find a part."""
        while True:
            if self.worker.is_busy():
                await asyncio.sleep(LOOK_FOR_ENDED)
                self.worker.collect_ended()
                self.wake()
            else:
                self._landed.clear()
                await self._landed.wait()

    def landed(self) -> None:
        """An exchange is over."""
        self._landed.set()

    async def _sweep(self) -> None:
        """Delete the rest of former runs, a little at a time; and old generations of the dupefilter
        as they are rotated."""
        joined, ttl = self.joined, self.terms.seen_ttl
        while True:
            try:
                await self.do(runs.sweep(self.terms.name, joined), pause=RUNNING_LOW)
            except Exception as error:
                self.warnings.warn("sweep", "An old dupefilter is left for later: %s", error)
            if not ttl:
                return
            await asyncio.sleep(ttl * SEEN_LATER)
            joined = replace(joined, trash=1, former_shards=0)

    # The end

    async def see_whether_complete(self) -> None:
        """Act on the last replies of all shards: the run may be complete, or stuck."""
        replies = self._last_replies()
        if len(replies) < len(self.sessions):
            return
        stuck = [reply.stuck for reply in replies if not reply.complete]
        if stuck and (least := min(-1 if known is None else known for known in stuck)) >= 0:
            self.worker.stuck(least)
        # A spider that adds what is known whenever it is idle would be idle again at once.
        if not all(reply.complete for reply in replies):
            self._missing = None
        if not self.all_finished():
            self.complete = self._certain = False
        elif not self._looks_for_end and not (self.complete and self.stopping):
            self._looks_for_end = True
            try:
                # Something may have been said while it was looked at.
                complete = await self._is_complete() and self.all_finished()
                # A worker that is kept alive does not end by it.
                may_end = not self.stopping and not self.terms.run.keep_alive
                if complete and not self._certain and may_end:
                    await self._make_certain()
                    return
            finally:
                self._looks_for_end = False
            self.complete = complete
            missing = max(0, sum(reply.created - reply.finished for reply in replies))
            if complete and missing != self._missing:
                self._missing = missing
                self.worker.completed(missing)

    def stay_open(self, keep_alive: bool) -> None:
        """Whether the worker stays when everything is finished, from now on."""
        if keep_alive == self.terms.run.keep_alive:
            return
        self.terms = replace(self.terms, run=replace(self.terms.run, keep_alive=keep_alive))
        self.complete, self._certain, self._missing = False, False, None
        for session in self.sessions:
            session.pace.confirms = True
        self.found_more()

    async def _make_certain(self) -> None:
        """Make sure that the server counts, and ask all shards once more. A server that was
        replaced does not know the requests that workers have added to its successor."""
        try:
            await self.confirm_primary()
        except TROUBLE as error:
            text = "Nothing is left to do, but this worker waits: %s"
            self.warnings.warn("uncertain", text, error)
            self.sessions[0].pace.is_uncertain = True
            self.wake()
            return
        self._certain = True
        for session in self.sessions:
            session.last = None
            session.pace.confirms = True
        self.found_more()

    def _last_replies(self) -> list[Reply]:
        return [session.last for session in self.sessions if session.last is not None]

    def has_more(self) -> bool:
        """Whether a shard has said that something is left, or something is to be sent, or may be
        once more."""
        again = any(session.resend.may_ask_again for session in self.sessions)
        complete = all(reply.complete for reply in self._last_replies())
        return bool(self.waiting()) or again or not complete

    def all_finished(self) -> bool:
        """Whether all shards have said that nothing is left, and nothing is to be sent."""
        return len(self._last_replies()) == len(self.sessions) and not self.has_more()

    async def _is_complete(self) -> bool:
        """Whether everything is finished on all shards."""
        if len(self.sessions) == 1:
            return True
        shards = [session.shard for session in self.sessions]
        several = self.joined.config.has_several_logs
        workers = [session.worker_id for session in self.sessions] if several else ()
        try:
            return await self.do(runs.is_idle(self.terms.name, shards, workers))
        except TROUBLE:  # of another shard, which is looked after by a task of its own
            return False
        except ScriptFailed as error:
            self.warnings.warn("corrupt", "%s", error)
            return False

    # Leaving

    async def stop(self) -> None:
        """End the background tasks; exchanges under way are awaited, not cut off."""
        self._stop.set()
        for session in self.sessions:
            session.interrupt()
        await cancel(*self._helpers)
        await asyncio.gather(*self._running)

    async def cut_off(self) -> None:
        """End what `stop` had no time to end."""
        await cancel(*self._helpers, *self._running)

    async def leave(self) -> bool:
        """Send all operations, give all leases back, leave. -> True if the run is now complete.

        To be called after `stop`. Tries for ever while Redis is away. A worker that gives up
        waiting loses nothing: other workers take its leases over when their TTL has passed.
        """
        pause = RETRY_FIRST
        sent = False
        while True:
            try:
                # Once: after a leave whose reply was lost, another exchange would join again.
                while not sent:
                    sent = await self._send_the_rest()
                await self.give_back()
                if not self.complete or (self.terms.run.keep_alive and not self._missing):
                    return False
                if not self._certain:  # told to stop: a replaced server may have said all is done
                    await self.confirm_primary()
                return await self._complete()
            except TROUBLE as error:
                self._answer_lost = self.complete
                self.warnings.warn("away", "Redis is away while closing: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_LAST, self.terms.lease_ttl / 8)

    async def until_complete(self) -> bool:
        """After `leave`: wait until the run is complete. -> it is, by this worker.

        Where an answer was lost it may be by another one: then there are no ``fleet_stats``.

        Others may be about to leave. A worker that has died counts until its TTL has passed: so
        long this waits, unless nobody else is there.
        """
        deadline = time.monotonic() + self.terms.lease_ttl + 2 * LOOK_FOR_COMPLETE
        while time.monotonic() < deadline:
            try:
                if await self._complete():
                    return True
                status = await self.call(calls.status(self.terms.name, 0)) or {}
                meta = pairs(status.get("meta", []))
                is_there = meta.get("run") == self.joined.run
                if not is_there or meta.get("state") != "open":
                    return is_there and self._answer_lost
                if not status["workers"]:
                    return False
            except TROUBLE:
                self._answer_lost = True
            await asyncio.sleep(LOOK_FOR_COMPLETE)
        return False

    async def _complete(self) -> bool:
        """Complete the run if nothing is left and nobody is there; -> it is, by this worker."""
        counts = await self.do(runs.conclude(self.terms.name, self.joined.run))
        if counts is not None:
            self.fleet_stats = stats_in(counts)
        return counts is not None

    async def _send_the_rest(self) -> bool:
        """Exchange with all shards; -> whether that was the last time. Raises an exception of one
        of them, when all are over."""
        self.worker.collect_ended()
        # With nothing to send a worker waits for a replica, by which its posts are over.
        is_last = not (self.joined.config.has_several_logs and self.waiting())
        exchanges = [shard_task.exchange(session, NOTHING) for session in self.sessions]
        for outcome in await asyncio.gather(*exchanges, return_exceptions=True):
            if outcome is not None:
                raise outcome
        # A server that has lost its last second is sent some of it once more.
        # A worker that had to join again asks once more whether the run is complete.
        all_answered = len(self._last_replies()) == len(self.sessions)
        sent = is_last and all_answered and not self.waiting()
        if not sent:
            await asyncio.sleep(RUNNING_LOW)
        return sent

    async def give_back(self) -> None:
        """Leave all shards, shard 0 last. Raises the `TROUBLE` of one, when the others are left."""
        problem: Exception | None = None
        for session in reversed(self.sessions):
            try:
                await self._give_back(session)
            except TROUBLE as error:
                problem = error
        if problem is not None:
            raise problem

    async def _give_back(self, session: ShardSession, *, returns: bool = False) -> None:
        call = calls.leave(
            self.terms.name,
            session.shard,
            session.run_id,
            session.worker_id,
            dead_max=self.terms.dead_max,
            returns=returns,
        )
        while await self.call(call):
            pass

    async def left_waiting(self) -> int:
        """How many requests wait although no worker is there; 0 if one is."""
        waiting = 0
        for session in self.sessions:
            status = await self.call(calls.status(self.terms.name, session.shard)) or {}
            if any(worker[1] >= status["now"] for worker in status.get("workers", [])):
                return 0
            counts = pairs(status.get("counts", []))
            waiting += number(counts.get("created", 0)) - number(counts.get("finished", 0))
        return max(0, waiting)


def _new_worker_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
