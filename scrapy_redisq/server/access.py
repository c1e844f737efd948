"""Options of all clients of Redis, and how tasks that use clients end.

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
    """Cancel a task that may talk to Redis, and wait for its end. Again and again: before Python
    3.12 `asyncio.wait_for` swallows a cancellation that comes just when what it waits for is
    done."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN)
