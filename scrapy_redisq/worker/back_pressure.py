"""Back-pressure: a worker brings less while the frontier is full, at ``REDISQ_MAX_MEMORY`` or
Redis' own ``maxmemory``. Redis takes the requests of pages in progress all the same. But:

- ``start()`` waits. So it does at ``REDISQ_MAX_PENDING``, which holds back nothing else here. A
  worker that has nothing to do after the length of a pause reads one more request of it.
- A worker whose page has brought something new starts nothing for a pause. Each pause is twice as
  long as the one before. Between two pauses the worker starts one request at a time.

All of this is over as soon as there is room.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from scrapy_redisq.frontier.growth import GrowthLimit, ServerState
from scrapy_redisq.frontier.passing_errors import WARN_EVERY

logger = logging.getLogger(__name__)

PAUSE_FIRST, PAUSE_LAST = 10.0, 3_600.0
"""Seconds: the first pause, and the longest one."""

POLL = 0.25
"""Seconds between looks whether ``start()`` may go on."""

LOOK = 5.0
"""Seconds between two looks at the server's memory."""


class BackPressure:
    """``unfinished``: requests of the frontier, as far as this worker knows. ``closing``: the
    spider is being closed, so that nothing waits any more."""

    def __init__(
        self, limit: GrowthLimit, *, unfinished: Callable[[], int], closing: Callable[[], bool]
    ) -> None:
        self.limit = limit
        self.holds_back = False
        """``start()``, or a feed, waits for room."""
        self._unfinished = unfinished
        self._closing = closing
        self._fills: list[ServerState] = []
        self._full_shards: set[int] = set()
        self._pause = PAUSE_FIRST
        self._paused_until = 0.0
        self._said = ""
        self._said_at = -math.inf
        self._warned = False

    # What is known

    def filled(self, fills: list[ServerState]) -> None:
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

    def heard(self, shard: int, *, full: bool, news: bool) -> bool:
        """A shard has answered. ``full``: its Redis is at its maxmemory; ``news``: this worker has
        brought it something new. -> whether a pause was cut short, as there is room again."""
        (self._full_shards.add if full else self._full_shards.discard)(shard)
        reached = self._memory_reached()
        if not reached:
            if not self.holds_back:
                self._tell("")
            was_paused = self.pauses
            self._pause, self._paused_until = PAUSE_FIRST, 0.0
            return was_paused
        self._tell(reached)
        # Requests of a page that was started before the pause do not lengthen it.
        if news and not self.pauses:
            self._paused_until = time.monotonic() + self._pause
            logger.info(
                "Back-pressure: a page has brought something new, so this worker starts nothing "
                "for %g s, unless there is room before",
                self._pause,
            )
            self._pause = min(2 * self._pause, PAUSE_LAST)
        return False

    def _memory_reached(self) -> str:
        if self._full_shards:
            return "Redis is at its maxmemory. Raise it, or delete what is not needed"
        return self.limit.reached(0, self._fills)

    # What follows

    @property
    def pauses(self) -> bool:
        """Nothing may be started or claimed now."""
        return time.monotonic() < self._paused_until

    def may_start(self, working: bool) -> bool:
        """Whether a request may be started. ``working``: another one is in progress."""
        return not (self.pauses or (working and self._pause > PAUSE_FIRST))

    async def start_may_go_on(self, busy: Callable[[], bool]) -> None:
        """Wait until the next request of ``start()`` may be asked for. ``busy``: the worker has
        something to do, or pauses."""
        began = time.monotonic()
        try:
            while self._is_full() and not self._closing():
                self.holds_back = True
                # It need not be idle all the time: a host that fails is tried again and again.
                if time.monotonic() - began >= self._pause and not busy():
                    return
                await asyncio.sleep(POLL)
        finally:
            self.holds_back = False

    def _is_full(self) -> bool:
        reached = self._memory_reached() or self.limit.reached(self._unfinished(), ())
        self._tell(reached)
        return bool(reached)

    def _tell(self, reached: str) -> None:
        """Log that there is no room, or is again; seldom, if both follow each other often."""
        now = time.monotonic()
        if reached and not self._said and now - self._said_at >= WARN_EVERY:
            self._said, self._said_at = reached, now
            level = logging.WARNING if self._full_shards else logging.INFO
            logger.log(level, "Back-pressure: %s. start() and pushes wait for room", reached)
        elif self._said and not reached:
            self._said = ""
            logger.info("Back-pressure: there is room again")
