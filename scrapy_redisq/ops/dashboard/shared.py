"""One look at Redis for all who ask at the same time; nobody asks: nothing is looked at."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
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

FIRST_WAIT = 0.05
"""Seconds that those who ask for a long list wait for it: then they get a part, or an older one."""

CHANGED_WAIT = 2.0
"""The same of who asks after something was changed here, and wants to see that."""

PORTION = 200
"""Entries after which other threads get a turn, and what is there so far is shown."""


def aged(found: Any, age: float) -> dict[str, Any]:
    """``found``, with how old it is (seconds)."""
    return {**found, "age": round(age, 1)}


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
        return (await self._seen())[0]

    async def told(self) -> dict[str, Any]:
        """The same, if that is a mapping, with its ``age``: the seconds since that look began."""
        found, began = await self._seen()
        return aged(found, time.monotonic() - began)

    async def _seen(self) -> tuple[T, float]:
        if self._running is None or (self._running.done() and time.monotonic() >= self._ends):
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._threads, self._timed)
            self._running.add_done_callback(_retrieved)
        # Who goes away takes it from nobody else.
        return await asyncio.shield(self._running)

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
    """A long list: read once for all, kept, and read anew when somebody asks for it later.

    While it is read for the first time, what is there so far is given. ``read`` yields what Redis
    has now, a portion at a time.
    """

    def __init__(
        self, threads: Executor, read: Callable[[], Iterable[T]], *, lasts: float = 2.0
    ) -> None:
        self._read = read
        self._found: list[T] = []
        self._is_all = False
        self._began = 0.0
        self._wait = FIRST_WAIT
        self._refresh: Shared[None] = Shared(threads, self._fill, lasts=lasts, longest=LONGEST_LIST)

    @property
    def age(self) -> float:
        """Seconds since it was begun to read what `get` gives."""
        return time.monotonic() - self._began

    async def get(self) -> tuple[list[T], bool]:
        """(the entries, whether that is all). Raises what ``read`` does."""
        refresh = asyncio.ensure_future(self._refresh.get())
        refresh.add_done_callback(_retrieved)
        await asyncio.wait([refresh], timeout=self._wait)
        if refresh.done():
            refresh.result()
            self._wait = FIRST_WAIT
        return self._found[:], self._is_all

    def forget(self) -> None:
        """Something was changed: who asks next has it read anew."""
        self._wait = CHANGED_WAIT
        self._refresh.forget()

    def _fill(self) -> None:
        entries: list[T] = []
        began = time.monotonic()
        if not self._is_all:
            self._found, self._began = entries, began
        reading = iter(self._read())
        while portion := list(itertools.islice(reading, PORTION)):
            entries += portion
            time.sleep(0)  # other threads, which answer requests, are due
        if began >= self._began:  # else another one, begun later, has more of what was changed
            self._found, self._began, self._is_all = entries, began, True
