"""What a master that is away costs the slots of the others."""

from __future__ import annotations

import signal
import statistics
import time

from benchmarks.common import Result, Target
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import Fleet
from lab.cluster import Cluster
from lab.process_site import address
from lab.servers import any_server, wait_until
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig

HOSTS = 9
MASTERS = 3
ANSWER = 0.2
"""Seconds that an answer takes; of each host one at a time: so the site sets the pace."""

LOSS = 0.05

COLUMNS = ["links", "pages/s of the other slots", "one master away", "ratio", "least"]


def pages_per_second(site: Pages, hosts: set[str], seconds: float) -> float:
    """What the site is asked for of these hosts from now on."""
    site.forget()
    time.sleep(seconds)
    return sum(hit.host.partition(":")[0] in hosts for hit in site.hits()) / seconds


def measure(cluster: Cluster, links: int, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """Pairs of pages/s of the slots on other masters: all there, one away."""
    name = "follow"
    config = FrontierConfig(any_shards=True).laid_out(MASTERS)
    victim = config.shard_numbers(name)[1]
    master = cluster.master_of(calls.prefix(name, victim))
    others = {host for host in map(address, range(HOSTS)) if config.shard_of(name, host) != victim}
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "REDISQ_LEASE_TTL": 120}
    pages = int(HOSTS * rounds * (2 * seconds + 20) / ANSWER)
    pairs = []
    with (
        Pages(pages, links, delay=ANSWER, hosts=HOSTS) as site,
        Fleet(cluster, 1, site.start_url, settings=settings, hosts=site.hosts) as fleet,
    ):
        fleet.frontier.push(site.urls)
        fleet.begin()
        for _ in range(rounds):
            _all_come(site)
            there = pages_per_second(site, others, seconds)
            master.signal(signal.SIGSTOP)
            try:
                away = pages_per_second(site, others, seconds)
            finally:
                master.signal(signal.SIGCONT)
            pairs.append((there, away))
    return pairs


def _all_come(site: Pages) -> None:
    """Wait until pages of all hosts are fetched."""
    site.forget()
    wait_until(lambda: len({hit.host for hit in site.hits()}) == HOSTS, 60, "pages of all hosts")


def run(*, quick: bool) -> Result:
    """Stop one of three masters again and again, with links between hosts and without."""
    rounds, seconds = (1, 0.5) if quick else (4, 5.0)
    rows, targets = [], []
    options = ("--cluster-require-full-coverage", "no")
    with Cluster(any_server("redis-7"), *options, masters=MASTERS, node_timeout=60) as cluster:
        for links in (0,) if quick else (0, 5):
            pairs = measure(cluster, links, rounds, seconds)
            ratios = [away / max(there, 1e-9) for there, away in pairs]
            ratio = statistics.median(ratios)
            rows.append(
                {
                    "links": links,
                    "pages/s of the other slots": statistics.median(there for there, _ in pairs),
                    "one master away": statistics.median(away for _, away in pairs),
                    "ratio": ratio,
                    "least": min(ratios),
                }
            )
            targets.append(
                Target(
                    "pages/s of the other slots while a master is away, "
                    + (f"{links} links a page across hosts" if links else "pages without links"),
                    f"≥ {1 - LOSS:g} x",
                    f"{ratio:.2f} x",
                    ratio >= 1 - LOSS,
                )
            )
    return Result(
        "away",
        "A master that is away",
        COLUMNS,
        rows,
        targets=targets,
        notes=[
            f"One worker, {HOSTS} hosts that take {ANSWER:g} s for an answer, one request at a "
            f"time each; one of {MASTERS} masters is stopped (SIGSTOP) for {seconds:g} s, {rounds} "
            "times, and compared with as long just before. All requests were pushed before, "
            "those that the links lead to as well.",
        ],
    )
