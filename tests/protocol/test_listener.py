"""What a worker hears from others, and from anybody else who may publish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio

from lab.servers import RedisServer
from scrapy_redisq.frontier import listener
from scrapy_redisq.frontier.listener import Listener
from scrapy_redisq.server.connection import open_server

CHANNEL = "wake"


class Ear:
    """A listener to `CHANNEL`, and what it has heard."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self.heard: list[object] = []
        self.listening = False
        self.failures: list[Exception] = []
        self.raises: Exception | None = None
        self._listener = Listener(
            client,
            [CHANNEL],
            woken=lambda channel: self.heard.append(f"woken by {channel}"),
            announced=self._announced,
            told=lambda channel, worker: self.heard.append(f"{channel} told {worker}"),
            listening=self._is_listening,
            failed=self.failures.append,
        )

    def _announced(self, slot: str, parked: float) -> None:
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        self.heard.append((slot, parked))

    def _is_listening(self, yes: bool) -> None:
        self.listening = yes

    async def until(self, condition: Callable[[], object], seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.heard, self.failures)
            await asyncio.sleep(0.01)

    async def listens_again(self) -> None:
        """Wait until it has stopped listening, has begun again, and hears."""
        await self.until(lambda: not self.listening)
        await self.until(lambda: self.listening)
        assert await self.says(b"") == ["woken by wake"]

    async def says(self, *messages: bytes | str) -> list[object]:
        """Publish; -> what was heard of it."""
        self.heard.clear()
        for message in (*messages, b"0 last"):
            await self.client.publish(CHANNEL, message)
        await self.until(lambda: ("last", 0.0) in self.heard)
        return self.heard[:-1]


def listen(server: RedisServer, check: Callable[[Ear], Awaitable[None]]) -> None:
    """Run ``check`` with a listener that listens."""

    async def run() -> None:
        # The client of a worker: one by default connects again by itself, unheard.
        async with open_server(server.url).async_client() as client:
            ear = Ear(client)
            task = asyncio.ensure_future(ear._listener.run())
            try:
                await ear.until(lambda: ear.listening)
                await check(ear)
                assert not task.done()
            finally:
                while not task.done():  # see ExchangeLoop.stop()
                    task.cancel()
                    await asyncio.wait({task}, timeout=0.1)
            assert not ear.listening

    asyncio.run(run())


def test_hears_news(redis_server: RedisServer) -> None:
    """Of new work, of a slot that is parked, of one about which something has changed, and of what
    workers are told."""

    async def check(ear: Ear) -> None:
        assert await ear.says(b"", b"1500000 a.example", "0 bücher.example", b"0 two words") == [
            "woken by wake",
            ("a.example", 1.5),
            ("bücher.example", 0.0),
            ("two words", 0.0),
        ]
        assert await ear.says(b"told", b"told me") == ["wake told ", "wake told me"]

    listen(redis_server, check)


@pytest.mark.parametrize(
    "message",
    [
        b"9" * 400 + b" a.example",
        b"9" * 5_000 + b" a.example",
        "٣ a.example".encode(),
        b"-1 a.example",
        b"1e9 a.example",
        b"inf a.example",
        b"0",
        b"0 ",
        b" a.example",
        b"0 \xff\xfe",
        b"\x00" * 50,
        b"0 " + b"x" * 5_000_000,
    ],
    ids=lambda message: repr(message[:12]),
)
def test_passes_over_what_makes_no_sense(redis_server: RedisServer, message: bytes) -> None:
    """Anybody may publish anything; the next message is heard by the same connection."""

    async def check(ear: Ear) -> None:
        assert await ear.says(message) == []
        assert ear.failures == []

    listen(redis_server, check)


def test_listens_again(redis_server: RedisServer) -> None:
    """After an error that nobody expected, which is told, and when its connection was closed, as
    Redis does where messages are larger than its buffers."""

    async def check(ear: Ear) -> None:
        ear.raises = OverflowError("too large")
        await ear.client.publish(CHANNEL, b"0 a.example")
        await ear.listens_again()
        await ear.client.client_kill_filter(_type="pubsub")
        await ear.listens_again()
        assert [type(error) for error in ear.failures] == [OverflowError]

    listen(redis_server, check)


def test_listens_anew_when_it_has_been_quiet(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node may be gone without a word; in a cluster nothing else is asked of it."""
    monkeypatch.setattr(listener, "QUIET", 0.3)
    listen(redis_server, Ear.listens_again)


def test_a_flood_leaves_time_for_others(redis_server: RedisServer) -> None:
    """However much is published, everything else in the process goes on."""

    async def check(ear: Ear) -> None:
        pipeline = ear.client.pipeline(transaction=False)
        for _ in range(20_000):
            pipeline.publish(CHANNEL, b"")
        flood = asyncio.ensure_future(pipeline.execute())
        longest, before = 0.0, time.monotonic()
        while len(ear.heard) < 20_000:
            await asyncio.sleep(0)
            if flood.done():  # sending it is one long step
                longest = max(longest, time.monotonic() - before)
            before = time.monotonic()
        await flood
        assert longest < 1

    listen(redis_server, check)
