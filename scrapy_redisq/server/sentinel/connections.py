"""Connections that lead to the primary, whichever server that is when they are made.

redis-py has no public way to choose the address then: `_connect` opens the socket to `host` and
`port`, in all versions from 5.2 to 8.1.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakSet

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError

from scrapy_redisq.server.access import closed_meanwhile
from scrapy_redisq.server.sentinel.finder import Finder

__all__ = ["POLL", "AsyncConnection", "AsyncSSLConnection", "Connection", "SSLConnection"]

POLL = 1.0
"""Seconds between two questions which server is the primary."""


def _check_role(role: Any, host: str, port: int) -> None:
    if role[0] not in {b"master", "master"}:
        raise redis.ConnectionError(
            f"{host}:{port}, which Sentinels name, is not the primary (yet)"
        )


def _role_denied(error: NoPermissionError) -> NoPermissionError:
    return NoPermissionError(
        f"{error}. The user of REDISQ_URL needs ROLE and WAIT to tell a primary from a replica: "
        "ACL SETUSER … +role +wait"
    )


class _ToPrimary:
    """Of blocking connections. One that is used asks now and then whether it is still right."""

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        self._finder = finder
        super().__init__(redis_connect_func=self._greet, **options)  # type: ignore[call-arg]

    def _connect(self) -> Any:
        self._finder.find()
        self.host, self.port = self._finder.primary or ("", 0)
        return super()._connect()  # type: ignore[misc]

    @staticmethod
    def _greet(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("ROLE")
        try:
            _check_role(connection.read_response(), connection.host, connection.port)
        except NoPermissionError as error:
            raise _role_denied(error) from None

    def send_packed_command(self, *args: Any, **options: Any) -> Any:
        if time.monotonic() - self._finder.asked_at > POLL:
            self._finder.find()
        if (self.host, self.port) != self._finder.primary:
            self.disconnect()  # type: ignore[attr-defined]
        return super().send_packed_command(*args, **options)  # type: ignore[misc]


class _AsyncToPrimary:
    """Of asyncio connections. ``made`` gets them, for whoever has to close them in time."""

    def __init__(self, *, finder: Finder, made: WeakSet[Any], **options: Any) -> None:
        self._finder = finder
        self._made = made
        self._is_greeting = False
        super().__init__(redis_connect_func=self._greet, **options)  # type: ignore[call-arg]

    async def _connect(self) -> None:
        await asyncio.to_thread(self._finder.find)
        self.host, self.port = self._finder.primary or ("", 0)
        await super()._connect()  # type: ignore[misc]
        self._is_greeting = True
        self._made.add(self)

    @property
    def leads_elsewhere(self) -> bool:
        """Whether it is open, and not to the primary that is known now."""
        return self.is_connected and (self.host, self.port) != self._finder.primary  # type: ignore[attr-defined]

    @staticmethod
    async def _greet(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("ROLE")
        try:
            _check_role(await connection.read_response(), connection.host, connection.port)
        except NoPermissionError as error:
            raise _role_denied(error) from None
        if connection.leads_elsewhere:
            raise redis.ConnectionError("the primary has changed meanwhile")
        connection._is_greeting = False

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        with closed_meanwhile():
            # Another connection may have found it, and nobody has closed this one yet.
            if self.leads_elsewhere and not self._is_greeting:
                await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            await super().send_packed_command(*args, **options)  # type: ignore[misc]


class Connection(_ToPrimary, redis.Connection):
    pass


class SSLConnection(_ToPrimary, redis.SSLConnection):
    pass


class AsyncConnection(_AsyncToPrimary, redis.asyncio.Connection):
    pass


class AsyncSSLConnection(_AsyncToPrimary, redis.asyncio.SSLConnection):
    pass
