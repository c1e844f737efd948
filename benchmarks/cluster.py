"""One worker on one server and on clusters, near and far; what it costs Redis."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls.clusters import Rig, crawl, rigs
from benchmarks.crawls.pages import Pages
from benchmarks.latency import last_page_to_end, push_to_download
from lab.cluster import Cluster

HOSTS = 60
PAGES, ROUNDS = 400, 5
OF_ONE_SERVER = 0.95
REDIS_CPU = 1.15

COLUMNS = ["masters", "round trip ms", "pages/s", "x one server", "end s", "CPU ms/page"]
COLUMNS += ["Redis CPU µs/page", "Redis CPU x", "scripts µs/page"]
COLUMNS += ["exchanges/page", "bytes/page", "busiest master x share"]


def _rows(
    made: dict[int, Rig],
    layouts: Sequence[int],
    round_trip: int,
    site: Pages,
    rounds: int,
) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        urls = {masters: stack.enter_context(made[masters].away(round_trip)) for masters in layouts}
        runs: dict[str, list[Figures]] = alternating(
            {
                str(masters): functools.partial(crawl, made[masters], urls[masters], site)
                for masters in layouts
            },
            rounds,
        )
    one = runs["0"]
    return [
        {
            "masters": masters or "one server",
            "round trip ms": round_trip,
            "x one server": ratio(measured, one, "pages/s"),
            "Redis CPU x": ratio(measured, one, "Redis CPU µs/page"),
            **medians(measured),
        }
        for masters in layouts
        for measured in [runs[str(masters)]]
    ]


def run(*, quick: bool) -> Result:
    """Crawl a site of many hosts with one worker; then let fleets wait, and end."""
    pages, rounds = (10, 1) if quick else (PAGES, ROUNDS)
    layouts = (0, 1) if quick else (0, 1, 3)
    with rigs(*layouts, quick=quick) as made:
        with Pages(pages, links=20, hosts=HOSTS) as site:
            rows = _rows(made, layouts, 0, site, rounds)
            for round_trip in () if quick else (2, 20):
                rows += _rows(made, (0, 3), round_trip, site, rounds)
        three = None if quick else made[3].cluster
        waits = _waits(three, pages) if three else []
    return Result(
        "cluster",
        "One worker on a cluster",
        COLUMNS,
        rows,
        targets=[*_targets(rows)],
        notes=[
            f"{pages} pages on {HOSTS} hosts, 20 links each to any of them; medians of {rounds} "
            "rounds, ratios of neighbours in time. Pages/s: from the first to the last request, as "
            "the site saw them; end: from there to the end of the process. CPU ms/page: of the "
            "worker. Redis CPU: user and "
            "system time of all servers, the network and the start of the crawl included, without "
            "what a server that rests has used in the same time.",
            *waits,
        ],
    )


def _waits(cluster: Cluster, pages: int) -> list[str]:
    pushes = push_to_download(cluster, 20, 2)
    ends = last_page_to_end(cluster, 5, pages, 4, HOSTS)
    return [
        f"On 3 masters: from a push to its download, 2 idle workers, median "
        f"{statistics.median(pushes):.2f} s, at most {max(pushes):.2f} s ({len(pushes)} samples); "
        f"from the last page to the end of 4 processes, median {statistics.median(ends):.2f} s, at "
        f"most {max(ends):.2f} s ({len(ends)} samples).",
    ]


def _targets(rows: list[dict[str, Any]]) -> list[Target]:
    """Of the largest cluster that was measured."""
    targets = []
    largest = rows[-1]["masters"]
    for row in rows:
        if row["masters"] != largest:
            continue
        where = f"one worker, {largest} masters beside one server, {row['round trip ms']} ms"
        targets += [
            Target.at_least(f"pages/s of {where}", row["x one server"], OF_ONE_SERVER),
            Target.at_most(f"Redis CPU a page of {where}", row["Redis CPU x"], REDIS_CPU),
        ]
    return targets
