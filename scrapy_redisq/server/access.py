"""How clients reach the server that an address means, and how certain it is that it is that one.

The access to a single server is here. Its subclasses, to a cluster and to a primary that Sentinels
know, are in ``cluster/`` and ``sentinel/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.server.address import Address

__all__ = [
    "Access",
    "AsyncClient",
    "Client",
    "async_options",
    "blocking_options",
    "cancel",
    "closed_meanwhile",
]

if TYPE_CHECKING:
    from scrapy_redisq.server.cluster import AsyncCluster, Cluster

Client: TypeAlias = "redis.Redis | Cluster"
AsyncClient: TypeAlias = "redis.asyncio.Redis | AsyncCluster"


# A connection that tells the server the name of redis-py is one to three round trips later of use.
# (redis-py 7.2 to 7.4 cannot be kept from it.)
NAMELESS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)


def _options(timeout: float, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **NAMELESS,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
        **given,
    }


def blocking_options(timeout: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of connections: answers are bytes, RESP2, nothing is ever sent twice."""
    return {**_options(timeout, given), "retry": Retry(NoBackoff(), 0)}


def async_options(timeout: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """The same for asyncio."""
    return {**_options(timeout, given), "retry": AsyncRetry(NoBackoff(), 0)}


CANCEL_AGAIN = 0.05
"""Seconds after which a task that goes on is cancelled once more."""


@contextlib.contextmanager
def closed_meanwhile() -> Iterator[None]:
    """Where an asyncio connection may be closed by another task: before Python 3.12 redis-py
    raises AttributeError if that is just before something is sent. Here `redis.ConnectionError`."""
    try:
        yield
    except AttributeError as error:
        raise redis.ConnectionError("the connection was closed meanwhile") from error


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task that may talk to Redis, and wait for its end.

    Again and again: before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes just
    when what it waits for is done, and redis-py sends with it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN)


class Access:
    """To one address, which may lead to another server in time; and what the other kinds have in
    common with it. Blocking, where it is not asyncio."""

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        self._address = address
        self._options = options
        self._pools: WeakSet[redis.asyncio.ConnectionPool] = WeakSet()

    def client(self, timeout: float) -> Client:
        """A client; connections and answers may take ``timeout`` seconds."""
        return redis.Redis.from_url(self._address.url, **blocking_options(timeout, self._options))

    def async_client(self, timeout: float) -> AsyncClient:
        """The same for asyncio."""
        options = async_options(timeout, self._options)
        client = redis.asyncio.Redis.from_url(self._address.url, **options)
        self._pools.add(client.connection_pool)
        return client

    def confirm(self, timeout: float) -> None:
        """Return if what the clients reach is, now, the server that has the last word.

        Raises `ServerBusy` if it is not, or if that is not certain, and redis-py's errors. To be
        followed by `drop`.
        """
        with self.client(timeout) as client:
            try:
                role = client.execute_command("ROLE")
            except redis.ResponseError:  # denied: then it is taken for what it should be
                return
        if role[0] in {b"slave", "slave"}:
            raise ServerBusy("the server at this address is a replica now")

    def find(self) -> None:
        """Look which server it is; raises `redis.ConnectionError` if that cannot be told, with
        ``final`` if it never will."""

    async def drop(self) -> None:
        """Close the connections of asyncio clients that may lead to another server by now."""
        for pool in list(self._pools):
            # The listener's is in use, and of no weight.
            await pool.disconnect(inuse_connections=False)

    async def follow(self) -> None:
        """Until cancelled: `drop` as soon as it is another server. Ends at once where there is
        nobody who would tell."""

    def vouched(self) -> float:
        """When it was last certain that the clients reach the right server, by time.monotonic()."""
        return time.monotonic()

    def close(self) -> None:
        """Close what `find` has opened; clients are their users' to close."""
