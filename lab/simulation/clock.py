"""A clock that stands still while somebody has something to do, and the event loop that moves it.

Each worker's callbacks run in a context of their own, by which the loop knows whose they are: those
of a worker that was killed are never run again, those of a stopped one wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import os
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

EPOCH = 1_800_000_000.0
"""What the clock shows at the beginning, in seconds since 1970."""

BOOTED = 1_000.0
"""What monotonic clocks show then."""

TICK = 2e-6
"""Seconds that each look at the clock takes: without it a pause of 1e-17 s would never end."""


class Stuck(Exception):
    """Raised when nobody will ever do anything again."""


class VirtualClock:
    """Seconds since the beginning, for all that asks `time` in this process."""

    def __init__(self) -> None:
        self.now = 0.0

    def look(self) -> float:
        self.now += TICK
        return self.now

    def install(self, seed: int) -> None:
        """Take the place of time and randomness for the rest of the process."""
        _installed[:] = [self]
        chance = random.Random(f"os {seed}")
        random.seed(seed)
        random._urandom = os.urandom = chance.randbytes  # type: ignore[attr-defined]
        os.getpid = lambda: 1_000 + (worker.number if (worker := WORKER.get()) else 0)


_installed: list[VirtualClock] = []
_real = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}


def take_over() -> None:
    """Let modules that are imported from now on keep functions of time that can be replaced: some
    keep ``time.monotonic`` itself."""

    def replaced(name: str, base: float) -> Callable[[], float]:
        real = _real[name]
        return lambda: base + _installed[0].look() if _installed else real()

    time.time = replaced("time", EPOCH)
    time.monotonic = replaced("monotonic", BOOTED)
    time.perf_counter = replaced("perf_counter", BOOTED)


class Process:
    """Whether a worker may run: what the operating system would know of its process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.dead = False
        self._stopped = False
        self._held: list[asyncio.Handle] = []

    @property
    def runs(self) -> bool:
        return not (self.dead or self._stopped)

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = True
        self._held.clear()

    def stop(self) -> None:
        """SIGSTOP: its timers go on, and nobody looks at them."""
        self._stopped = True

    def go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """SIGCONT."""
        self._stopped = False
        held, self._held = self._held, []
        for handle in held:
            loop._ready.append(handle)  # type: ignore[attr-defined]

    def hold(self, handle: asyncio.Handle) -> None:
        if not self.dead:
            self._held.append(handle)


WORKER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("worker", default=None)
"""Whose callbacks are run."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on a virtual clock. It has no network, and never waits: where others would,
    time passes. What asyncio does for each callback is done here with as little as can be had: a
    crawl has ten thousand of them."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()  # of timers of one moment, the first one is the first
        self._all_tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return BOOTED + self._clock.look()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Keeps it: that of a dead worker would be missed, at any time, by the collector."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._all_tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck
            self._clock.now = max(self._clock.now, timers[0][0] - BOOTED)
        now = self.time()
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(WORKER)  # type: ignore[attr-defined]
            if process is None or process.runs:
                handle._run()
            else:
                process.hold(handle)


async def run_here(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """In place of `asyncio.to_thread`: there is one thread."""
    await asyncio.sleep(0.0005)
    return function(*args, **named)
