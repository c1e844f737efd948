"""The background tasks that carry a worker's exchanges to Redis and back.

One asyncio task for each shard. They never let the crawl wait: what the worker wants to send
gathers in its shard sessions, what it may work on is handed over as it arrives. While Redis is
away a task keeps what it has and tries again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine
from typing import Any

from redis.exceptions import RedisError

from scrapy_redisq.errors import FrontierCorrupt, FrontierLost, RedisqError, ScriptFailed
from scrapy_redisq.frontier import runs
from scrapy_redisq.frontier.listener import Listener
from scrapy_redisq.frontier.names import wake_channel
from scrapy_redisq.frontier.operations import (
    Enqueue,
    Letter,
    Reply,
)
from scrapy_redisq.frontier.pace import RUNNING_LOW
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.shard_loop import ShardLoop
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.trouble import RETRY_FIRST, RETRY_LAST, TROUBLE, Uncertain, Warnings
from scrapy_redisq.frontier.unsent import MAX_OPERATIONS
from scrapy_redisq.frontier.worker_protocol import NOTHING, Demand, ServerHelp, Worker

logger = logging.getLogger(__name__)

LOOK_FOR_ENDED = 0.05
"""Seconds between looks for pages that have ended."""

AHEAD = 1.0
"""Seconds by which a shard is asked before its turn, if something is to be sent to it soon."""


class ExchangeLoop:
    """Exchanges with all shards, side by side, until told to stop.

    `start` says for whom. ``complete`` is True once the whole frontier is finished, as far as the
    last exchanges told. To be made when ``run_session`` has joined.
    """

    def __init__(self, run_session: RunSession, server: ServerHelp) -> None:
        self.run_session = run_session
        self.server = server
        self.complete = False
        self.exchanges = 0
        self.warnings = Warnings(server.redact)
        self._lease_ttl = run_session.terms.lease_ttl
        self._loops = {
            session: ShardLoop(session, self, self._lease_ttl) for session in run_session.sessions
        }
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._missing = 0
        self._looks_for_end = False
        self._certain = False
        self._said_complete = False
        self._void: set[ShardSession] = set()
        """Shards on which the worker was taken for dead, or that have lost history: it has to join
        each of them again."""
        self._forgotten: set[ShardSession] = set()
        self._is_lost = False
        self._landed = asyncio.Event()

    # What the worker hands in

    def enqueue(self, operation: Enqueue | Letter) -> ShardSession:
        """Take a request, or the dead letter of one; it is sent with one of the next exchanges.
        -> for which shard."""
        session = self.run_session.enqueue(operation)
        self.complete = False
        if len(session) % MAX_OPERATIONS == 0:
            self._loops[session].wake()
        return session

    def count(self, name: str, by: int) -> None:
        """Add to a count of the frontier that its workers keep."""
        self.run_session.sessions[0].tally[name] += by

    def waiting(self) -> int:
        """Enqueues and finishes that Redis has not acknowledged."""
        return self.run_session.waiting()

    def unfinished(self) -> int:
        """Requests of the frontier that are not finished, as the last exchanges told, and what has
        not been sent yet."""
        told = sum(reply.created - reply.finished for reply in self._last_replies())
        return told + self.waiting()

    def finished(self) -> int:
        """Requests of the run that are finished, as the last exchanges told."""
        return sum(reply.finished for reply in self._last_replies())

    def away(self) -> bool:
        """A shard does not answer."""
        return any(loop.is_silent for loop in self._loops.values())

    def wake(self) -> None:
        """Something has changed: exchange earlier than planned where that is due."""
        if waiting := [loop for loop in self._loops.values() if loop.is_waiting]:
            demand = self.worker.demand()
            for loop in waiting:
                loop.wake(demand)

    def found_more(self) -> None:
        """The worker can take what it could not take before."""
        for loop in self._loops.values():
            loop.pace.found_more()
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
        running = [*(loop.run() for loop in self._loops.values()), self._look_for_ended()]
        self._running = [asyncio.ensure_future(self._run(each)) for each in running]
        self._help(self._listener().run())
        if self.run_session.joined.trash or self.run_session.joined.former_shards:
            self._help(self._sweep())

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception as error:
            if not isinstance(error, (FrontierLost, FrontierCorrupt)):
                logger.exception("The exchange with Redis failed in an unexpected way")
            if not self._is_lost:
                self._is_lost = True
                self.worker.lost(error)

    async def _look_for_ended(self) -> None:
        """One look for all shards: were each to look by itself, each would find a part."""
        while not self.stopping:
            if self.worker.is_busy():
                await self.stopped_within(LOOK_FOR_ENDED)
                self.worker.collect_ended()
                self.wake()
            else:
                self._landed.clear()
                await self._landed.wait()

    def _help(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._helped)

    def _helped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed("a task in the background", error)

    def _failed(self, what: str, error: Exception) -> None:
        if self.warnings.may_warn(what):
            logger.error("An unexpected error in %s", what, exc_info=error)

    async def stop(self) -> None:
        """End the background tasks; exchanges under way are awaited, not cut off."""
        self._stop.set()
        self._landed.set()
        for loop in self._loops.values():
            loop.interrupt()
        # More than once: wait_for() can lose a cancellation before Python 3.12.
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LOOK_FOR_ENDED)
        await asyncio.gather(*self._running)

    # What the shards share

    def may_ask(self, loop: ShardLoop) -> bool:
        """Whether the worker should ask this shard when it runs low.

        Of those that have enough one at a time, by turns: so that as much comes with an exchange
        as if there were but one shard. One to which something is to be sent soon is asked earlier,
        so that both go together. If none is known to have enough, all of them.
        """
        enough = [other for other in self._loops.values() if other.has_enough()]
        return not enough or (
            loop is min(enough, key=lambda other: other.asked_at - AHEAD * other.sends_soon())
            and not any(other.wanted for other in enough)
        )

    def is_busy(self, demand: Demand) -> bool:
        """Whether the worker works on something, or will as soon as a shard has answered."""
        return self.worker.is_busy() or (
            demand.low and any(loop.has_enough() for loop in self._loops.values())
        )

    def share(self, loop: ShardLoop, demand: Demand) -> tuple[int, bool]:
        """How many entries the next exchange of ``loop`` may claim, and whether a suspect.

        One that has enough gets all that is wanted; else it is parted between the shards that may
        have something. One that asks although it had nothing lately has a part as well; one that
        does not answer would take its part from other shards for as long as it is waited for.
        """
        if loop.is_silent and len(self._loops) > 1:
            return 0, False
        others = [one for one in self._loops.values() if one is not loop and one.answers()]
        left = demand.want - sum(other.wanted or 0 for other in others)
        askers = 1
        if not loop.has_enough():
            askers += sum(other.wanted is None and other.pace.may_have_more() for other in others)
        suspects = self.run_session.suspects_to_claim()
        return max(0, math.ceil(left / askers)), bool(
            suspects
            and not any(other.wanted is not None and other.wants_suspect for other in others)
        )

    def held_elsewhere(self, loop: ShardLoop) -> int:
        """Requests of other shards that the worker has not ended, or may be given right now."""
        return sum(
            other.session.unended() + (other.wanted or 0)
            for other in self._loops.values()
            if other is not loop
        )

    def landed(self) -> None:
        """An exchange is over."""
        self._landed.set()

    def mark_void(self, session: ShardSession) -> None:
        """The worker has to join this shard again as a new one."""
        self._void.add(session)
        self.complete = self._certain = self._said_complete = False
        self._loops[session].last = None

    async def come_back(self, session: ShardSession) -> None:
        """Where leases are void: join as a new worker. Raises what `RunSession.rejoin` does, and is
        then called again."""
        if session not in self._void:
            return
        if session not in self._forgotten:
            self._forgotten.add(session)
            self.worker.forgotten([session])
        await self.run_session.rejoin([session])
        self._forgotten.discard(session)
        self._void.discard(session)
        self.worker.rejoined()

    # The end

    async def exchanged(self) -> None:
        """See what follows from what all shards said last."""
        replies = self._last_replies()
        if len(replies) < len(self._loops):
            return
        stuck = [reply.stuck for reply in replies if not reply.complete]
        if stuck and (least := min(-1 if known is None else known for known in stuck)) >= 0:
            self.worker.stuck(least)
        # A spider that adds what is known whenever it is idle would be idle again at once.
        self._said_complete &= all(reply.complete for reply in replies)
        if not self._all_said_so():
            self.complete = self._certain = False
        elif not self._looks_for_end and not (self.complete and self.stopping):
            self._looks_for_end = True
            try:
                # Something may have been said while it was looked at.
                complete = await self._is_complete(replies) and self._all_said_so()
                # Whoever stays alive does not end by it.
                may_end = not self.stopping and not self.run_session.terms.run.keep_alive
                if complete and not self._certain and may_end:
                    await self._make_certain()
                    return
            finally:
                self._looks_for_end = False
            self.complete = complete
            if complete and not self._said_complete:
                self._said_complete = True
                missing = sum(reply.created - reply.finished for reply in replies)
                self._missing = max(0, missing)
                self.worker.completed(self._missing)

    async def _make_certain(self) -> None:
        """Make sure that it was the server that counts which has said so, and ask all shards once
        more: on one that another has replaced everything may be finished, although workers have
        added to the other one since. Raises `Uncertain` if that cannot be said now."""
        try:
            await self.server.confirm_primary()
        except (*TROUBLE, RedisError) as error:
            raise Uncertain(str(error)) from error
        self._certain = True
        for loop in self._loops.values():
            loop.last = None
            loop.pace.confirms = True
        self.found_more()

    def _last_replies(self) -> list[Reply]:
        return [loop.last for loop in self._loops.values() if loop.last is not None]

    def _all_said_so(self) -> bool:
        return not self.waiting() and all(
            loop.last is not None and loop.last.complete for loop in self._loops.values()
        )

    async def _is_complete(self, replies: list[Reply]) -> bool:
        try:
            return len(replies) == 1 or await self.run_session.is_complete()
        except TROUBLE:  # of another shard, which is looked after by a task of its own
            return False
        except ScriptFailed as error:
            self.warnings.warn("corrupt", "%s", error)
            return False

    # Helpers in the background

    def _listener(self) -> Listener:
        """Hears of new work while idle. Where that is not allowed, asking often finds it."""
        channels = {
            wake_channel(session.name, session.shard): loop for session, loop in self._loops.items()
        }

        def woken(channel: str) -> None:
            channels[channel].pace.woken = True
            channels[channel].wake()

        def told(channel: str, worker: str) -> None:
            loop = channels[channel]
            if worker in {"", loop.session.worker}:
                loop.pace.told = True
                loop.wake()

        def listening(yes: bool) -> None:
            for loop in self._loops.values():
                loop.pace.listening = yes

        return Listener(
            self.run_session.client,
            list(channels),
            woken=woken,
            announced=self.worker.announced,
            told=told,
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
            self.warnings.warn("sweep", "An old dupefilter is left to the next crawl: %s", error)

    # Leaving

    async def leave(self) -> bool:
        """Send what waits, give back what is held, leave. -> True if the run is now complete.

        To be called after `stop`. Tries for ever while Redis is away. A worker that gives up
        waiting loses nothing: other workers take its leases over when their TTL has passed.
        """
        pause = RETRY_FIRST
        sent = False
        while True:
            try:
                # Not again: having left without being told so, it would come back to exchange.
                while not sent:
                    self.worker.collect_ended()
                    had_nothing_left = not self.waiting()
                    await self._exchange_with_all()
                    # A server that has lost its last second is sent some of it once more.
                    # Who had to join again asks once more whether the run is complete.
                    all_answered = len(self._last_replies()) == len(self._loops)
                    sent = had_nothing_left and not self.waiting() and all_answered
                    if not sent:
                        await asyncio.sleep(RUNNING_LOW)
                return await self.run_session.leave(
                    complete=self.complete, missing=self._missing > 0
                )
            except TROUBLE as error:
                self.warnings.warn("away", "Redis is away while closing: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_LAST, self._lease_ttl / 8)

    async def _exchange_with_all(self) -> None:
        """Raises what one of them did, when all are over."""
        loops = [loop.exchange_surely(NOTHING) for loop in self._loops.values()]
        for outcome in await asyncio.gather(*loops, return_exceptions=True):
            if outcome is not None:
                raise outcome
