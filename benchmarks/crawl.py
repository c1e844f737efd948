"""Pages per second of one worker, beside Scrapy in memory and scrapy-redis, near Redis and far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import (
    MEMORY,
    REDISQ_BLOOM,
    REDISQ_EXACT,
    SCRAPY_REDIS,
    Variant,
    crawl,
)
from lab.proxy import Proxy
from lab.servers import RedisServer, any_server

REAL_SITES = {
    "python3.11-doc": Path("/usr/share/doc/python3.11/html"),
    "postgresql-doc-15": Path("/usr/share/doc/postgresql-doc-15/html"),
    "openjdk-17-doc": Path("/usr/share/doc/openjdk-17-jre-headless/api"),
}
"""Debian's packages that bring real pages, and where."""

FASTER_THAN_SCRAPY_REDIS = {0: 2, 2: 20, 20: 150}
"""Times as fast, by the round trip to Redis in milliseconds."""

GENERATED = "generated"
PAGES, ROUNDS = 1500, 3
OURS = (REDISQ_BLOOM, REDISQ_EXACT)

PEER_PAGES = {2: 200, 20: 40}
"""Pages of the site that scrapy-redis gets at a round trip: the whole one would take hours."""

COLUMNS = ["site", "round trip ms", "variant", "pages", "pages/s", "x memory"]
COLUMNS += ["CPU ms/page", "CPU x memory"]


class Comparison:
    """One Redis server, near or by a proxy; the rows so far, by site, round trip and variant."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.rows: dict[tuple[str, int, Variant], dict[str, Any]] = {}
        self.notes: list[str] = []

    def crawl(self, variant: Variant, site: Pages, url: str) -> Figures:
        """One crawl of the whole site. Raises `DidNotRun`."""
        report = crawl(variant, site, self.server, url=url)
        return {
            "pages": site.pages,
            "pages/s": site.pages / report["seconds"],
            "CPU ms/page": report["cpu"] / site.pages * 1000,
        }

    def compare(
        self,
        name: str,
        site: Pages,
        round_trip: int,
        variants: Sequence[Variant],
        *,
        rounds: int = ROUNDS,
        once: Pages | None = None,
    ) -> None:
        """Rows of the variants and of Scrapy in memory, in alternating rounds; of scrapy-redis that
        crawls a site of its own ``once``. Ratios are medians of the rounds' ratios, so that they
        are between neighbours in time."""
        self.proxy.round_trip = round_trip / 1000
        url = self.server.url_through(self.proxy.port) if round_trip else self.server.url
        crawls = {one: partial(self.crawl, one, site, url) for one in (MEMORY, *variants)}
        runs = alternating(crawls, rounds)
        if once:
            runs[SCRAPY_REDIS] = [self.crawl(SCRAPY_REDIS, once, url)]
        for variant, measured in runs.items():
            memory = [medians(runs[MEMORY])] if once and variant is SCRAPY_REDIS else runs[MEMORY]
            self.rows[name, round_trip, variant] = {
                "site": name,
                "round trip ms": round_trip,
                "variant": variant.name,
                **medians(measured),
                "x memory": ratio(measured, memory, "pages/s"),
                "CPU x memory": ratio(measured, memory, "CPU ms/page"),
            }


def run(*, quick: bool) -> Result:
    """Crawl the sites with all variants, one process each."""
    with RedisServer(any_server("redis-7")) as server, Proxy(server.port) as proxy:
        bench = Comparison(server, proxy)
        if quick:
            with Pages(10) as site:
                bench.compare(GENERATED, site, 20, [REDISQ_BLOOM], rounds=1)
        else:
            _generated(bench)
            _real(bench)
    bench.notes += [
        f"Each line is the median of {1 if quick else ROUNDS} rounds; from the first response to "
        "the close of the spider; Scrapy's default concurrency (8 for one host). CPU is that of "
        "the crawling process in that time.",
        "Ran once: scrapy-redis at a distance, on a smaller site with as many links a page (its "
        "time is round trips, which do not vary), and on real pages, and real pages at 20 ms.",
    ]
    title = "One worker, by scheduler, site and distance from Redis"
    rows = list(bench.rows.values())
    return Result("crawl", title, COLUMNS, rows, list(_targets(bench)), bench.notes)


def _generated(bench: Comparison) -> None:
    with Pages(PAGES) as site:
        bench.compare(GENERATED, site, 0, [*OURS, SCRAPY_REDIS])
        for round_trip, pages in PEER_PAGES.items():
            with Pages(pages) as smaller:
                bench.compare(GENERATED, site, round_trip, OURS, once=smaller)


def _real(bench: Comparison) -> None:
    for package, folder in REAL_SITES.items():
        if not (folder / "index.html").exists():
            bench.notes.append(f"{package} is not installed: left out.")
            continue
        with Pages(PAGES, folder=folder) as site:
            bench.compare(package, site, 0, [REDISQ_BLOOM], once=site)
            bench.compare(package, site, 20, [REDISQ_BLOOM], rounds=1)


def _targets(bench: Comparison) -> Iterator[Target]:
    ours = {
        f"{variant.name}, {site}, {round_trip} ms": row
        for (site, round_trip, variant), row in bench.rows.items()
        if variant in OURS
    }
    beside = "beside Scrapy in memory"
    for what, row in ours.items():
        yield Target.at_least(f"{what}: pages/s {beside}", row["x memory"], 1.05)
    for what, row in ours.items():
        yield Target.at_most(f"{what}: CPU a page {beside}", row["CPU x memory"], 1)
    for round_trip, times in FASTER_THAN_SCRAPY_REDIS.items():
        if peer := bench.rows.get((GENERATED, round_trip, SCRAPY_REDIS)):
            mine = bench.rows[GENERATED, round_trip, REDISQ_BLOOM]
            what = f"pages/s beside scrapy-redis, {round_trip} ms"
            yield Target.at_least(what, mine["pages/s"] / peer["pages/s"], times)
