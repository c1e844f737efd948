"""One look at Redis for all who ask at the same time; nobody asks: nothing is looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SHARE = 10
"""What takes long is looked at less often: a tenth of the time is spent with it."""

LONGEST = 10.0
"""Seconds for which what was seen is shared at most, however long the look took: whoever looks at
a page wants to see what is."""

LONGEST_LIST = 60.0
"""The same of a long list, which costs Redis more."""

FAILED_LASTS = 5.0
"""Seconds for which a failure is shared at most, however long it took: then it may be over."""

FIRST_WAIT = 0.05
"""Seconds that the first who asks for a long list waits for a part of it."""

CHANGED_WAIT = 2.0
"""The same of who asks after something was changed here, and wants to see that."""

PORTION = 200
"""Entries after which other threads get a turn, and what is there so far is shown."""


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

    async def aged(self) -> tuple[T, float]:
        """The same, and its age: the seconds since that look began."""
        if self._running is None or (self._running.done() and time.monotonic() >= self._ends):
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._threads, self._timed)
            self._running.add_done_callback(_retrieved)
        # Who goes away takes it from nobody else.
        found, began = await asyncio.shield(self._running)
        return found, time.monotonic() - began

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
        self._growing: list[T] = []
        self._whole: list[T] | None = None
        self._began = 0.0
        self._changes = self._changes_seen = 0
        self._refresh: Shared[None] = Shared(threads, self._fill, lasts=lasts, longest=LONGEST_LIST)

    @property
    def age(self) -> float:
        """Seconds since it was begun to read what `get` gives."""
        return time.monotonic() - self._began

    async def get(self) -> tuple[list[T], bool]:
        """(the entries, whether that is all). Raises what ``read`` does."""
        changes = self._changes
        refresh = asyncio.ensure_future(self._refresh.get())
        refresh.add_done_callback(_retrieved)
        if self._whole is None:
            await asyncio.wait([refresh], timeout=FIRST_WAIT)
        else:
            # A short list is fresh, of a long one the last is shown while it is read anew.
            timeout = CHANGED_WAIT if changes > self._changes_seen else FIRST_WAIT / 5
            await asyncio.wait([refresh], timeout=timeout)
        if refresh.done():
            refresh.result()
            self._changes_seen = max(changes, self._changes_seen)
        whole = self._whole
        return (self._growing[:], False) if whole is None else (whole, True)

    def forget(self) -> None:
        """Something was changed: who asks next has it read anew."""
        self._changes += 1
        self._refresh.forget()

    def _fill(self) -> None:
        entries: list[T] = []
        began = time.monotonic()
        if self._whole is None:
            self._growing, self._began = entries, began
        for portion in portions(self._read()):
            entries += portion
            time.sleep(0)  # other threads, which answer requests, are due
        if began >= self._began:  # else another one, begun later, has more of what was changed
            self._whole, self._began = entries, began
            self._growing = []


def portions(entries: Iterable[T]) -> Iterator[list[T]]:
    portion: list[T] = []
    for entry in entries:
        portion.append(entry)
        if len(portion) == PORTION:
            yield portion
            portion = []
    yield portion
