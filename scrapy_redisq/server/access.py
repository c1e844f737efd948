"""Options of all clients of Redis, and how connections end.

The clients send each command once. redis-py's default sends a command again when its answer was
lost, up to ten times; that is right only for what may happen twice. Exchanges survive it by their
sequence number and are repeated by the worker itself, nothing else is repeated at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from scrapy_redisq.tasks import within

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


HANGING_UP = 1.0
"""Seconds for which a server is waited for when its connections are closed."""


@contextlib.contextmanager
def closed_meanwhile() -> Iterator[None]:
    """Where an asyncio connection may be closed by another task: before Python 3.12 redis-py
    raises AttributeError if that is just before something is sent. Here `redis.ConnectionError`."""
    try:
        yield
    except AttributeError as error:
        raise redis.ConnectionError("the connection was closed meanwhile") from error


async def hang_up(client: AsyncClient) -> None:
    """Close its connections. With TLS a server that is silent would be waited for, each time."""
    with contextlib.suppress(redis.RedisError, OSError, asyncio.TimeoutError):
        await within(HANGING_UP, client.aclose())
