"""One Redis or Valkey server: whether it keeps requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import redis

from scrapy_redisq.control.words import size_text, time_text
from scrapy_redisq.frontier.names import NEVER
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.ops.doctor.server_info import Told
from scrapy_redisq.settings.settings import RedisqSettings

OLDEST = (6, 2)
OLDEST_OF_CLUSTER = {"Redis": 7, "Valkey": 8}
"""Older ones have no ``CLUSTER ADDSLOTSRANGE``, and nobody has tried them."""
GOOD_FILL, FULL = 0.9, 0.98
CONF = "(CONFIG SET, and in redis.conf)"


def examine(
    told: Told, settings: RedisqSettings, *, cluster: bool = False, sentinel: bool = False
) -> Iterator[Line]:
    """All that is to be said of a server; raises what the client does if it goes away."""
    if not told.info:
        yield note(
            "INFO is denied to this user",
            "Version, memory, persistence and replicas could not be looked at.",
            "ACL SETUSER … +info (and +config|get +slowlog|get +latency|latest for this command)",
        )
    else:
        yield _version(told, cluster=cluster)
        yield from _memory(told, settings)
        yield from _persistence(told)
        yield from _replication(told, settings, cluster=cluster, sentinel=sentinel)
        yield from _clients(told)
    yield from _bloom(told)
    yield from _compression(told)


def _version(told: Told, *, cluster: bool) -> Line:
    valkey = told.info.get("valkey_version")
    name, version = ("Valkey", valkey) if valkey else ("Redis", told.info.get("redis_version"))
    text = f"{name} {version}, up for {time_text(told.number('uptime_in_seconds'))}"
    if told.version < OLDEST:
        why = "It is older than any that this release is tested with."
        return problem(text, why, "use Redis 6.2 or newer, or Valkey")
    oldest = OLDEST_OF_CLUSTER[name]
    if cluster and int(str(version).partition(".")[0]) < oldest:
        why = "A frontier on a cluster is not tested with one as old as this."
        return warning(text, why, f"use {name} {oldest} or newer")
    return ok(text)


def _memory(told: Told, settings: RedisqSettings) -> Iterator[Line]:
    policy = str(told.info.get("maxmemory_policy", ""))
    text, cure = f"maxmemory-policy is {policy}", f"maxmemory-policy noeviction {CONF}"
    if policy == "noeviction":
        yield ok(text)
    elif policy.startswith("volatile-"):
        yield warning(
            text,
            "The frontier's own keys are safe from it, those of what shares the server may not be.",
            cure,
        )
    elif policy:
        yield problem(
            text,
            "A full Redis throws queues of requests away; workers refuse to start on it.",
            cure,
        )
    used = told.number("used_memory") - told.number("mem_not_counted_for_evict")
    if most := told.number("maxmemory"):
        share = used / most
        text = f"{size_text(used)} of {size_text(most)} (maxmemory) used, {share:.0%}"
        if share < GOOD_FILL:
            yield ok(text)
        else:
            level = problem if share >= FULL else warning
            yield level(
                text,
                "Past it workers pause after pages that have found something new; pushes wait.",
                "more maxmemory, or end and reset old crawls",
            )
    else:
        yield note(
            f"{size_text(used)} used, and there is no maxmemory",
            "At the end of the machine's memory the kernel kills Redis. At maxmemory workers only "
            "pause after pages that have found something new.",
            "maxmemory to about 70 % of the machine's memory (a snapshot needs some, too)",
        )
        if 0 < settings.max_memory <= 1:
            yield warning(
                f"REDISQ_MAX_MEMORY is {settings.max_memory:g}, and there is no maxmemory",
                "A share of nothing: nobody waits.",
                "maxmemory on the server, or REDISQ_MAX_MEMORY in bytes",
            )
    if evicted := int(told.number("evicted_keys")):
        level = problem if policy.startswith("allkeys") else warning
        yield level(
            f"{evicted:,} keys were evicted since it was started",
            "With an allkeys policy these may have been queues; else keys with a time to live.",
            "maxmemory-policy noeviction, and more maxmemory",
        )


def _persistence(told: Told) -> Iterator[Line]:
    lost = int(told.number("rdb_changes_since_last_save"))
    if told.info.get("aof_enabled"):
        yield from _append_only(told)
    elif told.config.get("save", lost):  # lost: where CONFIG is denied
        ago = max(0, time.time() - told.number("rdb_last_save_time"))
        yield warning(
            f"snapshots only; the last {time_text(ago)} ago, {lost:,} changes since",
            "A crash loses all since then: pages are fetched again, what was pushed is gone.",
            f"appendonly yes {CONF}",
        )
    else:
        yield warning(
            "data is kept in memory only: neither appendonly nor snapshots",
            "If it restarts the frontier is lost, and the crawl must begin again.",
            f"appendonly yes {CONF}",
        )
    for name, what in (
        ("aof_last_write_status", "the append-only file could not be written"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only file failed"),
    ):
        if told.info.get(name, "ok") != "ok":
            yield problem(
                what,
                "Redis takes no writes then, or its disk fills up.",
                "room on its disk; see its log",
            )


def _append_only(told: Told) -> Iterator[Line]:
    fsync = told.config.get("appendfsync", "everysec")
    if fsync == "no":
        yield warning(
            "appendonly is yes, but appendfsync no",
            "A power cut loses up to half a minute: pages are fetched again, and what was "
            "pushed from outside is gone.",
            f"appendfsync everysec {CONF}",
        )
    else:
        yield ok(f"appendonly is yes, appendfsync {fsync}")
    if told.number("aof_last_rewrite_time_sec") == -1:
        yield note(
            "its append-only file was not written anew since it was started",
            "If a power cut has torn a script in it, half of that is applied at the next "
            "start. Workers ask for a new file when they join, where they may.",
            "BGREWRITEAOF once after each start, or ACL SETUSER … +bgrewriteaof",
        )


def _replication(
    told: Told, settings: RedisqSettings, *, cluster: bool, sentinel: bool
) -> Iterator[Line]:
    info, replicas = told.info, int(told.number("connected_slaves"))
    if info.get("role") == "slave":
        yield problem(
            f"it is a replica of {info.get('master_host')}:{info.get('master_port')}",
            "A replica takes no requests.",
            "REDISQ_URL to the primary, or redis+sentinel:// to the Sentinels that know it",
        )
        return
    if settings.wait_replicas > replicas:
        yield warning(
            f"REDISQ_WAIT_REPLICAS is {settings.wait_replicas}, and {replicas} are there",
            "Exchanges of several servers wait 100 ms each, in vain.",
            f"REDISQ_WAIT_REPLICAS {replicas}, or more replicas",
        )
    if not replicas and (sentinel or cluster):
        yield warning(
            "it has no replica",
            "If it dies its part of the crawl stands still until it is back.",
            "a replica of each primary",
        )
    if not replicas:
        return
    lags = [
        int(of_replica.get("lag", 0))
        for name, of_replica in info.items()
        if str(name).startswith("slave") and isinstance(of_replica, Mapping)
    ]
    slowest = max(lags, default=0)
    text = f"{replicas} replicas, at most {slowest} s behind"
    if slowest > 10:
        why = "A failover loses that much, and it is fetched again."
        yield warning(text, why, "network and load of the replica")
    else:
        yield ok(text)
    if told.set_to("min-replicas-to-write") == 0 and not cluster:
        yield warning(
            "min-replicas-to-write is 0",
            "At a failover a primary that its replicas have left goes on taking what is lost "
            "with it.",
            f"min-replicas-to-write 1, min-replicas-max-lag 2 on all of them {CONF}",
        )


def _clients(told: Told) -> Iterator[Line]:
    connected, most = told.number("connected_clients"), told.set_to("maxclients") or 0
    if refused := int(told.number("rejected_connections")):
        yield warning(
            f"{refused:,} connections were refused",
            "More clients came than maxclients allows: workers wait for one of three each.",
            f"maxclients, now {most or 'unknown'}; and the limit of open files of its process",
        )
    elif most and connected > 0.8 * most:
        yield warning(
            f"{connected:,.0f} of {most:,} connections (maxclients) are open",
            "A worker needs three.",
            f"more maxclients {CONF}",
        )


def _bloom(told: Told) -> Iterator[Line]:
    try:
        told.client.execute_command("BF.EXISTS", NEVER, "x")
    except redis.ResponseError as error:
        if "unknown" in str(error).lower():
            yield note(
                "it has no RedisBloom (BF.…)",
                "Bloom filters are kept on bitmaps: a new URL takes about 7 µs of Redis, not 1.",
                "Redis 8, Redis Stack, or valkey-bloom; nothing, if Redis is not busy",
            )
        return
    yield ok("it has RedisBloom")


def _compression(told: Told) -> Iterator[Line]:
    depth = told.set_to("list-compress-depth")
    if depth and told.info and told.version < (7, 0):
        yield warning(
            f"list-compress-depth is {depth} on Redis 6",
            "An LRANGE over such a list has crashed 6.2.14.",
            f"list-compress-depth 0 {CONF}, or Redis 7",
        )
    elif depth:
        yield ok(f"list-compress-depth is {depth}: queues are compressed")
    elif depth == 0 and told.version >= (7, 0):
        yield note(
            "list-compress-depth is 0",
            "A queued request takes about 108 bytes; compressed, 8 to 25.",
            f"list-compress-depth 1 {CONF}",
        )
