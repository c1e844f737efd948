"""How large the suite is: smoke for ``make test``, full for ``make faults``.

Beside them ``every``: all faults at the size of smoke, for work on the suite itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """``ttl`` in seconds; ``concurrency`` of one worker. Durations and counts of single faults are
    chosen by `pick`."""

    name: str
    pages: int
    workers: int
    ttl: float
    concurrency: int

    @property
    def full(self) -> bool:
        return self.name == "full"

    @property
    def every(self) -> bool:
        """Every fault is to be produced, not only those that `make test` has the time for."""
        return self.name != "smoke"

    def pick(self, smoke: float, full: float) -> float:
        """``smoke`` or ``full``, whichever this is."""
        return full if self.full else smoke


SIZES = {
    "smoke": Size("smoke", pages=125, workers=2, ttl=3.0, concurrency=8),
    "every": Size("every", pages=1_000, workers=2, ttl=3.0, concurrency=16),
    "full": Size("full", pages=10_000, workers=4, ttl=6.0, concurrency=16),
}
SIZE = SIZES[os.environ.get("REDISQ_FAULTS", "smoke")]
