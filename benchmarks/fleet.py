"""How a crawl grows with its workers: 1, 2, 4 and 8 on one frontier."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from functools import partial
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, cpu_of, medians
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import Fleet
from lab.servers import RedisServer, any_server

SLOW = 0.1
"""Seconds that each answer of the slow site takes: one worker can then fetch 80 pages a second."""

COLUMNS = ["answers after ms", "workers", "pages/s", "x one worker", "end s", "CPU busy"]
COLUMNS += ["Redis script µs/page", "Redis process µs/page", "exchanges/page", "fetched twice"]


def crawl(server: RedisServer, site: Pages, workers: int) -> Figures:
    """One crawl by a fleet whose workers all wait until the last of them is ready.

    Pages per second from the first request to the last one, as the site saw them; end: seconds from
    there until all processes are gone.
    """
    site.hits.clear()
    with Fleet(server, workers, site) as fleet, server.client() as client:
        client.config_resetstat()
        cpu = cpu_of(client.info("cpu"))
        fleet.begin()
        reports, ended = fleet.reports(), time.monotonic()
        scripts = client.info("commandstats")["cmdstat_evalsha"]
        cpu = cpu_of(client.info("cpu")) - cpu
    hits = site.hits
    seconds = hits[-1].at - hits[0].at
    pages = len(hits)
    fetched = len({hit.path for hit in hits})
    return {
        "pages/s": pages / seconds,
        "end s": ended - hits[-1].at,
        "CPU busy": sum(report["cpu"] for report in reports) / seconds,
        "Redis script µs/page": scripts["usec"] / pages,
        "Redis process µs/page": cpu * 1e6 / pages,
        "exchanges/page": scripts["calls"] / pages,
        "fetched twice": pages - fetched,
        "missing": site.pages - fetched,
    }


def run(*, quick: bool) -> Result:
    """Crawl a site that answers at once and one that takes its time with growing fleets."""
    sizes, delays = ((2,), (0.0,)) if quick else ((1, 2, 4, 8), (SLOW, 0.0))
    pages, rounds = (10, 1) if quick else (800, 3)
    rows: list[dict[str, Any]] = []
    with RedisServer(any_server("redis-7")) as server:
        for delay in delays:
            with Pages(pages=pages, delay=delay) as site:
                variants = {workers: partial(crawl, server, site, workers) for workers in sizes}
                measured = alternating(variants, rounds)
            found = {workers: medians(runs) for workers, runs in measured.items()}
            one = found[sizes[0]]["pages/s"]
            rows += [
                {
                    "answers after ms": round(delay * 1000),
                    "workers": workers,
                    "x one worker": figures["pages/s"] / one if sizes[0] == 1 else "",
                    **figures,
                    "fetched twice": int(figures["fetched twice"]),
                }
                for workers, figures in found.items()
            ]
    return Result(
        "fleet",
        "1 to 8 workers on one frontier",
        COLUMNS,
        rows,
        targets=_targets(rows),
        notes=[
            f"{pages} pages, 50 links each; medians of {rounds} rounds. The workers begin "
            "together; pages/s is from the first to the last request that the site saw, end from "
            "there until all processes are gone. CPU busy: cores that the workers kept busy; this "
            f"machine has {os.cpu_count()}, which site and Redis share.",
            "Redis script: time in EVALSHA by INFO commandstats, with all commands inside. Redis "
            "process: user and system time, which has the network, the wait for the end, and the "
            "server's own housekeeping in it.",
        ],
    )


def _targets(rows: list[dict[str, Any]]) -> list[Target]:
    slow = [row for row in rows if row["answers after ms"]]
    growth = ", ".join(f"{row['workers']}: {row['pages/s']:.0f}" for row in slow)
    cores = os.cpu_count() or 1
    grows = all(
        after["pages/s"] > 1.5 * before["pages/s"]
        for before, after in itertools.pairwise(slow)
        # Twice as many workers need twice the CPU: no more is to be had where that is not free.
        if 2 * before["CPU busy"] < 0.8 * cores
    )
    scripts = [row["Redis script µs/page"] for row in rows]
    median, worst = statistics.median(scripts), max(scripts)
    shown = f"{median:.1f} µs (median of the lines, at most {worst:.1f})"
    end = max(row["end s"] for row in rows)
    return [
        Target("pages/s by workers", "grows with cores until they are full", growth, grows),
        Target.none("pages fetched twice", sum(row["fetched twice"] for row in rows)),
        Target.none("pages missing", sum(row["missing"] for row in rows)),
        Target.at_most("Redis, time in scripts a page", worst, 15, shown=shown, unit=" µs"),
        Target.at_most("from the last page to the end of all workers", end, 3, unit=" s"),
    ]
