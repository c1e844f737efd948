"""A worker that is driven by hand exchanges with a real server, and hears what others publish."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from msgspec.structs import replace
from redis.exceptions import ConnectionError as RedisConnectionError

from lab.servers import RedisServer
from scrapy_redisq.errors import FrontierLost, ServerBusy
from scrapy_redisq.frontier import listener, pace, run_session, shard_session, shard_task
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import meta_key, wake_channel
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease, Reply, TurnReport
from scrapy_redisq.frontier.outgoing import MAX_OPERATIONS
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import Call, execute_async
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import NOTHING, Demand, Terms
from scrapy_redisq.server.connection import open_server
from tests.harness.in_loop import in_a_loop, until
from tests.harness.worker import EXACT, NAME, OneServer, fingerprint_of

THREE = replace(EXACT, shards=3)


class Puppet:
    """A worker that takes what it is told to take, and ends nothing by itself."""

    duplicates = 0

    def __init__(self, wants: int = 0) -> None:
        self.demanded = Demand(True, wants, wants, {}, most=wants) if wants else NOTHING
        self.leases: list[tuple[ShardSession, Lease]] = []
        self.is_complete = False
        self.error: Exception | None = None
        self.heard: list[object] = []
        self.raises: Exception | None = None

    def collect_ended(self) -> None: ...

    def demand(self) -> Demand:
        return self.demanded

    def is_busy(self) -> bool:
        return bool(self.leases)

    def starting(self) -> tuple[bool, bool]:
        return False, True

    def held_back(self) -> bool:
        return False

    def report(self) -> dict[str, Any]:
        return {}

    def turns(self, session: ShardSession) -> list[TurnReport]:
        return []

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        self.leases += [(session, lease) for lease in reply.leases]
        self.duplicates += len(reply.duplicates)

    def announced(self, slot: str, parked: float) -> None:
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        self.heard.append((slot, parked))

    def stuck(self, seconds: int) -> None: ...

    def forgotten(self, sessions: object) -> None: ...

    def rejoined(self) -> None: ...

    def completed(self, missing: int) -> None:
        self.is_complete = True

    def lost(self, error: Exception) -> None:
        self.error = error

    def finish(self, run: RunSession) -> None:
        """End all that it holds, and let the session send it."""
        for session, lease in self.leases:
            session.finish(Finish(lease.id, "done"))
        self.leases.clear()
        run.wake()


@asynccontextmanager
async def joined(
    server: RedisServer | redis.asyncio.Redis,
    behind: OneServer | None = None,
    *,
    name: str = NAME,
    config: FrontierConfig = EXACT,
    ttl: float = 60.0,
    **terms: Any,
) -> AsyncIterator[RunSession]:
    """A session that has joined, and is stopped in the end."""
    if isinstance(server, RedisServer):
        server = redis.asyncio.Redis.from_url(server.url)
    async with server as client:
        run = RunSession(
            client, Terms(name, config, ttl, 5, 100, 10_000, **terms), behind or OneServer()
        )
        await run.join()
        try:
            yield run
        finally:  # or what has failed would go on without a client
            await run.stop()


def request(run: RunSession, url: str, shard: int | None = None) -> Enqueue:
    """For a slot of ``shard``, or of any."""
    slots = (slot for slot in map(str, range(99)) if run.shard_of(slot).shard == shard)
    slot = "host" if shard is None else next(slots)
    return Enqueue(slot, 0, url.encode(), run.seen.encode(fingerprint_of(url)))


def send(run: RunSession, *urls: str, shard: int | None = None) -> None:
    for url in urls:
        run.enqueue(request(run, url, shard))
    run.wake()


@in_a_loop
async def test_a_worker_that_leaves(each_server: RedisServer, client: redis.Redis) -> None:
    """It asks whether the server counts before it believes that the run is lost; and sends all it
    has, also what is too much for one exchange."""
    meta = meta_key(NAME, 0)

    async def the_replica_has_got_it() -> None:
        client.rename("later", meta)

    behind = OneServer(confirm_primary=the_replica_has_got_it)
    async with joined(each_server, behind) as run:
        run.start(Puppet())
        await run.stop()
        for n in range(MAX_OPERATIONS + 1):
            run.enqueue(request(run, str(n)))
        client.rename(meta, "later")
        assert not await run.leave()
        assert await run.left_waiting() == MAX_OPERATIONS + 1


@in_a_loop
async def test_an_end_after_a_stop(each_server: RedisServer) -> None:
    """A worker that was told to stop completes the run when it is certain that the server counts:
    one that was replaced does not know of what is left."""
    asked: list[bool] = []

    async def confirm() -> None:
        asked.append(True)
        if len(asked) < 3:
            raise ServerBusy("cut off")

    async with joined(each_server, OneServer(confirm_primary=confirm)) as run:
        run.start(Puppet())
        await run.stop()
        assert await run.leave()
        assert len(asked) == 3


@in_a_loop
async def test_large_requests(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are too much as soon as they are to be sent, so that ``start()`` cannot hand in more
    than would then keep pages from being started."""
    monkeypatch.setattr(run_session, "MAX_KEPT_BYTES", 1_000)
    async with joined(redis_server) as run:
        send(run, "x" * 1_001)
        assert run.keeps_too_much()
        assert not run.keeps_too_much(times=2)
        run.start(Puppet())
        await until(lambda: not run.waiting(), "acknowledged")
        assert run.sessions[0].outgoing.bytes == 0


@in_a_loop
async def test_an_end_by_a_server_that_may_not_count(
    each_server: RedisServer,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the end of a run nor its loss is believed before it is certain that the server is the
    one that counts; then it is asked once more, for it may be another one. What it acknowledged
    meanwhile and no page stands for is kept."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(pace, "IDLE_LAST", 0.1)
    refusal: list[str] = ["cut off"]
    asked: list[bool] = []
    vouched = [float("-inf")]

    async def confirm() -> None:
        asked.append(not refusal)
        if refusal:
            raise ServerBusy(refusal[0])

    puppet = Puppet()
    behind = OneServer(confirm_primary=confirm, primary_vouched=lambda: vouched[0])
    async with joined(each_server, behind, rewind=0.01) as run:
        run.start(puppet)
        (session,) = run.sessions

        async def fetch(url: str) -> None:
            puppet.demanded = Demand(True, 1, 1, {}, most=1)
            send(run, url)
            await until(lambda: puppet.leases, "claimed")
            puppet.finish(run)

        await fetch("first")
        await until(lambda: len(asked) > 2, "it asks again and again")
        assert not puppet.is_complete
        assert caplog.text.count("Nothing is left to do, but this worker waits: cut off") == 1
        assert session.resend.bytes > 0
        vouched[0] = time.monotonic()
        await until(lambda: session.resend.bytes == 0, "it need not be sent again")

        refusal.clear()
        await until(lambda: puppet.is_complete, "complete")
        number = len(asked)
        await fetch("second")
        await until(lambda: run.complete and len(asked) > number, "asked for each end")

        refusal.append("cut off")
        client.flushall()
        send(run, "third")
        number = len(asked)
        await until(lambda: len(asked) > number + 2, "it asks again and again")
        assert puppet.error is None
        refusal.clear()
        await until(lambda: puppet.error, "lost")
        assert isinstance(puppet.error, FrontierLost)


# Several shards


class PartlyAway(redis.asyncio.Redis):
    """A client that does not reach the shards in ``away``."""

    away: frozenset[int] = frozenset()

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # type: ignore[override]
        if any(f"{{{NAME}:{shard}}}:" in str(keys_and_args[0]) for shard in self.away):
            raise RedisConnectionError("cut off")
        return await super().evalsha(sha, numkeys, *keys_and_args)


@in_a_loop
async def test_a_shard_that_is_away_keeps_nobody_from_the_others(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in other shards is claimed, finished and added to; nothing is complete before it is
    back, and what waited for it is sent then. Then the server's log is looked after, too: it may
    have been started anew."""
    caplog.set_level(logging.WARNING)
    looked_after: list[int] = []

    client, puppet = PartlyAway.from_url(redis_server.url), Puppet(9)
    behind = OneServer(renew_log=lambda: looked_after.append(1))
    async with joined(client, behind, config=THREE) as run:
        client.away = frozenset({1})
        run.start(puppet)
        for n in range(9):
            send(run, f"first-{n}", shard=n % 3)
        await until(lambda: len(puppet.leases) == 6, "those of the other shards")
        puppet.finish(run)
        send(run, "second", shard=2)
        await until(lambda: len(puppet.leases) == 1, "they are added to")
        puppet.finish(run)
        await until(lambda: run.waiting() == 3, "acknowledged, but for those of the shard")
        assert not puppet.is_complete and caplog.text.count("Redis is away") == 1
        assert looked_after == []
        client.away = frozenset()
        await until(lambda: len(puppet.leases) == 3, "it is back")
        await until(lambda: looked_after == [1], "its log is looked after")
        puppet.finish(run)
        await until(lambda: puppet.is_complete, "complete")
        await run.stop()
        assert await run.leave()
        assert puppet.error is None


@in_a_loop
async def test_what_is_wanted_is_parted_between_the_shards(redis_server: RedisServer) -> None:
    """Together they give as much as one shard would, wherever it is, and never more than the worker
    may have begun or have waiting."""
    puppet = Puppet(60)
    async with joined(redis_server, config=THREE) as run:
        for n in range(300):
            run.enqueue(request(run, f"{n}", 0 if n < 280 else 2))
        run.start(puppet)
        done = 0
        while done < 300:
            await until(lambda: puppet.leases, f"more than {done}")
            assert sum(session.unended() for session in run.sessions) <= 60
            done += len(puppet.leases)
            puppet.finish(run)
        await until(lambda: puppet.is_complete, "complete")


@in_a_loop
async def test_what_is_due_while_another_shard_is_asked_for_all(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange that finds it due asks for nothing; it is asked for as soon as may be."""
    for name in ("IDLE_FIRST", "IDLE_LAST", "BUSY", "UNHEARD"):
        monkeypatch.setattr(pace, name, 3_600.0)
    puppet = Puppet(1)
    async with joined(redis_server, config=THREE, ttl=14_400.0) as run:
        run.start(puppet)
        run.enqueue(replace(request(run, "due", 1), delay=500))
        run.wake()
        await asyncio.sleep(0.3)  # all shards were asked by now
        asked, began = run.exchanges, time.monotonic()
        run.sessions[0].wanted = 1
        await until(lambda: run.exchanges > asked + 1, "due")
        assert not puppet.leases
        run.sessions[0].wanted = None
        await until(lambda: puppet.leases, "claimed")
        assert time.monotonic() - began < 10


async def end_a_page_with_a_link(run: RunSession, puppet: Puppet) -> None:
    """The page is shard 0's. The link is on shard 1, and claimed."""
    run.start(puppet)
    send(run, "start", shard=0)
    await until(lambda: puppet.leases, "claimed")
    ((session, lease),) = puppet.leases
    link = request(run, "link", 1)
    link = replace(link, page=lease.id, link=run.link_to(link.slot, session))
    run.enqueue(link)
    run.wake()
    await until(lambda: len(puppet.leases) == 2, "the link is claimed")
    session.finish(Finish(lease.id, "done"), links=[link])
    del puppet.leases[0]


@in_a_loop
async def test_the_end_comes_as_soon_as_nothing_can_be_lost(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several servers: what it was waiting for is found out when it can be, said to all shards, and
    not left to the pauses of a worker that has nothing to do."""
    for name in ("IDLE_FIRST", "IDLE_LAST", "BUSY", "UNHEARD"):
        monkeypatch.setattr(pace, name, 3_600.0)
    for module in (shard_session, shard_task):
        monkeypatch.setattr(module, "HOLD", 3_600.0)
    name = "books6"  # whose shards are called 0, 1 and 2 also on several servers

    puppet, config = Puppet(9), replace(THREE, spread=True)
    async with joined(redis_server, name=name, config=config, ttl=14_400.0, rewind=0.3) as run:
        await end_a_page_with_a_link(run, puppet)
        assert not run.all_finished()
        puppet.finish(run)
        await until(lambda: puppet.is_complete, "complete")
        run.sessions[0].last = None  # it is asked once more
        assert not run.all_finished()
        assert not run.has_more()
        await run.stop()
        assert await run.leave()


@in_a_loop
async def test_whether_the_server_counts_is_asked_again_soon(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that waits for most Sentinels is not left to the pauses of an idle worker either."""
    for name in ("IDLE_FIRST", "IDLE_LAST", "UNHEARD"):
        monkeypatch.setattr(pace, name, 3_600.0)
    monkeypatch.setattr(pace, "BUSY", 0.05)
    refusals = 3

    async def confirm() -> None:
        nonlocal refusals
        if refusals := refusals - 1:
            raise ServerBusy("most do not answer")

    puppet = Puppet(1)
    behind = OneServer(confirm_primary=confirm)
    async with joined(redis_server, behind, ttl=14_400.0) as run:
        run.start(puppet)
        send(run, "/")
        await until(lambda: puppet.leases, "a lease")
        puppet.finish(run)
        await until(lambda: puppet.is_complete, "complete")
        assert refusals == 0


@in_a_loop
async def test_who_leaves_takes_its_posts_along(
    each_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a replica has its links: others would wait for REWIND and more until they may end."""

    async def has_replica(client: Any, call: Call[Any], replicas: int) -> tuple[Any, bool]:
        return await execute_async(client, call), True

    monkeypatch.setattr(shard_task, "execute_and_wait", has_replica)
    puppet, config = Puppet(9), replace(THREE, spread=True)
    async with joined(each_server, name="books6", config=config) as run:
        await end_a_page_with_a_link(run, puppet)
        ((session, lease),) = puppet.leases
        session.finish(Finish(lease.id, "released"))
        await run.stop()
        await run.leave()
    assert not client.keys("*:post")


# What others say


@in_a_loop
async def test_a_worker_that_rests_asks_ever_more_seldom(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crawl that is paused overnight costs Redis nothing to speak of."""
    monkeypatch.setattr(pace, "IDLE_FIRST", 0.01)
    puppet = Puppet()
    puppet.demanded = replace(NOTHING, rests=True)
    async with joined(redis_server, ttl=3_600.0) as run:
        run.start(puppet)
        await asyncio.sleep(1)
        assert run.exchanges < 20


Hearing = Callable[[Puppet, RunSession], Awaitable[None]]


@pytest.fixture
def hearing(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a check with a worker that listens."""
    monkeypatch.setattr(listener, "AGAIN", 0.1)

    def hearing(check: Hearing) -> None:
        async def run() -> None:
            # The client of a worker: one by default connects again by itself, unheard.
            client: Any = open_server(redis_server.url).async_client()
            puppet = Puppet()
            async with joined(client) as run:
                run.start(puppet)
                await until(lambda: run.sessions[0].pace.listening, "it listens")
                await check(puppet, run)
            assert puppet.error is None

        asyncio.run(run())

    return hearing


async def say(puppet: Puppet, run: RunSession, *messages: bytes) -> list[object]:
    """Publish; -> what was heard of it."""
    client: Any = run.client
    puppet.heard.clear()
    for message in (*messages, b"0 last"):
        await client.publish(wake_channel(NAME, 0), message)
    await until(lambda: ("last", 0.0) in puppet.heard, "the last message")
    return puppet.heard[:-1]


async def listens_again(puppet: Puppet, run: RunSession) -> None:
    """Wait until it has stopped listening, has begun again, and hears."""
    worker_pace = run.sessions[0].pace
    await until(lambda: not worker_pace.listening, "it has stopped")
    await until(lambda: worker_pace.listening, "it has begun again")
    assert await say(puppet, run, b"0 a") == [("a", 0.0)]


NONSENSE = (
    *(b"9" * 400 + b" a.example", b"9" * 5_000 + b" a.example", "٣ a.example".encode()),
    *(b"-1 a.example", b"1e9 a.example", b"inf a.example", b"0", b"0 ", b" a.example"),
    *(b"0 \xff\xfe", b"\x00" * 50, b"told \xff", b"0 " + b"x" * 5_000_000),
)


def test_what_is_published(
    hearing: Callable[[Hearing], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Workers hear of a slot that is parked, and of one about which something has changed. Anybody
    may publish anything: what makes no sense is passed over by the same connection."""

    async def check(puppet: Puppet, run: RunSession) -> None:
        said = b"1500000 a.example", "0 bücher.example".encode(), b"0 two words", *NONSENSE
        assert await say(puppet, run, *said) == [
            ("a.example", 1.5),
            ("bücher.example", 0.0),
            ("two words", 0.0),
        ]
        assert "unexpected error" not in caplog.text

    hearing(check)


def test_listens_again(
    hearing: Callable[[Hearing], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After an error that nobody expected, which is told; when its connection was closed, as Redis
    does where messages are larger than its buffers; and when it has been quiet for long, for its
    node may be gone without a word."""

    async def check(puppet: Puppet, run: RunSession) -> None:
        client: Any = run.client
        puppet.raises = OverflowError("too large")
        await client.publish(wake_channel(NAME, 0), b"0 a.example")
        await listens_again(puppet, run)
        assert "OverflowError: too large" in caplog.text
        await client.client_kill_filter(_type="pubsub")
        await listens_again(puppet, run)
        monkeypatch.setattr(listener, "QUIET", 0.3)
        await client.client_kill_filter(_type="pubsub")
        for _ in range(2):
            await listens_again(puppet, run)

    hearing(check)
