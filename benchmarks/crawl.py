"""Pages per second of one worker, beside Scrapy in memory and scrapy-redis, near Redis and far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Result, Target
from benchmarks.crawls.comparison import Comparison
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import (
    REDISQ_BLOOM,
    REDISQ_EXACT,
    SCRAPY_REDIS,
    SCRAPY_REDIS_BLOOM,
    Variant,
)
from lab.servers import RedisServer, any_server

REAL_SITES = {
    "python3.11-doc": Path("/usr/share/doc/python3.11/html"),
    "postgresql-doc-15": Path("/usr/share/doc/postgresql-doc-15/html"),
    "openjdk-17-doc": Path("/usr/share/doc/openjdk-17-jre-headless/api"),
}
"""Debian's packages that bring real pages, and where."""

ROUND_TRIPS = (0, 2, 20)
"""Added to each exchange with Redis, in milliseconds."""

PEERS = (SCRAPY_REDIS, SCRAPY_REDIS_BLOOM)

FASTER_THAN_MEMORY = 1.05
FASTER_THAN_SCRAPY_REDIS = {0: 2, 2: 20, 20: 150}


@dataclass(frozen=True)
class Size:
    """How much is run. ``peer_pages``: pages of the site that each peer gets at a round trip."""

    pages: int
    rounds: int
    round_trips: tuple[int, ...]
    ours: tuple[Variant, ...]
    real_pages: int
    real_sites: tuple[str, ...]
    peers: tuple[Variant, ...]
    peer_pages: dict[tuple[str, int], int]


FULL = Size(
    pages=1500,
    rounds=3,
    round_trips=ROUND_TRIPS,
    ours=(REDISQ_BLOOM, REDISQ_EXACT),
    real_pages=1500,
    real_sites=tuple(REAL_SITES),
    peers=PEERS,
    peer_pages={
        (SCRAPY_REDIS.name, 2): 200,
        (SCRAPY_REDIS.name, 20): 40,
        (SCRAPY_REDIS_BLOOM.name, 2): 30,
        (SCRAPY_REDIS_BLOOM.name, 20): 10,
    },
)
QUICK = Size(
    pages=10,
    rounds=1,
    round_trips=(20,),
    ours=(REDISQ_BLOOM,),
    real_pages=0,
    real_sites=(),
    peers=(),
    peer_pages={},
)

COLUMNS = ["site", "round trip ms", "variant", "pages", "pages/s", "x memory"]
COLUMNS += ["CPU ms/page", "CPU x memory"]


def run(*, quick: bool) -> Result:
    """Crawl the sites with all variants, one process each."""
    size = QUICK if quick else FULL
    with closing(RedisServer(any_server("redis-7"))) as server:
        bench = Comparison(server)
        _generated(bench, size)
        _real(bench, size)
    bench.notes.append(
        "Each line is the median of "
        f"{size.rounds} rounds; from the first response to the close of the spider; Scrapy's "
        "default concurrency (8 for one host). CPU is that of the crawling process in that time."
    )
    if size.peer_pages:
        bench.notes.append(
            "Ran once: peers at a distance, on a smaller site with as many links a page (their "
            "time is round trips, which do not vary), scrapy-redis on real pages, and real pages "
            "at 20 ms."
        )
    title = "One worker, by scheduler, site and distance from Redis"
    return Result("crawl", title, COLUMNS, bench.rows, list(_targets(bench)), bench.notes)


def _generated(bench: Comparison, size: Size) -> None:
    with Pages(size.pages) as site:
        for round_trip in size.round_trips:
            variants = size.ours if round_trip else (*size.ours, *size.peers)
            bench.compare("generated", site, round_trip, variants, size.rounds)
            for peer in size.peers:
                # A small site of the same kind, because the whole one would take hours.
                if pages := size.peer_pages.get((peer.name, round_trip)):
                    with Pages(pages) as small:
                        bench.beside("generated", small, round_trip, peer)


def _real(bench: Comparison, size: Size) -> None:
    for package in size.real_sites:
        folder = REAL_SITES[package]
        if not (folder / "index.html").exists():
            bench.notes.append(f"{package} is not installed: left out.")
            continue
        with Pages(size.real_pages, folder=folder) as site:
            bench.compare(package, site, 0, (REDISQ_BLOOM,), size.rounds)
            if size.peers:
                bench.beside(package, site, 0, SCRAPY_REDIS)
                bench.compare(package, site, 20, (REDISQ_BLOOM,), rounds=1)


def _targets(bench: Comparison) -> Iterator[Target]:
    ours = [row for row in bench.rows if row["variant"].startswith("scrapy-redisq")]
    beside = "beside Scrapy in memory"
    for row in ours:
        what = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms: pages/s {beside}"
        yield Target.at_least(what, row["x memory"], FASTER_THAN_MEMORY, ">=")
    for row in ours:
        what = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms: CPU a page {beside}"
        yield Target.at_most(what, row["CPU x memory"], 1, "<=")
    for round_trip, times in FASTER_THAN_SCRAPY_REDIS.items():
        peer = bench.row("generated", round_trip, SCRAPY_REDIS)
        mine = bench.row("generated", round_trip, REDISQ_BLOOM)
        if peer and mine:
            found = mine["pages/s"] / peer["pages/s"]
            what = f"pages/s beside scrapy-redis, {round_trip} ms"
            yield Target(what, f">= {times} x", f"{found:.1f} x", found >= times)
