"""What must hold when a crawl is over."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection

from lab.simulation.clock import BOOTED
from lab.simulation.plan import FAULTS, LINES, MAX_IDLE
from lab.simulation.server import SimulatedServer
from lab.simulation.site import BURST, DELAY, NEVER, RATE, RETRY_AFTER
from lab.simulation.workers import AGE
from lab.simulation.world import END, LAST, World
from scrapy_redisq.errors import ConfigurationMismatch, FrontierCorrupt
from scrapy_redisq.frontier.config import REWIND
from scrapy_redisq.frontier.outgoing import MAX_BYTES
from scrapy_redisq.frontier.resend import NO_REPLICA
from scrapy_redisq.pipelines.doubt import PROOFS
from scrapy_redisq.serialization.request_fields import loads_fields

LEFT = {
    *("meta", "counts", "seen", "dead", "letters", "reaped", "slot", "trash", "series", "marks"),
    *("limits", "robots", "ended", "aside"),
}
"""The kinds of keys that a complete run may leave."""

GONE = {"worker", "workers"}
"""Those of workers that were killed when all was done, in a run that nobody completes, or that were
cut off at their end."""

TOLERANCE = 0.9
"""Share of a delay that two starts at a host must be apart."""

DAMAGED = {"frontier_corrupt", "frontier_lost"}
"""With which it may end after somebody has damaged a key."""

REASONS = {"finished", "shutdown", "enough"}
"""With which a worker may end that was not refused."""

TAKEN_FOR_DEAD = (
    *("freeze", "cut", "stop_twice", "outage", "restart"),
    *("lost_tail", "lost_script", "messages", "full", "failover", "host_dies"),
)
"""Faults by which what a worker holds may be given to another one while it goes on."""

LEFT_TO_DO = ("reset", "requeue")
"""Faults by which something is left to do that was done."""

TWICE = (*LEFT_TO_DO, "lost_tail", "lost_script", "failover", "host_dies")
"""Faults by which a worker may be given what it is fetching."""

VOIDING = (
    *("freeze", "cut", "messages", "clock", "damage", "reset", "lost_tail", "lost_script"),
    *("failover", "host_dies"),
)
"""Faults by which the leases of a worker that lives may be void."""

WORDLESS = (*TAKEN_FOR_DEAD, "kill")
"""Faults by which others are not told of what a worker has heard."""

KEPT = {"hidden", "shared_hidden", "own_starts"}
"""Features by which requests stay in their process."""

PROVEN = END + (PROOFS + 1) * LAST
"""Virtual seconds more until a bad row that no other follows is known as one."""

CALM = 2.5
"""Virtual seconds from the last page to the end where nothing goes wrong: an idle worker looks each
five seconds."""

SLACK = 60.0
"""Virtual seconds from the last page and the last fault to the end, beside the lease TTL."""


def judge(world: World) -> list[str]:
    """What does not hold, in words; empty: all is well."""
    problems = list(world.problems)
    if any(problem.startswith("hang") for problem in problems):
        return problems
    if world.met["damage"]:
        problems += _said(world, _items(world))
    else:
        problems += _items(world) + _fetches(world) + _redis(world) + _limits(world)
    problems += _workers(world) + _ends(world)
    last = max([world.last_fault, *(at - BOOTED for at, *_ in world.site.log[-1:])])
    bound = SLACK + 3 * world.plan.settings["REDISQ_LEASE_TTL"]
    if "refused_rows" in world.plan.features:
        bound += PROVEN
    if world.plan.masters > 1:
        bound += REWIND
    if "lines" in world.plan.features:
        bound += MAX_IDLE + world.plan.settings["REDISQ_LEASE_TTL"]
    world.late = world.ended_at - last
    if not set(FAULTS) & world.met.keys():
        problems += _calm(world)
    if world.late > bound:
        problems.append(f"slow: over {world.late:.1f} s after the last page or fault")
    return problems


def _calm(world: World) -> list[str]:
    """Where nothing goes wrong all end soon, and nobody begins what has ended."""
    features, masters = world.plan.features, world.plan.masters
    problems = []
    bound = CALM + 1.5 * ("slow_callbacks" in features) + (NO_REPLICA + CALM) * (masters > 1)
    begun = [
        *(at - BOOTED for at, *_ in world.site.log),
        *(one.started_at for one in world.workers),
    ]
    late = world.closed_at - max(begun)
    if late > bound and not features & {"keep_alive", "refused_rows", "lines"}:
        problems.append(f"slow: nothing was done in the last {late:.1f} s")
    young = [one for one in world.workers if one.started_at > world.finished_at + AGE * TOLERANCE]
    if len(world.network.begun) > 1 and not young:
        problems.append(f"{len(world.network.begun)} runs of one crawl")
    stats = [one.crawler.stats.get_stats() for one in world.workers]
    last = [of_last for of_last in stats if "redisq/last_worker" in of_last]
    ends_once = "sees_end" in features and not features & {"keep_alive", "latecomer", "lines"}
    if ends_once and len(last) != len(world.network.begun):
        problems.append(f"end: {len(last)} workers were the last one")
    for name in ("response_received_count", "item_scraped_count") if len(last) == 1 else ():
        fleet = last[0].get(f"redisq/fleet/{name}", last[0].get(name, 0))
        each = [one.get(name, 0) for one in stats]
        if fleet != sum(each) and len(world.network.begun) == 1:
            problems.append(f"stats: {name} of the fleet is {fleet}, of its workers {each}")
    return problems


def _ends(world: World) -> list[str]:
    """Nobody closes as finished while something is left."""
    if world.met["damage"]:  # what is lost is lost for all: see `_said`
        return []
    site, explained = world.site, {url for url, _ in dead_letters(world)}
    excused = site.expected()[1]
    # Of a run that is begun anew, whatever is left, dead letters are gone.
    is_forgotten = _begins_anew(world) and len(world.network.begun) > 1
    problems = []
    for at, number, missing in world.early:
        if _is_near(world, LEFT_TO_DO, at, math.inf):
            continue
        left = {
            key
            for key in missing
            if not _is_explained(world, key, explained)
            and not (key.partition(".")[0].isdecimal() and int(key.partition(".")[0]) in excused)
        }
        if left and not is_forgotten:
            problems.append(f"early: w{number} closed as finished without {sorted(left)[:8]}")
    started = [one for one in world.left_starting if not _is_near(world, VOIDING, one[0])]
    if started:
        problems.append(f"early: closed as finished while others start: {started[:5]}")
    return problems


def _is_near(
    world: World, kinds: Collection[str], since: float, until: float = 0.0, before: float = 1.0
) -> bool:
    """Whether such a fault happens meanwhile, has just happened and is not known to all, or makes
    what has just happened be forgotten."""
    late = world.plan.settings["REDISQ_LEASE_TTL"] / 4 + 3.0
    return any(
        one.kind in kinds and since <= one.until + late and max(since, until) >= one.since - before
        for one in world.happened
    )


def dead_letters(world: World) -> list[tuple[str, str]]:
    """(URL, reason) of each."""
    from scrapy_redisq.control import Frontier  # noqa: PLC0415
    from scrapy_redisq.server.connection import open_server  # noqa: PLC0415

    found = []
    with Frontier(open_server(world.network.url), "sim") as frontier:
        for letter in frontier.dead():
            try:
                url = str(loads_fields(letter.entry)["url"])
            except Exception:
                url = "?"
            found.append((url, letter.reason))
    return found


def _items(world: World) -> list[str]:
    keys, dead = world.site.expected()
    if not _begins_anew(world) or len(world.network.begun) == 1:  # else pushes are forgotten
        keys |= {f"pushed{n}" for n in range(world.people.pushed)}
    keys |= _lines(world)
    lives = {worker.number for worker in world.workers if not worker.process.dead}
    if not world.lost_run and len(world.network.begun) == 1:
        keys |= {key for number, key in world.fed if number in lives}
    if world.table_before is not None and world.lost_run:
        world.table.update(world.table_before)  # the run that it was for is lost
    letters = dead_letters(world)
    explained = {url for url, _ in letters}
    problems = []
    # A page that raises may be dead before all that it asks for was stored: its links are known.
    missing = {key for key in keys - set(world.table) if not _is_explained(world, key, explained)}
    if missing:
        problems.append(
            f"lost: {len(missing)} items, {sorted(missing)[:8]}; letters: {letters[:9]}"
        )
    if more := {
        key for key in set(world.table) - keys if not key.startswith(("idle", "pushed", "line"))
    }:
        problems.append(f"items of nowhere: {sorted(more)[:8]}")
    requests = {number: world.site.requests_of(number) for number in dead}
    if unsaid := [number for number in requests if not requests[number] & explained]:
        problems.append(f"no dead letter of {unsaid[:8]}; letters: {letters[:9]}")
    allowed = {"retries", "spider_error", "item_error", "download"}
    for url, reason in letters:
        if reason in allowed and not any(url in urls for urls in requests.values()):
            problems.append(f"a dead letter of a good page: {url} ({reason})")
    return problems


def _lines(world: World) -> set[str]:
    """Of the feed. What was moved into a run that is lost, or by a worker that dies together with
    the last second of another server than the feed's, is lost."""
    lost = _begins_anew(world) or world.lost_run or (world.plan.masters > 1 and world.losses)
    is_fed = "lines" in world.plan.features and not lost
    return {f"line{n}" for n in range(LINES)} if is_fed else set()


def _said(world: World, problems: list[str]) -> list[str]:
    """Of what is lost with a key it must have been said that it is missing."""
    corrupt = any(worker.reason == "frontier_corrupt" for worker in world.workers)
    return [one for one in problems if one.startswith("lost") and not corrupt]


def _begins_anew(world: World) -> bool:
    """A worker that finds no other one begins anew, whatever is left."""
    return world.plan.settings.get("REDISQ_RESUME") is False


def _is_explained(world: World, key: str, dead: set[str]) -> bool:
    if key.startswith("shared"):
        shared = int(key.removeprefix("shared"))
        return any(page.shared == shared and page.url in dead for page in world.site.pages)
    number = key.partition(".")[0]
    return number.isdecimal() and bool(world.site.requests_of(int(number)) & dead)


def _fetches(world: World) -> list[str]:
    site = world.site
    again, most_again = 0, Counter[str]()
    for name, hits in site.hits.items():
        if name.startswith("robots") or "side" in name:
            continue
        page = site.pages[int(re.match(r"\d+", name)[0])]  # type: ignore[index]
        expected = 1 + (len(page.answers) + page.tries if name.isdecimal() else 0)
        expected = min(expected, 3 if len(page.answers) == NEVER else expected)
        # A start request asks nobody whether a link was met before, nor does a redirect of a retry.
        urls = site.requests_of(page.number) - {page.url}
        retried = sum(one.url in urls and bool(one.answers) for one in site.pages)
        expected *= 1 + (page.number in site.starts[1:]) + retried
        if "?shared" in name:  # cannot be stored: each page that asks for it may fetch it
            expected = sum(f"shared{one.shared}" in name for one in site.pages)
        if "?own" in name:  # nor can this: it is each worker's own
            expected = len(world.workers)
        more = max(0, hits - expected * len(world.network.begun))
        again += more
        most_again[name] = more
    allowed = world.voided + _given_back(world)
    problems = []
    if again > allowed:
        most = most_again.most_common(5)
        problems.append(f"doubled: {again} fetches more, {allowed:.0f} allowed: {most}")
    if world.network.largest > MAX_BYTES * 1.2:
        problems.append(f"an exchange of {world.network.largest} bytes")
    void = {event.split()[1] for event in world.events if "leases are void" in event}
    twice = [one for one in site.at_once if f"w{one[2]}" not in void]
    twice = [one for one in twice if not _is_near(world, TWICE, one[0] - BOOTED)]
    if twice and not world.lost_run:  # of which a shard may have what is asked for again
        problems.append(f"doubled: a worker fetches what it is fetching: {twice[:5]}")
    if void and not any(map(world.met.get, VOIDING)):
        problems.append(f"taken for dead: {sorted(void)}")
    is_named = "REDISQ_RUN" in world.plan.settings and not _begins_anew(world)
    if is_named and len(world.network.begun) > 1 and not world.lost_run:
        problems.append(f"{len(world.network.begun)} runs of one name")
    return problems


def _given_back(world: World) -> int:
    """How many pages and kept requests may be fetched again of workers that live."""
    features, most = world.plan.features, int(world.plan.settings["CONCURRENT_REQUESTS"])
    closes = "close_spider" in features and world.site.closed
    if not (closes or set(FAULTS) & world.met.keys()):
        return 0
    found = (1 + closes) * most
    if {"sink_away", "sink_slow", "refused_rows", *KEPT} & {*world.met, *features}:
        found += 4 * len(world.workers) * most  # pages that wait for a sink, or for these
    return found


def _workers(world: World) -> list[str]:
    problems = []
    # One that was frozen, cut off or unheard may come back when another run has begun.
    may_be_lost = world.lost_run or (
        len(world.network.begun) > 1 and any(map(world.met.get, ("freeze", "cut", "messages")))
    )
    strangers = any(worker.is_strange for worker in world.workers)
    for worker in world.workers:
        if worker.process.dead:
            continue
        same = worker.run == world.network.first.run
        if worker.is_strange and worker.reason and not worker.error and same:
            problems.append(f"w{worker.number} has joined a crawl with other arguments")
        if strangers and isinstance(worker.error, ConfigurationMismatch):
            continue
        told = isinstance(worker.error, FrontierCorrupt) or worker.reason in DAMAGED
        if world.met["damage"] and told:
            continue
        if worker.error is not None:
            problems.append(f"w{worker.number} ended with {worker.error!r}")
        elif worker.reason == "slots_set_aside" and "REDISQ_SLOT_GIVE_UP" in world.plan.settings:
            continue
        elif worker.reason not in REASONS and not (
            worker.reason == "frontier_lost" and may_be_lost
        ):
            problems.append(f"w{worker.number} closed with {worker.reason!r}")
    return problems


def _redis(world: World) -> list[str]:
    # Of one whose worker dies nobody knows that it is foreign: its bytes may say that it was
    # delivered too often.
    foreign = world.met["foreign_entry"]
    problems = [
        f"{key}: created {created}, finished {finished}"
        for key, (created, finished) in world.network.counts().items()
        if not created <= finished <= created + foreign
    ]
    for server in world.network.primaries:
        keys = [key.decode() for key in server.redis.keys("redisq:{sim*")]
        kinds = {re.sub(r"^redisq:\{sim:\d+\}:([a-z]+).*", r"\1", key) for key in keys}
        is_left = "keep_alive" in world.plan.features or _is_near(world, ["cut"], world.closed_at)
        may = GONE if is_left else set()
        if world.met["quiet"] or world.met["told_to_stop"]:  # which is kept for a worker's return
            may = may | {"worker"}
        if left := kinds - LEFT - may:
            problems.append(f"left in Redis: {sorted(left)}")
        problems += _seen(server)
    return problems


def _seen(server: SimulatedServer) -> list[str]:
    """Of former runs nothing is left that nobody would delete."""
    of_now: set[str] = {"recent:0", "recent:1"}
    for key in server.redis.keys("redisq:{sim*:meta"):
        run, *generations = server.redis.hmget(key, "run", "generation", "older")
        of_now |= {one.decode() for one in (run, *generations, run and run + b".starts") if one}
    for key in server.redis.keys("redisq:{sim*:trash"):
        of_now |= {one.decode().split()[1] for one in server.redis.lrange(key, 0, -1)}
    seen = server.redis.keys("redisq:{sim*:seen:*")
    bases = [key.decode().partition(":seen:")[2] for key in seen]
    left = [base for base in bases if not any(base.startswith(one) for one in of_now)]
    return [f"left of former runs: {sorted(left)}"] if left else []


def _limits(world: World) -> list[str]:
    if world.met["clock"]:
        return []  # a step of the server's clock ends all that is timed by it
    problems = []
    for host, own in world.site.begun.items():
        begun = sorted([*own, *world.site.rivals[host]])
        if "limits" in world.plan.features:
            gaps = itertools.pairwise(begun)
            close = [
                f"{later - sooner:.3f} s at {later - BOOTED:.3f}"
                for sooner, later in gaps
                if later - sooner < DELAY * TOLERANCE and not _is_forgotten(world, later)
            ]
            if close:
                problems.append(f"rude: {len(close)} gaps at {host}: {close[:5]}")
        if "rate" in world.plan.features and host == "h0.sim":
            for known in _between_losses(world, begun):
                problems += _rate(host, known)
    pressed = [one for one in world.site.pressed if not _is_resumed(world, *one, 1.1)]
    if pressed := [one for one in pressed if not _is_near(world, WORDLESS, one[0])]:
        problems.append(f"rude: to hosts that are away, at {pressed[:5]}")
    hasty = [one for one in world.site.hasty if not _is_near(world, WORDLESS, one[0] - BOOTED)]
    if hasty:
        problems.append(f"rude: tried again too soon: {hasty[:5]}")
    return problems + _concurrency(world) + _retry_after(world) + _paused(world)


def _paused(world: World) -> list[str]:
    """Within a second all know of it. A reset forgets what was paused."""
    problems = []
    for slot, start, end in world.people.pauses:
        if _is_near(world, (*WORDLESS, "reset"), start, end):
            continue
        begun = [
            at - BOOTED
            for host, times in world.site.begun.items()
            for at in times
            if slot in ("", host) and start + 1.1 < at - BOOTED < end
        ]
        if begun:
            problems.append(f"paused: {slot or 'the crawl'} from {start:.2f} s: {begun[:5]}")
    return problems


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
    if "narrow" not in world.plan.features:
        return []
    crowded = [at for at, host in world.site.crowded if host == "h1.sim"]
    crowded = [at for at in crowded if not _is_near(world, TAKEN_FOR_DEAD, at)]
    return [f"rude: two downloads at once at h1.sim, at {crowded[:5]}"] if crowded else []


def _retry_after(world: World) -> list[str]:
    """Within a second all know of it."""
    if "retry_after" not in world.plan.features:
        return []
    problems = []
    for at, host in world.site.sent_away:
        if _is_near(world, WORDLESS, at - BOOTED, at - BOOTED + RETRY_AFTER):
            continue
        close = [
            begun - BOOTED
            for begun in world.site.begun[host] + world.site.rivals[host]
            if at + 1.0 < begun < at + RETRY_AFTER * TOLERANCE
            and not _is_resumed(world, begun - BOOTED, host, begun - at)
        ]
        if close:
            problems.append(f"rude: {host} said Retry-After at {at - BOOTED:.2f}; {close[:5]}")
    return problems


def _is_resumed(world: World, moment: float, host: str, seconds: float) -> bool:
    """A person has resumed the slot within so many seconds before: it is in no trouble then."""
    return any(
        slot == host and moment - seconds <= at <= moment for slot, at in world.people.resumed
    )


def _is_forgotten(world: World, moment: float) -> bool:
    """The server may have lost the starts before this one, and a worker learns that, and that what
    it holds is void, when it speaks with the server the next time."""
    late = world.plan.settings["REDISQ_LEASE_TTL"] / 4 + 1.0
    return any(start <= moment - BOOTED <= end + late for start, end in world.losses)
