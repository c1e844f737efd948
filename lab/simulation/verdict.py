"""What must hold when a crawl is over."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from lab.simulation.clock import BOOTED, EPOCH
from lab.simulation.faults import LOSING
from lab.simulation.fetches import CLOSING, DEAD_FETCHER, LEFT_TO_DO, UNHEARD, VOIDING, fetches
from lab.simulation.letters import REFUSED, Letter, dead_letters, over_budgets, refused_pages
from lab.simulation.plan import EVERY, FAULTS, LINES, MAX_IDLE, RECURRING, SEEN_TTL
from lab.simulation.polite import TOLERANCE, rudeness
from lab.simulation.server import SimulatedServer
from lab.simulation.spider import SLOW
from lab.simulation.workers import AGE
from lab.simulation.world import END, LAST, LATE, LONGEST, World
from scrapy_redisq.errors import ConfigurationMismatch, FrontierCorrupt, FrontierError, ShardLost
from scrapy_redisq.frontier.config import REWIND
from scrapy_redisq.frontier.resend import NO_REPLICA
from scrapy_redisq.frontier.shard_session import HOLD
from scrapy_redisq.pipelines.doubt import PROOFS

LEFT = {
    *("meta", "counts", "seen", "dead", "letters", "slot", "trash", "series", "marks"),
    *("limits", "robots", "ended", "aside", "taken"),
}
"""The kinds of keys that a complete run may leave."""

GONE = {"worker", "workers", "tokens"}
"""Those of workers that were killed when all was done, in a run that nobody completes, or that were
cut off or not heard at their end, or whose end a server has forgotten."""

DAMAGED = {"frontier_corrupt", "frontier_lost"}
"""With which it may end after somebody has damaged a key."""

CAME_IN = "came in when this worker had decided to end"

DEATHS, TOGETHER = ("kill", "stop_twice", "host_dies"), 1.0
"""Faults by which a worker dies. So many seconds after a server's loss it knows of that."""

PROVEN = END + (PROOFS + 1) * LAST
"""Virtual seconds more until a bad row that no other follows is known as one."""

CALM = 2.5
"""Virtual seconds from the last page to the end where nothing goes wrong: an idle worker looks each
five seconds."""

RESUMED_BY_OTHERS = 60.0
"""Virtual seconds until a crawl looks again at a slot that it shares, and that is paused."""

SLACK = 30.0
"""Virtual seconds from one page, fault or start of a worker to the next one, and to the end, beside
the lease TTL."""


def judge(world: World) -> list[str]:
    """What does not hold, in words; empty: all is well."""
    problems = list(world.problems)
    if any(problem.startswith("hang") for problem in problems):
        return problems
    # Where a shard has lost the run, or shards do not agree on which is the last one, nobody can go
    # on, and each worker says so: the frontier is to be reset.
    needs_reset = (ShardLost, FrontierError)
    told = [one.started_at for one in world.workers if type(one.error) in needs_reset]
    # The run looks older than it is, or is older than what a server may lose of it. Or shard 0 has
    # lost it, and its clock has gone back: what it begins is older than what others have.
    by_age = world.lost_run and (world.met["clock"] or min(told, default=0.0) > REWIND)
    if told and (world.met["damage"] or by_age):
        return [problem for problem in problems if "a traceback" in problem]
    letters = dead_letters(world)
    if world.met["damage"]:
        problems += _said(world, _items(world, [*letters, *world.former_letters]))
    else:
        for by_letters in (_items, _ends, over_budgets, _recurring):
            problems += by_letters(world, letters)
        for rule in (_twice, fetches, _named, _redis, rudeness, _sessions, _rotation):
            problems += rule(world)
    problems += _workers(world)
    last = max([world.last_fault, *(at - BOOTED for at, *_ in world.site.log[-1:])])
    bound = SLACK + 3 * world.plan.settings["REDISQ_LEASE_TTL"]
    if "refused_rows" in world.plan.features:
        bound += PROVEN
    if world.plan.masters > 1:
        bound += REWIND
    if "lines" in world.plan.features:
        bound += MAX_IDLE + world.plan.settings["REDISQ_LEASE_TTL"]
    if "robots" in world.plan.features:
        bound += DEAD_FETCHER
    if "rival" in world.plan.features and world.people.pauses:
        bound += RESUMED_BY_OTHERS
    world.late = world.ended_at - last
    if not set(FAULTS) & world.met.keys():
        problems += _calm(world)
    if (stall := _longest_stall(world))[0] > bound:
        problems.append(f"slow: nothing was done for {stall[0]:.1f} s, from {stall[1]:.2f} s")
    if world.late > bound:
        problems.append(f"slow: over {world.late:.1f} s after the last page or fault")
    return problems


def _longest_stall(world: World) -> tuple[float, float]:
    """How long nothing was fetched at most, and nobody did anything, and since when."""
    moments = [
        *(at - BOOTED for at, *_ in world.site.log),
        *(one.started_at for one in world.workers),
        *(moment for one in world.happened for moment in (one.since, one.until)),
        *(moment for _, start, end in world.people.pauses for moment in (start, end)),
    ]
    moments = sorted(moment for moment in moments if moment < math.inf)
    return max(((end - start, start) for start, end in itertools.pairwise(moments)), default=(0, 0))


def _calm(world: World) -> Iterator[str]:
    """Where nothing goes wrong all end soon, and nobody begins what has ended."""
    features, masters = world.plan.features, world.plan.masters
    # A handler of spider_idle whose request is refused is asked again after five seconds, when no
    # server can lose that any more; it may be one worker's after the other's.
    again = 5.0 + NO_REPLICA * (masters > 1)
    refused = again * (1 + len(world.plan.workers)) * ({"idle", "slot_budget"} <= features)
    bound = CALM + refused + 1.5 * ("slow_callbacks" in features)
    if "slow_start" in features:  # a worker may add nothing that is new
        bound += SLOW * len(world.site.starts)
    if masters > 1:  # what a worker that closes has sent to other shards is sent again
        bound += REWIND + HOLD if "close_spider" in features else NO_REPLICA
    begun = [
        *(at - BOOTED for at, *_ in world.site.log),
        *(one.started_at for one in world.workers),
    ]
    late = world.closed_at - max(begun)
    if late > bound and not features & {"keep_alive", "refused_rows", "lines", "recurs"}:
        yield f"slow: nothing was done in the last {late:.1f} s"
    young = [one for one in world.workers if one.started_at > world.run_ended_at + AGE * TOLERANCE]
    if len(world.network.begun) > 1 and not (young or _begins_anew(world)):
        yield f"{len(world.network.begun)} runs of one crawl"
    stats = [one.crawler.stats.get_stats() for one in world.workers]
    last = [of_last for of_last in stats if "redisq/last_worker" in of_last]
    ends_once = "sees_end" in features and not features & {"keep_alive", "latecomer", "lines"}
    # One that comes when the others have just left may find the run complete before they do.
    came = sum("redisq/exchanges" not in of_one for of_one in stats)
    runs = len(world.network.begun)
    ended = 1 if _begins_anew(world) else runs - came  # others may have been left as they were
    if ends_once and not ended <= len(last) <= runs:
        yield f"end: {len(last)} workers were the last one"
    for name in ("response_received_count", "item_scraped_count") if len(last) == 1 else ():
        fleet = last[0].get(f"redisq/fleet/{name}", last[0].get(name, 0))
        each = [one.get(name, 0) for one in stats]
        if fleet != sum(each) and len(world.network.begun) == 1:
            yield f"stats: {name} of the fleet is {fleet}, of its workers {each}"


def _ends(world: World, letters: list[Letter]) -> Iterator[str]:
    """Nobody closes as finished while something is left. Not asked where a key is damaged: what is
    lost then is lost for all, see `_said`."""
    letters = [*letters, *world.former_letters]
    explained = _explaining(letters)
    required, excused = world.site.expected(refused_pages(world, letters))
    # The dead letters of a run that is not complete go when another one is begun in its place.
    refuses = {"slot_budget", "page_budget"} & world.plan.features or world.met["kill"]
    anew = _begins_anew(world) or world.lost_run
    is_forgotten = anew and len(world.network.begun) > 1 and refuses
    for at, number, missing in world.early:
        if world.faults.near(LEFT_TO_DO, at - CLOSING, at):
            continue
        if world.faults.near(("requeue",), at, math.inf):  # the letters that explain it are gone
            continue
        # It has found all done, and the server forgot that; people are told.
        is_told = any(f"w{number} WARNING" in one and CAME_IN in one for one in world.events)
        if is_told and world.faults.near(LOSING, at - CLOSING, at):
            continue
        left = {
            key
            for key in missing & required
            if not _is_explained(world, key, explained)
            and not (key.partition(".")[0].isdecimal() and int(key.partition(".")[0]) in excused)
        }
        if left and not is_forgotten:
            yield f"early: w{number} closed as finished without {sorted(left)[:8]}"
    started = [
        one
        for one in world.left_starting
        if not world.faults.near(VOIDING, one[0] - CLOSING, one[0])
    ]
    if started:
        yield f"early: closed as finished while others start: {started[:5]}"


def _items(world: World, letters: list[Letter]) -> Iterator[str]:
    if "REDISQ_KEEP_SEEN" in world.plan.settings:  # nobody asks again for a page of a former run
        letters = [*letters, *world.former_letters]
    keys, dead = world.site.expected(refused_pages(world, letters))
    possible, may_be_dead = world.site.expected()
    if "recurs" in world.plan.features:
        keys |= set(RECURRING)
    if not _begins_anew(world) or len(world.network.begun) == 1:  # else pushes are forgotten
        keys |= {f"pushed{n}" for n in range(world.people.pushed)}
    keys |= _lines(world)
    lives = {worker.number for worker in world.workers if not worker.process.dead}
    if not world.lost_run and len(world.network.begun) == 1:
        keys |= {key for number, key in world.fed if number in lives}
    if world.table_before is not None and world.lost_run:
        world.table.update(world.table_before)  # the run that it was for is lost
    # Nobody asks again for a push, or a line of a feed.
    explained = {one.url for one in world.former_letters if "?" in one.url}
    explaining = explained | _explaining(letters)
    explained |= {letter.url for letter in letters}
    told = [(letter.url, letter.reason) for letter in letters[:9]]
    missing = {key for key in keys - set(world.table) if not _is_explained(world, key, explaining)}
    if missing:
        yield f"lost: {len(missing)} items, {sorted(missing)[:8]}; letters: {told}"
    tries = {key: most for key, most in world.site.rows_of_tries.items() if key in keys - missing}
    few = [key for key in tries if len(world.rows[key]) < tries[key] and not world.lost_run]
    if few := [key for key in few if not _is_explained(world, key, explaining)]:
        yield f"lost: rows of {few[:8]}, which each try has asked for"
    elsewhere = ("idle", "pushed", "line", "every", "period")
    more = {key for key in set(world.table) - possible if not key.startswith(elsewhere)}
    if more:
        yield f"items of nowhere: {sorted(more)[:8]}"
    requests = {number: world.site.requests_of(number) for number in dead}
    if unsaid := [number for number in requests if not requests[number] & explained]:
        yield f"no dead letter of {unsaid[:8]}; letters: {told}"
    allowed = {"retries", "spider_error", "item_error", "download"}
    bad = {url for number in may_be_dead for url in world.site.requests_of(number)}
    for letter in letters:
        if letter.reason in allowed and letter.url not in bad:
            yield f"a dead letter of a good page: {letter.url} ({letter.reason})"


def _twice(world: World) -> list[str]:
    """An item has one row, however often its page is fetched. What comes again has one each time,
    and so has a line of a feed that has forgotten to have given it away."""
    anew = ("every", "period", "line") if world.losses else ("every", "period")
    # Nobody asks whether a start request was met before, nor what it is redirected to.
    starts = {page.number for page in world.site.pages if world.site.is_of_start(page.number)}
    # By whichever way a run, or a dupefilter that lost its last second, comes to a page first, that
    # is in a session, and has other callbacks.
    if len(world.network.begun) > 1 or world.losses or world.has_forgotten:
        targets = {page.redirect for page in world.site.pages if page.redirect is not None}
        starts |= {number for number in targets if world.site.pages[number].session}
    tries = world.site.rows_of_tries
    several = {
        key: len(keys)
        for key, keys in world.rows.items()
        if len(keys) > tries.get(key, 1)
        and not key.startswith(anew)
        and not (
            (of := key.partition(".")[0]).isdecimal()
            and int(of) in starts
            and len(keys) <= _ways(world, int(of))
        )
    }
    return [f"twice: rows of {sorted(several.items())[:8]}"] if several else []


def _ways(world: World, number: int) -> int:
    """By how many requests of other names a run may come to a page: the start requests that lead
    to it, a link to it, and each page that is redirected to it."""
    site = world.site
    urls = site.requests_of(number)
    of_starts = sum(site.pages[one].url in urls for one in site.starts)
    linked = {site.pages[link].url for page in site.pages for link in page.links}
    return of_starts + len(linked & urls)


def _lines(world: World) -> set[str]:
    """Of the feed. What was moved into a run that is lost, or by a worker that dies together with
    the last second of a server, is lost."""
    deaths = [one.since for one in world.happened if one.kind in DEATHS]
    dies = any(at <= death < at + TOGETHER for _, at in world.losses for death in deaths)
    anew = _begins_anew(world) and len(world.network.begun) > 1
    lost = anew or world.lost_run or dies or (world.plan.masters > 1 and world.losses)
    is_fed = "lines" in world.plan.features and not lost
    return {f"line{n}" for n in range(LINES)} if is_fed else set()


def _said(world: World, problems: Iterable[str]) -> list[str]:
    """Of what is lost with a key it must have been said that it is missing."""
    corrupt = any("frontier_corrupt" in event for event in world.events)
    return [one for one in problems if one.startswith("lost") and not corrupt]


def _begins_anew(world: World) -> bool:
    """A worker that finds no other one begins anew, whatever is left."""
    return world.plan.settings.get("REDISQ_RESUME") is False


def _explaining(letters: list[Letter]) -> set[str]:
    """URLs of dead letters by which something is missing. What a page asks for that fails later is
    there: `Site.expected` knows of that."""
    return {one.url for one in letters if not one.is_page or one.reason in REFUSED}


def _is_explained(world: World, key: str, dead: set[str]) -> bool:
    if key.startswith("shared"):
        shared = int(key.removeprefix("shared"))
        return any(page.shared == shared and page.url in dead for page in world.site.pages)
    if key.startswith(("pushed", "line", "every", "idle")):  # of the first page's URL
        asked = "idle" if key.startswith("idle") else key
        return f"{world.site.pages[0].url}?{asked}" in dead
    if key.startswith("start"):
        return world.site.pages[0].url in dead
    number = key.partition(".")[0]
    return number.isdecimal() and bool(world.site.requests_of(int(number)) & dead)


def _named(world: World) -> list[str]:
    """There are no two runs of one name."""
    is_named = "REDISQ_RUN" in world.plan.settings and not _begins_anew(world)
    runs = len(world.network.begun)
    return [f"{runs} runs of one name"] if is_named and runs > 1 and not world.lost_run else []


def _recurring(world: World, letters: list[Letter]) -> Iterator[str]:
    """What comes again waits once, whatever has happened, and comes when its interval is over:
    looked at where nothing else is left to do. If one of several shards has lost the run, another
    one goes on with what it has of it, and the new run asks for that once more."""
    if world.lost_run and world.plan.masters > 1:
        return
    for at, url, number in world.people.ended:
        if number > 1:
            yield f"doubled: {url} comes again {number} times, at {at:.2f} s"
    if world.calm is None:
        return
    since, until = world.calm
    letters = [*letters, *world.former_letters]
    ends = "period", RECURRING[0]  # the page that asks for them, too
    is_dead = any(end in one.url for end in ends for one in letters)
    if "periods" in world.plan.features and not is_dead:
        for key in ("?period", "?in_period"):
            times = [at - BOOTED for at, _, name, _ in world.site.log if key in name]
            times = [at for at in times if since <= at < until]
            if not 1 <= len(times) <= 2:
                yield f"period: {key} at {times}, from {since:.2f} to {until:.2f} s"
    for key in RECURRING:
        if any(one.url.endswith(f"?{key}") for one in letters):
            continue
        times = [at - BOOTED for at, _, name, _ in world.site.log if f"?{key}" in name]
        times = [since, *(at for at in times if since <= at < until), until]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        late = LATE + DEAD_FETCHER * ("robots" in world.plan.features)
        if min([EVERY, *gaps[1:-1]]) < EVERY * TOLERANCE or max(gaps) > EVERY + late:
            yield f"recurring: {key} at {[round(at, 2) for at in times[1:-1]]}"


def _sessions(world: World) -> list[str]:
    """A session begins anew only where the worker that began it may be dead, or be taken for it."""
    deadly = (*DEATHS, *VOIDING, *UNHEARD, "leave", "stop")
    return [
        f"a session was lost at {at:.2f} s, and nobody has died"
        for at in world.sessions_lost
        if not any(one.kind in deadly and one.since <= at for one in world.happened)
    ]


def _rotation(world: World) -> Iterator[str]:
    """A URL is known for at least one TTL, and for less than two."""
    unsettling = {"clock", "reset", "lost_script", "restart", *LOSING}
    if world.rotated is None or unsettling & world.met.keys():
        return
    at, late = world.rotated
    for server in world.network.primaries:
        for key in server.redis.keys("redisq:{sim*:meta"):
            generation, older, due = server.redis.hmget(key, "generation", "older", "rotates")
            if not due or _began(generation) < at:  # nothing was asked of it since
                continue
            left = int(due) / 1e6 - EPOCH - at
            if left > SEEN_TTL * (1.0 if world.has_forgotten else 1 - late) + LONGEST:
                yield f"{key.decode()}: rotates {left:.0f} s after {at:.2f} s"
            if world.has_forgotten and older and _began(older) < at:
                yield f"{key.decode()}: knows of {older} after {late} TTLs"


def _began(generation: bytes | None) -> float:
    """The virtual second of a rotation; that with which a run begins has none."""
    _, dot, at = (generation or b"").partition(b".")
    return int(at) / 1e6 - EPOCH if dot else -math.inf


def _workers(world: World) -> Iterator[str]:
    # Frozen, cut off, unheard, or back under a new id after a loss: another run may have begun.
    away = "freeze", "cut", "messages", "failover", "lost_script", "lost_tail"
    unheard = any(map(world.met.get, away))
    may_be_lost = world.lost_run or (len(world.network.begun) > 1 and unheard)
    strangers = any(worker.is_strange for worker in world.workers)
    refused = [one for one in world.workers if isinstance(one.error, ConfigurationMismatch)]
    theirs = {one.run for one in refused if not one.is_strange}
    for worker in world.workers:
        if worker.process.dead:
            continue
        same = worker.run == world.network.first.run and worker.run not in theirs
        if worker.is_strange and worker.reason and not worker.error and same:
            yield f"w{worker.number} has joined a crawl with other arguments"
        if strangers and isinstance(worker.error, ConfigurationMismatch):
            continue
        told = isinstance(worker.error, FrontierCorrupt) or worker.reason in DAMAGED
        if world.met["damage"] and told:
            continue
        if world.met["reset"] and isinstance(worker.error, ShardLost):
            continue  # it has joined meanwhile
        reasons = {
            "finished": True,
            "shutdown": bool(worker.stopped or world.met["told_to_stop"]),
            "enough": world.site.closed,
            "slots_set_aside": "REDISQ_SLOT_GIVE_UP" in world.plan.settings,
            "frontier_lost": may_be_lost,
        }
        if worker.error is not None:
            yield f"w{worker.number} ended with {worker.error!r}"
        elif not reasons.get(worker.reason):
            yield f"w{worker.number} closed with {worker.reason!r}"


def _redis(world: World) -> Iterator[str]:
    # Of one whose worker dies nobody knows that it is foreign: its bytes may say that it was
    # delivered too often.
    foreign = world.met["foreign_entry"]
    for shard, (created, finished) in world.network.counts().items():
        if not created <= finished <= created + foreign:
            yield f"{shard}: created {created}, finished {finished}"
    for server in world.network.primaries:
        keys = [key.decode() for key in server.redis.keys("redisq:{sim*")]
        kinds = {re.sub(r"^redisq:\{sim:\d+\}:([a-z]+).*", r"\1", key) for key in keys}
        # Who could not leave, or whose leave is lost, is taken for dead a TTL later, too.
        # Whoever finds that the run is over looks for nobody.
        ends = [one.closed_at for one in world.workers if one.joined_at < math.inf]
        last = max(ends, default=0.0)
        alive_since = last - world.plan.settings["REDISQ_LEASE_TTL"]
        unheard = world.faults.near([*LOSING, "cut", "messages"], alive_since, last)
        dies = world.met["outage"] or any(one.process.dead for one in world.workers)
        is_left = ("keep_alive" in world.plan.features and dies) or unheard
        may = GONE if is_left else set()
        if world.met["quiet"] or world.met["told_to_stop"]:  # which is kept for a worker's return
            may = may | {"worker"}
        if left := kinds - LEFT - may:
            yield f"left in Redis: {sorted(left)}"
        yield from _seen(server)


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
