"""Rows that fail while it is not known whether they are at fault or the sink.

Refused is a row that fails while others pass; away is a sink that takes none. So a row that fails
alone is set aside, and others go on. Each time it fails again and another one of its kind has
passed meanwhile counts against it. Outages do not fail one row and pass another five times in turn;
and where nothing passes, nobody is at fault but the sink.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Doubt", "Doubts"]

PROOFS = 5
"""A row is at fault that has failed so often while other rows passed."""

PROOFS_OF_SLOW = 15
"""The same for one that takes longer than it may: about eight minutes."""

PROOFS_OF_LOST = 8
"""The same for one with which the connection ends, as it does in a bad network: about half a
minute."""

FAILING = 5
"""So many different rows that fail one after the other, and the sink is away."""

FIRST = 0.2
"""Seconds until a row that was set aside is tried again; each time twice as long."""

LAST, LAST_OF_SLOW = 2.0, 60.0
"""The most of them, and for a row that keeps the sink busy for as long as a time limit allows, or
costs it a connection."""


@dataclass(eq=False)
class Doubt:
    """What is known of a row that was set aside."""

    proofs: int = 0
    """How often it failed while other rows passed."""
    needed: int = 0
    """How many of them are enough: what was found in a slow way is no proof of another fault."""
    tries: int = 0
    due: float = 0.0
    """When it is to be tried again (time.monotonic())."""
    dear: bool = False
    """Each try costs a time limit or a connection: other rows that pass do not hasten it."""
    together: bool = False
    """It waits for other rows, and is tried again with those that do so, too."""
    passed: dict[object, int] = field(default_factory=dict)
    """What had passed when it failed, of each kind."""


Row = TypeVar("Row")


class Doubts(Generic[Row]):
    """The rows that were set aside, and what has passed meanwhile.

    ``kinds`` tells what a row is to be compared by: rows of the same tables.
    """

    def __init__(self, kinds: Callable[[Row], Collection[object]]) -> None:
        self._kinds = kinds
        self._aside: deque[Row] = deque()
        self._doubts: dict[Row, Doubt] = {}
        self._passed: Counter[object] = Counter()
        self._latest: dict[object, Row] = {}
        self._failing: set[Row] = set()

    def __len__(self) -> int:
        return len(self._aside)

    @property
    def all_fail(self) -> bool:
        """Whether nothing has passed while several have failed."""
        return len(self._failing) >= FAILING

    def passed(self, rows: Collection[Row]) -> None:
        """These have been written."""
        latest = {kind: row for row in rows for kind in self._kinds(row)}
        self._passed.update(latest.keys())
        self._latest.update(latest)
        self._failing.clear()
        for row in rows:
            self._doubts.pop(row, None)
        soon = time.monotonic() + FIRST
        for row in self._aside:  # now there is something to compare with
            if self._doubts[row].passed and not self._doubts[row].dear:
                self._doubts[row].due = min(self._doubts[row].due, soon)

    def like(self, row: Row) -> list[Row]:
        """The last rows that have passed of all of its kinds; none if there is not one of each."""
        kinds = self._kinds(row)
        if any(kind not in self._latest for kind in kinds):
            return []
        return list(dict.fromkeys(self._latest[kind] for kind in kinds))

    def of(self, row: Row) -> Doubt:
        """What is known of it."""
        return self._doubts.setdefault(row, Doubt())

    def failed(
        self, row: Row, *, others_pass: bool, slow: bool = False, lost: bool = False
    ) -> bool:
        """It failed alone; ``others_pass``: another one would pass at this moment.

        A ``slow`` one has taken longer than it may. That other rows have passed meanwhile proves
        nothing then. With a ``lost`` one the connection ended. -> whether it is at fault.
        """
        doubt = self.of(row)
        now = {kind: self._passed[kind] for kind in self._kinds(row)}
        compared = bool(doubt.passed) and all(now[kind] > doubt.passed.get(kind, 0) for kind in now)
        if others_pass or (compared and not slow):
            doubt.proofs += 1
            self._failing.clear()
        else:
            self._failing.add(row)
        doubt.passed = now
        needed = PROOFS_OF_SLOW if slow else PROOFS_OF_LOST if lost else PROOFS
        doubt.needed = max(doubt.needed, needed)
        return doubt.proofs >= doubt.needed

    def set_aside(self, row: Row, *, together: bool = False, slow: bool = False) -> None:
        """It is tried again later, alone, or with other rows; a ``slow`` one is dear."""
        doubt = self.of(row)
        doubt.together, doubt.dear = together, slow
        doubt.due = time.monotonic() + min(FIRST * 2**doubt.tries, LAST_OF_SLOW if slow else LAST)
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
