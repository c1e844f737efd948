"""How a server is at the moment: how full it is, and whether it takes writes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import redis

__all__ = ["Condition", "condition_of"]


@dataclass(frozen=True)
class Condition:
    """What a server says of itself, in bytes. A user who may not ask is told nothing: all zeros."""

    used: int = 0
    """Of its memory, without what does not count for ``maxmemory``."""
    most: int = 0
    """``maxmemory``; 0: no limit of its own."""
    refuses: str = ""
    """Why it takes no writes, "" if it does."""

    @property
    def share(self) -> float:
        """How full it is, 0 to 1 and a little more; 0 where there is no limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """New requests are refused (OOM)."""
        return self.most > 0 and self.used >= self.most


def condition_of(client: redis.Redis) -> Condition:
    """Ask the server behind ``client``; raises what that does if it goes away."""
    memory: dict[str, Any] = {}
    disk: dict[str, Any] = {}
    replicas: dict[str, Any] = {}
    with contextlib.suppress(redis.ResponseError):  # denied
        memory = client.info("memory")
        disk = client.info("persistence")
        replicas = client.info("replication")
    used = int(memory.get("used_memory", 0)) - int(memory.get("mem_not_counted_for_evict", 0))
    refuses = ""
    if disk.get("aof_enabled") and disk.get("aof_last_write_status", "ok") != "ok":
        refuses = "its append-only file cannot be written (a full disk?)"
    elif disk.get("rdb_last_bgsave_status", "ok") != "ok" and _stops_after_failed_save(client):
        refuses = "its last snapshot failed (a full disk?), and stop-writes-on-bgsave-error is set"
    elif (good := replicas.get("min_slaves_good_slaves")) is not None:  # only if some are asked for
        wanted = max(1, _min_replicas(client))
        if good < wanted:
            refuses = f"{good} of {wanted} replicas follow it (min-replicas-to-write)"
    return Condition(used, int(memory.get("maxmemory", 0)), refuses)


def _min_replicas(client: redis.Redis) -> int:
    """How many replicas have to follow; 0 if that may not be asked."""
    with contextlib.suppress(redis.ResponseError, KeyError, ValueError):
        return int(client.config_get("min-replicas-to-write")["min-replicas-to-write"] or 0)
    return 0


def _stops_after_failed_save(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ResponseError, KeyError):  # denied
        stops = client.config_get("stop-writes-on-bgsave-error")["stop-writes-on-bgsave-error"]
        return stops == "yes" and bool(client.config_get("save")["save"])
    return False
