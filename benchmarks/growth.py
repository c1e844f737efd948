"""What one exchange costs Redis when much is queued, in many slots, for many workers."""

from __future__ import annotations

import functools
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.common import Result, Target, alternate
from benchmarks.loads.crowd import Crowd, Shape

SIZES = (20, 1)
"""Enqueues, claims and finishes of an exchange. With 1 of each an exchange looks after one slot,
however many there are."""

LIMITED_SIZES = (10, 1)
"""The same of slots with limits, of which there are ten at least."""

FLAT = 1.2
"""The dearest over the cheapest of a series."""

COLUMNS = ["series", "of each", "queued", "slots", "workers", "µs an exchange", "ratio"]


def _series(quick: bool) -> dict[str, tuple[tuple[int, ...], list[Shape]]]:
    """What grows in each series, and of which sizes its exchanges are."""
    usual = 20
    if quick:
        some = [Shape(1000, usual), Shape(1000, 100, workers=2)]
        limited_ones = [Shape(1000, usual, limited=True, parked=parked) for parked in (False, True)]
        return {"all": (SIZES, some), "slots with a delay": (LIMITED_SIZES, limited_ones)}
    most = 10_000_000
    many = (10, 1000, 100_000)
    limited = 1_000_000
    return {
        "queue": (SIZES, [Shape(queued, usual) for queued in (1000, 100_000, most)]),
        "slots": (SIZES, [Shape(most, slots) for slots in (1, usual, 1000, 100_000)]),
        "workers": (SIZES, [Shape(100_000, usual, workers) for workers in (1, usual, 400)]),
        "slots with a delay": (
            LIMITED_SIZES,
            [Shape(limited, slots, limited=True) for slots in many],
        ),
        "slots with a delay, none due": (
            LIMITED_SIZES,
            [Shape(limited, slots, limited=True, parked=True) for slots in many],
        ),
    }


def run(*, quick: bool) -> Result:
    """Measure the exchange in all sizes of a series in alternating rounds."""
    rounds, exchanges = (1, 10) if quick else (100, 25)
    rows: list[dict[str, Any]] = []
    targets = []
    for name, (sizes, growing) in _series(quick).items():
        costs = _measure(growing, sizes, rounds, exchanges)
        spans = []
        for size in sizes:
            # With fewer slots than it has entries, an exchange has less to look after.
            compared = [costs[size, what] for what in growing if what.slots >= size]
            spans.append(max(compared) / min(compared))
            rows += [
                {
                    "series": name,
                    "of each": size,
                    "queued": what.queued,
                    "slots": what.slots,
                    "workers": what.workers,
                    "µs an exchange": costs[size, what],
                    "ratio": costs[size, what] / compared[0],
                }
                for what in growing
            ]
        told = ", ".join(
            f"{span:.2f} with {size} of each" for span, size in zip(spans, sizes, strict=True)
        )
        targets.append(
            Target(f"dearest over cheapest, {name}", f"≤ {FLAT:g}", told, max(spans) <= FLAT)
        )
    return Result(
        "growth",
        "Redis time of an exchange as a frontier grows",
        COLUMNS,
        rows,
        targets=targets,
        notes=[
            "Of each: enqueues, claims and finishes of an exchange. Claims take turns among the "
            "slots, so an exchange with 20 of each looks after 20 slots if there are so many, and "
            "after one if there is one: that costs less, at any size of the frontier. The "
            "comparison begins with as many slots as entries, where the ratio is 1.",
            "What grows with the slots is mostly memory outside the processor's cache, the keys of "
            "slots that nobody has asked for lately; where few of many slots are in use most of it "
            "is gone. The rest is the sorted set of slots: O(log n).",
            "Slots with a delay: every claim of one takes its turn and gives it up in the next "
            "exchange. None due: an exchange enqueues, and finds nothing to claim.",
        ],
    )


def _measure(
    growing: list[Shape], sizes: tuple[int, ...], rounds: int, exchanges: int
) -> dict[tuple[int, Shape], float]:
    """Median µs by size of the exchange and of the frontier."""
    with ExitStack() as stack:
        variants = {}
        for what in growing:
            crowd = stack.enter_context(closing(Crowd(what)))
            for size in sizes:
                variants[size, what] = functools.partial(crowd.cost, size, exchanges)
        names = {str(key): key for key in variants}
        measured = alternate({name: variants[key] for name, key in names.items()}, rounds)
    return {key: measured[name]["µs"] for name, key in names.items()}
