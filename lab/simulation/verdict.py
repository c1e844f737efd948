"""What must hold when a crawl is over."""

from __future__ import annotations

import itertools
import re
from typing import Any

from lab.simulation.site import DELAY
from lab.simulation.world import World
from scrapy_redisq.serialization.fields import loads_fields

LEFT = {
    *("meta", "counts", "seen", "dead", "letters", "reaped", "slot", "trash", "series", "marks"),
    *("limits", "robots", "ended"),
}
"""The kinds of keys that a complete run may leave."""

TOLERANCE = 0.9
"""Share of a delay that two starts at a host must be apart."""

REASONS = {"finished", "shutdown", "enough"}
"""With which a worker may end that was not refused."""

SLACK = 60.0
"""Virtual seconds from the last page and the last fault to the end, beside the lease TTL."""


def judge(world: World) -> list[str]:
    """What does not hold, in words; empty: all is well."""
    problems = list(world.problems)
    if any(problem.startswith("hang") for problem in problems):
        return problems
    problems += _items(world)
    problems += _fetches(world)
    problems += _workers(world)
    problems += _redis(world)
    problems += _limits(world)
    last = max([world.last_fault, *(at - 1_000 for at, *_ in world.site.log[-1:])])
    bound = SLACK + 3 * world.plan.settings["REDISQ_LEASE_TTL"]
    if world.ended_at - last > bound:
        problems.append(f"slow: over {world.ended_at - last:.1f} s after the last page or fault")
    return problems


def dead_letters(world: World) -> list[tuple[str, str]]:
    """(URL, reason) of each."""
    from scrapy_redisq.control import Frontier  # noqa: PLC0415
    from scrapy_redisq.server.connection import open_server  # noqa: PLC0415

    found = []
    with Frontier(open_server("redis://simulated"), "sim") as frontier:
        for letter in frontier.dead():
            try:
                url = str(loads_fields(letter.entry)["url"])
            except Exception:
                url = "?"
            found.append((url, letter.reason))
    return found


def _items(world: World) -> list[str]:
    keys, dead = world.site.expected()
    letters = dead_letters(world)
    explained = {url for url, _ in letters}
    problems = []
    # A page that raises may be dead before all that it asks for was stored: its links are known.
    missing = {key for key in keys - set(world.table) if not _is_explained(world, key, explained)}
    if missing:
        problems.append(
            f"lost: {len(missing)} items, {sorted(missing)[:8]}; letters: {letters[:9]}"
        )
    if more := set(world.table) - keys:
        problems.append(f"items of nowhere: {sorted(more)[:8]}")
    allowed = {"retries", "spider_error", "item_error", "download"}
    for url, reason in letters:
        if url not in dead and reason in allowed:
            problems.append(f"a dead letter of a good page: {url} ({reason})")
    return problems


def _is_explained(world: World, key: str, dead: set[str]) -> bool:
    number = key.partition(".")[0]
    return number.isdecimal() and world.site.pages[int(number)].url in dead


def _fetches(world: World) -> list[str]:
    site = world.site
    again = 0
    for name, hits in site.hits.items():
        if name.startswith("robots") or "side" in name:
            continue
        page = site.pages[int(re.match(r"\d+", name)[0])]  # type: ignore[index]
        expected = 1 + (len(page.answers) if name.isdecimal() else 0)
        expected = min(expected, 3 if len(page.answers) == 1_000 else expected)
        again += max(0, hits - expected * len(world.runs))
    # CloseSpider gives a page back, and each worker starts with a robots.txt of its own.
    allowed = world.voided + 4 * len(world.workers) * world.plan.settings["CONCURRENT_REQUESTS"]
    return [f"doubled: {again} fetches more, {allowed:.0f} allowed"] if again > allowed else []


def _workers(world: World) -> list[str]:
    problems = []
    # One that was frozen or cut off may come back when another run has begun.
    may_be_lost = world.lost_all or (
        len(world.runs) > 1 and (world.met["freeze"] or world.met["cut"])
    )
    for worker in world.workers:
        if worker.process.dead:
            continue
        if worker.error is not None:
            problems.append(f"w{worker.number} ended with {worker.error!r}")
        elif worker.reason not in REASONS and not (
            worker.reason == "frontier_lost" and may_be_lost
        ):
            problems.append(f"w{worker.number} closed with {worker.reason!r}")
    return problems


def _redis(world: World) -> list[str]:
    redis = world.server.redis
    problems = []
    kinds = {
        re.sub(r"^redisq:\{sim:\d+\}:([a-z]+).*", r"\1", key.decode())
        for key in redis.keys("redisq:*")
    }
    if kinds - LEFT:
        problems.append(f"left in Redis: {sorted(kinds - LEFT)}")
    counts: dict[bytes, Any] = redis.hgetall("redisq:{sim:0}:counts")
    if counts.get(b"created") != counts.get(b"finished"):
        problems.append(f"created {counts.get(b'created')}, finished {counts.get(b'finished')}")
    return problems


def _limits(world: World) -> list[str]:
    if "limits" not in world.plan.features or world.met["clock"]:
        return []  # a step of the server's clock ends all that is timed by it
    problems = []
    for host, begun in world.site.begun.items():
        gaps = [later - sooner for sooner, later in itertools.pairwise(begun)]
        close = [gap for gap in gaps if gap < DELAY * TOLERANCE]
        if close:
            problems.append(f"rude: {len(close)} of {len(gaps)} gaps at {host}, {min(close):.3f} s")
    return problems
