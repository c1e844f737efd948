"""What a request costs Redis in shards of a cluster, without Scrapy: full exchanges."""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls.clusters import Rig, rigs
from benchmarks.loads.clients import Clients

OVER_ONE_SERVER = 1.15

COLUMNS = ["masters", "shards", "requests/s per core", "Redis CPU µs", "x one server"]
COLUMNS += ["exchanges", "bytes", "busiest master x share"]
"""Exchanges and bytes are those of a request."""


def _measure(rig: Rig, clients: Clients, number: int, shards: int, seconds: float) -> Figures:
    rig.flush()
    before = []
    results = clients.run(
        number,
        lambda: before.append(rig.used()),
        job="shards",
        url=rig.url,
        shards=shards,
        seconds=seconds,
    )
    used = rig.used().since(before[0])
    requests = sum(result["requests"] for result in results)
    return {
        "requests/s per core": requests / sum(used.cpu),
        "Redis CPU µs": sum(used.cpu) * 1e6 / requests,
        "exchanges": used.exchanges / requests,
        "bytes": used.bytes / requests,
        "busiest master x share": max(used.cpu) * len(used.cpu) / sum(used.cpu),
    }


def run(*, quick: bool) -> Result:
    """Measure with growing numbers of shards on one server, on one master and on three."""
    seconds, rounds, number = (0.1, 1, 1) if quick else (0.5, 3, 2)
    layouts = [(0, 1), (3, 3)] if quick else [(0, 1)]
    if not quick:
        layouts += [(1, shards) for shards in (1, 4, 16, 64)]
        layouts += [(3, shards) for shards in (3, 6, 16, 64)]
    numbers = sorted({masters for masters, _ in layouts})
    with rigs(*numbers, quick=quick) as made, Clients(number) as clients:
        measured = alternating(
            {
                f"{masters} {shards}": functools.partial(
                    _measure, made[masters], clients, number, shards, seconds
                )
                for masters, shards in layouts
            },
            rounds,
        )
    one = measured["0 1"]
    rows: list[dict[str, Any]] = []
    for masters, shards in layouts:
        runs = measured[f"{masters} {shards}"]
        over = ratio(runs, one, "Redis CPU µs")
        rows.append(
            {
                "masters": masters or "one server",
                "shards": shards,
                "x one server": over,
                **medians(runs),
            }
        )
    by_itself = next(row for row in rows if row["masters"] == row["shards"] == 3)
    worst = max(row["x one server"] for row in rows)
    return Result(
        "shards",
        "Redis CPU of a request in a cluster, exchanges of a hundred",
        COLUMNS,
        rows,
        targets=[
            Target(
                "Redis CPU a request, full exchanges, 3 masters beside one server",
                f"≤ {OVER_ONE_SERVER:g} x",
                f"{by_itself['x one server']:.2f} x (with any number of shards at most "
                f"{worst:.2f} x)",
                by_itself["x one server"] <= OVER_ONE_SERVER,
            )
        ],
        notes=[
            "Exchanges of 100 enqueues, 100 claims, 100 finishes over 10 slots of one shard, the "
            "shards in turn. CPU: user and system time of all servers, the network included, "
            "without what a server that rests has used in the same time.",
        ],
    )
