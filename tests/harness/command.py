"""``scrapy redisq …`` in this process, and what it left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lab.servers import RedisServer


class Ran(NamedTuple):
    """What a call left behind."""

    code: int
    out: str
    err: str


Redisq = Callable[..., Ran]


def at(server: RedisServer) -> tuple[str, str]:
    return ("-s", f"REDISQ_URL={server.url}")
