"""Pages per second of one worker, beside Scrapy in memory and scrapy-redis, near Redis and far."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Figures, Result, Target, alternate
from benchmarks.proxy import Proxy
from benchmarks.site import Site
from benchmarks.workers import (
    MEMORY,
    REDISQ_BLOOM,
    REDISQ_EXACT,
    SCRAPY_REDIS,
    SCRAPY_REDIS_BLOOM,
    DidNotRun,
    Folder,
    Variant,
    Worker,
)
from tests.harness.servers import RedisServer, any_server

REAL_SITES = {
    "python3.11-doc": Path("/usr/share/doc/python3.11/html"),
    "postgresql-doc-15": Path("/usr/share/doc/postgresql-doc-15/html"),
    "openjdk-17-doc": Path("/usr/share/doc/openjdk-17-jre-headless/api"),
}
"""Debian's packages that bring real pages, and where."""

ROUND_TRIPS = (0, 2, 20)
"""Added to each exchange with Redis, in milliseconds."""

OURS = (REDISQ_BLOOM, REDISQ_EXACT)
PEERS = (SCRAPY_REDIS, SCRAPY_REDIS_BLOOM)

FASTER_THAN_MEMORY = 1.05
FASTER_THAN_SCRAPY_REDIS = {0: 2, 2: 20, 20: 150}


@dataclass(frozen=True)
class Size:
    """How much is run. ``peer_pages``: pages of the site that each peer gets at a round trip."""

    pages: int
    rounds: int
    round_trips: tuple[int, ...]
    real_pages: int
    real_sites: tuple[str, ...]
    peers: tuple[Variant, ...]
    peer_pages: dict[tuple[str, int], int]


FULL = Size(
    pages=1500,
    rounds=3,
    round_trips=ROUND_TRIPS,
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
    pages=120,
    rounds=1,
    round_trips=(0, 20),
    real_pages=40,
    real_sites=("python3.11-doc",),
    peers=(SCRAPY_REDIS,),
    peer_pages={(SCRAPY_REDIS.name, 20): 5},
)

COLUMNS = ["site", "round trip ms", "variant", "pages", "pages/s", "x memory"]
COLUMNS += ["CPU ms/page", "CPU x memory"]


class Bench:
    """One Redis server and the rows so far."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.server = RedisServer(any_server("redis-7"))
        self._failed: set[str] = set()

    def crawl(self, variant: Variant, site: Site, redis_port: int) -> Figures:
        """One crawl of the whole site by a process of its own, into an empty Redis."""
        with self.server.client() as client:
            client.flushall()
        with Folder() as folder:
            worker = Worker(variant, site.start_url, folder.path, redis_port=redis_port)
            report = worker.report()
        if report["pages"] != site.pages:
            raise DidNotRun(f"{variant.name} fetched {report['pages']} of {site.pages} pages")
        return {
            "pages": report["pages"],
            "pages/s": report["pages"] / report["seconds"],
            "CPU ms/page": report["cpu"] / report["pages"] * 1000,
            "exchanges": report["exchanges"],
        }

    def compare(
        self,
        name: str,
        site: Site,
        round_trip: int,
        variants: tuple[Variant, ...],
        rounds: int | None = None,
    ) -> None:
        """Rows of the variants and of Scrapy in memory, in alternating rounds.

        Ratios are medians of the rounds' ratios, so that they are between neighbours in time.
        """
        runs: dict[str, list[Figures]] = {}

        def recorded(variant: Variant) -> Callable[[], Figures]:
            def run() -> Figures:
                figures = self.crawl(variant, site, proxy.port)
                runs.setdefault(variant.name, []).append(figures)
                return figures

            return run

        with Proxy(self.server.port, round_trip / 1000) as proxy:
            if round_trip and name == "generated":
                self.notes.append(
                    f"Round trip {round_trip} ms: a PING took {proxy.measured() * 1000:.1f} ms."
                )
            able = [variant for variant in variants if self._runs(variant, site, proxy.port)]
            medians = alternate(
                {variant.name: recorded(variant) for variant in (MEMORY, *able)},
                rounds or self.size.rounds,
            )
        memory = runs[MEMORY.name]
        for variant, figures in medians.items():
            pairs = list(zip(runs[variant], memory, strict=True))
            self.add(
                name,
                round_trip,
                variant,
                figures,
                statistics.median(run["pages/s"] / beside["pages/s"] for run, beside in pairs),
                statistics.median(
                    run["CPU ms/page"] / beside["CPU ms/page"] for run, beside in pairs
                ),
            )

    def _runs(self, variant: Variant, site: Site, redis_port: int) -> bool:
        """Whether a peer runs with this Scrapy at all; said once if not."""
        if not variant.peer or variant.name in self._failed:
            return not variant.peer
        try:
            with Site(pages=3, links=3) as tiny:
                self.crawl(variant, tiny, redis_port)
        except (DidNotRun, subprocess.CalledProcessError) as error:
            self._failed.add(variant.name)
            detail = getattr(error, "stderr", None) or str(error)
            self.notes.append(f"{variant.name} did not run: {detail.strip().splitlines()[-1]}")
            return False
        return True

    def add(
        self,
        site: str,
        round_trip: int,
        variant: str,
        figures: Figures,
        speed: float,
        cpu: float,
    ) -> None:
        """One row; ``speed`` and ``cpu`` are ratios to Scrapy in memory."""
        self.rows.append(
            {
                "site": site,
                "round trip ms": round_trip,
                "variant": variant,
                "pages": int(figures["pages"]),
                "pages/s": figures["pages/s"],
                "x memory": speed,
                "CPU ms/page": figures["CPU ms/page"],
                "CPU x memory": cpu,
                "exchanges": figures["exchanges"],
            }
        )

    def once(self, name: str, site: Site, round_trip: int, variant: Variant) -> None:
        """One crawl by a peer, beside the row that Scrapy in memory has already."""
        memory = self.row(name, round_trip, MEMORY)
        if memory is None or variant.name in self._failed:
            return
        with Proxy(self.server.port, round_trip / 1000) as proxy:
            if self._runs(variant, site, proxy.port):
                figures = self.crawl(variant, site, proxy.port)
                self.add(
                    name,
                    round_trip,
                    variant.name,
                    figures,
                    figures["pages/s"] / memory["pages/s"],
                    figures["CPU ms/page"] / memory["CPU ms/page"],
                )

    def row(self, site: str, round_trip: int, variant: Variant) -> dict[str, Any] | None:
        """The row of a measurement, None if it was not made."""
        for row in self.rows:
            if (row["site"], row["round trip ms"], row["variant"]) == (
                site,
                round_trip,
                variant.name,
            ):
                return row
        return None


def run(*, quick: bool) -> Result:
    """Crawl the sites with all variants, one process each."""
    size = QUICK if quick else FULL
    bench = Bench(size)
    try:
        _generated(bench)
        _real(bench)
    finally:
        bench.server.close()
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
    return Result(
        "crawl",
        "One worker, by scheduler, site and distance from Redis",
        COLUMNS,
        bench.rows,
        targets=list(_targets(bench)),
        notes=bench.notes,
    )


def _generated(bench: Bench) -> None:
    with Site(pages=bench.size.pages) as site:
        for round_trip in bench.size.round_trips:
            beside = () if round_trip else bench.size.peers
            bench.compare("generated", site, round_trip, (*OURS, *beside))
            for peer in bench.size.peers:
                # A small site of the same kind, because the whole one would take hours.
                if pages := bench.size.peer_pages.get((peer.name, round_trip)):
                    with Site(pages=pages) as small:
                        bench.once("generated", small, round_trip, peer)


def _real(bench: Bench) -> None:
    for package in bench.size.real_sites:
        folder = REAL_SITES[package]
        if not (folder / "index.html").exists():
            bench.notes.append(f"{package} is not installed: left out.")
            continue
        with Site(pages=bench.size.real_pages, folder=folder) as site:
            bench.compare(package, site, 0, (REDISQ_BLOOM,))
            bench.once(package, site, 0, SCRAPY_REDIS)
            if bench.size.rounds > 1:
                bench.compare(package, site, 20, (REDISQ_BLOOM,), rounds=1)


def _targets(bench: Bench) -> list[Target]:
    targets = []
    ours = [row for row in bench.rows if row["variant"].startswith("scrapy-redisq")]
    for row in ours:
        where = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms"
        targets.append(
            Target(
                f"{where}: pages/s beside Scrapy in memory",
                f">= {FASTER_THAN_MEMORY} x",
                f"{row['x memory']:.2f} x",
                row["x memory"] >= FASTER_THAN_MEMORY,
            )
        )
    for row in ours:
        where = f"{row['variant']}, {row['site']}, {row['round trip ms']} ms"
        targets.append(
            Target(
                f"{where}: CPU a page beside Scrapy in memory",
                "<= 1 x",
                f"{row['CPU x memory']:.2f} x",
                row["CPU x memory"] <= 1,
            )
        )
    for round_trip, times in FASTER_THAN_SCRAPY_REDIS.items():
        peer = bench.row("generated", round_trip, SCRAPY_REDIS)
        mine = bench.row("generated", round_trip, REDISQ_BLOOM)
        if peer and mine:
            ratio = mine["pages/s"] / peer["pages/s"]
            targets.append(
                Target(
                    f"pages/s beside scrapy-redis, {round_trip} ms",
                    f">= {times} x",
                    f"{ratio:.1f} x",
                    ratio >= times,
                )
            )
    return targets
