"""One Redis or Valkey server: whether it keeps requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import redis

from scrapy_redisq.control.words import size_text, time_text
from scrapy_redisq.frontier.names import NEVER
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.ops.doctor.server_info import Told
from scrapy_redisq.server.requirements import OLDEST_OF_CLUSTER

OLDEST = (6, 2)
GOOD_FILL, FULL = 0.9, 0.98
CONF = "and in redis.conf"


def examine(told: Told, *, cluster: bool = False, sentinel: bool = False) -> Iterator[Line]:
    """All that is to be said of a server; raises what the client does if it goes away."""
    if not told.info:
        yield note(
            "INFO is denied to this user",
            "Version, memory, persistence and replicas could not be looked at.",
            "ACL SETUSER … +info (and +config|get +slowlog|get +latency|latest for this command)",
        )
    else:
        yield from _version(told, cluster=cluster)
        yield from _memory(told)
        yield from _persistence(told)
        yield from _replication(told, cluster=cluster, sentinel=sentinel)
        yield from _clients(told)
    yield from _bloom(told)
    yield from _encodings(told)


def _version(told: Told, *, cluster: bool) -> Iterator[Line]:
    valkey = told.info.get("valkey_version")
    name, version = ("Valkey", valkey) if valkey else ("Redis", told.info.get("redis_version"))
    text = f"{name} {version}, up for {time_text(told.number('uptime_in_seconds'))}"
    if told.version < OLDEST:
        yield problem(
            text,
            "It is older than any that this release is tested with.",
            "use Redis 6.2 or newer, or Valkey",
        )
    elif cluster and int(str(version).partition(".")[0]) < OLDEST_OF_CLUSTER[name]:
        yield warning(
            text,
            "A frontier on a cluster is not tested with one as old as this.",
            f"use {name} {OLDEST_OF_CLUSTER[name]} or newer",
        )
    else:
        yield ok(text)
    if told.info.get("loading"):
        yield warning("it is loading its data", "Workers wait until it has.", "wait")


def _memory(told: Told) -> Iterator[Line]:
    policy = str(told.info.get("maxmemory_policy", ""))
    if policy == "noeviction":
        yield ok("maxmemory-policy is noeviction")
    elif policy.startswith("volatile-"):
        yield warning(
            f"maxmemory-policy is {policy}",
            "The frontier's own keys are safe from it, those of what shares the server may not be.",
            f"maxmemory-policy noeviction (CONFIG SET, {CONF})",
        )
    elif policy:
        yield problem(
            f"maxmemory-policy is {policy}",
            "A full Redis throws queues of requests away; workers refuse to start on it.",
            f"maxmemory-policy noeviction (CONFIG SET, {CONF})",
        )
    used = told.number("used_memory") - told.number("mem_not_counted_for_evict")
    most = told.number("maxmemory")
    machine = told.number("total_system_memory")
    if not most:
        yield note(
            "there is no maxmemory",
            "At the end of the machine's memory the kernel kills Redis. At maxmemory workers only "
            "pause after pages that have found something new.",
            "maxmemory to about 70 % of the machine's memory (a snapshot needs some, too)",
        )
        of = f" of the machine's {size_text(machine)}" if machine else ""
        yield ok(f"{size_text(used)}{of} used")
    else:
        share = used / most
        text = f"{size_text(used)} of {size_text(most)} (maxmemory) used, {share:.0%}"
        why = "Past it workers pause after pages that have found something new; pushes wait."
        if share >= FULL:
            yield problem(text, why, "more maxmemory, or end and reset old crawls")
        elif share >= GOOD_FILL:
            yield warning(text, why, "more maxmemory, or end and reset old crawls")
        else:
            yield ok(text)
    if evicted := int(told.number("evicted_keys")):
        level = problem if policy.startswith("allkeys") else warning
        yield level(
            f"{evicted:,} keys were evicted since it was started",
            "With an allkeys policy these may have been queues; else keys with a time to live.",
            "maxmemory-policy noeviction, and more maxmemory",
        )


def _persistence(told: Told) -> Iterator[Line]:
    info, fix = told.info, f"appendonly yes (CONFIG SET appendonly yes, {CONF})"
    append_only = bool(info.get("aof_enabled"))
    snapshots = told.config.get("save")
    if append_only:
        fsync = told.config.get("appendfsync", "everysec")
        if fsync == "no":
            yield warning(
                "appendonly is yes, but appendfsync no",
                "A power cut loses up to half a minute: pages are fetched again, and what was "
                "pushed from outside is gone.",
                f"appendfsync everysec (CONFIG SET, {CONF})",
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
    elif snapshots or (snapshots is None and told.number("rdb_changes_since_last_save")):
        ago = max(0, time.time() - told.number("rdb_last_save_time", time.time()))
        lost = int(told.number("rdb_changes_since_last_save"))
        yield warning(
            f"snapshots only; the last {time_text(ago)} ago, {lost:,} changes since",
            "A crash loses all since then: pages are fetched again, what was pushed is gone.",
            fix,
        )
    else:
        yield warning(
            "data is kept in memory only: neither appendonly nor snapshots",
            "If it restarts the frontier is lost, and the crawl must begin again.",
            fix,
        )
    for name, what in (
        ("aof_last_write_status", "the append-only file could not be written"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only file failed"),
    ):
        if info.get(name, "ok") != "ok":
            yield problem(
                what,
                "Redis takes no writes then, or its disk fills up.",
                "room on its disk; see its log",
            )
    if (fork := told.number("latest_fork_usec") / 1e6) > 0.5:
        yield note(
            f"the last fork (snapshot, rewrite) stopped it for {fork:.1f} s",
            "All workers wait that long.",
            "transparent huge pages off on its machine; less memory in one server (a cluster)",
        )


def _replication(told: Told, *, cluster: bool, sentinel: bool) -> Iterator[Line]:
    info = told.info
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        yield problem(
            f"it is a replica of {primary}",
            "A replica takes no requests.",
            "REDISQ_URL to the primary, or redis+sentinel:// to the Sentinels that know it",
        )
        return
    replicas = int(told.number("connected_slaves"))
    if not replicas:
        if sentinel or cluster:
            yield warning(
                "it has no replica",
                "If it dies its part of the crawl stands still until it is back.",
                "a replica of each primary",
            )
        return
    lags = [
        told_of["lag"]
        for name, told_of in info.items()
        if str(name).startswith("slave") and isinstance(told_of, Mapping) and "lag" in told_of
    ]
    slowest = max(map(int, lags), default=0)
    text = f"{replicas} replicas, at most {slowest} s behind"
    if slowest > 10:
        yield warning(
            text,
            "A failover loses that much, and it is fetched again.",
            "network and load of the replica",
        )
    else:
        yield ok(text)
    if told.set_to("min-replicas-to-write") == 0 and not cluster:
        yield warning(
            "min-replicas-to-write is 0",
            "At a failover a primary that its replicas have left goes on taking what is lost "
            "with it.",
            f"min-replicas-to-write 1, min-replicas-max-lag 2 on all of them (CONFIG SET, {CONF})",
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
            f"more maxclients (CONFIG SET, {CONF})",
        )
    idle = told.set_to("timeout")
    if idle and idle < 60:
        yield note(
            f"timeout is {idle}: connections are closed after so many idle seconds",
            "Workers connect again each time, which costs a moment.",
            "timeout 0",
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


def _encodings(told: Told) -> Iterator[Line]:
    depth = told.set_to("list-compress-depth")
    if depth is not None and told.version >= (7, 0):
        if depth == 0:
            yield note(
                "list-compress-depth is 0",
                "A queued request takes about 108 bytes; compressed, 8 to 25.",
                f"list-compress-depth 1 (CONFIG SET, {CONF})",
            )
        else:
            yield ok(f"list-compress-depth is {depth}: queues are compressed")
    elif depth and told.info:
        yield warning(
            f"list-compress-depth is {depth} on Redis 6",
            "An LRANGE over such a list has crashed 6.2.14.",
            f"list-compress-depth 0 (CONFIG SET, {CONF}), or Redis 7",
        )
    entries = told.set_to("set-max-intset-entries")
    if entries is not None and entries < 512:
        yield note(
            f"set-max-intset-entries is {entries}",
            "ExactDupeFilter and start requests take 9.7 bytes a URL at 512, and five times that "
            "below.",
            f"set-max-intset-entries 512 (CONFIG SET, {CONF})",
        )
