"""Clients of a cluster: one plain client for each node, and commands that find theirs.

`Cluster` and `AsyncCluster` send what a `HashSlots` says, and offer what the frontier uses of the
clients of redis-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import ResponseError

from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.server import requirements
from scrapy_redisq.server.access import async_options, blocking_options, closed_meanwhile
from scrapy_redisq.server.address import ClusterNodes
from scrapy_redisq.server.cluster.hash_slots import (
    AWAY,
    Command,
    HashSlots,
    Node,
    Replies,
    Send,
    Steps,
    T,
)
from scrapy_redisq.server.server import Server, told_by

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=redis.Redis | redis.asyncio.Redis)

QUICK = 1.0
"""Seconds that a node has for the map."""


def _key_of(command: Command) -> Any:
    return command[3 if str(command[0]).upper() in {"EVAL", "EVALSHA"} else 1]


def _result(replies: list[Any]) -> Any:
    """Of one command."""
    (reply,) = replies
    if isinstance(reply, Exception):
        raise reply
    return reply


class _Nodes(Generic[C]):
    """Common to both clients: the hash slots, and a client for each node that was talked to."""

    def __init__(self, hash_slots: HashSlots, connect: Callable[[Node, float | None], C]) -> None:
        """Several clients may have the same ``hash_slots``. ``connect`` makes the client of a node,
        with a time-out of its own in seconds, or None for the usual one."""
        self.hash_slots = hash_slots
        self._map = hash_slots.map
        self._connect = connect
        self._clients: dict[Node, C] = {}

    def client_of(self, node: Node) -> C:
        """The client of one node; it is closed with this."""
        if node not in self._clients:
            self._clients[node] = self._connect(node, None)
        return self._clients[node]

    def alone_at(self) -> float:
        """As `HashSlots.alone_at`, by time.monotonic()."""
        return self.hash_slots.alone_at()

    def pubsub(self, **options: Any) -> Any:
        """As redis-py's, at the node that was heard last: what any node publishes reaches all."""
        return self.client_of(self.hash_slots.in_turn()[0]).pubsub(**options)

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        return self.execute_command("EVALSHA", sha, numkeys, *keys_and_args)

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        return self.execute_command("EVAL", script, numkeys, *keys_and_args)

    def execute_command(self, *command: Any) -> Any:
        raise NotImplementedError

    def _left(self) -> list[C]:
        """Clients of nodes that have left the cluster."""
        gone, self._map = self._map.nodes - self.hash_slots.map.nodes, self.hash_slots.map
        return [self._clients.pop(node) for node in gone if node in self._clients]


class Cluster(_Nodes[redis.Redis]):
    """A blocking client of a cluster. Commands need a key, and go to its master."""

    def ping(self) -> None:
        """Raises as `HashSlots.greet` does."""
        self._run(self.hash_slots.greet())

    def masters(self) -> list[redis.Redis]:
        """The clients of all masters, as of now. Raises as `HashSlots.look` says."""
        if problem := self._run(self.hash_slots.look(now=True)):
            raise problem
        return [self.client_of(node) for node in self.hash_slots.map.masters]

    def confirm(self) -> bool:
        """As `HashSlots.confirm`."""
        return self._run(self.hash_slots.confirm())

    def execute_command(self, *command: Any) -> Any:
        return _result(self._run(self.hash_slots.send(_key_of(command), [command])))

    def _run(self, steps: Steps[T]) -> T:
        replies: Replies | None = None
        try:
            while True:
                replies = self._send(steps.send(replies))
        except StopIteration as end:
            result: T = end.value
            return result

    def _send(self, step: Send) -> Replies:
        for left in self._left():
            left.close()
        client = self._connect(step.node, QUICK) if step.quick else self.client_of(step.node)
        try:
            with client.pipeline(transaction=step.transaction) as pipe:
                for command in step.commands:
                    pipe.execute_command(*command)  # type: ignore[no-untyped-call]
                return pipe.execute(raise_on_error=False)
        except ResponseError as error:
            return [error] * len(step.commands)
        except AWAY as error:
            if isinstance(error, redis.TimeoutError):
                client.connection_pool.disconnect()
            return error
        finally:
            if step.quick:
                client.close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def nodes_of(client: redis.Redis | Cluster) -> list[redis.Redis]:
    """The servers that have all the keys between them."""
    return client.masters() if isinstance(client, Cluster) else [client]


class AsyncCluster(_Nodes[redis.asyncio.Redis]):
    """As `Cluster`, for asyncio."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._looks = asyncio.Lock()

    async def look(self, since: float) -> None:
        """Look at the map, unless another task has done that ``since`` (time.monotonic())."""
        async with self._looks:
            await self._run(self.hash_slots.look(since=since))

    async def execute_command(self, *command: Any) -> Any:
        return _result(await self.send([command]))

    def pipeline(self, transaction: bool = True) -> AsyncPipeline:
        return AsyncPipeline(self, transaction)

    async def send(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
        """Send commands of one hash slot in one go; -> the replies, errors among them."""
        steps = self.hash_slots.send(_key_of(commands[0]), commands, transaction=transaction)
        return await self._run(steps)

    async def _run(self, steps: Steps[T]) -> T:
        replies: Replies | None = None
        try:
            while True:
                replies = await self._send(steps.send(replies))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, step: Send) -> Replies:
        for left in self._left():
            await left.aclose()
        client = self._connect(step.node, QUICK) if step.quick else self.client_of(step.node)
        try:
            with closed_meanwhile():
                async with client.pipeline(transaction=step.transaction) as pipe:
                    for command in step.commands:
                        pipe.execute_command(*command)
                    return await pipe.execute(raise_on_error=False)
        except ResponseError as error:
            return [error] * len(step.commands)
        except AWAY as error:
            if isinstance(error, redis.TimeoutError):
                # Also that of whoever listens there: they would not hear that nobody speaks.
                with contextlib.suppress(redis.RedisError, OSError):
                    await client.connection_pool.disconnect()
            return error
        finally:
            if step.quick:
                await client.aclose()

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def __aenter__(self) -> AsyncCluster:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class AsyncPipeline:
    """Commands of one hash slot, for one round trip; the key of the first one says which."""

    def __init__(self, cluster: AsyncCluster, transaction: bool) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._commands: list[Command] = []

    def execute_command(self, *command: Any) -> AsyncPipeline:
        self._commands.append(command)
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []
        replies = await self._cluster.send(commands, transaction=self._transaction)
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    async def __aenter__(self) -> AsyncPipeline:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._commands.clear()


class ClusterServer(Server):
    """A cluster: all clients have one map. They leave a node when it says so, or says nothing.
    Within REDISQ_REWIND a master that the other masters have lost stops taking writes."""

    is_cluster = True
    _address: ClusterNodes

    def __init__(
        self, address: ClusterNodes, *, connect_timeout: float, socket_timeout: float
    ) -> None:
        super().__init__(address, connect_timeout=connect_timeout, socket_timeout=socket_timeout)
        self._hash_slots = HashSlots(address.nodes)

    def client(self, timeout: float | None = None) -> Cluster:
        usual = timeout or self.socket_timeout

        def connect(node: Node, quick: float | None) -> redis.Redis:
            options = blocking_options(min(usual, quick or usual), self._options)
            return redis.Redis.from_url(self._address.url_of(*node), **options)

        return Cluster(self._hash_slots, connect)

    def async_client(self) -> AsyncCluster:
        def connect(node: Node, quick: float | None) -> redis.asyncio.Redis:
            timeout = min(self.socket_timeout, quick or self.socket_timeout)
            options = async_options(timeout, self._options)
            return redis.asyncio.Redis.from_url(self._address.url_of(*node), **options)

        return AsyncCluster(self._hash_slots, connect)

    def _nodes(self, client: Any) -> Sequence[redis.Redis]:
        return nodes_of(client)

    def _confirm(self) -> None:
        with self.client() as client:
            if not client.confirm():
                raise ServerBusy("most masters of the cluster do not answer, or name others")

    def ping(self, timeout: float) -> None:
        with self.client(timeout) as client:
            client.ping()
        self.masters = len(self._hash_slots.map.masters)

    def _check(self, client: Any) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        masters = client.masters()
        self.masters, self.keeps_log = len(masters), True
        for place, master in zip(self._hash_slots.map.masters, masters, strict=True):
            name = "{}:{}".format(*place)
            try:
                told = told_by(master)
                for what in self._look(told, f"{self.address} (master {name})"):
                    found.setdefault(what, []).append(name)
                self.keeps_log = self.keeps_log and requirements.keeps_log(told) is not False
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                # Not all of the cluster's hash slots need be this frontier's.
                logger.warning(
                    "Master %s of %s does not answer: %s", name, self.address, self.redact(error)
                )
        return found
