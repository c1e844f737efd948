"""Rows that fail while it is not known whether they are at fault or the sink.

Refused is a row that fails while others pass; away is a sink that takes none. So a row that fails
alone is set aside, and others go on. Each time it fails again and another one of its kind has
passed meanwhile counts against it. Outages do not fail one row and pass another five times in turn;
and where nothing passes, nobody is at fault but the sink.

At the end of a crawl no other row comes. Then rows that were written before are written again. That
proves little while a crawl goes on: a table may lack the new month's partition, and still take old
rows. So it counts only if a new row has passed, too, or if for minutes none has come.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Doubt", "Doubts"]

PROOFS = 5
"""A row is at fault that has failed so often while other rows passed."""

END = 300.0
"""Seconds without a new row after which a crawl may be at its end: no other row will tell."""

FAILING = 5
"""So many different rows that fail one after the other, and the sink is away."""

FIRST, FIRST_OF_SLOW, LAST = 0.2, 10.0, 30.0
"""Seconds until a row that was set aside is tried again; the same for a row that keeps the sink
busy for as long as a time limit allows, or costs it a connection. Each time twice as long, at most
the last of these."""


@dataclass(eq=False)
class Doubt:
    """What is known of a row that was set aside."""

    proofs: int = 0
    """How often it failed while other rows passed."""
    compared: bool = False
    """Whether new rows have passed since it first failed."""
    tries: int = 0
    due: float = 0.0
    """When it is to be tried again (time.monotonic())."""
    together: bool = False
    """It waits for other rows, and is tried again with those that do so, too."""
    passed: int | None = None
    """How many batches with rows of its kind had passed when it failed."""


Row = TypeVar("Row")


class Doubts(Generic[Row]):
    """The rows that were set aside, and what has passed meanwhile.

    ``kind`` tells what a row is to be compared by: rows of the same table.
    """

    def __init__(self, kind: Callable[[Row], object]) -> None:
        self._kind = kind
        self._aside: deque[Row] = deque()
        self._doubts: dict[Row, Doubt] = {}
        self._passed: Counter[object] = Counter()
        self._latest: dict[object, Row] = {}
        self._failing: set[Row] = set()
        self._answers = False
        """Whether old rows have passed since a new one has."""

    def __len__(self) -> int:
        return len(self._aside)

    @property
    def all_fail(self) -> bool:
        """Whether nothing has passed while several have failed, old rows neither."""
        return len(self._failing) >= FAILING and not self._answers

    def passed(self, rows: Collection[Row]) -> None:
        """These have been written."""
        latest = {self._kind(row): row for row in rows}
        self._passed.update(latest.keys())
        self._latest.update(latest)
        self._failing.clear()
        self._answers = False
        for row in rows:
            self._doubts.pop(row, None)

    def others(self, row: Row) -> list[Row]:
        """The last row of its kind that has passed; else the last ones of each kind."""
        kind = self._kind(row)
        return [self._latest[kind]] if kind in self._latest else list(self._latest.values())

    def of(self, row: Row) -> Doubt:
        """What is known of it."""
        return self._doubts.setdefault(row, Doubt())

    def failed_together(self, rows: Collection[Row]) -> None:
        """They failed as one batch: what passes from now on passes while they fail."""
        for row in rows:
            doubt = self.of(row)
            if doubt.passed is None:
                doubt.passed = self._passed[self._kind(row)]

    def others_passed(self, row: Row) -> bool:
        """Whether new ones of its kind have passed since it last failed."""
        passed = self.of(row).passed
        return passed is not None and self._passed[self._kind(row)] > passed

    def asks(self, row: Row, *, at_end: bool) -> bool:
        """Whether it would help to know if old rows pass: no new one may come for long. A sink
        that only appends has them twice then."""
        many = len(self._failing) >= FAILING - 1
        if self._answers and many and not (at_end or self.of(row).compared):
            return False
        return many or self.of(row).tries >= PROOFS

    def failed(
        self, row: Row, *, others_pass: bool | None, at_end: bool = False, slow: bool = False
    ) -> bool:
        """It failed alone; ``others_pass``: old ones pass at this moment; None: not asked.

        ``at_end``: no new row is to be expected. A ``slow`` row has taken longer than it may: that
        new ones have passed meanwhile proves nothing then. -> whether it is at fault.
        """
        doubt = self.of(row)
        new_passed = self.others_passed(row)
        doubt.passed = self._passed[self._kind(row)]
        doubt.compared = doubt.compared or new_passed
        if new_passed and not slow:
            doubt.proofs += 1
            self._failing.clear()
        else:
            self._failing.add(row)
            if others_pass is not None:
                self._answers = others_pass
                doubt.proofs += others_pass
        return doubt.proofs >= PROOFS and (doubt.compared or at_end)

    def set_aside(self, row: Row, *, together: bool = False, slow: bool = False) -> None:
        """It is tried again later, alone, or with other rows; a ``slow`` one not so soon."""
        doubt = self.of(row)
        doubt.together = together
        first = FIRST_OF_SLOW if slow else FIRST
        doubt.due = time.monotonic() + min(first * 2**doubt.tries, LAST)
        doubt.tries = min(doubt.tries + 1, 20)
        self._aside.append(row)

    def due_at(self) -> float | None:
        """When the next one is due (time.monotonic()); None: there is none."""
        return min((self._doubts[row].due for row in self._aside), default=None)

    def take_due(self) -> list[Row]:
        """Remove and return the rows to be tried again now: one, or those that wait for others."""
        now = time.monotonic()
        due = [row for row in self._aside if self._doubts[row].due <= now]
        batch = [row for row in due if self._doubts[row].together] or due[:1]
        for row in batch:
            self._aside.remove(row)
        return batch

    def forget(self, row: Row) -> None:
        """It is not to be written any more."""
        self._doubts.pop(row, None)
        self._failing.discard(row)

    def clear(self) -> list[Row]:
        """Remove and return all."""
        rows = list(self._aside)
        self._aside.clear()
        return rows
