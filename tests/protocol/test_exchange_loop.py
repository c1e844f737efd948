"""The exchange loop between a worker that is driven by hand and a real server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import redis
import redis.asyncio

from lab.servers import RedisServer
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier import loop as module
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease, Reply, TurnReport
from scrapy_redisq.frontier.run_session import RunSession, Terms
from scrapy_redisq.frontier.scripts import execute, load
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.worker_protocol import NOTHING, Demand, ServerHelp
from tests.harness.worker import EXACT, NAME, fingerprint_of


class Puppet:
    """A worker that takes what it is told to take, and ends nothing by itself."""

    pages = items = 0

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

    def turns(self, session: ShardSession) -> list[TurnReport]:
        return []

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        self.leases += [(session, lease) for lease in reply.leases]

    def announced(self, slot: str, parked: float) -> None: ...

    def stuck(self, seconds: int) -> None: ...

    def forgotten(self) -> None:
        self.heard.append("forgotten")
        self.leases.clear()

    def rejoined(self) -> None:
        self.heard.append("rejoined")

    def completed(self) -> None:
        self.is_complete = True

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


def test_full_for_long(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where all pages that a worker holds have found something, a full Redis stops it: its log says
    so once, and it goes on when there is room."""
    monkeypatch.setattr(module, "STILL", 0.5)
    caplog.set_level(logging.WARNING)

    async def crawl(client: redis.Redis) -> None:
        server = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        terms = Terms(NAME, EXACT, 60.0, 5, 100, 10_000)
        run_session = RunSession(server, terms)
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.start(puppet)
        for n in range(2):
            exchange_loop.enqueue(request(run_session, f"{n}"))
        puppet.demanded = Demand(True, 2, 2, {}, most=2)
        await until(lambda: len(puppet.leases) == 2, "claimed")
        client.script_load(load("exchange", "exact").text)
        client.config_set("maxmemory", 1)
        for session, lease in puppet.leases:
            exchange_loop.enqueue(request(run_session, f"{lease.id}/link", lease))
            exchange_loop.finish(session, Finish(lease.id, "done"))
        puppet.leases.clear()
        exchange_loop.wake()
        await until(lambda: "claimed and finished nothing" in caplog.text, "it says so")
        exchanges = exchange_loop.exchanges
        await until(lambda: exchange_loop.exchanges > exchanges + 9, "it asks again and again")
        assert caplog.text.count("claimed and finished nothing") == 1
        assert caplog.text.count("Raise its maxmemory") == 1
        client.config_set("maxmemory", 0)
        await until(lambda: exchange_loop.waiting() == 0, "there is room")
        await until(lambda: len(puppet.leases) == 2, "it goes on")
        for session, lease in puppet.leases:
            exchange_loop.finish(session, Finish(lease.id, "done"))
        puppet.leases.clear()
        await until(lambda: puppet.is_complete, "complete")
        await exchange_loop.stop()
        assert await exchange_loop.leave()
        assert await run_session.left_waiting() == 0
        assert puppet.error is None
        await server.aclose()

    with redis_server.client() as client:
        try:
            asyncio.run(crawl(client))
        finally:
            client.config_set("maxmemory", 0)


def test_void_leases(redis_server: RedisServer) -> None:
    """A worker whose leases went to others hears of it before it joins anew: what it had not begun
    is not its own any more, and what it then claims is not mixed up with it."""

    async def crawl(client: redis.Redis) -> None:
        server = redis.asyncio.Redis.from_url(redis_server.url)
        puppet = Puppet()
        run_session = RunSession(server, Terms(NAME, EXACT, 60.0, 5, 100, 10_000))
        await run_session.join()
        exchange_loop = ExchangeLoop(run_session, ServerHelp())
        exchange_loop.start(puppet)
        for n in range(2):
            exchange_loop.enqueue(request(run_session, f"{n}"))
        puppet.demanded = Demand(True, 2, 2, {}, most=2)
        await until(lambda: len(puppet.leases) == 2, "claimed")
        void = {lease.id for _, lease in puppet.leases}
        (session,) = run_session.sessions
        client.zadd(calls.prefix(NAME, 0) + "workers", {session.worker: 1})
        assert execute(client, calls.reap(NAME, 0, session.run, 5, 100))[0] == 2
        exchange_loop.wake()
        await until(lambda: "rejoined" in puppet.heard, "it goes on as a new worker")
        assert puppet.heard == ["forgotten", "rejoined"]
        await until(lambda: len(puppet.leases) == 2, "they are claimed again")
        assert not void & {lease.id for _, lease in puppet.leases}
        for again in puppet.leases:
            exchange_loop.finish(again[0], Finish(again[1].id, "done"))
        puppet.leases.clear()
        exchange_loop.wake()
        await until(lambda: puppet.is_complete, "complete")
        await exchange_loop.stop()
        assert await exchange_loop.leave()
        assert puppet.error is None
        await server.aclose()

    with redis_server.client() as client:
        asyncio.run(crawl(client))
