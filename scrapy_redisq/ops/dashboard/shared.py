"""One look at Redis for all who ask at the same time; nobody asks: nothing is looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SHARE = 10
"""A slow look is taken less often: a tenth of the time is spent with it."""

LONGEST, LONGEST_LIST = 10.0, 60.0
"""Seconds for which what was seen is shared at most, however long the look took; and the same of a
long list, which costs Redis more."""

FIRST_WAIT, CHANGED_WAIT = 0.05, 2.0
"""Seconds that those who ask for a long list wait for it: then they get a part, or an older one.
And the same of who asks after something was changed here, and wants to see that."""

FAILED_LASTS = 5.0
"""The same of a failure: then it may be over."""


class Shared(Generic[T]):
    """The result of ``look``, for ``lasts`` seconds. A viewer that asks while a look is under way
    waits for it.

    If the look took long its result is shown for longer, but ``longest`` at most. An exception is
    shared in the same way, so that ten viewers of a Redis that is away keep one thread waiting.
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
        """The result, and its age."""
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


class Listed(Generic[T]):
    """A long list: read once for all who ask, kept, and read anew when somebody asks later. Until
    it is read what is there so far is given, or the list before."""

    def __init__(self, threads: Executor, read: Callable[[], Iterable[T]], *, lasts: float) -> None:
        self._read = read
        self._found: list[T] = []
        self._is_all = False
        self._began = 0.0
        self._wait = FIRST_WAIT
        self._refresh: Shared[None] = Shared(threads, self._fill, lasts=lasts, longest=LONGEST_LIST)

    async def get(self) -> tuple[list[T], bool, float]:
        """(the entries, whether that is all, their age). Raises what ``read`` does."""
        refresh = asyncio.ensure_future(self._refresh.get())
        refresh.add_done_callback(_retrieved)
        await asyncio.wait([refresh], timeout=self._wait)
        if refresh.done():
            refresh.result()
            self._wait = FIRST_WAIT
        return self._found[:], self._is_all, round(time.monotonic() - self._began, 1)

    def forget(self) -> None:
        """Something was changed: who asks next has it read anew, and waits for that."""
        self._wait = CHANGED_WAIT
        self._refresh.forget()

    def _fill(self) -> None:
        entries: list[T] = []
        began = time.monotonic()
        if not self._is_all:
            self._found, self._began = entries, began
        for entry in self._read():
            entries.append(entry)
        if began >= self._began:  # else another one, begun later, has more of what was changed
            self._found, self._began, self._is_all = entries, began, True
