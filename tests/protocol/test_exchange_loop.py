"""The exchange loop between a worker that is driven by hand and a real server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from lab.servers import RedisServer
from scrapy_redisq.errors import FrontierLost, ServerBusy
from scrapy_redisq.frontier import admin, calls, pace, shard_session
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.names import key_prefix, meta_key
from scrapy_redisq.frontier.operations import (
    Enqueue,
    Finish,
    Lease,
    Reply,
    TurnReport,
)
from scrapy_redisq.frontier.round_trips import Durations
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.frontier.worker_protocol import NOTHING, Demand, ServerHelp
from tests.harness.worker import EXACT, NAME, Worker, fingerprint_of


class Puppet:
    """A worker that takes what it is told to take, and ends nothing by itself."""

    pages = items = duplicates = completions = 0

    def __init__(self) -> None:
        self.demanded = NOTHING
        self.leases: list[tuple[ShardSession, Lease]] = []
        self.is_complete = False
        self.error: Exception | None = None
        self.heard: list[str] = []

    def collect_ended(self) -> None: ...

    def demand(self) -> Demand:
        return self.demanded

    def is_busy(self) -> bool:
        return bool(self.leases)

    def starting(self) -> tuple[bool, bool]:
        return False, True

    def report(self) -> str:
        return ""

    def turns(self, session: ShardSession) -> list[TurnReport]:
        return []

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        self.leases += [(session, lease) for lease in reply.leases]
        self.duplicates += len(reply.duplicates)

    def announced(self, slot: str, parked: float) -> None: ...

    def stuck(self, seconds: int) -> None: ...

    def keeps_requests(self) -> bool:
        return False

    def forgotten(self, sessions: object) -> None:
        self.heard.append("forgotten")
        self.leases.clear()

    def rejoined(self) -> None:
        self.heard.append("rejoined")

    def completed(self, missing: int) -> None:
        self.is_complete = True
        self.completions += 1

    def lost(self, error: Exception) -> None:
        self.error = error


async def until(condition: Any, what: str) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within 20 s: {what}")


def request(run_session: RunSession, url: str, page: Lease | None = None) -> Enqueue:
    fingerprint = run_session.seen.encode(fingerprint_of(url))
    return Enqueue("host", 0, url.encode(), fingerprint, page=page.id if page else None)


@asynccontextmanager
async def worker_of_two(redis_server: RedisServer) -> AsyncIterator[tuple[Puppet, ExchangeLoop]]:
    """Who has claimed the requests 0 and 1, and runs until the loop is stopped."""
    async with redis.asyncio.Redis.from_url(redis_server.url) as server:
        puppet = Puppet()
        run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.start(puppet)
        for n in range(2):
            exchange_loop.enqueue(request(run_session, f"{n}"))
        puppet.demanded = Demand(True, 2, 2, {}, most=2)
        try:
            await until(lambda: len(puppet.leases) == 2, "claimed")
            yield puppet, exchange_loop
        finally:  # or what has failed would go on without a client
            await exchange_loop.stop()


def test_void_leases(redis_server: RedisServer) -> None:
    """A worker whose leases went to others hears of it before it joins anew: what it had not begun
    is not its own any more, and what it then claims is not mixed up with it."""

    async def crawl(client: redis.Redis) -> None:
        async with worker_of_two(redis_server) as (puppet, exchange_loop):
            run_session = exchange_loop.run_session
            void = {lease.id for _, lease in puppet.leases}
            (session,) = run_session.sessions
            client.zadd(key_prefix(NAME, 0) + "workers", {session.worker: 1})
            assert execute(client, calls.reap(NAME, 0, session.run, 5, 100))[0] == 2
            exchange_loop.wake()
            await until(lambda: "rejoined" in puppet.heard, "it goes on as a new worker")
            assert puppet.heard == ["forgotten", "rejoined"]
            await until(lambda: len(puppet.leases) == 2, "they are claimed again")
            assert not void & {lease.id for _, lease in puppet.leases}
            for again in puppet.leases:
                again[0].finish(Finish(again[1].id, "done"))
            puppet.leases.clear()
            exchange_loop.wake()
            await until(lambda: puppet.is_complete, "complete")
            await exchange_loop.stop()
            assert await exchange_loop.leave()
            assert puppet.error is None
            # How long each took is counted, but of the last one, which tells it: also where the one
            # that told it was of a worker that is none any more.
            counts = client.hgetall(key_prefix(NAME, 0) + "counts")
            told = Durations.of({name.decode(): int(number) for name, number in counts.items()})
            assert told.within[-1][1] == exchange_loop.exchanges - 1
            assert 0 < told.seconds < 60

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_complete_is_taken_back(redis_server: RedisServer) -> None:
    """When something is added, and when the worker has to join again: a spider that is idle for
    good must not be closed between that and the next replies."""

    async def crawl(client: redis.Redis) -> None:
        async with worker_of_two(redis_server) as (puppet, exchange_loop):
            run_session = exchange_loop.run_session
            for session, lease in puppet.leases:
                session.finish(Finish(lease.id, "done"))
            puppet.leases.clear()
            exchange_loop.wake()
            await until(lambda: exchange_loop.complete, "complete")
            exchange_loop.enqueue(request(run_session, "0"))  # a duplicate
            assert not exchange_loop.complete
            await until(lambda: exchange_loop.complete, "complete again")
            assert puppet.completions == 1  # or who adds that whenever it is idle would never rest
            complete = []
            puppet.rejoined = lambda: complete.append(exchange_loop.complete)  # type: ignore[method-assign]
            exchange_loop.mark_void(run_session.sessions[0])
            assert not exchange_loop.complete  # however long Redis is away now
            exchange_loop.found_more()
            await until(lambda: complete, "it has joined again")
            assert complete == [False]
            await until(lambda: exchange_loop.complete, "and is complete once more")

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_a_worker_that_was_reaped_when_all_was_finished_completes_the_run(
    redis_server: RedisServer,
) -> None:
    """It joins again only to leave."""

    async def crawl(client: redis.Redis) -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as server:
            run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
            await run_session.join()
            exchange_loop = ExchangeLoop(run_session, ServerHelp())
            exchange_loop.start(Puppet())
            exchange_loop.found_more()
            await until(lambda: exchange_loop.complete, "complete")
            await exchange_loop.stop()
            (session,) = run_session.sessions
            client.zadd(key_prefix(NAME, 0) + "workers", {session.worker: 1})
            execute(client, calls.reap(NAME, 0, session.run, 5, 100))
            assert await exchange_loop.leave()

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_a_worker_that_leaves_asks_whether_the_server_counts(redis_server: RedisServer) -> None:
    """Before it believes that the run is lost."""
    meta = meta_key(NAME, 0)

    async def crawl(client: redis.Redis) -> None:
        async def the_replica_has_got_it() -> None:
            client.rename("later", meta)

        async with redis.asyncio.Redis.from_url(redis_server.url) as server:
            run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
            await run_session.join()
            exchange_loop = ExchangeLoop(
                run_session, ServerHelp(confirm_primary=the_replica_has_got_it)
            )
            exchange_loop.start(Puppet())
            await exchange_loop.stop()
            run_session.enqueue(request(run_session, "unsent"))
            client.rename(meta, "later")
            assert not await exchange_loop.leave()
            assert await run_session.left_waiting() == 1

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_a_worker_that_leaves_sends_again_what_the_server_has_lost(
    redis_server: RedisServer,
) -> None:
    """Also when it hears of that by the last thing that it says."""

    async def crawl(client: redis.Redis) -> None:
        server = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
        await run_session.join()
        before = {key: client.dump(key) for key in client.scan_iter()}
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.start(puppet)
        exchange_loop.enqueue(request(run_session, "link"))
        exchange_loop.wake()
        await until(lambda: exchange_loop.waiting() == 0, "acknowledged")
        await exchange_loop.stop()
        client.flushdb()
        for key, value in before.items():
            client.restore(key, 0, value)  # type: ignore[arg-type]
        assert not await exchange_loop.leave()
        assert puppet.heard == ["forgotten", "rejoined"]
        assert await run_session.left_waiting() == 1
        await server.aclose()

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_one_number_never_has_two_contents(redis_server: RedisServer) -> None:
    """An exchange is late, and what is sent in its place fails: the worker goes on as another
    one, so that the late one, when it arrives after all, is nobody's."""

    class Lossy(redis.asyncio.Redis):
        late: list[tuple[Any, ...]] | None = None

        async def execute_command(self, *args: Any, **options: Any) -> Any:
            if self.late is not None and len(self.late) < 2 and args[0] == "EVALSHA":
                self.late.append(args)
                if len(self.late) == 2:
                    raise redis.ResponseError("ERR it fails")
                raise redis.TimeoutError("late")
            return await super().execute_command(*args, **options)

    async def crawl(client: redis.Redis) -> None:
        server = Lossy.from_url(redis_server.url)
        puppet = Puppet()
        run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.start(puppet)
        server.late = []
        exchange_loop.enqueue(request(run_session, "found"))
        exchange_loop.wake()
        await until(lambda: "rejoined" in puppet.heard, "another worker")
        assert client.execute_command(*server.late[0])[0] == b"gone"
        await until(lambda: exchange_loop.waiting() == 0, "acknowledged")
        await exchange_loop.stop()
        await exchange_loop.leave()
        assert await run_session.left_waiting() == 1
        await server.aclose()

    with redis_server.client() as client:
        asyncio.run(crawl(client))


def test_an_end_by_a_server_that_may_not_count(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the end of a run nor its loss is believed before it is certain that the server is the
    one that counts; then it is asked once more, for it may be another one. What it acknowledged
    meanwhile and no page stands for is kept."""
    caplog.set_level(logging.WARNING)
    refusal: list[str] = ["cut off"]
    asked: list[bool] = []

    async def confirm() -> None:
        asked.append(not refusal)
        if refusal:
            raise ServerBusy(refusal[0])

    async def crawl(client: redis.Redis) -> None:
        server = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        terms = Terms(NAME, EXACT, 60.0, 5, 100, 10_000, rewind=0.01)
        vouched = [float("-inf")]
        run_session = RunSession(server, terms, lambda: vouched[0])
        await run_session.join()
        help_ = ServerHelp(confirm_primary=confirm)
        exchange_loop = ExchangeLoop(run_session, help_)
        exchange_loop.start(puppet)
        (session,) = run_session.sessions

        async def fetch(url: str) -> None:
            exchange_loop.enqueue(request(run_session, url))
            puppet.demanded = Demand(True, 1, 1, {}, most=1)
            exchange_loop.wake()
            await until(lambda: puppet.leases, "claimed")
            session.finish(Finish(puppet.leases.pop()[1].id, "done"))
            exchange_loop.wake()

        await fetch("first")
        await until(lambda: len(asked) > 2, "it asks again and again")
        assert not puppet.is_complete
        assert caplog.text.count("Nothing is left to do, but this worker waits: cut off") == 1
        assert session.unsafe.bytes() > 0
        vouched[0] = time.monotonic()
        await until(lambda: session.unsafe.bytes() == 0, "it need not be sent again")

        refusal.clear()
        await until(lambda: puppet.is_complete, "complete")
        number = len(asked)
        await fetch("second")
        await until(lambda: exchange_loop.complete and len(asked) > number, "asked for each end")

        refusal.append("cut off")
        client.flushall()
        exchange_loop.enqueue(request(run_session, "third"))
        exchange_loop.wake()
        number = len(asked)
        await until(lambda: len(asked) > number + 2, "it asks again and again")
        assert puppet.error is None
        refusal.clear()
        await until(lambda: puppet.error, "lost")
        assert isinstance(puppet.error, FrontierLost)
        await exchange_loop.stop()
        await server.aclose()

    with redis_server.client() as client:
        asyncio.run(crawl(client))


class PartlyAway(redis.asyncio.Redis):
    """A client that does not reach the shards in ``away``."""

    away: frozenset[int] = frozenset()

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # type: ignore[override]
        if any(f"{{{NAME}:{shard}}}:" in str(keys_and_args[0]) for shard in self.away):
            raise RedisConnectionError("cut off")
        return await super().evalsha(sha, numkeys, *keys_and_args)


def slot_in(run_session: RunSession, shard: int) -> str:
    return next(slot for slot in map(str, range(99)) if run_session.shard_of(slot).shard == shard)


def test_a_shard_that_is_away_keeps_nobody_from_the_others(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in other shards is claimed, finished and added to; nothing is complete before it is
    back, and what waited for it is sent then. Then the server's log is looked after, too: it may
    have been started anew."""
    caplog.set_level(logging.WARNING)

    async def crawl() -> None:
        client = PartlyAway.from_url(redis_server.url)
        puppet = Puppet()
        terms = Terms(NAME, replace(EXACT, shards=3), 60.0, 5, 100, 10_000)
        run_session = RunSession(client, terms)
        await run_session.join()
        looked_after: list[int] = []
        exchange_loop = ExchangeLoop(
            run_session, ServerHelp(renew_log=lambda: looked_after.append(1))
        )

        def ask(shard: int, url: str) -> None:
            fingerprint = run_session.seen.encode(fingerprint_of(url))
            slot = slot_in(run_session, shard)
            exchange_loop.enqueue(Enqueue(slot, 0, url.encode(), fingerprint))
            exchange_loop.wake()

        def finish() -> None:
            for session, lease in puppet.leases:
                session.finish(Finish(lease.id, "done"))
            puppet.leases.clear()
            exchange_loop.wake()

        client.away = frozenset({1})
        puppet.demanded = Demand(True, 9, 9, {}, most=9)
        exchange_loop.start(puppet)
        for n in range(9):
            ask(n % 3, f"first-{n}")
        await until(lambda: len(puppet.leases) == 6, "those of the other shards")
        finish()
        ask(2, "second")
        await until(lambda: len(puppet.leases) == 1, "they are added to")
        finish()
        await until(
            lambda: exchange_loop.waiting() == 3, "acknowledged, but for those of the shard"
        )
        assert not puppet.is_complete and caplog.text.count("Redis is away") == 1
        assert looked_after == []
        client.away = frozenset()
        await until(lambda: len(puppet.leases) == 3, "it is back")
        await until(lambda: looked_after == [1], "its log is looked after")
        finish()
        await until(lambda: puppet.is_complete, "complete")
        await exchange_loop.stop()
        assert await exchange_loop.leave()
        assert puppet.error is None
        await client.aclose()

    asyncio.run(crawl())


class Frozen(PartlyAway):
    """A client that hears nothing of the shards in ``away``, from the second attempt on."""

    attempts = 0

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # type: ignore[override]
        try:
            return await super().evalsha(sha, numkeys, *keys_and_args)
        except RedisConnectionError:
            self.attempts += 1
            while self.attempts > 1 and self.away:
                await asyncio.sleep(0.01)
            raise


def test_nothing_is_reserved_for_a_shard_that_does_not_answer(redis_server: RedisServer) -> None:
    """A worker has all that it can take from the others, meanwhile and when it is back."""

    async def crawl() -> None:
        client = Frozen.from_url(redis_server.url)
        puppet = Puppet()
        run_session = RunSession(
            client, Terms(NAME, replace(EXACT, shards=2), 60.0, 5, 100, 10_000)
        )
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())

        def ask(shard: int, number: int) -> None:
            for n in range(number):
                fingerprint = run_session.seen.encode(fingerprint_of(f"{shard}-{n}"))
                slot = slot_in(run_session, shard)
                exchange_loop.enqueue(Enqueue(slot, 0, b"", fingerprint))
            exchange_loop.wake()

        client.away = frozenset({1})
        puppet.demanded = Demand(True, 9, 9, {}, most=9)
        exchange_loop.start(puppet)
        await until(lambda: client.attempts > 1, "it does not answer")
        ask(0, 9)
        await until(lambda: len(puppet.leases) == 9, "all of the other one")
        for session, lease in puppet.leases:
            session.finish(Finish(lease.id, "done"))
        puppet.leases.clear()
        ask(1, 9)
        client.away = frozenset()
        await until(lambda: len(puppet.leases) == 9, "it is back")
        await exchange_loop.stop()
        await exchange_loop.leave()
        await client.aclose()

    asyncio.run(crawl())


def test_what_is_wanted_is_parted_between_the_shards(redis_server: RedisServer) -> None:
    """Together they give as much as one shard would, wherever it is, and never more than the worker
    may have begun or have waiting."""

    async def crawl() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        terms = Terms(NAME, replace(EXACT, shards=3), 60.0, 5, 100, 10_000)
        run_session = RunSession(client, terms)
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        for n in range(300):
            slot = slot_in(run_session, 0 if n < 280 else 2)
            fingerprint = run_session.seen.encode(fingerprint_of(f"{n}"))
            exchange_loop.enqueue(Enqueue(slot, 0, f"{n}".encode(), fingerprint))
        puppet.demanded = Demand(True, 60, 60, {}, most=60)
        exchange_loop.start(puppet)
        done = 0
        while done < 300:
            await until(lambda: puppet.leases, f"more than {done}")
            assert sum(session.unended() for session in run_session.sessions) <= 60
            for session, lease in puppet.leases:
                session.finish(Finish(lease.id, "done"))
                done += 1
            puppet.leases.clear()
            exchange_loop.wake()
        await until(lambda: puppet.is_complete, "complete")
        await exchange_loop.stop()
        assert await exchange_loop.leave()
        await client.aclose()

    asyncio.run(crawl())


def test_a_worker_that_rests_asks_less_and_less_often(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that finds nothing does."""
    monkeypatch.setattr(pace, "IDLE_FIRST", 0.001)

    async def crawl() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as server:
            puppet = Puppet()
            puppet.demanded = replace(NOTHING, rests=True)
            run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
            await run_session.join()
            exchange_loop = ExchangeLoop(run_session, ServerHelp())
            exchange_loop.start(puppet)
            (loop,) = exchange_loop._loops.values()
            try:
                await until(lambda: loop.pace._idle > 0.1, "it waits longer each time")
            finally:
                await exchange_loop.stop()
            await exchange_loop.leave()

    asyncio.run(crawl())


def test_a_worker_that_rests(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one that wants nothing is told it hears at once, and as soon that others have finished
    everything."""
    monkeypatch.setattr(pace, "IDLE_LAST", 1_000.0)
    monkeypatch.setattr(pace, "IDLE_FIRST", 1_000.0)

    async def crawl(client: redis.Redis, other: Worker) -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as server:
            puppet = Puppet()
            puppet.demanded = replace(NOTHING, rests=True)
            run_session = RunSession(server, Terms(NAME, EXACT, 3_600.0, 5, 100, 10_000))
            await run_session.join()
            exchange_loop = ExchangeLoop(run_session, ServerHelp())
            exchange_loop.start(puppet)
            (loop,) = exchange_loop._loops.values()
            await until(lambda: loop.pace.listening and exchange_loop.exchanges, "it is there")
            exchanges = exchange_loop.exchanges
            assert execute(client, admin.tell(NAME, "quiet", None)) == 2
            await until(lambda: exchange_loop.exchanges == exchanges + 1, "it hears")
            assert execute(client, admin.tell(NAME, "work", [loop.session.worker])) == 1
            await until(lambda: exchange_loop.exchanges == exchanges + 2, "it hears")
            assert execute(client, admin.tell(NAME, "stop", [other.id])) == 1
            other.send(["a"])
            (lease,) = other.claim(1)
            other.finish(lease)
            assert exchange_loop.exchanges == exchanges + 2
            other.exchange_all()
            await until(lambda: puppet.is_complete, "it is over")
            await exchange_loop.stop()
            await exchange_loop.leave()

    with redis_server.client() as client:
        asyncio.run(crawl(client, Worker(client, NAME, EXACT)))


class Eater(Puppet):
    """A busy worker that wants nine when it is ``hungry``. ``meals``: shards, and how many each."""

    def __init__(self) -> None:
        super().__init__()
        self.hungry = False
        self.meals: list[tuple[int, int]] = []

    def is_busy(self) -> bool:
        return True

    def demand(self) -> Demand:
        want = 9 - len(self.leases)
        return Demand(True, want, want, {}, most=9) if self.hungry and want else NOTHING

    def received(self, session: ShardSession, reply: Reply, *told: Any) -> None:
        super().received(session, reply, *told)
        if reply.leases:
            self.meals.append((session.shard, len(reply.leases)))


def test_one_shard_at_a_time_is_asked_where_each_has_enough(redis_server: RedisServer) -> None:
    """So that an exchange brings as much as with a single shard; all have their turns, and one that
    is running out is followed by the next."""

    async def crawl() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Eater()
        terms = Terms(NAME, replace(EXACT, shards=3), 60.0, 5, 100, 10_000)
        run_session = RunSession(client, terms)
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        for n in range(75):
            fingerprint = run_session.seen.encode(fingerprint_of(f"{n}"))
            exchange_loop.enqueue(Enqueue(slot_in(run_session, n % 3), 0, b"", fingerprint))

        async def eat() -> list[tuple[int, int]]:
            before = len(puppet.meals)
            puppet.hungry = True
            exchange_loop.wake()
            await until(lambda: len(puppet.leases) == 9, "enough")
            puppet.hungry = False
            for session, lease in puppet.leases:
                session.finish(Finish(lease.id, "done"))
            puppet.leases.clear()
            return puppet.meals[before:]

        exchange_loop.start(puppet)
        assert sorted(await eat()) == [(0, 3), (1, 3), (2, 3)]
        for _ in range(2):
            meals = [await eat() for _ in range(3)]
            assert sorted(meals) == [[(0, 9)], [(1, 9)], [(2, 9)]]
        assert sum(number for _, number in await eat()) == 9
        await exchange_loop.stop()
        await exchange_loop.leave()
        await client.aclose()

    asyncio.run(crawl())


def test_one_that_is_to_be_sent_something_is_asked_earlier(redis_server: RedisServer) -> None:
    """Both go with one exchange, and where a worker has run dry the others do not send at once what
    may wait for company; but none is passed over for ever."""

    async def crawl() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        terms = Terms(NAME, replace(EXACT, shards=3), 60.0, 5, 100, 10_000)
        run_session = RunSession(client, terms)
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.worker = puppet = Puppet()
        loops = list(exchange_loop._loops.values())
        demand = Demand(True, 9, 9, {}, most=9)
        assert not exchange_loop.is_busy(demand)
        for ago, loop in zip((0.8, 0.5, 0.2), loops, strict=True):
            loop.pace.has_enough = True
            loop.asked_at = time.monotonic() - ago
        asked = lambda: [exchange_loop.may_ask(loop) for loop in loops]  # noqa: E731
        assert asked() == [True, False, False]
        request = Enqueue(slot_in(run_session, 2), 0, b"", fingerprint_of("a"))
        exchange_loop.enqueue(request)
        assert asked() == [False, False, True]
        loops[0].asked_at -= 1
        assert asked() == [True, False, False]
        loops[2].pace.exchanged(claimed=9, filled=True, low=True, next_due=None)
        assert exchange_loop.is_busy(demand) and not puppet.is_busy()
        assert loops[2].pause(demand) > 0.1
        assert loops[0].pause(demand) <= 0
        await client.aclose()

    asyncio.run(crawl())


def test_the_end_comes_as_soon_as_nothing_can_be_lost(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several servers: what it was waiting for is found out when it can be, said to all shards, and
    not left to the pauses of a worker that has nothing to do."""
    for name in ("IDLE_FIRST", "IDLE_LAST", "BUSY", "UNHEARD"):
        monkeypatch.setattr(pace, name, 3_600.0)
    monkeypatch.setattr(shard_session, "HOLD", 3_600.0)
    name = "books6"  # whose shards are called 0, 1 and 2 also on several servers

    async def crawl() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        config = replace(EXACT, shards=3, spread=True)
        terms = Terms(name, config, 14_400.0, 5, 100, 10_000, rewind=0.3)
        run_session = RunSession(client, terms)
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        puppet.demanded = Demand(True, 9, 9, {}, most=9)
        exchange_loop.start(puppet)
        exchange_loop.enqueue(replace(request(run_session, "start"), slot=slot_in(run_session, 0)))
        exchange_loop.wake()
        await until(lambda: puppet.leases, "claimed")
        ((session, lease),) = puppet.leases
        slot = slot_in(run_session, 1)
        link = run_session.link_to(slot, session)
        asked = replace(request(run_session, "link", lease), slot=slot, link=link)
        exchange_loop.enqueue(asked)
        exchange_loop.wake()
        await until(lambda: len(puppet.leases) == 2, "the link is claimed")
        for session, lease in puppet.leases:
            links = [asked] if session.shard == 0 else []
            session.finish(Finish(lease.id, "done"), links=links)
        puppet.leases.clear()
        exchange_loop.wake()
        await until(lambda: puppet.is_complete, "complete")
        await exchange_loop.stop()
        assert await exchange_loop.leave()
        await client.aclose()

    asyncio.run(crawl())
