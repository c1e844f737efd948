"""Dupefilters alone: false positives, inserts per second, Redis time for a new URL."""

from __future__ import annotations

import functools
import time
from typing import Any

from benchmarks.common import Result, Target, alternate
from benchmarks.loads.filters import BATCH, Filter, backends

POINTS = {"half": 0.5, "full": 1.0, "twice": 2.0}
FAR = {"10 times": 10.0}
"""Where only errors are of interest: filters that were designed far too small."""
CPU_GOALS = {"redisbloom": 1.0, "exact": 1.5, "bitmap": 10.0}  # µs
MOST_ERRORS = 2.0  # times the configured rate

# Error rate, designed size, probes. The first is the default, for times; at the second there are
# errors enough to tell a rate from chance.
FULL = [(1e-6, 1_000_000, 300_000), (1e-4, 200_000, 300_000)]
QUICK = [(1e-6, 20_000, 1_000)]
TELLING = 10  # expected false positives, at least

SMALL_BATCH = 50
"""URLs of one page, as an exchange of a single worker often carries."""

COLUMNS = ["filter", "rate", "filled", "URLs", "wrong", "of", "x rate"]
COLUMNS += ["inserts/s", "µs new", "known", "new, few"]


def run(*, quick: bool) -> Result:
    """Measure all filters of this machine side by side at each size."""
    rows: list[dict[str, Any]] = []
    for number, (rate, capacity, probes) in enumerate(QUICK if quick else FULL):
        # The exact filter knows no error rate.
        names = backends() if number == 0 else [name for name in backends() if name != "exact"]
        filters = {name: Filter(name, rate, capacity) for name in names}
        try:
            points = POINTS if number == 0 else POINTS | FAR
            if quick:
                points = {"full": 1.0}
            for filled, times in points.items():
                rows += _at(filled, round(times * capacity), filters, rate, probes, quick)
        finally:
            for one in filters.values():
                one.close()
    return Result(
        "seen",
        "Dupefilters: errors, speed and Redis time for a URL",
        COLUMNS,
        rows,
        targets=_targets(rows),
        notes=[
            "wrong: new URLs taken for seen, of those that were asked about without recording "
            "them (exact: of all that were recorded); x rate: over the configured rate.",
            f"µs: Redis' processor time for a URL, {BATCH} in a call (few: {SMALL_BATCH}), over "
            "that of a script without filter; new or known to the filter.",
            "inserts/s: one client, its own work included.",
        ],
    )


def _at(
    filled: str, size: int, filters: dict[str, Filter], rate: float, probes: int, quick: bool
) -> list[dict[str, Any]]:
    """Fill all filters up to ``size``, the last tenth in alternating rounds, and probe them."""
    rounds = 1 if quick else 7
    window = max(10 * BATCH, size // 20 // rounds)
    speed = {}
    for name, one in filters.items():
        before, began = one.added, time.perf_counter()
        one.grow_to(size - 2 * rounds * window)
        speed[name] = (one.added - before) / (time.perf_counter() - began)
    variants = {name: functools.partial(_costs, one, window) for name, one in filters.items()}
    costs = alternate(variants, rounds)
    rows = []
    for name, one in filters.items():
        lost, asked = one.false_positives(probes)
        rows.append(
            {
                "filter": name,
                "rate": 0.0 if name == "exact" else rate,
                "filled": filled,
                "URLs": one.added,
                "wrong": lost,
                "of": asked,
                "x rate": _times(lost, asked, rate) if name != "exact" else "",
                "inserts/s": speed[name],
                "µs new": costs[name]["new"],
                "known": costs[name]["known"],
                "new, few": costs[name]["new, few"],
            }
        )
    return rows


def _costs(one: Filter, window: int) -> dict[str, float]:
    return {**one.costs(window, BATCH), "new, few": one.costs(window, SMALL_BATCH)["new"]}


def _times(lost: int, asked: int, rate: float) -> float | str:
    """False positives over the rate, if so many were asked that it is no chance."""
    return lost / asked / rate if asked * rate >= TELLING else ""


def _targets(rows: list[dict[str, Any]]) -> list[Target]:
    targets = []
    if telling := [row for row in rows if isinstance(row["x rate"], float)]:
        worst = max(telling, key=lambda row: float(row["x rate"]))
        targets.append(
            Target(
                "false positives over the configured rate, the most",
                f"≤ {MOST_ERRORS:g}",
                f"{worst['x rate']:.2f} ({worst['filter']}, {worst['filled']})",
                worst["x rate"] <= MOST_ERRORS,
            )
        )
    for name, goal in CPU_GOALS.items():
        mine = [row for row in rows if row["filter"] == name and row["rate"] in {0.0, 1e-6}]
        if mine:
            targets.append(
                Target(
                    f"Redis µs for a new URL, {name}",
                    f"≤ {goal:g}",
                    ", ".join(f"{row['µs new']:.2f} {row['filled']}" for row in mine),
                    max(row["µs new"] for row in mine) <= goal,
                )
            )
    return targets
