"""How often a page may be fetched: for each request that leads to it, or again with a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lab.simulation.clock import BOOTED
from lab.simulation.plan import FAULTS
from lab.simulation.site import NEVER, RETRY_TIMES
from lab.simulation.world import RIVAL, World
from scrapy_redisq.frontier.outgoing import MAX_BYTES

MOST_BYTES = 4_000_000
"""Of a reply of the scripts, and what is beside them in it, and an entry or line more."""

LEFT_TO_DO = ("reset", "requeue")
"""Faults by which something is left to do that was done."""

TWICE = (*LEFT_TO_DO, "lost_tail", "lost_script", "failover", "host_dies")
"""Faults by which a worker may be given what it is fetching."""

VOIDING = (
    *("freeze", "cut", "messages", "clock", "damage", "reset", "lost_tail", "lost_script"),
    *("failover", "host_dies"),
)
"""Faults by which the leases of a worker that lives may be void."""

UNHEARD = ("outage", "restart", "full")
"""Faults by which a worker learns that later."""

CLOSING = 10.0
"""Virtual seconds that a worker takes to close at most: REDISQ_CLOSE_TIMEOUT, or while it looks
whether it is the last one."""

DEAD_FETCHER = 30.0
"""Virtual seconds for which a robots.txt is waited for whose fetcher has died, or was forgotten."""

KEPT = {"hidden", "shared_hidden", "own_starts"}
"""Features by which requests stay in their process."""

OF_A_PAGE = ("hidden", "moved", "deeper")
"""Such requests, of one page each."""

OFTEN = ("side", "?every", "period")
"""In names of what is fetched however often."""

UNSETTLING = (
    *("kill", "stop", "stop_twice", "leave", "told_to_stop", "quiet", "freeze", "cut", "messages"),
    *("outage", "restart", "full", "clock", "lost_tail", "lost_script", "failover", "host_dies"),
    *("reset", "stranger"),
    *("host_away", "requeue") * (RETRY_TIMES + 1),
)
"""Faults by each of which one page may be fetched again, as often as it is here; where it fails
when it is fetched once more, twice as often."""


def fetches(world: World) -> Iterator[str]:
    """What was fetched without a reason, and of whom leases were void without one."""
    unsettled = sum(UNSETTLING.count(one.kind) for one in world.happened)
    voids = _voids(world)
    # A host that is away is tried again after the shortest pauses once people have resumed it.
    resumed = [at for slot, at in world.people.resumed if slot]
    anew = sum(world.faults.near(("host_away",), at) for at in resumed)
    unsettled += UNSETTLING.count("host_away") * anew
    yield from _pages(world, unsettled)
    yield from _robots(world, unsettled)
    yield from _at_once(world, voids)
    if world.network.largest > MAX_BYTES * 1.2:
        yield f"an exchange of {world.network.largest} bytes"
    if world.network.largest_reply > MOST_BYTES * 1.5:
        yield f"a reply of {world.network.largest_reply} bytes"
    # One that holds nothing may find the run completed by others.
    early = [one for one in voids if one[0] < world.completed_at]
    if void := [one for one in early if not _may_be_void(world, one[0])]:
        yield f"taken for dead: {void[:5]}"


def _pages(world: World, unsettled: int) -> Iterator[str]:
    most_again = Counter[str]()
    for name, hits in world.site.hits.items():
        if not name.startswith("robots") and not any(one in name for one in OFTEN):
            most_again[name] = max(0, hits - _expected(world, name))
    again, most = most_again.total(), most_again.most_common(5)
    allowed = world.voided + _given_back(world)
    if again > allowed:
        yield f"doubled: {again} fetches more, {allowed:.0f} allowed: {most}"
    if most and most[0][1] > 2 * (unsettled + 1):
        yield f"doubled: {most}, for {unsettled} reasons"


def _expected(world: World, name: str) -> int:
    """How often a page is fetched in all runs, if nothing goes wrong."""
    site = world.site
    page = site.pages[int(re.match(r"\d+", name)[0])]  # type: ignore[index]
    if name.partition("?")[2].startswith(OF_A_PAGE):  # its page asks for it whenever it is fetched
        fails_once = re.search(r"\?hidden\d*0(?!\d)", name) is not None
        return site.hits[str(page.number)] + (fails_once and "kept_tries" in world.plan.features)
    expected = 1 + (len(page.answers) + page.tries if name.isdecimal() else 0)
    if '.same"' in name:
        expected = page.tries
    expected = min(expected, 3 if len(page.answers) == NEVER else expected)
    # A start request asks nobody whether a link was met before, nor what it is redirected to.
    leads_here = page.number not in site.starts and site.is_of_start(page.number)
    expected *= 1 + (page.number in site.starts[1:]) + leads_here
    if "?shared" in name:  # cannot be stored: each page that asks for it may fetch it
        asking = [one for one in site.pages if f"shared{one.shared}" in name]
        expected = sum(1 + site.is_of_start(one.number) for one in asking)
        expected += len(site.sent_away)  # its page is left for later then
    if "?own" in name:  # nor can this: it is each worker's own
        expected = len(world.workers)
    if world.has_forgotten:  # any link to it is new once more
        expected *= 2
    runs = len(world.network.begun)
    if "REDISQ_KEEP_SEEN" in world.plan.settings and not world.lost_run:
        runs = runs if site.is_of_start(page.number) else 1
    return expected * runs


def _robots(world: World, unsettled: int) -> list[str]:
    times = Counter(
        host for _, host, name, worker in world.site.log if name == "robots.txt" and worker != RIVAL
    )
    # Where it cannot be stored, or answers are lost, or those of a lost run have found no lock.
    alone = sum(world.met[fault] for fault in ("full", "messages", "outage", "restart"))
    most = len(world.network.begun) + unsettled + len(world.workers) * (alone + world.lost_run)
    return [
        f"doubled: {number} fetches of {host}/robots.txt, {unsettled} reasons"
        for host, number in times.items()
        if number > most
    ]


def _at_once(world: World, voids: list[tuple[float, int]]) -> list[str]:
    """Nobody fetches what it is fetching."""
    # A shard that still has the run may have what is asked for again.
    if (world.lost_run and world.plan.masters > 1) or world.has_forgotten:
        return []
    # What waits for a robots.txt meanwhile is downloaded after it.
    late = CLOSING + DEAD_FETCHER * ("robots" in world.plan.features)
    twice = [
        one
        for one in world.site.at_once
        if not world.faults.near(TWICE, one[0] - BOOTED)
        and not ("?line" in one[1] and world.losses)  # it is in the feed again, another request
        and not any(
            number == one[2] and abs(at - (one[0] - BOOTED)) < late
            for at, number in voids
            if at < world.completed_at
        )
    ]
    return [f"doubled: a worker fetches what it is fetching: {twice[:5]}"] if twice else []


def _given_back(world: World) -> int:
    """How many pages and kept requests may be fetched again of workers that live."""
    features, most = world.plan.features, int(world.plan.settings["CONCURRENT_REQUESTS"])
    closes = "close_spider" in features and world.site.closed
    if not (closes or set(FAULTS) & world.met.keys()):
        return 0
    void = {number for _, number in _voids(world)}
    back = sum(one.reason != "finished" or one.number in void for one in world.workers)
    found = (max(1, back) + closes) * most
    if {"sink_away", "sink_slow", "refused_rows", *KEPT} & {*world.met, *features}:
        found += 4 * back * most  # pages that wait for a sink, or for these
    return found


def _may_be_void(world: World, moment: float) -> bool:
    """Whether the leases of a worker that lives may be. It learns that when it is answered, and an
    idle one asks each five seconds. Between two outages it may not have been heard, and after one
    a shard may be sealed by who came back sooner."""
    before = [one.kind for one in world.happened if one.since <= moment]
    outages = sum(one in UNHEARD for one in before)
    happened = set(before) & set(VOIDING) or outages > (world.plan.masters < 2)
    return bool(happened) and world.faults.near((*VOIDING, *UNHEARD), moment - CLOSING, moment)


def _voids(world: World) -> list[tuple[float, int]]:
    """When workers said that their leases are void."""
    said = [event.split()[:2] for event in world.events if "leases are void" in event]
    return [(float(at), int(worker.removeprefix("w"))) for at, worker in said]
