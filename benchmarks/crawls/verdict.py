"""What a site's log says of the limits that its hosts were promised."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lab.process_site import address
from lab.site import Hit
from scrapy_redisq.frontier.limits import SlotLimit

CLOSE, CLOSE_SHARE = 0.005, 0.1
"""What a start may be early by the site's clock before it counts as a violation with tolerance: so
many seconds and this share of the delay."""


def of_host(hits: Iterable[Hit], host: int) -> list[Hit]:
    return [hit for hit in hits if hit.host.startswith(f"{address(host)}:")]


def too_soon(limit: SlotLimit, starts: Sequence[float]) -> list[float]:
    """Seconds by which each start but the first came too soon after the one before it (negative:
    later than need be)."""
    if not limit.delay:
        return []
    return [limit.delay - (later - earlier) for earlier, later in itertools.pairwise(starts)]


def too_many(limit: SlotLimit, starts: Sequence[float]) -> list[float]:
    """Seconds by which each start came too soon for the rate, over the worst window that ends with
    it: any ``n`` starts take at least ``(n - burst) / rate``."""
    if not limit.rate:
        return []
    worst = []
    for last in range(limit.burst, len(starts)):
        windows = (
            (last - first + 1 - limit.burst) / limit.rate - (starts[last] - starts[first])
            for first in range(last - limit.burst + 1)
        )
        worst.append(max(windows))
    return worst


def over(limit: SlotLimit, hits: Sequence[Hit]) -> int:
    """Requests that arrived when as many as allowed were in progress. One that ends when another
    arrives is no longer in progress."""
    if not limit.concurrency:
        return 0
    ends: list[float] = []
    count = 0
    for hit in hits:
        while ends and ends[0] <= hit.at:
            heapq.heappop(ends)
        count += len(ends) >= limit.concurrency
        heapq.heappush(ends, hit.ended)
    return count


def allowed(limit: SlotLimit, answer: float, seconds: float) -> int:
    """The most requests of a limit that can begin in a time when each takes ``answer`` seconds."""
    interval = 1 / limit.rate if limit.rate else 0.0
    at = tat = 0.0
    ends: list[float] = []
    for number in itertools.count():
        start = max(at, tat - (limit.burst - 1) * interval)
        if limit.concurrency and len(ends) == limit.concurrency:
            start = max(start, heapq.heappop(ends))
        if start >= seconds:
            return number
        heapq.heappush(ends, start + answer)
        at, tat = start + limit.delay, max(tat, start) + interval
    raise AssertionError


@dataclass
class Verdict:
    """Violations of all hosts: starts too ``close`` to the one before, too ``fast`` for the rate,
    ``over`` the concurrency; of the first two also those ``beyond tolerance``, and those ``by
    workers``' clocks.

    ``early``: seconds by which starts were too soon, as the site saw
    them, of those that were at all; ``early_by_workers``: as they began them; ``way``: seconds
    from a worker's start to the site."""

    counts: Counter[str] = field(default_factory=Counter)
    early: list[float] = field(default_factory=list)
    early_by_workers: list[float] = field(default_factory=list)
    way: list[float] = field(default_factory=list)


def judge(limits: Sequence[SlotLimit], hits: Sequence[Hit]) -> Verdict:
    """Hold the log against the limits of the hosts, by the site's clock and by the workers'."""
    verdict = Verdict(way=[hit.at - hit.started for hit in hits])
    for host, limit in enumerate(limits):
        mine = of_host(hits, host)
        arrived = [hit.at for hit in mine]
        began = sorted(hit.started for hit in mine)
        verdict.counts["over"] += over(limit, mine)

        # Each limit with how much of it is tolerated, and where its violations are counted.
        for judged, tolerated, name in (
            (too_soon, CLOSE + CLOSE_SHARE * limit.delay, "close"),
            (too_many, CLOSE + CLOSE_SHARE / limit.rate if limit.rate else 0.0, "fast"),
        ):
            early = [late for late in judged(limit, arrived) if late > 0]
            by_workers = [late for late in judged(limit, began) if late > 0]
            verdict.early += early
            verdict.early_by_workers += by_workers
            verdict.counts[name] += len(early)
            verdict.counts["beyond tolerance"] += sum(late > tolerated for late in early)
            verdict.counts["by workers"] += len(by_workers)
    return verdict


def refetched(hits: Sequence[Hit], killed: set[str]) -> tuple[int, int]:
    """Answers 200 to pages that were answered so before; all of them, and those of pages that no
    worker which was killed had asked for."""
    good = [hit for hit in hits if hit.status == 200]
    by_page = Counter((hit.host, hit.path) for hit in good)
    by_living = Counter(
        (hit.host, hit.path) for hit in good if hit.headers["x-worker"] not in killed
    )
    return (
        sum(count - 1 for count in by_page.values()),
        sum(count - 1 for count in by_living.values()),
    )


@dataclass(frozen=True)
class Crawled:
    """What one fleet did to a site. ``pages``: pushed to each host. ``killed``: pids. ``cores``:
    kept busy."""

    limits: Sequence[SlotLimit]
    pages: Sequence[int]
    began: float
    hits: list[Hit]
    killed: set[str]
    cores: float

    def shares(self, seconds: float) -> list[float]:
        """Pages of each host that were asked for within a time, of those that its limits allow."""
        fetched = {
            (hit.host.partition(":")[0], hit.path)
            for hit in self.hits
            if hit.status == 200 and hit.at < self.began + seconds
        }
        in_time = Counter(host for host, _ in fetched)
        return [in_time[address(host)] / pages for host, pages in enumerate(self.pages)]

    def share(self, seconds: float, hosts: range | None = None) -> float:
        """The same of some hosts together."""
        shares = self.shares(seconds)
        chosen = hosts or range(len(self.pages))
        got = sum(shares[host] * self.pages[host] for host in chosen)
        return got / sum(self.pages[host] for host in chosen)

    def asked_too_early(self, host: int, retry_after: float) -> tuple[int, int]:
        """Requests that a host got within the time of its Retry-After; -> those that their workers
        began before the 503 was sent and all others, and so in flight or not."""
        mine = of_host(self.hits, host)
        early = {
            hit: hit.started <= refusal.ended
            for refusal in mine
            if refusal.status == 503
            for hit in mine
            if refusal.ended < hit.at < refusal.ended + retry_after
        }
        return sum(early.values()), len(early) - sum(early.values())

    def missing(self) -> int:
        fetched = {(hit.host, hit.path) for hit in self.hits if hit.status == 200}
        return sum(self.pages) - len(fetched)
