"""One Redis or Valkey server: whether it keeps requests, and how quick it is."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import redis

from scrapy_redisq.control.words import counted, size_text, time_text
from scrapy_redisq.errors import ServerUnsuitable
from scrapy_redisq.frontier.names import NEVER
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.ops.doctor.rights import BY_CLIENTS, IN_SCRIPTS, OF_BLOOM
from scrapy_redisq.server import requirements
from scrapy_redisq.server.condition import Told
from scrapy_redisq.server.requirements import CONF
from scrapy_redisq.settings.settings import RedisqSettings

OLDEST = (6, 2)
GOOD_FILL, FULL = 0.9, 0.98
LATE = 10
"""Seconds that a replica is behind."""

PINGS = 30
SLOW_TRIP, JITTER, CLOCK_OFF = 0.02, 0.1, 1.0
"""Seconds: of a round trip in the middle and at worst, and between two clocks."""
SPIKE, SLOW_CALL, SLOW_SCRIPT = 100, 10_000, 50_000
"""ms of a latency spike; µs of a slow call, and of a slow script."""

SCRIPTS = {"EVAL", "EVALSHA"}
OWN_CALLS = {"bgrewriteaof", *IN_SCRIPTS, *OF_BLOOM, *(name.split("|")[0] for name in BY_CLIENTS)}
"""Of crawls and of commands. Some servers log the calls of a script beside the script."""


def examine(
    told: Told, settings: RedisqSettings, address: str, *, in_cluster: bool, failovers: bool
) -> Iterator[Line]:
    """All that is to be said of a server; raises what the client does if it goes away."""
    try:
        requirements.check(told, address, in_cluster=in_cluster, failovers=failovers)
    except ServerUnsuitable as error:
        yield problem(str(error), "Workers refuse to start on it.", "what the message says")
    for weakness in requirements.weaknesses(told, in_cluster=in_cluster, failovers=failovers):
        yield warning(*weakness)
    if requirements.is_log_due(told.info):
        yield note(*requirements.NO_NEW_LOG)
    if not told.info:
        why = "Version, memory, persistence and replicas could not be looked at."
        yield note("INFO is denied to this user", why, "ACL SETUSER … +info")
    else:
        yield _version(told.info)
        yield from _memory(told, settings)
        yield from _persistence(told)
        yield from _replication(told.info, settings, needed=in_cluster or failovers)
    yield from _queues_and_filters(told)
    yield from _speed(told.client)


def _version(info: dict[str, Any]) -> Line:
    valkey, version = info.get("valkey_version"), str(info.get("redis_version", "0.0"))
    name = f"Valkey {valkey}" if valkey else f"Redis {version}"
    text = f"{name}, up for {time_text(info.get('uptime_in_seconds', 0))}"
    if _parts(version) < OLDEST:
        why = "It is older than any that this release is tested with."
        return problem(text, why, "use Redis 6.2 or newer, or Valkey")
    return ok(text)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _memory(told: Told, settings: RedisqSettings) -> Iterator[Line]:
    now = told.condition()
    if now.most:
        text = f"{size_text(now.used)} of {size_text(now.most)} (maxmemory) used, {now.share:.0%}"
        if now.share < GOOD_FILL:
            yield ok(text)
        else:
            level = problem if now.share >= FULL else warning
            yield level(
                text,
                "Past it workers pause after pages that have found something new; pushes wait.",
                "more maxmemory, or end and reset old crawls",
            )
        return
    yield note(
        f"{size_text(now.used)} used, and there is no maxmemory",
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


def _persistence(told: Told) -> Iterator[Line]:
    if refuses := told.condition().refuses:
        yield problem("it takes no writes", f"{refuses}.", "what is in its way; see its log")
    if not requirements.keeps_log(told):
        if told.setting("save"):
            ago = _ago(told.info.get("rdb_last_save_time", 0))
            changes = told.info.get("rdb_changes_since_last_save", 0)
            yield warning(
                f"snapshots only; the last {ago}, {changes:,} changes since",
                "A crash loses all since then: pages are fetched again, what was pushed is gone.",
                f"appendonly yes {CONF}",
            )
        return
    fsync = told.setting("appendfsync") or "everysec"
    if fsync == "no":
        yield warning(
            "appendonly is yes, but appendfsync no",
            "A power cut loses up to half a minute: pages are fetched again, and what was pushed "
            "from outside is gone.",
            f"appendfsync everysec {CONF}",
        )
    else:
        yield ok(f"appendonly is yes, appendfsync {fsync}")


def _replication(info: dict[str, Any], settings: RedisqSettings, *, needed: bool) -> Iterator[Line]:
    replicas = int(info.get("connected_slaves", 0))
    if settings.wait_replicas > replicas:
        yield warning(
            f"REDISQ_WAIT_REPLICAS is {settings.wait_replicas}, and {replicas} are there",
            "Exchanges of several servers wait 100 ms each, in vain.",
            f"REDISQ_WAIT_REPLICAS {replicas}, or more replicas",
        )
    if needed and not replicas:
        yield warning(
            "it has no replica",
            "If it dies its part of the crawl stands still until it is back.",
            "a replica of each primary",
        )
    lags = [int(info[name].get("lag", 0)) for name in info if re.fullmatch(r"slave\d+", name)]
    if (slowest := max(lags, default=0)) > LATE:
        yield warning(
            f"a replica is {slowest} s behind",
            "A failover loses that much, and it is fetched again.",
            "network and load of the replica",
        )


def _queues_and_filters(told: Told) -> Iterator[Line]:
    try:
        told.client.execute_command("BF.EXISTS", NEVER, "x")
        yield ok("it has RedisBloom")
    except redis.ResponseError as error:
        if "unknown" in str(error).lower():
            yield note(
                "it has no RedisBloom (BF.…)",
                "Bloom filters are kept on bitmaps: a new URL takes about 7 µs of Redis, not 1.",
                "Redis 8, Redis Stack, or valkey-bloom; nothing, if Redis is not busy",
            )
    depth = told.setting("list-compress-depth")
    if told.info and _parts(str(told.info.get("redis_version"))) < (7,):
        if depth not in {"0", None}:
            yield warning(
                f"list-compress-depth is {depth} on Redis 6",
                "An LRANGE over such a list has crashed 6.2.14.",
                f"list-compress-depth 0 {CONF}, or Redis 7",
            )
    elif depth == "0":
        yield note(
            "list-compress-depth is 0",
            "A queued request takes about 108 bytes; compressed, 8 to 25.",
            f"list-compress-depth 1 {CONF}",
        )


def _speed(client: Any) -> Iterator[Line]:
    """Round trip, clock, latency spikes and slow calls."""
    yield _trips(client)
    for look in (_clock, _spikes, _slow_calls):
        with contextlib.suppress(redis.ResponseError):  # denied, which is said of the rights
            yield from look(client)


def _trips(client: Any) -> Line:
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        with contextlib.suppress(redis.ResponseError):  # MISCONF: it takes no writes
            client.ping()
        trips.append(time.perf_counter() - began)
    middle, worst = median(trips), max(trips)
    text = f"round trip {middle * 1_000:.1f} ms, at worst {worst * 1_000:.1f} ms of {PINGS}"
    if middle > SLOW_TRIP:
        return warning(
            text,
            "Each exchange takes a round trip. Workers hold requests in store against that, but "
            "slots with limits wait for it.",
            "Redis nearer to the workers; more REDISQ_MAX_LEASES",
        )
    if worst > JITTER:
        return note(
            text,
            "Slots with a delay below that are slower than they may be.",
            "a machine for Redis, and a network, that are less busy",
        )
    return ok(text)


def _clock(client: Any) -> Iterator[Line]:
    before = time.time()
    seconds, microseconds = client.time()
    ahead = seconds + microseconds / 1e6 - (before + time.time()) / 2
    if abs(ahead) < CLOCK_OFF:
        yield ok("its clock agrees with that of this machine")
    else:
        yield note(
            f"its clock is {time_text(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} that of "
            "this machine",
            "Delays and leases go by the server's clock; ages that people see are off by as much.",
            "NTP on all machines",
        )


def _spikes(client: Any) -> Iterator[Line]:
    latest: list[Any] = client.execute_command("LATENCY LATEST")
    worst = max(latest, key=lambda event: int(event[3]), default=None)
    if worst and int(worst[3]) >= SPIKE:
        yield warning(
            f"latency spikes ({worst[0].decode(errors='replace')}) of up to {int(worst[3]):,} ms, "
            f"the last {_ago(worst[1])}",
            "All workers wait for that long. LATENCY DOCTOR on the server says more.",
            "what it says: mostly its disk, huge pages, or commands of other clients",
        )


def _slow_calls(client: Any) -> Iterator[Line]:
    slow: dict[str, list[Any]] = {}
    for call in client.slowlog_get(128):
        name = call["command"].partition(b" ")[0].decode(errors="replace").upper()
        least = SLOW_SCRIPT if name in SCRIPTS else SLOW_CALL
        if call["duration"] >= least and name.lower() not in OWN_CALLS:
            slow.setdefault(name, []).append(call)
    for name, calls in slow.items():
        most = max(call["duration"] for call in calls) / 1e3
        last = _ago(max(call["start_time"] for call in calls))
        level = note if name in SCRIPTS else warning
        yield level(
            f"slow calls: {name}, {counted(len(calls), 'time')}, up to {most:,.0f} ms, the last "
            f"{last}",
            "While one runs nobody else is served: all workers wait. A frontier's scripts take "
            "about 1 ms.",
            "no such calls over large keys beside a crawl, or a less busy machine for Redis; then "
            "SLOWLOG RESET",
        )


def _ago(at: float) -> str:
    return f"{time_text(max(0, time.time() - at))} ago"
