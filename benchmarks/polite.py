"""Limits of slots that a fleet keeps, by the log of a site of fifty hosts."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.common import Result, Target
from benchmarks.crawls.hosts import LEASE_TTL, Crawled, crawl, hosts_of
from lab.servers import RedisServer, any_server
from lab.site import Hit, address
from scrapy_redisq.frontier.limits import SlotLimit

COLUMNS = ["scenario", "requests", "kills", "closer than delay", "over rate", "over concurrency"]
COLUMNS += ["by workers' clocks", "worst ms", "share", "worst host"]
COLUMNS += ["missing", "twice", "CPU busy"]


def too_soon(limit: SlotLimit, starts: Sequence[float]) -> list[float]:
    """Seconds by which starts came too soon after the one before."""
    gaps = (later - earlier for earlier, later in itertools.pairwise(starts))
    return [limit.delay - gap for gap in gaps if gap < limit.delay]


def too_many(limit: SlotLimit, starts: Sequence[float]) -> list[float]:
    """Seconds by which starts came too soon for the rate, over the worst window that ends with
    each: any ``n`` starts take at least ``(n - burst) / rate``. By the theoretical arrival time of
    the generic cell rate algorithm, which comes to the same."""
    interval = 1 / limit.rate if limit.rate else 0.0
    early, arrival = [], 0.0
    for start in starts:
        early.append(arrival - (limit.burst - 1) * interval - start)
        arrival = max(arrival, start) + interval
    return [seconds for seconds in early if seconds > 0]


def over(limit: SlotLimit, hits: Sequence[Hit]) -> int:
    """Requests that arrived when as many as allowed were in progress. One that ends when another
    arrives is no longer in progress."""
    ends: list[float] = []
    count = 0
    for hit in hits if limit.concurrency else ():
        while ends and ends[0] <= hit.at:
            heapq.heappop(ends)
        count += len(ends) >= limit.concurrency
        heapq.heappush(ends, hit.ended)
    return count


def row(scenario: str, seconds: float, crawled: Crawled) -> dict[str, Any]:
    """The figures of a crawl, and what goals and notes are made of: its log held against the limits
    of the hosts, by the site's clock and by the workers'."""
    counts: Counter[str] = Counter()
    in_time: list[int] = []
    early: list[float] = []
    by_workers: list[float] = []
    for host, limit in enumerate(crawled.limits):
        mine = [hit for hit in crawled.hits if hit.host.startswith(f"{address(host)}:")]
        counts["over"] += over(limit, mine)
        soon = [hit for hit in mine if hit.status == 200 and hit.at < crawled.began + seconds]
        in_time.append(len({hit.path for hit in soon}))
        for judged, name in ((too_soon, "close"), (too_many, "fast")):
            found = judged(limit, [hit.at for hit in mine])
            early += found
            by_workers += judged(limit, sorted(hit.started for hit in mine))
            counts[name] += len(found)
    good = [hit for hit in crawled.hits if hit.status == 200]
    by_living = [hit for hit in good if hit.headers["x-worker"] not in crawled.killed]
    fetched = {(hit.host, hit.path) for hit in good}
    return {
        "scenario": scenario,
        "requests": len(crawled.hits),
        "kills": len(crawled.killed),
        "closer than delay": counts["close"],
        "over rate": counts["fast"],
        "over concurrency": counts["over"],
        "by workers' clocks": len(by_workers),
        "worst ms": 1000 * max(early, default=0.0),
        "share": sum(in_time) / sum(crawled.pages),
        "worst host": min(map(operator.truediv, in_time, crawled.pages)),
        "missing": sum(crawled.pages) - len(fetched),
        "twice": len(good) - len(fetched),
        "needlessly twice": len(by_living) - len({(hit.host, hit.path) for hit in by_living}),
        "CPU busy": crawled.cores,
    }


def run(*, quick: bool) -> Result:
    """Crawl fifty hosts with different limits; with kills."""
    seconds, workers, many, kill_every = (1, 2, 5, 0.6) if quick else (60, 8, 50, 5)
    hosts = list(hosts_of(many))
    with RedisServer(any_server("redis-7")) as server:
        rows = []
        for scenario, every in (("limits", 0.0), ("kills", kill_every)):
            if every or not quick:
                crawled = crawl(server, hosts, seconds=seconds, workers=workers, kill_every=every)
                rows.append(row(scenario, seconds, crawled))
    targets = [goal for found in rows for goal in _kept(found)]
    title = f"Limits of {many} hosts that {workers} workers keep together"
    notes = [
        f"{seconds:g} s; each host has as many pages as its limits allow in that time. Ten "
        "kinds of limits (delays of 0.2 s and more, rates with bursts, concurrencies, all of "
        "these), each at five paces; times are those of a longer crawl made shorter. With kills, "
        f"a worker is killed every {kill_every:g} s and another one started; "
        f"REDISQ_LEASE_TTL is {LEASE_TTL} s.",
        "Counted by the log of the site, which runs first. A request is over the rate if "
        "any window that ends with it holds more than burst + rate x its length.",
        "A request that took longer to the log than the next one makes those two look closer than "
        "they were begun: the workers write into the requests when they began them by their own "
        "clocks.",
        f"CPU busy: of {psutil.cpu_count()} cores, by all processes of this machine.",
    ]
    return Result("polite", title, COLUMNS, rows, targets=targets, notes=notes)


def _kept(found: dict[str, Any]) -> list[Target]:
    """Goals of a crawl with limits."""
    name = found["scenario"]
    nothing = {
        "starts closer than the delay": "closer than delay",
        "starts over the rate, in any window": "over rate",
        "more in flight than allowed": "over concurrency",
        "starts too early by the workers' clocks": "by workers' clocks",
        "pages missing": "missing",
        "pages fetched twice that no killed worker had": "needlessly twice",
    }
    goals = [Target.none(f"{what}, {name}", found[figure]) for what, figure in nothing.items()]
    what = f"pages in the time, of those that the limits allow, {name}"
    shown = f"{found['share']:.3f} (worst host {found['worst host']:.3f})"
    return [*goals, Target.at_least(what, found["share"], 0.95, shown=shown, unit="")]
