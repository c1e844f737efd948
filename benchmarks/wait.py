"""What it costs a worker that each exchange waits for a replica (REDISQ_WAIT_REPLICAS)."""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.common import Result, alternating, medians, ratio
from benchmarks.crawls.clusters import crawl, rigs
from benchmarks.crawls.pages import Pages

MASTERS = 3
HOSTS = 60

COLUMNS = ["round trip ms", "REDISQ_WAIT_REPLICAS", "pages/s", "x without", "CPU ms/page"]
COLUMNS += ["Redis CPU µs/page", "Redis CPU x", "exchanges/page", "bytes/page"]


def run(*, quick: bool) -> Result:
    """Crawl on three masters with a replica each, with WAIT and without, near and far."""
    pages, rounds, round_trips = (10, 1, (0,)) if quick else (400, 5, (0, 2, 20))
    rows: list[dict[str, Any]] = []
    with (
        rigs(MASTERS, replicas=1, quick=quick) as made,
        Pages(pages, links=20, hosts=HOSTS) as site,
    ):
        rig = made[MASTERS]
        for round_trip in round_trips:
            with rig.away(round_trip) as url:
                runs = alternating(
                    {
                        str(replicas): functools.partial(
                            crawl, rig, url, site, settings={"REDISQ_WAIT_REPLICAS": replicas}
                        )
                        for replicas in (0, 1)
                    },
                    rounds,
                )
            rows += [
                {
                    "round trip ms": round_trip,
                    "REDISQ_WAIT_REPLICAS": int(replicas),
                    "x without": ratio(measured, runs["0"], "pages/s"),
                    "Redis CPU x": ratio(measured, runs["0"], "Redis CPU µs/page"),
                    **medians(measured),
                }
                for replicas, measured in runs.items()
            ]
    return Result(
        "wait",
        "WAIT for a replica in each exchange",
        COLUMNS,
        rows,
        notes=[
            f"{MASTERS} masters with a replica each, as far from the master as the worker is; one "
            f"worker, {pages} pages on {HOSTS} hosts, medians of {rounds} rounds. Redis CPU: of "
            "the masters.",
        ],
    )
