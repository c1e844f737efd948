"""How polite a crawl was to its hosts, and how fair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from lab.simulation.clock import BOOTED
from lab.simulation.faults import LOSING, TAKEN_FOR_DEAD
from lab.simulation.site import BURST, DELAY, RATE, RETRY_AFTER, SLOWEST
from lab.simulation.workers import WIDE
from lab.simulation.world import RIVAL, World
from scrapy_redisq.frontier.config import REWIND
from scrapy_redisq.frontier.shard_session import HOLD

TOLERANCE = 0.9
"""Share of a delay that two starts at a host must be apart."""

WORDLESS = (*TAKEN_FOR_DEAD, "kill", "clock")
"""Faults by which others are not told of what a worker has heard, or not for how long it holds."""

FORGETTING = (*LOSING, "lost_script", "reset")
"""Faults by which a server forgets what it was told."""

ROBOTS_LOCK = 30.0
"""Seconds for which others wait for the robots.txt of a worker that is gone."""

STARVED = 6.0
"""Virtual seconds for which nothing begins at a host that has a link to be followed, while less
than half of the downloads go on that one worker may have."""

WAITING = {
    *("close_spider", "delays", "robots", "rival", "trouble", "give_up", "retry_after", "failures"),
    *("heavy", "heavy_lines"),  # a worker claims nothing while it keeps too much that may be lost
}
"""Features by which a host waits for something else."""


def rudeness(world: World) -> Iterator[str]:
    """Limits that were not kept, and hosts that were not left alone."""
    world.look_at_limits()
    yield from world.older_limits
    for host, own in world.site.begun.items():
        begun = sorted([*own, *world.site.rivals[host]])
        if "limits" in world.plan.features and "old_limits" not in world.plan.features:
            gaps = itertools.pairwise(begun)
            close = [
                f"{later - sooner:.3f} s at {later - BOOTED:.3f}"
                for sooner, later in gaps
                if later - sooner < DELAY * TOLERANCE and not _is_forgotten(world, later)
            ]
            if close:
                yield f"rude: {len(close)} gaps at {host}: {close[:5]}"
        if "rate" in world.plan.features and host == "h0.sim":
            for known in _between_losses(world, begun):
                yield from _rate(host, known)
    pressed = [one for one in world.site.pressed if not _is_resumed(world, *one, 1.1)]
    if pressed := [one for one in pressed if not world.faults.near(WORDLESS, one[0])]:
        yield f"rude: to hosts that are away, at {pressed[:5]}"
    anew = (*WORDLESS, "reset", "requeue")
    # A worker that was taken for dead may have a request that still waits for its robots.txt.
    held = ROBOTS_LOCK * ("robots" in world.plan.features)
    hasty = [
        (at, name)
        for at, name in world.site.hasty
        if not world.faults.near(anew, at - BOOTED - held, at - BOOTED)
    ]
    if hasty and not world.has_forgotten:  # another request of its name may be tried meanwhile
        yield f"rude: tried again too soon: {hasty[:5]}"
    yield from _concurrency(world)
    yield from _retry_after(world)
    yield from _paused(world)
    yield from itertools.islice(_starved(world), 5)


def _starved(world: World) -> Iterator[str]:
    """Hosts at which nothing began for long while there was a link to be followed, and no fault."""
    plan, site = world.plan, world.site
    if plan.settings["REDISQ_SCHEDULING"] == "priority" or plan.features & WAITING:
        return
    log = [(at - BOOTED, host, name) for at, host, name, _ in site.log]
    # A shard keeps what a dead worker had sent to others for so long.
    settled = plan.settings["REDISQ_LEASE_TTL"] + 3.0 + (REWIND + HOLD) * (plan.masters > 1)
    for link, asked in site.asked_for.items():
        host = f"h{site.pages[link].host}.sim"
        until = min((at for at, _, name in log if name == str(link)), default=0.0)
        begun = [at for at, one, _ in log if one == host and at < until]
        faults = [one.until + settled for one in world.happened if one.since < until]
        starts = [one.started_at for one in world.workers if one.started_at < until]
        since = max([asked, *begun, *faults, *starts])
        others = sum(since <= at < until for at, *_ in log)
        places = plan.settings["CONCURRENT_REQUESTS"] * (until - since)
        if until - since > STARVED and others * SLOWEST < places / 2:
            yield f"starved: nothing began at {host} from {since:.2f} to {until:.2f} s"


def _paused(world: World) -> Iterator[str]:
    """Within a second all know of it. A reset forgets what was paused. Callbacks of a crawl that is
    paused go on."""
    for slot, start, end in world.people.pauses:
        if world.faults.near(FORGETTING, start, end):
            continue
        # After a loss a person resumes again what somebody else has paused meanwhile.
        resumed = [at for one, at in world.people.resumed if one == slot and at > start]
        begun = [
            at - BOOTED
            for at, host, name, worker in world.site.log
            if slot in ("", host)
            and start + 1.1 < at - BOOTED < min([end, *resumed])
            and worker != RIVAL
            and (slot or "?side" not in name)
            and not world.faults.near(TAKEN_FOR_DEAD, at - BOOTED)
        ]
        if begun:
            yield f"paused: {slot or 'the crawl'} from {start:.2f} s: {begun[:5]}"


def _between_losses(world: World, begun: list[float]) -> list[list[float]]:
    """Starts that the server has forgotten none of, and knew none before."""
    parts: list[list[float]] = [[]]
    for at in begun:
        if _is_forgotten(world, at):
            parts.append([])
        else:
            parts[-1].append(at)
    return parts


def _rate(host: str, begun: list[float]) -> list[str]:
    for first, last in itertools.combinations(range(len(begun)), 2):
        seconds = begun[last] - begun[first]
        if last - first + 1 > BURST + RATE * seconds / TOLERANCE + 1:
            return [f"rude: {last - first + 1} starts at {host} in {seconds:.2f} s"]
    return []


def _concurrency(world: World) -> list[str]:
    """Who is taken for dead, or of whom the server forgot, does not count."""
    most = WIDE if "wide" in world.plan.features else math.inf
    narrow = {"h1.sim": 1} if "narrow" in world.plan.features else {}
    forgotten = (*TAKEN_FOR_DEAD, "clock", "reset")
    crowded = [
        (at, host, number)
        for at, host, number in world.site.crowded
        if number >= narrow.get(host, most) and not world.faults.near(forgotten, at)
    ]
    return [f"rude: too many downloads at once: {crowded[:5]}"] if crowded else []


def _retry_after(world: World) -> Iterator[str]:
    """Within a second all know of it. A reset forgets it."""
    if "retry_after" not in world.plan.features:
        return
    for at, host in world.site.sent_away:
        if world.faults.near((*WORDLESS, "reset"), at - BOOTED, at - BOOTED + RETRY_AFTER):
            continue
        close = [
            begun - BOOTED
            for begun in world.site.begun[host] + world.site.rivals[host]
            if at + 1.0 < begun < at + RETRY_AFTER * TOLERANCE
            and not _is_resumed(world, begun - BOOTED, host, begun - at)
        ]
        if close:
            yield f"rude: {host} said Retry-After at {at - BOOTED:.2f}; {close[:5]}"


def _is_resumed(world: World, moment: float, host: str, seconds: float) -> bool:
    """A person has resumed the slot within so many seconds before: it is in no trouble then."""
    return any(
        slot == host and moment - seconds <= at <= moment for slot, at in world.people.resumed
    )


def _is_forgotten(world: World, moment: float) -> bool:
    """The server may have lost the starts before this one, and a worker learns that, and that what
    it holds is void, when it speaks with the server the next time. A step of the server's clock
    ends all that is timed by it."""
    late = world.plan.settings["REDISQ_LEASE_TTL"] / 4 + 1.0
    at = moment - BOOTED
    lost = any(start <= at <= end + late for start, end in world.losses)
    return lost or world.faults.near(("clock",), at)
