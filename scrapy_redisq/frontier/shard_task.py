"""A worker's exchanges with one shard: its task sends them, and sees to what the replies lead to.

Each shard has a task and outages of its own, so that one that is away keeps nobody from exchanging
with the others. What the task knows is in the shard's `ShardSession`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol, runtime_checkable

from redis.exceptions import RedisError

from scrapy_redisq.errors import (
    FrontierCorrupt,
    FrontierLost,
    ScriptFailed,
)
from scrapy_redisq.frontier import calls, round_trips, runs
from scrapy_redisq.frontier.exchange import unpack_links
from scrapy_redisq.frontier.operations import Delivered, Reply, TurnReport
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS
from scrapy_redisq.frontier.passing_errors import RETRY_FIRST, RETRY_LAST, TROUBLE
from scrapy_redisq.frontier.scripts import Call, execute_and_wait
from scrapy_redisq.frontier.shard_session import HOLD, ShardSession
from scrapy_redisq.frontier.terms import Demand

logger = logging.getLogger(__name__)

FAILING = 600.0
"""Seconds after which a worker gives up, if Redis answers and yet no script passes."""

MOST_POSTS = 100
"""Posts of dead workers that are taken at a time."""

POSTS_AGAIN = 1_000
"""Milliseconds after which posts that cannot be taken now are looked at again."""

REOPEN_PAUSE = 0.05
"""Seconds after which a shard that was sealed, and has been opened, is tried again."""


@runtime_checkable
class MayBeAlone(Protocol):
    """The client of a cluster, which knows whether its masters have replicas."""

    def alone_at(self) -> float: ...

    async def look(self, since: float) -> None: ...


async def exchange_on(session: ShardSession) -> None:
    """Exchange until the worker stops. Raises what keeps it from going on."""
    run = session.run_session
    while not run.stopping:
        await session.until_due(run.worker.demand())
        run.worker.collect_ended()
        if not run.stopping and session.pause(run.worker.demand()) <= 0:
            await _exchange_or_retry(session)


async def _exchange_or_retry(session: ShardSession) -> None:
    """One exchange; if Redis is away, again and again."""
    run, pause = session.run_session, RETRY_FIRST
    failing_since, said_away = 0.0, False
    while not run.stopping:
        session.asks_since = time.monotonic()  # one that asks for nothing may have no answer, too
        try:
            await exchange(session, run.worker.demand())
        except ScriptFailed as error:
            run.warnings.warn("corrupt", "%s", error)
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > FAILING:
                raise
        except TROUBLE as error:
            session.is_silent = True
            said_away |= run.warnings.warn(
                "away", "Redis is away, keeping what is buffered: %s", error
            )
            await run.revive()
        except RedisError as error:
            run.warnings.warn("refused", "Redis refused an exchange: %s", error)
        else:
            if session.is_silent:
                session.is_silent = False
                session.pace.found_more()
                await asyncio.to_thread(run.server.renew_log)
            if said_away:
                logger.warning("Redis answers again; the crawl goes on")
            return
        finally:
            session.asks_since = 0.0
        session.pace.has_enough = False  # other shards are asked meanwhile
        await run.stopped_within(pause)
        pause = min(pause * 2, RETRY_LAST, run.terms.lease_ttl / 8)


async def exchange(session: ShardSession, demand: Demand) -> None:
    """Send what waits, and claim this shard's share of what is wanted.

    Raises what passes (`TROUBLE`), `ScriptFailed`, `FrontierCorrupt`; `FrontierLost` only if the
    server that counts has lost the run.
    """
    try:
        await _exchange(session, demand)
    except FrontierLost:
        # A replica that has not got it yet says so, too, and a server of former times.
        await session.run_session.confirm_primary()
        await _exchange(session, demand)


async def _exchange(session: ShardSession, demand: Demand) -> None:
    run, pace = session.run_session, session.pace
    if session.is_void:
        await run.come_back(session)
    want, session.wants_suspect = session.share(demand)
    pace.woken = pace.woken and not want  # other shards were asked for all
    pace.told = pace.confirms = pace.is_uncertain = False
    session.wanted = want
    if want:
        session.asked_at = time.monotonic()
    try:
        reply = await _send(session, want, demand)
    finally:
        session.wanted = None
        run.landed()
    if reply is None:
        await run.come_back(session)
        return
    takes_posts = reply.post_due == 0 and run.waiting() <= MAX_OPERATIONS
    if reply.post_due == 0 and not takes_posts:
        reply.post_due = POSTS_AGAIN
    idle = (demand.low or demand.rests) and not run.worker.is_busy()
    pace.exchanged(reply, want, idle=idle)
    try:
        if reply.overdue_in == 0:
            await _reap(session)
        if takes_posts:
            await _take_posts(session)
    except ScriptFailed as error:  # they wait, for a key that exchanges can do without
        run.warnings.warn("corrupt", "%s", error)
    run.wake()
    session.last = reply
    await run.see_whether_complete()


async def _send(session: ShardSession, want: int, demand: Demand) -> Reply | None:
    """-> the reply, None if this worker was taken for dead, or history was lost."""
    run = session.run_session
    while True:
        turns = run.worker.turns(session)
        call = _next_call(session, want, demand, turns)
        run.exchanges += 1
        sent_at = time.monotonic()
        reply = await _execute(session, call)
        if reply.status != "sealed":
            break
        await run.do(runs.open_shard(run.terms.name, session.shard, session.run_id))
        # Again and again if shard 0 has lost when it was last visited, and its clock is behind.
        await asyncio.sleep(REOPEN_PAUSE)
    session.outgoing.tally.update(round_trips.took(time.monotonic() - sent_at))
    if reply.status in {"ok", "replayed"}:
        told = turns if reply.status == "ok" else []  # the rest is told again
        run.worker.received(session, reply, told, sent_at)
        return reply
    if reply.status == "lost":
        raise FrontierLost(
            f"frontier {run.terms.name!r} is gone from Redis or was begun anew by others: "
            f"this worker's run {session.run_id} is no longer there"
        )
    why = "no sign of life in time" if reply.status == "gone" else "Redis lost recent writes"
    run.start_over(session, why)
    return None


def _next_call(
    session: ShardSession, want: int, demand: Demand, turns: list[TurnReport]
) -> Call[Reply]:
    run = session.run_session
    starting, seeded = session.may_add()
    session.said_starting = starting
    told = run.worker.report() if session is run.sessions[0] else {}
    return session.call(
        want,
        demand,
        suspects=int(session.wants_suspect),
        starting=starting,
        seeded=seeded,
        turns=turns,
        **told,
    )


async def _execute(session: ShardSession, call: Call[Reply]) -> Reply:
    run, resend = session.run_session, session.resend
    if not run.joined.config.has_several_logs:
        return session.received(await run.call(call))
    if isinstance(run.client, MayBeAlone):
        resend.alone_at = run.client.alone_at()
        since = resend.look_since(run.proof_at())
        if resend.alone_at < since:
            await run.client.look(since)
            resend.alone_at = run.client.alone_at()
    if replicas := _replicas_to_wait_for(session):
        sending = execute_and_wait(run.client, call, replicas)
        reply, confirmed = await run.heeding_busy(sending)
    else:
        reply, confirmed = await run.call(call), False
    return session.received(reply, confirmed=confirmed)


def _replicas_to_wait_for(session: ShardSession) -> int:
    run = session.run_session
    if not session.is_unsafe:
        return 0
    if run.terms.wait_replicas or session.resend.is_alone:
        return run.terms.wait_replicas
    # With nothing else to do it is worth the time: the crawl may be waiting for its end.
    return 0 if any(other.held for other in run.sessions) else 1


# What other workers have left


async def _reap(session: ShardSession) -> None:
    """Reclaim what dead workers hold."""
    run, terms = session.run_session, session.run_session.terms
    reclaimed, dead, _ = await run.call(
        calls.reap(
            terms.name,
            session.shard,
            session.run_id,
            terms.max_deliveries,
            terms.dead_max,
            ttl=terms.lease_ttl,
        )
    )
    if reclaimed or dead:
        run.buried += dead
        session.pace.found_more()
        logger.info("Took over %d requests of a dead worker, gave up %d", reclaimed, dead)


async def _take_posts(session: ShardSession) -> None:
    """Take posts that are due, and send their links."""
    run, terms = session.run_session, session.run_session.terms
    hold = terms.rewind + HOLD
    call = calls.take_posts(terms.name, session.shard, session.run_id, most=MOST_POSTS, hold=hold)
    for id, post in (await run.call(call)).items():
        try:
            links = unpack_links(id, post)
        except FrontierCorrupt as error:
            logger.error("%s: something else than scrapy-redisq wrote it; it is deleted", error)
            session.add(Delivered(id))
            continue
        for link in links:
            run.enqueue(link)
        session.watch_post(id, links)
