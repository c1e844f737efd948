"""Answers of the Redis servers about themselves, as far as they let us ask."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis

from scrapy_redisq.frontier.scripts import known_scripts
from scrapy_redisq.server.cluster import Cluster, nodes_of
from scrapy_redisq.server.condition import Told
from scrapy_redisq.server.connection import Client

SLOW = 64
"""Entries of a server's slow log that are looked through."""

INFO = {
    "redis_version": "version",
    "valkey_version": "valkey_version",
    "uptime_in_seconds": "uptime",
    "connected_clients": "clients",
    "instantaneous_ops_per_sec": "commands_per_second",
    "maxmemory_policy": "policy",
    "mem_fragmentation_ratio": "fragmentation",
    "used_memory_peak": "peak",
    "role": "role",
    "connected_slaves": "replicas",
    "aof_enabled": "aof",
    "rdb_last_save_time": "last_save",
    "rdb_changes_since_last_save": "changes_since_save",
    "evicted_keys": "evicted",
}


def told(client: Client) -> list[dict[str, Any]]:
    """Each server that has keys: the fields of `INFO`, memory (bytes), ``latency`` (seconds of a
    round trip), ``refuses`` and ``slow`` (our scripts in its slow log). Raises redis-py's errors
    if one server is all there is, and it is away."""
    found = []
    for node in nodes_of(client):
        options = node.connection_pool.connection_kwargs
        address = options.get("path") or f"{options.get('host', '')}:{options.get('port', '')}"
        try:
            found.append({"address": str(address), **_told(node)})
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if not isinstance(client, Cluster):
                raise
            found.append({"address": str(address), "away": str(error)})
    return found


def _told(node: redis.Redis) -> dict[str, Any]:
    began = time.perf_counter()
    node.ping()
    latency = time.perf_counter() - began
    slow: list[dict[str, Any]] = []
    with contextlib.suppress(redis.ResponseError):  # denied
        slow = _slow(node.slowlog_get(SLOW))
    told = Told(node)
    condition = told.condition()
    return {
        **{name: told.info.get(field) for field, name in INFO.items()},
        "used": condition.used,
        "most": condition.most,
        "refuses": condition.refuses,
        "latency": round(latency, 6),
        "slow": slow,
    }


def _slow(entries: list[Any]) -> list[dict[str, Any]]:
    """Runs of our scripts that were slow, newest first."""
    names = known_scripts()
    found = []
    for entry in entries:
        words = entry["command"].decode(errors="replace").split(maxsplit=5)
        if len(words) > 3 and words[0].upper() == "EVALSHA" and words[1] in names:
            at, seconds = entry["start_time"], entry["duration"] / 1e6
            told = {"at": at, "seconds": seconds, "script": names[words[1]], "key": words[3]}
            found.append(told)
    return found
