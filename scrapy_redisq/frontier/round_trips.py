"""How long exchanges take, counted in buckets that workers add up in the frontier's counts.

There they outlast the workers, as a histogram of Prometheus has to: one that was summed up from
what is reported by those that are there would shrink when a worker leaves.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

EVERY = 5.0
"""Seconds for which a worker counts before it tells."""

BOUNDS = (
    *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 10_000_000),
)
"""Upper bounds of the buckets, in us."""

_NAMES = (*(f"exchanges_{bound}" for bound in BOUNDS), "exchanges_more")
_SUM = "exchanges_us"


class RoundTrips:
    """What one worker counts of its exchanges with one shard."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._due = 0.0

    def took(self, seconds: float) -> None:
        """One that was answered."""
        us = int(1e6 * seconds)
        self._counts[_NAMES[bisect.bisect_left(BOUNDS, us)]] += 1
        self._counts[_SUM] += us

    def told(self, *, at_once: bool) -> Counter[str]:
        """What is to be added to the frontier's counts: not each time, unless ``at_once``."""
        if not at_once and time.monotonic() < self._due:
            return Counter()
        self._due = time.monotonic() + EVERY
        counts, self._counts = self._counts, Counter()
        return counts


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
