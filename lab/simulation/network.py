"""The servers, and how workers reach them: one, or the masters of a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import redis
import redis.asyncio
from redis.crc import key_slot

from lab.simulation.clock import WORKER, VirtualClock
from lab.simulation.server import META, SimulatedServer, give_scripts_time
from lab.simulation.wire import Wire
from scrapy_redisq.server.access import NAMELESS
from scrapy_redisq.server.cluster import AsyncCluster, Cluster, ClusterServer
from scrapy_redisq.server.cluster.hash_slots import SLOTS, Node
from scrapy_redisq.server.server import Server

MOST = 6
"""Databases of a Redis that are used."""


class Network:
    """``masters`` 0: one server, and no cluster. ``replicas``: each master of a cluster has one.

    ``primaries`` are who serves now, in the order of hash slots; ``calls`` is how many commands all
    servers have executed, ``largest`` and ``largest_reply`` the bytes of the largest arguments and
    reply of a script, ``latency`` the seconds to them, and ``trace`` is told each request.
    """

    def __init__(
        self, path: str, masters: int, replicas: bool, clock: VirtualClock, chance: random.Random
    ) -> None:
        self._wire = wire = Wire(path, "redisq:*")
        wire.ask(0, ("CONFIG SET", "maxmemory", 0))
        for number in range(MOST):  # FLUSHALL would write a file
            wire.ask(number, ("FLUSHDB",))
        number = max(1, masters)
        self.servers = [
            SimulatedServer(one, wire, clock, chance, self)
            for one in range(number * (2 if replicas else 1))
        ]
        self.primaries = self.servers[:number]
        self._masters = masters
        self._replica = dict(zip(self.primaries, self.servers[number:], strict=False))
        self._clock = clock
        self.split: dict[SimulatedServer, list[SimulatedServer]] = {}
        """A primary that was replaced, and does not know it -> who were primaries then."""
        self._safe: dict[SimulatedServer, float] = {}
        """Until when a replica has all."""
        self.listeners: dict[PubSub, None] = {}
        self.trace: Callable[[str], None] = lambda text: None
        self.run_is_complete: Callable[[], None] = lambda: None
        self.latency = 0.001
        self.calls = self.largest = self.largest_reply = 0
        self.begun: set[bytes] = set()
        """Runs that there were; a worker that comes when all is finished begins another one."""

    @property
    def url(self) -> str:
        """REDISQ_URL."""
        return "redis+cluster://n0.sim:7000" if self._masters else "redis://n0.sim:7000/0"

    def primary_of(self, key: str) -> SimulatedServer:
        return self.primaries[key_slot(key.encode()) * len(self.primaries) // SLOTS]

    @property
    def first(self) -> SimulatedServer:
        """The one that has shard 0."""
        return self.primary_of(META)

    # A cluster

    def slots(self, asked: SimulatedServer) -> list[Any]:
        """What a node answers to CLUSTER SLOTS."""
        primaries = self.split.get(asked, self.primaries)
        bounds = [-(-SLOTS * n // len(primaries)) for n in range(len(primaries) + 1)]
        told = []
        for n, primary in enumerate(primaries):
            replica = self._replica.get(primary)
            servers = [primary] if replica is None else [primary, replica]
            names = [[f"n{one.number}.sim".encode(), 7000, b"id"] for one in servers]
            told.append([bounds[n], bounds[n + 1] - 1, *names])
        return told

    def replicated(self, server: SimulatedServer) -> int:
        """How many replicas have all that ``server`` was told: the answer to WAIT."""
        if server not in self._replica or server in self.split:
            return 0
        server.remember()
        self._safe[server] = self._clock.now
        return 1

    def kept_since(self, server: SimulatedServer, since: float) -> float:
        """Until when nothing is lost if what it was told after ``since`` is: replicas have more."""
        return max(since, self._safe.get(server, 0.0))

    def fail_over(self, old: SimulatedServer, since: float) -> bool:
        """Let its replica, which lacks what ``old`` was told since, take its place; ``old`` goes on
        until `end_split`. -> False if it has none."""
        new = self._replica.get(old)
        if new is None or old in self.split:
            return False
        new.forget_since(self.kept_since(old, since), old)
        new.moved_to = None
        self.split[old] = list(self.primaries)
        self.primaries[self.primaries.index(old)] = new
        return True

    def end_split(self, old: SimulatedServer) -> None:
        """It learns of it, and is a replica now."""
        new = self._replica.pop(old)
        self._replica[new] = old
        old.moved_to = new
        del self.split[old]
        self.hang_up(old)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Key of each shard's counts -> requests created, and finished."""
        found = {}
        for one, key in self._hashes("counts"):
            both = one.hmget(key, "created", "finished")
            found[key.decode()] = (int(both[0] or 0), int(both[1] or 0))
        return found

    def runs(self, *more: SimulatedServer) -> set[tuple[str, bytes]]:
        """Key of each shard's meta, and the run that it has; also of ``more`` servers."""
        return {(key.decode(), one.hget(key, "run")) for one, key in self._hashes("meta", *more)}

    def _hashes(self, name: str, *more: SimulatedServer) -> Iterator[tuple[Any, bytes]]:
        """This key of each shard, unless somebody has written over it."""
        for server in (*self.primaries, *more):
            for key in server.redis.keys(f"redisq:{{sim*:{name}"):
                if server.redis.type(key) == b"hash":
                    yield server.redis, key

    def left(self) -> int:
        """Requests that are not finished, as far as shards tell; -1: there were none."""
        counts = self.counts().values()
        return sum(one - two for one, two in counts) if counts else -1

    def is_done(self) -> bool:
        """Whether all requests are finished, as far as each shard tells. Of counts that somebody
        has deleted none are left: what waits or is held has other keys, too."""
        kinds = ("ready", "delayed", "post", "leases:*")
        left = any(one.redis.keys(f"redisq:{{sim*:{k}") for one in self.primaries for k in kinds)
        return not left and all(one <= two for one, two in self.counts().values())

    def is_starting(self) -> bool:
        """Whether a worker has start requests of its own to do, as far as each shard tells."""
        return any(int(one.hget(key, "starting") or 0) for one, key in self._hashes("counts"))

    # News

    def hang_up(self, server: SimulatedServer) -> None:
        """Whoever listens there hears no more."""
        for listener in self.listeners:
            if listener.server is server:
                listener.broken = True
                listener.news.set()

    def spread_news(self) -> None:
        """What one node is told reaches those who listen to any."""
        messages, self._wire.messages = self._wire.messages, []
        for channel, data in messages:
            for listener in self.listeners:
                listener.told(channel, data)

    # Clients

    def _server(self, node: Node) -> SimulatedServer:
        return self.servers[int(node[0][1:].partition(".")[0])]

    def install(self) -> None:
        """Let all clients of this process be clients of these servers."""
        give_scripts_time()

        def blocking(node: Node, quick: float | None = None) -> BlockingClient:
            return BlockingClient(self._server(node))

        def asynchronous(server: Any) -> AsyncCluster:
            def connect(node: Node, quick: float | None) -> AsyncClient:
                timeout = server.socket_timeout
                return AsyncClient(self._server(node), min(timeout, quick or timeout))

            return AsyncCluster(server._hash_slots, connect)

        def clients(server: Any, timeout: float | None = None) -> Cluster:
            return Cluster(server._hash_slots, blocking)

        only = self.servers[0]
        Server.client = lambda _, timeout=None: BlockingClient(only)  # type: ignore
        Server.async_client = lambda server: AsyncClient(only, server.socket_timeout)  # type: ignore
        ClusterServer.client = clients  # type: ignore
        ClusterServer.async_client = asynchronous  # type: ignore


CLIENT, ASYNC_CLIENT = redis.Redis(**NAMELESS), redis.asyncio.Redis(**NAMELESS)
"""What the clients below are made of: it takes half a millisecond less."""


class BlockingClient(redis.Redis):
    """Of what runs in a thread elsewhere: an answer takes no time."""

    def __init__(self, server: SimulatedServer) -> None:
        self.__dict__ |= CLIENT.__dict__
        self._server = server

    def execute_command(self, *command: Any, **options: Any) -> Any:
        self._server.refuse()
        return self._server.execute(*command)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        return _Pipeline(self._server, client=self)


class _Pipeline(list[tuple[Any, ...]]):
    """Commands of one request."""

    def __init__(self, server: SimulatedServer, timeout: float = 0.0, client: Any = None) -> None:
        self._server, self._timeout, self._client = server, timeout, client
        self._questions: list[Callable[[], Any]] = []

    def execute_command(self, *command: Any) -> None:
        self.append(command)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self._questions.append(lambda: getattr(self._client, name)(*args))

    def execute(self, raise_on_error: bool) -> list[Any]:
        self._server.refuse()
        return [self._server.told(command) for command in self] + [
            _answer(question) for question in self._questions
        ]

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""


def _answer(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except redis.ResponseError as error:
        return error


class _AsyncPipeline(_Pipeline):
    async def execute(self, raise_on_error: bool) -> list[Any]:  # type: ignore[override]
        return await self._server.ask(self._timeout, list(self))

    async def __aenter__(self) -> _AsyncPipeline:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing is open."""


class AsyncClient(redis.asyncio.Redis):
    """A worker's."""

    def __init__(self, server: SimulatedServer, timeout: float) -> None:
        self.__dict__ |= ASYNC_CLIENT.__dict__
        self._server = server
        self._timeout = timeout

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        (reply,) = await self._server.ask(self._timeout, [command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, *args: Any, **options: Any) -> Any:
        return _AsyncPipeline(self._server, self._timeout)

    def pubsub(self, **options: Any) -> Any:
        return PubSub(self._server)


class PubSub:
    """What a worker hears; one that is cut off hears nothing, and is told nothing of that."""

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        self._network = server.network
        self._process = WORKER.get()
        self._channels: set[bytes] = set()
        self._messages: list[dict[str, bytes]] = []
        self.news = asyncio.Event()
        self.broken = False

    async def __aenter__(self) -> PubSub:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._network.listeners.pop(self, None)

    async def subscribe(self, *channels: str) -> None:
        await asyncio.sleep(self._network.latency)
        self.server.refuse()
        self._channels = {channel.encode() for channel in channels}
        self._network.listeners[self] = None

    def told(self, channel: bytes, data: bytes) -> None:
        cut = self._process is not None and self._process.number in self.server.cut_off
        if channel in self._channels and not cut:
            self._messages.append({"channel": channel, "data": data})
            self.news.set()

    async def get_message(self, timeout: float) -> dict[str, bytes] | None:
        if not self._messages:
            self.news.clear()
            timer = asyncio.get_running_loop().call_later(timeout, self.news.set)
            await self.news.wait()
            timer.cancel()
        if self.broken:
            raise redis.ConnectionError("simulated: connection closed by server")
        await asyncio.sleep(self._network.latency)
        return self._messages.pop(0) if self._messages else None
