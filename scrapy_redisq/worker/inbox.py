"""Leases that a worker has not started: by slot, highest priority first."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, TypeVar

from scrapy.crawler import Crawler

from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.settings.scrapys_limits import downloads_at_once
from scrapy_redisq.settings.settings import RedisqSettings

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S")

WINDOW = 1.0
"""Seconds over which the pace of a slot is measured."""

AHEAD = 0.5
"""Seconds' worth of requests that are worth holding."""

PATIENCE = 1.0
"""Seconds after which leases that cannot be started go back: other workers may be able to."""


class Inbox(Generic[S]):
    """Leases that wait to be started, each with its source (the session it came from).

    With ``by_slot`` the slot with the fewest downloads goes first, as in Scrapy's own
    downloader-aware queue; otherwise the order is by priority alone.
    """

    def __init__(self, per_slot: int, most: int, *, by_slot: bool) -> None:
        self._per_slot = max(1, per_slot)
        self.most = max(1, most)
        """Leases that a worker holds at most, waiting and in progress."""
        self._by_slot = by_slot
        self._slots: dict[str, list[tuple[int, int, Lease, S]]] = {}
        self._arrivals = itertools.count()
        self._size = 0
        self._window = time.monotonic()
        self._taken: dict[str, int] = {}
        self._pace: dict[str, int] = {}
        self._taken_in_all = 0
        self._pace_in_all = 0.0
        self._last_taken = -math.inf
        self._stuck: dict[str, float] = {}
        """Slots of which nothing can be started, and since when."""

    @classmethod
    def of(cls, crawler: Crawler, settings: RedisqSettings) -> Self:
        """For twice the requests that Scrapy downloads at a time, or REDISQ_MAX_LEASES."""
        concurrency = downloads_at_once(crawler.settings)
        per_slot = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") or concurrency
        lifted = settings.fleet_limits or settings.autothrottle
        if crawler.settings.getfloat("DOWNLOAD_DELAY") > 0 and not lifted:
            per_slot = 1
        most = settings.max_leases or 2 * concurrency
        return cls(min(per_slot, concurrency), most, by_slot=settings.scheduling != "priority")

    def __len__(self) -> int:
        return self._size

    def add(self, lease: Lease, source: S) -> None:
        waiting = self._slots.setdefault(lease.slot, [])
        heapq.heappush(waiting, (-lease.priority, next(self._arrivals), lease, source))
        self._size += 1

    def first(self, downloading: Callable[[str], int | None]) -> tuple[int, str] | None:
        """How many requests of the slot that goes first are being downloaded, and that slot; None
        if nothing can be started. ``downloading(slot)``: the number, None if it takes no more now.
        """
        if not self._by_slot:
            return next(((0, slot) for slot in self._slots), None)
        best: tuple[int, str] | None = None
        for slot in self._slots:
            count = downloading(slot)
            if count is not None and (best is None or count < best[0]):
                best = count, slot
                if count == 0:
                    break
        return best

    def pop(self, downloading: Callable[[str], int | None]) -> tuple[Lease, S] | None:
        """The next lease to start, or None. ``downloading`` as of `first`."""
        first = self.first(downloading)
        if first is None:
            return None
        slot = first[1]
        waiting = self._slots.pop(slot)
        _, _, lease, source = heapq.heappop(waiting)
        if waiting:
            self._slots[slot] = waiting  # behind the other slots
        self._size -= 1
        self._last_taken = now = time.monotonic()
        self._measure(now)
        self._taken[slot] = self._taken.get(slot, 0) + 1
        self._taken_in_all += 1
        self._stuck.pop(slot, None)
        return lease, source

    def waiting(self) -> dict[str, int]:
        """How many leases of each slot wait."""
        return {slot: len(waiting) for slot, waiting in self._slots.items()}

    def highest(self, slot: str) -> int | None:
        """The highest priority of the leases of a slot that wait; None: none does."""
        waiting = self._slots.get(slot)
        return waiting[0][2].priority if waiting else None

    def remove(self, slot: str) -> list[tuple[Lease, S]]:
        """Remove and return what waits of a slot, in order."""
        waiting = sorted(self._slots.pop(slot, []), key=lambda item: item[:2])
        self._size -= len(waiting)
        return [(lease, source) for _, _, lease, source in waiting]

    def remove_stuck(
        self, can_start: Callable[[str], bool], *, full: bool
    ) -> list[tuple[Lease, S]]:
        """To be called often: remove and return what has waited for `PATIENCE` while nothing of its
        slot was started or could be. Nothing more of it is worth holding until that has changed.

        ``can_start(slot)``: at once, or as soon as its limits allow; ``full``: nothing can.
        """
        now = time.monotonic()
        for slot in {*self._slots, *self._stuck}:
            if can_start(slot) and not (full and slot in self._slots):
                self._stuck.pop(slot, None)
            else:
                self._stuck.setdefault(slot, now)
        stuck = [slot for slot in self._slots if self._is_stuck(slot, now)]
        return [lease for slot in stuck for lease in self.remove(slot)]

    def _is_stuck(self, slot: str, now: float) -> bool:
        return now - self._stuck.get(slot, now) >= PATIENCE

    @property
    def stuck(self) -> int:
        """Slots of which nothing could be started when `remove_stuck` was last called."""
        return len(self._stuck)

    def clear(self, sources: Collection[S] | None = None) -> list[tuple[Lease, S]]:
        """Remove and return what waits, or only what came from these ``sources``."""
        gone = [
            slot
            for slot, waiting in self._slots.items()  # all of a slot comes from one
            if sources is None or waiting[0][3] in sources
        ]
        return [item for slot in gone for item in self.remove(slot)]

    def limit(self, slot: str, stock: int | None = None) -> int:
        """How many leases of a slot are worth holding: as many as will start soon, by its pace.
        ``stock``: as many as its limits let start soon, if it has limits."""
        now = time.monotonic()
        if self._is_stuck(slot, now):
            return 0
        if not self._by_slot:
            return self.most
        self._measure(now)
        usual = self._per_slot if stock is None else min(stock, self._per_slot)
        # The window that has begun counts as far as is certain: so a crawl's first second does.
        begun = int(self._taken.get(slot, 0) * AHEAD)
        return min(self.most, max(usual, self._pace.get(slot, 0), begun))

    def worth(self, free: int) -> int:
        """How many leases that can be started are worth holding in all. ``free``: as many may start
        at once. Other workers may be earlier with those that this one does not need soon."""
        now = time.monotonic()
        self._measure(now)
        if now - self._last_taken >= PATIENCE:
            return free
        return free + math.ceil(AHEAD * max(self._pace_in_all, self._taken_in_all))

    def _measure(self, now: float) -> None:
        passed = now - self._window
        if passed >= WINDOW:
            self._pace = {name: int(taken / passed * AHEAD) for name, taken in self._taken.items()}
            self._pace_in_all = self._taken_in_all / passed
            self._window, self._taken, self._taken_in_all = now, {}, 0

    @property
    def slot_limit(self) -> int:
        """`limit` of a slot that nothing is known about."""
        return min(self.most, self._per_slot) if self._by_slot else self.most

    def room(self) -> dict[str, int]:
        """How many more leases are worth holding of each slot whose number is not `slot_limit`."""
        self._measure(time.monotonic())
        known = {*self._slots, *self._stuck}
        # Of all other slots the limit is `slot_limit`, unless much of them is started.
        known.update(slot for slot, number in self._pace.items() if number > self._per_slot)
        known.update(
            slot for slot, number in self._taken.items() if number * AHEAD > self._per_slot
        )
        room = {slot: self.limit(slot) for slot in known}
        for slot, waiting in self._slots.items():
            room[slot] = max(0, room[slot] - len(waiting))
        return room

    def is_low(self, capacity: int, downloading: Callable[[str], int | None]) -> bool:
        """Half or less of the leases worth holding are left; ``capacity`` bounds the whole. Leases
        that cannot be started now (see `pop`) are of no use to other slots."""
        if max(len(self._slots), len(self._taken), len(self._pace)) <= 1:
            return 2 * self._size <= min([capacity, *map(self.limit, self._slots)])
        held_up = self.held_up(downloading)
        return 2 * (self._size - held_up) <= capacity - held_up

    def held_up(self, downloading: Callable[[str], int | None]) -> int:
        """How many leases cannot be started now; ``downloading`` as for `pop`."""
        return sum(len(these) for slot, these in self._slots.items() if downloading(slot) is None)
