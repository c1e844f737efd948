"""How long exchanges take, counted in buckets that workers add up in the frontier's counts.

There they outlast the workers: a histogram of Prometheus must not shrink when a worker leaves.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import NamedTuple

BOUNDS = (
    *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 10_000_000),
)
"""Upper bounds of the buckets, in us."""

_NAMES = (*(f"exchanges_{bound}" for bound in BOUNDS), "exchanges_more")
_SUM = "exchanges_us"


def took(seconds: float) -> dict[str, int]:
    """Additions of one answered exchange to the frontier's counts."""
    us = int(1e6 * seconds)
    return {_NAMES[bisect.bisect_left(BOUNDS, us)]: 1, _SUM: us}


class Durations(NamedTuple):
    """A histogram: how many took at most so many seconds, for each bound (the last is inf), and
    the seconds of all together."""

    within: list[tuple[float, int]]
    seconds: float

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Durations:
        """That of a frontier."""
        bounds = [*(bound / 1e6 for bound in BOUNDS), float("inf")]
        within, number = [], 0
        for bound, name in zip(bounds, _NAMES, strict=True):
            number += counts.get(name, 0)
            within.append((bound, number))
        return cls(within, counts.get(_SUM, 0) / 1e6)
