"""Pools of connections to the primary, whichever server that is when they are made.

They are redis-py's own for Sentinels. A `Finder` takes the place of its `redis.sentinel.Sentinel`,
which would follow a Sentinel that is cut off. Each new connection asks the server for its ROLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis
import redis.asyncio.sentinel
import redis.sentinel
from redis.exceptions import NoPermissionError

from scrapy_redisq.server.access import closed_meanwhile
from scrapy_redisq.server.sentinel.finder import Finder, Place

POLL = 1.0
"""Seconds between two questions which server is the primary."""


@contextlib.contextmanager
def _rights_named() -> Iterator[None]:
    try:
        yield
    except NoPermissionError as error:
        raise NoPermissionError(
            f"{error}. The user of REDISQ_URL needs ROLE and WAIT to tell a primary from a "
            "replica: ACL SETUSER … +role +wait"
        ) from None


def _check_role(connection: Any, role: Any) -> None:
    if role[0] not in {b"master", "master"}:
        raise redis.ConnectionError(
            f"{connection.host}:{connection.port}, which Sentinels name, is not the primary (yet)"
        )


class Pool(redis.sentinel.SentinelConnectionPool):
    """Of a blocking client. One that is used asks now and then whether it is still right."""

    def __init__(self, finder: Finder, *, tls: bool, **options: Any) -> None:
        self._finder = finder
        super().__init__("", finder, ssl=tls, redis_connect_func=self._greet, **options)  # type: ignore[no-untyped-call]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        is_old = time.monotonic() - self._finder.asked_at > POLL
        if is_old or self.master_address not in {None, self._finder.primary}:
            self.get_master_address()  # type: ignore[no-untyped-call]  # closes those to others
        return super().get_connection(*args, **options)

    @staticmethod
    def _greet(connection: Any) -> None:
        connection.on_connect()
        with _rights_named():
            connection.send_command("ROLE")
            _check_role(connection, connection.read_response())


class AsyncPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """Of an asyncio client."""

    def __init__(self, finder: Finder, *, tls: bool, **options: Any) -> None:
        self._finder = finder
        options["connection_class"] = _SSLConnection if tls else _Connection
        super().__init__("", None, redis_connect_func=self._greet, **options)  # type: ignore[no-untyped-call]

    async def get_master_address(self) -> Place | None:
        await asyncio.to_thread(self._finder.find)
        await self.leave_former()
        return self._finder.primary

    async def leave_former(self) -> None:
        """Close all connections if they lead to another server than the primary that is known."""
        former, self.master_address = self.master_address, self._finder.primary
        if former not in {None, self.master_address}:
            # What is on its way there has no answer, and is sent again.
            with contextlib.suppress(redis.RedisError, OSError):
                await self.disconnect()

    async def _greet(self, connection: Any) -> None:
        await connection.on_connect()
        with _rights_named():
            await connection.send_command("ROLE")
            _check_role(connection, await connection.read_response())
        if (connection.host, connection.port) != self._finder.primary:
            raise redis.ConnectionError("the primary has changed meanwhile")


class _Closable:
    """Of connections that `AsyncPool.leave_former` closes while they are used."""

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        with closed_meanwhile():
            await super().send_packed_command(*args, **options)  # type: ignore[misc]


class _Connection(_Closable, redis.asyncio.sentinel.SentinelManagedConnection):
    pass


class _SSLConnection(_Closable, redis.asyncio.sentinel.SentinelManagedSSLConnection):
    pass
