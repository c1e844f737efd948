"""One Redis, and the network between it and the workers, with what goes wrong there.

The server is real, and so are the scripts; only the TIME that they ask for is that of the virtual
clock (`TIME`). Each command of a worker is one request and one reply, between two virtual sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from lab.simulation.clock import EPOCH, WORKER, VirtualClock
from lab.simulation.wire import Plain, Wire
from scrapy_redisq.frontier import scripts
from scrapy_redisq.server.route import NAMELESS, OneServerRoute

TIME_KEY = "simulation:time"
TIME = "redis.call('TIME')"
"""What is replaced in the scripts, and by what."""
VIRTUAL_TIME = f"redis.call('LRANGE', '{TIME_KEY}', 0, 1)"

TIMES = """
redis.call('DEL', KEYS[1])
redis.call('RPUSH', KEYS[1], ARGV[1], ARGV[2])
for i = 3, #ARGV, 2 do redis.call('PEXPIRE', ARGV[i], ARGV[i + 1]) end
"""
"""Sets the clock, and how long keys live by it."""

SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 'redisq:*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
  found[#found + 1] = redis.call('PTTL', key)
end
return found
"""
RESTORE = """
for _, key in ipairs(redis.call('KEYS', 'redisq:*')) do redis.call('DEL', key) end
for i = 1, #ARGV, 3 do
  redis.call('RESTORE', ARGV[i], math.max(0, tonumber(ARGV[i + 2])), ARGV[i + 1])
end
"""

EXPIRING = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 'redisq:*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then
    found[#found + 1] = key
    found[#found + 1] = left
  end
end
return found
"""

FATES = ("request_lost", "reply_lost", "late", "doubled")
"""What may become of a request; the worker hears nothing, or of ``doubled`` one reply."""


_source = scripts.source


def _timed(file: str, backend: str = "") -> str:
    return _source(file, backend).replace(TIME, VIRTUAL_TIME)


class SimulatedServer:
    """A Redis that can be away, full, slow and forgetful.

    ``clock_error``: seconds by which its clock is wrong. ``fate(command)`` says what becomes of a
    request, one of `FATES` or "". ``calls`` are all that it has executed.
    """

    def __init__(self, path: str, clock: VirtualClock, chance: random.Random) -> None:
        self._wire = Wire(path, "redisq:*")
        self.redis: Any = Plain(self._wire)
        self.redis.config_set("maxmemory", 0)
        self.redis.flushdb()  # FLUSHALL would write a file
        self.redis.script_flush()
        self._clock = clock
        self._chance = chance
        self.away = False
        self.is_full = False
        self.clock_error = 0.0
        self.fate: Callable[[Any], str] = lambda command: ""
        self.cut_off: set[int] = set()
        self.trace: Callable[[str], None] = lambda text: None
        self.latency = 0.001
        self.calls = 0
        self._listeners: list[PubSub] = []
        self._snapshots: list[tuple[float, list[bytes]]] = []
        self._called = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self._expire: dict[bytes, float] = {}
        """Keys that live for a time -> until when, in virtual seconds."""

    # What happens to it

    def remember(self) -> None:
        """Keep what it holds now, for `forget_since`."""
        self._snapshots.append((self._clock.now, self.redis.eval(SNAPSHOT, 0)))

    def forget_since(self, moment: float) -> None:
        """Lose all that was written after the last state that was kept before ``moment``."""
        kept = [held for at, held in self._snapshots if at <= moment] or [[]]
        self.redis.config_set("maxmemory", 0)
        self.redis.eval(RESTORE, 0, *kept[-1])
        self.full(self.is_full)

    def full(self, is_full: bool) -> None:
        self.is_full = is_full
        self.redis.config_set("maxmemory", int(is_full))

    def hang_up(self) -> None:
        """Whoever listens hears no more."""
        for listener in self._listeners:
            listener.broken = True
            listener.news.set()

    # What is asked of it

    def execute(self, *command: Any) -> Any:
        """What it answers; an exception of redis-py's is raised."""
        self.calls += 1
        self._called.set()
        now = EPOCH + self._clock.now + self.clock_error
        times: list[Any] = [int(now), int(now % 1 * 1e6)]
        for key, until in self._expire.items():
            times += (key, self._left(until))
        before: list[tuple[Any, ...]] = [("EVAL", TIMES, 1, TIME_KEY, *times)]
        if self.is_full:  # nothing could be added
            before.insert(0, ("CONFIG SET", "maxmemory", 0))
            before.append(("CONFIG SET", "maxmemory", 1))
        *_, reply, expiring = self._wire.ask(*before, command, ("EVAL", EXPIRING, 0))
        self._expire_by(expiring)
        self._spread_news()
        return self.redis.decoded(command, reply)

    async def next_call(self) -> None:
        """Return when it has executed one more."""
        self._called.clear()
        await self._called.wait()

    def _left(self, until: float) -> int:
        """Milliseconds; 0: it is over."""
        left = int((until - self._clock.now) * 1000)
        return left if left > 5 else 0

    def _expire_by(self, found: list[Any]) -> None:
        """Redis counts real time, of which hardly any has passed."""
        known, self._expire = self._expire, {}
        for key, left in zip(found[::2], found[1::2], strict=True):
            until = known.get(key)
            if until is None or not 0 <= self._left(until) - left < 100:
                until = self._clock.now + math.ceil(left / 1000)
            self._expire[key] = until

    def _spread_news(self) -> None:
        messages, self._wire.messages = self._wire.messages, []
        for channel, data in messages:
            for listener in self._listeners:
                listener.told(channel, data)

    def refuse(self) -> None:
        """Raise what a client is told that does not reach it."""
        process = WORKER.get()
        if self.away:
            raise redis.ConnectionError("simulated: connection refused")
        if process is not None and process.number in self.cut_off:
            raise redis.TimeoutError("simulated: timed out")

    async def ask(self, timeout: float, command: tuple[Any, ...]) -> Any:
        """A request and its reply."""
        process = WORKER.get()
        self.trace(f"w{process.number if process else 0} {str(command)[:2000]}")
        fate = self.fate(command)
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self.latency)
        if process is not None and process.number in self.cut_off:
            await asyncio.sleep(timeout)
        self.refuse()
        if fate == "request_lost":
            await asyncio.sleep(timeout)
            raise redis.TimeoutError("simulated: timed out")
        if fate in ("late", "doubled"):
            self._again(self._chance.choice([0.05, 0.5, 3.0]) + (fate == "late") * timeout, command)
        if fate == "late":
            await asyncio.sleep(timeout)
            raise redis.TimeoutError("simulated: timed out")
        try:
            reply = self.execute(*command)
        except redis.ResponseError as error:
            reply = error
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self.latency)
        if fate == "reply_lost" or (process is not None and process.number in self.cut_off):
            raise redis.ConnectionError("simulated: connection reset by peer")
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _again(self, seconds: float, command: tuple[Any, ...]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(seconds)
            if not self.away:
                with contextlib.suppress(redis.ResponseError):
                    self.execute(*command)

        token = WORKER.set(None)  # it is on its way, whoever dies
        task = asyncio.ensure_future(arrive())
        WORKER.reset(token)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def listen(self, listener: PubSub) -> None:
        self._listeners.append(listener)

    def listen_no_more(self, listener: PubSub) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def install(self) -> None:
        """Let all clients of this process be clients of this server; and the scripts ask its time
        for the time."""
        if scripts.source is not _timed:
            scripts.source = _timed
            scripts.load.cache_clear()
        OneServerRoute.client = lambda _, timeout: BlockingClient(self)  # type: ignore
        OneServerRoute.async_client = lambda _, timeout: AsyncClient(self, timeout)  # type: ignore


class BlockingClient(redis.Redis):
    """Of what runs in a thread elsewhere: an answer takes no time."""

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(**NAMELESS)
        self._server = server

    def execute_command(self, *command: Any, **options: Any) -> Any:
        self._server.refuse()
        return self._server.execute(*command)


class AsyncClient(redis.asyncio.Redis):
    """A worker's."""

    def __init__(self, server: SimulatedServer, timeout: float) -> None:
        super().__init__(**NAMELESS)
        self._server = server
        self._timeout = timeout

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        return await self._server.ask(self._timeout, command)

    def pubsub(self, **options: Any) -> Any:
        return PubSub(self._server)


class PubSub:
    """What a worker hears; one that is cut off hears nothing, and is told nothing of that."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._process = WORKER.get()
        self._channels: set[bytes] = set()
        self._messages: list[dict[str, bytes]] = []
        self.news = asyncio.Event()
        self.broken = False

    async def __aenter__(self) -> PubSub:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.listen_no_more(self)

    async def subscribe(self, *channels: str) -> None:
        await asyncio.sleep(self._server.latency)
        self._server.refuse()
        self._channels = {channel.encode() for channel in channels}
        self._server.listen(self)

    def told(self, channel: bytes, data: bytes) -> None:
        cut = self._process is not None and self._process.number in self._server.cut_off
        if channel in self._channels and not cut:
            self._messages.append({"channel": channel, "data": data})
            self.news.set()

    async def get_message(self, timeout: float) -> dict[str, bytes] | None:
        if not self._messages:
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), timeout)
            except asyncio.TimeoutError:
                return None
        if self.broken:
            raise redis.ConnectionError("simulated: connection closed by server")
        await asyncio.sleep(self._server.latency)
        return self._messages.pop(0) if self._messages else None
