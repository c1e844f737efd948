"""A frontier: what its crawl has lost, or will, and what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.words import counted, size_text
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.ops.doctor.report import Level, Line, note, ok, problem, warning
from scrapy_redisq.settings.settings import RedisqSettings

LEVELS = {
    **dict.fromkeys(("no_workers", "paused", "parked", "quiet"), Level.NOTE),
    **dict.fromkeys(("sink_away", "set_aside", "unclaimed"), Level.WARNING),
    **dict.fromkeys(
        ("redis_full", "redis_refuses", "corrupt", "shard_away", "redis_away"), Level.PROBLEM
    ),
}
"""Reasons of `Frontier.why` for which a crawl does not go on; all others are well."""

HOUR, DAY = 3_600, 86_400
LARGE_REQUEST, LARGE_KEY = 2_000, 100_000_000
"""Bytes that a request takes on average, and that one key does: more is worth a word."""
MANY_DEAD = 0.1


def examine(frontier: Frontier, settings: RedisqSettings) -> Iterator[Line]:
    """All that is to be said of the frontier. Raises what `Frontier.status` does."""
    try:
        status = frontier.status()
    except TROUBLE:
        yield _why(frontier.why())
        return
    if status["state"] == "absent":
        yield note(f"there is no frontier {frontier.name}", "It was not begun, or reset.")
        return
    yield _why(frontier.why(status), f"{status['state']}: ")
    yield seen(status)
    yield from ends(status, settings)
    yield from workers(status, settings)
    yield from memory(frontier.memory())


def _why(why: Mapping[str, Any], state: str = "") -> Line:
    text = " ".join([f"{state}{why['text']}", *why["also"]])
    if level := LEVELS.get(why["reason"]):
        matters = "The crawl does not go on, or not with all it has."
        return Line(level, text, matters, "see scrapy redisq status, and slots")
    return ok(text)


def seen(status: Mapping[str, Any]) -> Line:
    """URLs that the dupefilter has lost, or will lose."""
    count, filled = status["seen"], status["dupefilter"]
    if filled["kind"] not in {"bloom", "exact"}:
        return note(
            f"its dupefilter is {filled['kind']}",
            "After a lost end of Redis' log it remembers what the frontier has forgotten.",
            "scrapy_redisq.BloomDupeFilter or ExactDupeFilter",
        )
    if filled["backend"] == "exact":
        return ok(f"{count:,} seen URLs, in an exact dupefilter")
    text = f"{count:,} seen URLs, {filled['fill']:.0%} of what the Bloom filter has room for"
    if loss := filled["expected_loss"]:
        text += f"; 1 new URL in {1 / loss:,.0f} is taken for seen"
    if loss > filled["error_rate"] * 1.01:
        return warning(
            text,
            f"More than REDISQ_DUPEFILTER_ERROR_RATE, {filled['error_rate']:g}, allows.",
            "a larger REDISQ_DUPEFILTER_CAPACITY, from the next run on",
        )
    return ok(text)


def ends(status: Mapping[str, Any], settings: RedisqSettings) -> Iterator[Line]:
    """Requests that did not end as they should."""
    if dead := status["dead"]:
        share = dead / max(1, status["finished"])
        text = f"{counted(dead, 'dead letter')}, {share:.1%} of what is finished"
        level = warning if share > MANY_DEAD else note
        yield level(text, "Requests that failed for good.", "scrapy redisq dead list; then requeue")
    if dead > settings.dead_max:
        yield warning(
            f"only the last {settings.dead_max:,} of them are kept",
            "The others cannot be looked at, nor tried again.",
            "a larger REDISQ_DEAD_MAX",
        )
    if stale := status["stale"]:
        yield warning(
            f"{stale:,} pages ended when their worker had been taken for dead",
            "Others have fetched them again meanwhile. A callback that blocks for longer than the "
            "lease TTL does that, or a machine that was stopped.",
            f"REDISQ_LEASE_TTL above {settings.lease_ttl:g} (seconds); no blocking in callbacks",
        )
    if reclaimed := status["reclaimed"]:
        yield note(
            f"{reclaimed:,} requests were taken from workers that had died",
            "They were fetched again. Workers that are stopped by SIGTERM give them back.",
            "the grace period of the supervisor; memory limits",
        )
    if foreign := status["foreign"]:
        yield warning(
            f"{counted(foreign, 'dead letter')} of something that nobody enqueued",
            "Something else than scrapy-redisq writes to these keys.",
            "a database or a user (ACL) of its own",
        )


def workers(status: Mapping[str, Any], settings: RedisqSettings) -> Iterator[Line]:
    """Whether those that are alive say so in time."""
    alive = [worker for worker in status["workers"] if worker["alive"]]
    if not alive:
        return
    silent = max(worker["seen_ago"] for worker in alive)
    blocked = max(worker["blocked_seconds"] or 0.0 for worker in alive)
    text = (
        f"{counted(len(alive), 'worker')} alive, each heard of within {silent:.0f} s; no callback "
        f"has let nothing else run for longer than {blocked:.1f} s"
    )
    if max(silent, blocked) > settings.lease_ttl / 2:
        yield warning(
            f"{text}, and REDISQ_LEASE_TTL is {settings.lease_ttl:g}",
            "A worker gives a sign of life four times in the TTL, unless a callback blocks it: "
            "then it is taken for dead, and its pages are fetched again.",
            "no blocking in callbacks (time.sleep, requests), or a longer REDISQ_LEASE_TTL",
        )
    else:
        yield ok(text)


def memory(told: Mapping[str, Any]) -> Iterator[Line]:
    """Shares of the memory, by `Frontier.memory`, and how long the memory will do."""
    if told["problem"]:
        text = f"It could not be asked for: {told['problem']}"
        yield note("what takes the memory is not known", text, "what the message says")
        return
    parts = sorted(told["parts"].items(), key=lambda part: -part[1]["bytes"])
    shown = ", ".join(f"{name} {size_text(part['bytes'])}" for name, part in parts if part["bytes"])
    yield ok(f"memory {size_text(told['bytes'])}: {shown}")
    each = told["bytes_per_request"]
    if each and each > LARGE_REQUEST:
        yield note(
            f"a request that waits takes {each:,.0f} bytes",
            "Most take 100 to 200. meta and cb_kwargs are stored with each request.",
            "less in meta: keys of records in place of the records",
        )
    if (largest := told["largest"]) and largest["bytes"] > LARGE_KEY:
        yield note(
            f"{largest['key']} takes {size_text(largest['bytes'])}",
            "To move it to another node, or delete it, stops its server for a moment.",
            "fewer requests that wait at a time; in a cluster also more shards (REDISQ_SHARDS)",
        )
    left = told["full_in"]
    if left is not None and left < DAY:
        level = problem if left < HOUR else warning
        yield level(
            f"maxmemory is reached in {left / HOUR:,.1f} h at the pace of the last hours",
            "Then workers find nothing new until there is room.",
            "more maxmemory; fewer links (allowed domains, DEPTH_LIMIT)",
        )
