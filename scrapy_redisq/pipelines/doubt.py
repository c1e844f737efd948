"""Rows that fail while nobody knows whether they are at fault or the sink.

A row is refused if it fails while others pass; a sink that takes no row is away. So a row that
fails alone is set aside, and others go on. Each time that it fails again, after another row of its
kind has passed, counts against it. Outages do not fail one row and pass another five times in turn.

At the end of a crawl no other row comes. Then it counts, too, that the sink takes others at that
moment, see `BatchPipeline.takes_others`. Before a new row has passed this proves only that the sink
is not away: a table may lack the new month's partition, and still take old rows.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection

from scrapy_redisq.pipelines.waiting import Waiting

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


class Doubts:
    """The rows that were set aside, and what has passed meanwhile.

    ``kind`` tells what a row is to be compared by: rows of the same table.
    """

    def __init__(self, kind: Callable[[Waiting], object]) -> None:
        self._kind = kind
        self._aside: deque[Waiting] = deque()
        self._passed: Counter[object] = Counter()
        self._latest: dict[object, Waiting] = {}
        self._failing: set[Waiting] = set()
        self.answers = False
        """Whether the sink has taken others since a new row has passed."""

    def __len__(self) -> int:
        return len(self._aside)

    @property
    def many_fail(self) -> bool:
        """Whether nothing new has passed while several have failed."""
        return len(self._failing) >= FAILING

    @property
    def all_fail(self) -> bool:
        """The same, and the sink takes nothing else either: it is away."""
        return self.many_fail and not self.answers

    def passed(self, rows: Collection[Waiting]) -> None:
        """These have been written."""
        latest = {self._kind(row): row for row in rows}
        self._passed.update(latest.keys())
        self._latest.update(latest)
        self._failing.clear()
        self.answers = False

    def others(self, row: Waiting) -> list[Waiting]:
        """The last row of its kind that has passed; else the last ones of each kind."""
        kind = self._kind(row)
        return [self._latest[kind]] if kind in self._latest else list(self._latest.values())

    def failed_together(self, rows: Collection[Waiting]) -> None:
        """They failed as one batch: rows that pass from now on pass while they fail."""
        for row in rows:
            if row.passed is None:
                row.passed = self._passed[self._kind(row)]

    def failed(self, row: Waiting, *, slow: bool) -> bool:
        """The row failed alone. -> whether new rows of its kind have passed since it last failed.

        A ``slow`` row has taken longer than it may: rows that pass meanwhile prove nothing then.
        """
        passed = self._passed[self._kind(row)]
        others_passed = row.passed is not None and passed > row.passed
        row.passed, row.compared = passed, row.compared or others_passed
        if others_passed and not slow:
            self._failing.clear()
            return True
        self._failing.add(row)
        return False

    def proved(self, row: Waiting) -> bool:
        """It failed while others passed -> whether it is at fault."""
        row.proofs += 1
        return row.proofs >= PROOFS

    def set_aside(self, row: Waiting, *, slow: bool) -> None:
        """It is tried again later, alone; a ``slow`` one not so soon."""
        first = FIRST_OF_SLOW if slow else FIRST
        row.due = time.monotonic() + min(first * 2**row.tries, LAST)
        row.tries = min(row.tries + 1, 20)
        self._aside.append(row)

    def due_at(self) -> float | None:
        """When the next one is due (time.monotonic()); None: there is none."""
        return min((row.due for row in self._aside), default=None)

    def take_due(self) -> list[Waiting]:
        """Remove and return the row to be tried again now, if there is one."""
        now = time.monotonic()
        due = [row for row in self._aside if row.due <= now][:1]
        for row in due:
            self._aside.remove(row)
        return due

    def forget(self, row: Waiting) -> None:
        """It is not to be written any more."""
        self._failing.discard(row)

    def clear(self) -> list[Waiting]:
        """Remove and return all."""
        rows = list(self._aside)
        self._aside.clear()
        return rows
