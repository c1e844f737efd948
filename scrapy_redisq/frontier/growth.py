"""How large a frontier may become before whoever adds to it waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct


class Fill(NamedTuple):
    """How full a shard is (``run/server.lua``): requests that are not finished, and bytes of its
    server's memory, used and at most (0: without a limit; both 0: it does not say)."""

    unfinished: int
    used: int
    maxmemory: int


class GrowthLimit(Struct, frozen=True):
    """REDISQ_MAX_PENDING requests, and REDISQ_MAX_MEMORY: bytes of a server, or up to 1 a share of
    its maxmemory. 0: no such limit."""

    pending: int = 0
    memory: float = 0.0

    def __bool__(self) -> bool:
        return self.pending > 0 or self.memory > 0

    def reached(self, unfinished: int, fills: Iterable[Fill] = ()) -> str:
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
