"""Back-pressure: what would make a full frontier larger waits, as long as anything else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from scrapy.http import Request

from scrapy_redisq.frontier.growth import Fill, GrowthLimit

logger = logging.getLogger(__name__)

STALL = 0.25
"""Seconds without anything else to do after which one of those that wait goes on."""

START_STALL = 10.0
"""The same where only ``start()`` waits: other workers may make room, or time may."""

PATIENCE = 30.0
"""Seconds in which no page has ended, and none has come to wait, after which the same is done:
callbacks may wait for one whose link waits, or never end."""

LOOK = 5.0
"""Seconds between two looks at the server's memory."""


@dataclass(eq=False)
class _Waiting:
    """``page``: whose link it is; None: it is a request of ``start()``."""

    page: Request | None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


class BackPressure:
    """Lets requests into the frontier while there is room, and one after the other while there is
    none and nothing else goes on.

    A page whose link waits keeps its lease. So that a worker can always claim and finish something,
    at most half of the ``most`` requests that it may hold wait, and none does when no other page is
    in progress: then the one that has waited longest goes on, with all of its links. A request of
    ``start()`` waits longest, for what is in the frontier comes first.

    ``unfinished``: requests of the frontier, as far as this worker knows. ``closing``: the spider
    is being closed, so that nothing waits any more, be Redis away or the frontier lost.
    """

    def __init__(
        self,
        limit: GrowthLimit,
        most: int,
        unfinished: Callable[[], int],
        closing: Callable[[], bool],
    ) -> None:
        self.limit = limit
        self._most_waiting = max(1, most // 2)
        self._unfinished = unfinished
        self._closing = closing
        self._fills: list[Fill] = []
        self._pages: list[_Waiting] = []
        self._start: list[_Waiting] = []
        self._let_through: WeakSet[Request] = WeakSet()
        self._idle_since: float | None = None
        self._seen = (0, 0)
        self._changed_at = 0.0
        self._reached = ""
        self._warned = False

    @property
    def holds_back(self) -> bool:
        """Something waits for room."""
        return bool(self._pages or self._start)

    def filled(self, fills: list[Fill]) -> None:
        """How full the servers are by now."""
        self._fills = fills
        if self._warned or not self.limit.memory > 0:
            return
        self._warned = True
        if not any(fill.used for fill in fills):
            logger.warning("REDISQ_MAX_MEMORY has no effect: this user may not ask Redis for INFO")
        elif self.limit.memory <= 1 and not all(fill.maxmemory for fill in fills):
            logger.warning(
                "REDISQ_MAX_MEMORY = %g has no effect: it is a share of a maxmemory that the "
                "server does not have; give bytes",
                self.limit.memory,
            )

    async def link_may_go(self, page: Request) -> None:
        """Wait until a request that the callback of ``page`` has yielded may be taken."""
        if page not in self._let_through and self._is_full():
            await self._wait(_Waiting(page), self._pages)

    async def start_may_go_on(self) -> None:
        """Wait until the next request of ``start()`` may be asked for."""
        if self._is_full():
            await self._wait(_Waiting(None), self._start)

    async def _wait(self, waiting: _Waiting, line: list[_Waiting]) -> None:
        line.append(waiting)
        try:
            # Looked at here, too: nobody else looks while Redis is away, or there is nothing to do.
            while self._is_full() and not (waiting.go_on.is_set() or self._closing()):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(waiting.go_on.wait(), STALL)
        finally:
            if waiting in line:  # closing, or cancelled
                line.remove(waiting)

    def _is_full(self) -> bool:
        reached = self.limit.reached(self._unfinished(), self._fills)
        if reached and not self._reached:
            logger.info(
                "Back-pressure: %s. start() waits, and links wait in their pages' callbacks",
                reached,
            )
        elif self._reached and not reached:
            logger.info("Back-pressure: there is room again")
        self._reached = reached
        return bool(reached)

    def look(self, in_progress: int, ended: int = 0, *, takes_more: bool = True) -> None:
        """Let go on what may, often. ``in_progress``: requests that Scrapy works on, also those
        that callbacks download on the side; ``ended``: pages of this worker, so far;
        ``takes_more``: it may begin other requests meanwhile."""
        now = time.monotonic()
        if not self.holds_back:
            self._idle_since = None
            self._changed_at = now
            return
        if not self._is_full():
            while self.holds_back:
                self._let_one_go()
            return
        while len(self._pages) > self._most_waiting:
            self._let_one_go()
        if self._seen != (seen := (ended, len(self._pages))):
            self._seen, self._changed_at = seen, now
        if in_progress > len(self._pages):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        stall = START_STALL if not self._pages else STALL if takes_more else 0.0
        is_idle = self._idle_since is not None and now - self._idle_since >= stall
        is_stuck = now - self._changed_at > PATIENCE
        if is_stuck:
            logger.warning(
                "Back-pressure: nothing has ended for %g s, so one page goes on. Do callbacks wait "
                "for each other?",
                PATIENCE,
            )
        if is_idle or is_stuck:
            self._idle_since = None
            self._changed_at = now
            self._let_one_go()

    def _let_one_go(self) -> None:
        waiting = (self._pages or self._start).pop(0)
        if waiting.page is not None:
            self._let_through.add(waiting.page)
        waiting.go_on.set()
