"""Limits of slots that a fleet keeps, by the log of a site of fifty hosts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from benchmarks.common import Result, Target
from benchmarks.crawls.hosts import LEASE_TTL, Host, crawl, hosts_of
from benchmarks.crawls.verdict import CLOSE, CLOSE_SHARE, Crawled, judge, refetched
from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier.limits import SlotLimit

SHARE = 0.95
UNHURT = 0.97


@dataclass(frozen=True)
class Size:
    """Times in seconds. ``trouble_at``, ``trouble``, ``retry_after``: of the host that is in it, as
    `Host` has them; it is in trouble for longer than it says, so it says so twice."""

    seconds: float
    workers: int
    hosts: int
    kill_every: float
    trouble_at: float
    trouble: float
    retry_after: int


FULL = Size(60, 8, 50, 5, 5, 7, 5)
QUICK = Size(1, 2, 5, 0.6, 0, 0, 0)

OF_OTHERS = 0.5
"""Seconds: the delay of the hosts beside it."""

SLOW = 0.2
"""Seconds that the slow host's answers take."""

COLUMNS = ["scenario", "requests", "kills", "closer than delay", "over rate", "over concurrency"]
COLUMNS += ["with tolerance", "by workers' clocks", "worst ms", "share", "worst host"]
COLUMNS += ["missing", "twice", "CPU busy"]


def row(scenario: str, size: Size, crawled: Crawled) -> dict[str, Any]:
    """The figures of a crawl, and what the goals are made of."""
    verdict = judge(crawled.limits, crawled.hits)
    counts = verdict.counts
    twice, needlessly = refetched(crawled.hits, crawled.killed)
    return {
        "scenario": scenario,
        "requests": len(crawled.hits),
        "kills": len(crawled.killed),
        "closer than delay": counts["close"],
        "over rate": counts["fast"],
        "over concurrency": counts["over"],
        "with tolerance": counts["beyond tolerance"] + counts["over"],
        "by workers' clocks": counts["by workers"],
        "worst ms": 1000 * max(verdict.early, default=0.0),
        "share": crawled.share(size.seconds),
        "worst host": min(crawled.shares(size.seconds)),
        "missing": crawled.missing(),
        "twice": twice,
        "needlessly twice": needlessly,
        "CPU busy": crawled.cores,
        "early ms": [1000 * seconds for seconds in sorted(verdict.early)],
        "early by workers ms": [1000 * seconds for seconds in verdict.early_by_workers],
        "way ms": [1000 * seconds for seconds in spread(verdict.way)],
    }


def spread(values: Sequence[float]) -> list[float]:
    """Median, 99th percentile and the highest."""
    ordered = sorted(values) or [0.0]
    return [ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]]


def run(*, quick: bool) -> Result:
    """Crawl fifty hosts with different limits; with kills; with a host in trouble; with a slow
    one."""
    size = QUICK if quick else FULL
    limits, hosts = hosts_of(size.hosts)
    with closing(RedisServer(any_server("redis-7"))) as server:
        crawled_by = partial(crawl, server, seconds=size.seconds, workers=size.workers)
        crawled = {"kills": crawled_by(limits, hosts, kill_every=size.kill_every)}
        if not quick:
            crawled = {"limits": crawled_by(limits, hosts), **crawled}
            in_trouble = Host(hosts[0].answer, size.trouble_at, size.trouble, size.retry_after)
            trouble = crawled_by(limits, [in_trouble, *hosts[1:]])
            others, prompt = [SlotLimit(delay=OF_OTHERS)] * (size.hosts - 1), [Host()]
            prompt *= len(others)
            fast = crawled_by(others, prompt)
            with_slow = [*others, SlotLimit(concurrency=2)], [*prompt, Host(SLOW)]
            slow = crawled_by(*with_slow)
            crawled["host in trouble"] = trouble
            crawled |= {f"{len(others)} fast hosts": fast, "and a slow one": slow}
    rows = [row(scenario, size, one) for scenario, one in crawled.items()]
    targets = [goal for found in rows[:2] for goal in _kept(found)]
    if not quick:
        targets += [
            _left_alone(size, trouble),
            _unhurt("a host in trouble", size, trouble, crawled["limits"], range(1, size.hosts)),
            _unhurt(f"a host of {1000 * SLOW:g} ms", size, slow, fast, range(size.hosts - 1)),
            Target.none(
                "pages missing, a host in trouble and a slow one",
                sum(one["missing"] for one in rows),
            ),
        ]
    title = f"Limits of {size.hosts} hosts that {size.workers} workers keep together"
    return Result("polite", title, COLUMNS, rows, targets=targets, notes=_notes(size, rows))


def _left_alone(size: Size, crawled: Crawled) -> Target:
    flying, others = crawled.asked_too_early(0, size.retry_after)
    refused = sum(hit.status == 503 for hit in crawled.hits)
    return Target(
        f"requests within the {size.retry_after} s of a Retry-After",
        "0, and one in flight",
        f"{others}, and {flying} in flight, after {refused} answers 503",
        others == 0 < refused and flying <= refused,
    )


def _unhurt(what: str, size: Size, crawled: Crawled, beside: Crawled, hosts: range) -> Target:
    share = crawled.share(size.seconds, hosts) / beside.share(size.seconds, hosts)
    return Target(
        f"pages of the others beside {what}, of those without it",
        f">= {UNHURT} x",
        f"{share:.3f} x",
        share >= UNHURT,
    )


def _kept(found: dict[str, Any]) -> list[Target]:
    """Goals of a crawl with limits."""
    name = found["scenario"]
    nothing = {
        "starts closer than the delay": "closer than delay",
        "starts over the rate, in any window": "over rate",
        "more in flight than allowed": "over concurrency",
        "all of these, with tolerance": "with tolerance",
        "starts too early by the workers' clocks": "by workers' clocks",
        "pages missing": "missing",
        "pages fetched twice that no killed worker had": "needlessly twice",
    }
    share = Target(
        f"pages in the time, of those that the limits allow, {name}",
        f">= {SHARE}",
        f"{found['share']:.3f} (worst host {found['worst host']:.3f})",
        found["share"] >= SHARE,
    )
    goals = [Target.none(f"{what}, {name}", found[figure]) for what, figure in nothing.items()]
    return [*goals, share]


def _notes(size: Size, rows: Sequence[dict[str, Any]]) -> list[str]:
    limited = rows[:2]
    early = [ms for one in limited for ms in one["early ms"]]
    median, high, worst = spread(early)
    return [
        f"{size.seconds:g} s; each host has as many pages as its limits allow in that time. Ten "
        "kinds of limits (delays of 0.2 s and more, rates with bursts, concurrencies, all of "
        "these), each at five paces; times are those of a longer crawl made shorter. With kills, "
        f"a worker is killed every {size.kill_every:g} s and another one started; "
        f"REDISQ_LEASE_TTL is {LEASE_TTL} s.",
        "Counted by the site's log, which is a process of its own. A request is over the rate if "
        "any window that ends with it holds more than burst + rate x its length.",
        f"Tolerance: {1000 * CLOSE:g} ms and {CLOSE_SHARE:.0%} of the delay. A request gets from "
        "its worker to the log in "
        + "; ".join(
            "{}: {:.1f} ms (median), {:.0f} (99 of 100), {:.0f} at most".format(
                one["scenario"], *one["way ms"]
            )
            for one in limited
        )
        + ". One that took longer than the next one makes those two look closer than they were "
        "begun. Starts by the workers' own clocks, which they write into the requests, have no "
        "tolerance.",
        f"The {len(early)} that were too early by the log were so by {median:.1f} ms (median), "
        f"{high:.1f} ms (99 of 100), {worst:.1f} ms at most."
        if early
        else "None was too early by the log.",
        "Too early by the workers' own clocks: "
        + (", ".join(f"{ms:.1f} ms" for one in rows for ms in one["early by workers ms"]) or "none")
        + ".",
        f"A host in trouble answers 503 with Retry-After {size.retry_after} for "
        f"{size.trouble:g} s. The fast hosts have a delay of {OF_OTHERS} s, the slow one a "
        f"concurrency of 2. CPU busy: of {psutil.cpu_count()} cores, by all processes of this "
        "machine.",
    ]
