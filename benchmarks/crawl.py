"""Pages per second of one worker, beside Scrapy in memory and scrapy-redis, near Redis and far."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import (
    MEMORY,
    REDISQ_BLOOM,
    REDISQ_EXACT,
    SCRAPY_REDIS,
    SCRAPY_REDIS_BLOOM,
    DidNotRun,
    Variant,
    crawl,
)
from lab.proxy import Proxy
from lab.servers import RedisServer, any_server


class Comparison:
    """One Redis server and the rows so far."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._runs: dict[str, bool] = {}

    def crawl(self, variant: Variant, site: Pages, redis_port: int) -> Figures:
        """One crawl of the whole site. Raises `DidNotRun`."""
        report = crawl(variant, site.start_url, self.server, redis_port=redis_port)
        if report["pages"] != site.pages:
            raise DidNotRun(f"{variant.name} fetched {report['pages']} of {site.pages} pages")
        return {
            "pages": report["pages"],
            "pages/s": report["pages"] / report["seconds"],
            "CPU ms/page": report["cpu"] / report["pages"] * 1000,
            "exchanges": report["exchanges"],
        }

    def compare(
        self, name: str, site: Pages, round_trip: int, variants: tuple[Variant, ...], rounds: int
    ) -> None:
        """Rows of the variants and of Scrapy in memory, in alternating rounds."""
        with self._distant(round_trip) as port:
            if round_trip and name == "generated":
                self.notes.append(f"Round trip {round_trip} ms: a PING took {ping(port):.1f} ms.")
            runs = alternating(
                {
                    variant.name: partial(self.crawl, variant, site, port)
                    for variant in (MEMORY, *filter(self.runs, variants))
                },
                rounds,
            )
        for variant, measured in runs.items():
            self._add(name, round_trip, variant, measured, runs[MEMORY.name])

    def beside(self, name: str, site: Pages, round_trip: int, peer: Variant) -> None:
        """One crawl by a peer, beside the row that Scrapy in memory has already."""
        memory = self.row(name, round_trip, MEMORY)
        if memory is not None and self.runs(peer):
            with self._distant(round_trip) as port:
                figures = self.crawl(peer, site, port)
            self._add(name, round_trip, peer.name, [figures], [memory])

    @contextmanager
    def _distant(self, round_trip: int) -> Iterator[int]:
        """A port at which the server is so many ms away."""
        if not round_trip:
            yield self.server.port
            return
        with Proxy(self.server.port) as proxy:
            proxy.round_trip = round_trip / 1000
            yield proxy.port

    def runs(self, variant: Variant) -> bool:
        """Whether a peer runs with this Scrapy at all; noted once if not."""
        if variant.peer and variant.name not in self._runs:
            try:
                with Pages(3, links=3) as tiny:
                    self.crawl(variant, tiny, self.server.port)
                self._runs[variant.name] = True
            except (DidNotRun, subprocess.CalledProcessError) as error:
                self._runs[variant.name] = False
                detail = getattr(error, "stderr", None) or str(error)
                self.notes.append(f"{variant.name} did not run: {detail.strip().splitlines()[-1]}")
        return self._runs.get(variant.name, True)

    def _add(
        self,
        site: str,
        round_trip: int,
        variant: str,
        measured: list[Figures],
        memory: list[Figures],
    ) -> None:
        """Ratios are medians of the rounds' ratios, so that they are between neighbours in time."""
        figures = medians(measured)
        row = {"site": site, "round trip ms": round_trip, "variant": variant, **figures}
        row["pages"] = int(figures["pages"])
        row["x memory"] = ratio(measured, memory, "pages/s")
        row["CPU x memory"] = ratio(measured, memory, "CPU ms/page")
        self.rows.append(row)

    def row(self, site: str, round_trip: int, variant: Variant) -> dict[str, Any] | None:
        """The row of a measurement, None if it was not made."""
        wanted = (site, round_trip, variant.name)
        rows = ((row["site"], row["round trip ms"], row["variant"]) for row in self.rows)
        return next((row for row, key in zip(self.rows, rows, strict=True) if key == wanted), None)


def ping(port: int) -> float:
    """The median time of a PING in ms."""
    times = []
    with redis.Redis(port=port) as client:
        client.ping()
        for _ in range(20):
            began = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


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


PAGES, ROUNDS = 1500, 3

PEER_PAGES = {
    (SCRAPY_REDIS.name, 2): 200,
    (SCRAPY_REDIS.name, 20): 40,
    (SCRAPY_REDIS_BLOOM.name, 2): 30,
    (SCRAPY_REDIS_BLOOM.name, 20): 10,
}
"""Pages of the site that each peer gets at a round trip: the whole one would take hours."""

COLUMNS = ["site", "round trip ms", "variant", "pages", "pages/s", "x memory"]
COLUMNS += ["CPU ms/page", "CPU x memory"]


def run(*, quick: bool) -> Result:
    """Crawl the sites with all variants, one process each."""
    with closing(RedisServer(any_server("redis-7"))) as server:
        bench = Comparison(server)
        if quick:
            with Pages(10) as site:
                bench.compare("generated", site, 20, (REDISQ_BLOOM,), rounds=1)
        else:
            _generated(bench)
            _real(bench)
    bench.notes += [
        f"Each line is the median of {1 if quick else ROUNDS} rounds; from the first response to "
        "the close of the spider; Scrapy's default concurrency (8 for one host). CPU is that of "
        "the crawling process in that time.",
        "Ran once: peers at a distance, on a smaller site with as many links a page (their time is "
        "round trips, which do not vary), scrapy-redis on real pages, and real pages at 20 ms.",
    ]
    title = "One worker, by scheduler, site and distance from Redis"
    return Result("crawl", title, COLUMNS, bench.rows, list(_targets(bench)), bench.notes)


def _generated(bench: Comparison) -> None:
    ours = (REDISQ_BLOOM, REDISQ_EXACT)
    with Pages(PAGES) as site:
        for round_trip in ROUND_TRIPS:
            variants = ours if round_trip else (*ours, *PEERS)
            bench.compare("generated", site, round_trip, variants, ROUNDS)
            for peer in PEERS if round_trip else ():
                with Pages(PEER_PAGES[peer.name, round_trip]) as small:
                    bench.beside("generated", small, round_trip, peer)


def _real(bench: Comparison) -> None:
    for package, folder in REAL_SITES.items():
        if not (folder / "index.html").exists():
            bench.notes.append(f"{package} is not installed: left out.")
            continue
        with Pages(PAGES, folder=folder) as site:
            bench.compare(package, site, 0, (REDISQ_BLOOM,), ROUNDS)
            bench.beside(package, site, 0, SCRAPY_REDIS)
            bench.compare(package, site, 20, (REDISQ_BLOOM,), rounds=1)


def _targets(bench: Comparison) -> Iterator[Target]:
    ours = [row for row in bench.rows if row["variant"].startswith("scrapy-redisq")]
    beside = "beside Scrapy in memory"
    for row in ours:
        what = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms: pages/s {beside}"
        yield Target.at_least(what, row["x memory"], FASTER_THAN_MEMORY)
    for row in ours:
        what = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms: CPU a page {beside}"
        yield Target.at_most(what, row["CPU x memory"], 1)
    for round_trip, times in FASTER_THAN_SCRAPY_REDIS.items():
        peer = bench.row("generated", round_trip, SCRAPY_REDIS)
        mine = bench.row("generated", round_trip, REDISQ_BLOOM)
        if peer and mine:
            what = f"pages/s beside scrapy-redis, {round_trip} ms"
            yield Target.at_least(what, mine["pages/s"] / peer["pages/s"], times)
