"""What a worker holds and has not started: leases by slot, highest priority first."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from scrapy_redisq.frontier.membership import Lease

S = TypeVar("S")

WINDOW = 1.0
"""Seconds over which the pace of a slot is measured."""

AHEAD = 0.5
"""Seconds' worth of a slot's requests that are worth holding."""


class Inbox(Generic[S]):
    """Leases that wait to be started, each with its source (the membership it came from).

    With ``by_slot`` the slot with the fewest downloads goes first, as in Scrapy's own
    downloader-aware queue; otherwise the order is by priority alone.
    """

    def __init__(self, per_slot: int, most: int, *, by_slot: bool) -> None:
        self._per_slot = max(1, per_slot)
        self._most = max(1, most)
        self._by_slot = by_slot
        self._slots: dict[str, list[tuple[int, int, Lease, S]]] = {}
        self._arrivals = itertools.count()
        self._size = 0
        self._window = time.monotonic()
        self._taken: dict[str, int] = {}
        self._pace: dict[str, int] = {}

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[Lease, S]]:
        for waiting in self._slots.values():
            for _, _, lease, source in waiting:
                yield lease, source

    def add(self, lease: Lease, source: S) -> None:
        waiting = self._slots.setdefault(lease.slot, [])
        heapq.heappush(waiting, (-lease.priority, next(self._arrivals), lease, source))
        self._size += 1

    def pop(self, downloading: Callable[[str], int | None]) -> tuple[Lease, S] | None:
        """The next lease to start, or None.

        ``downloading(slot)`` is how many requests of the slot are being downloaded, or None if it
        takes no more now. What Scrapy's downloader is given beyond that only waits there, and
        counts against the other slots.
        """
        slot: str | None
        if not self._by_slot:
            slot = next(iter(self._slots), None)
        else:
            counts = [(downloading(name), name) for name in self._slots]
            free = [(count, name) for count, name in counts if count is not None]
            slot = min(free, key=lambda pair: pair[0])[1] if free else None
        if slot is None:
            return None
        waiting = self._slots.pop(slot)
        _, _, lease, source = heapq.heappop(waiting)
        if waiting:
            self._slots[slot] = waiting  # behind the others
        self._size -= 1
        self._taken[slot] = self._taken.get(slot, 0) + 1
        return lease, source

    def waiting(self) -> dict[str, int]:
        """How many leases of each slot wait."""
        return {slot: len(waiting) for slot, waiting in self._slots.items()}

    def remove(self, slot: str) -> list[tuple[Lease, S]]:
        """Remove and return what waits of a slot."""
        removed = [(lease, source) for _, _, lease, source in self._slots.pop(slot, [])]
        self._size -= len(removed)
        return removed

    def clear(self) -> list[tuple[Lease, S]]:
        """Remove and return what waits."""
        removed = list(self)
        self._slots, self._size = {}, 0
        return removed

    def limit(self, slot: str, stock: int | None = None) -> int:
        """How many leases of a slot are worth holding: what it will need soon, by its pace.

        ``stock``: as many as its limits let begin soon, if it has limits.
        """
        if not self._by_slot:
            return self._most
        now = time.monotonic()
        if now - self._window >= WINDOW:
            self._pace = {
                name: int(taken / (now - self._window) * AHEAD)
                for name, taken in self._taken.items()
            }
            self._window, self._taken = now, {}
        usual = self._per_slot if stock is None else min(stock, self._per_slot)
        return min(self._most, max(usual, self._pace.get(slot, 0)))

    @property
    def slot_limit(self) -> int:
        """`limit` of a slot that nothing is known about."""
        return min(self._most, self._per_slot) if self._by_slot else self._most

    def room(self) -> dict[str, int]:
        """How many more leases of each slot that is known are worth holding."""
        room = {slot: self.limit(slot) for slot in {*self._pace, *self._slots}}
        for slot, waiting in self._slots.items():
            room[slot] = max(0, room[slot] - len(waiting))
        return room

    def is_low(self, capacity: int, downloading: Callable[[str], int | None]) -> bool:
        """Half or less of what is worth holding is left; ``capacity`` bounds the whole.

        ``downloading`` as for `pop`. What cannot be started now is of no use to other slots.
        """
        if max(len(self._slots), len(self._taken), len(self._pace)) <= 1:
            limits = [self.limit(slot) for slot in self._slots]
            return 2 * self._size <= min([capacity, *limits])
        held_up = sum(
            len(waiting) for slot, waiting in self._slots.items() if downloading(slot) is None
        )
        return 2 * (self._size - held_up) <= capacity - held_up
