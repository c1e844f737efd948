"""One look at Redis for all who ask at the same time; nobody asks: nothing is looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SHARE = 10
"""What takes long is looked at less often: a tenth of the time is spent with it."""

LONGEST, LONGEST_LIST = 10.0, 60.0
"""Seconds for which what was seen is shared at most, however long the look took; and the same of a
long list, which costs Redis more."""

FAILED_LASTS = 5.0
"""The same of a failure: then it may be over."""


class Shared(Generic[T]):
    """What ``look`` returned, for ``lasts`` seconds; who asks while one is under way waits for it.

    If the look took long it is shown for longer, but ``longest`` at most. What it raises is shared
    in the same way, so that ten viewers of a Redis that is away keep one thread waiting, not ten.
    """

    def __init__(
        self,
        threads: Executor,
        look: Callable[[], T],
        *,
        lasts: float,
        longest: float = LONGEST,
    ) -> None:
        self._threads = threads
        self._look = look
        self._lasts = lasts
        self._longest = max(lasts, longest)
        self._ends = 0.0
        self._running: asyncio.Future[tuple[T, float]] | None = None

    async def get(self) -> T:
        """Raises what ``look`` does."""
        return (await self.aged())[0]

    async def told(self) -> dict[str, Any]:
        """The same, if that is a mapping, with its ``age``: the seconds since that look began."""
        found, age = await self.aged()
        return {**found, "age": age}  # type: ignore[dict-item]

    async def aged(self) -> tuple[T, float]:
        """What was seen, and its age."""
        if self._running is None or (self._running.done() and time.monotonic() >= self._ends):
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._threads, self._timed)
            self._running.add_done_callback(_retrieved)
        # Who goes away takes it from nobody else.
        found, began = await asyncio.shield(self._running)
        return found, round(time.monotonic() - began, 1)

    def forget(self) -> None:
        """Something was changed: who asks next gets a new look."""
        self._ends = 0.0
        if self._running is not None and not self._running.done():
            self._running = None

    def _timed(self) -> tuple[T, float]:
        began = time.monotonic()
        longest = FAILED_LASTS
        try:
            found = self._look()
            longest = self._longest
            return found, began
        finally:
            now = time.monotonic()
            self._ends = now + min(longest, max(self._lasts, SHARE * (now - began)))


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Its exception counts as seen, also if all who asked went away."""
    if not future.cancelled():
        future.exception()
