"""How large a frontier may become before whoever adds to it waits, and how full its servers are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Struct

from scrapy_redisq.frontier.scripts import Call, load


class ServerState(NamedTuple):
    """The reply of ``run/server.lua`` of a shard: its time in us since 1970, requests that are not
    finished, bytes of its server's memory, used and at most (0: without a limit; both 0: it does
    not say), and, if that was asked for, whether it can keep filters of RedisBloom."""

    now: int
    unfinished: int
    used: int
    maxmemory: int
    has_bloom: int = 0


def server_state(prefix: str, *, probe: bool = False) -> Call[ServerState]:
    """-> that of the shard whose keys have this ``prefix``."""

    def decode(reply: Any) -> ServerState:
        return ServerState(int(reply[0]), *reply[1:])

    return Call.of(load("run/server"), f"{prefix}meta", {"probe": probe}, decode)


class GrowthLimit(Struct, frozen=True):
    """REDISQ_MAX_PENDING requests, and REDISQ_MAX_MEMORY: bytes of a server, or up to 1 a share of
    its maxmemory. 0: no such limit."""

    pending: int = 0
    memory: float = 0.0

    def __bool__(self) -> bool:
        return self.pending > 0 or self.memory > 0

    def reached(self, unfinished: int, fills: Iterable[ServerState] = ()) -> str:
        """The limit that is reached, with figures; "" if none is. ``unfinished``: requests of
        all shards; ``fills``: of those whose server's memory counts."""
        if 0 < self.pending <= unfinished:
            return (
                f"{unfinished:,} requests are not finished, and REDISQ_MAX_PENDING is "
                f"{self.pending:,}"
            )
        for fill in fills:
            most = self.memory * fill.maxmemory if self.memory <= 1 else self.memory
            if 0 < most <= fill.used:
                share = f" ({self.memory:.0%} of its maxmemory)" if self.memory <= 1 else ""
                return (
                    f"Redis uses {fill.used:,} bytes, and REDISQ_MAX_MEMORY is {most:,.0f}{share}"
                )
        return ""


NO_LIMIT = GrowthLimit()
