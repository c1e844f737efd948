"""Which worker starts and stops next, of those that one process looks after."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from scrapy_redisq.ops.autoscale.machine import Load
from scrapy_redisq.ops.autoscale.process import Process


@dataclass(frozen=True)
class Pace:
    """Seconds, and how often."""

    between: float = 3.0
    """Between two starts, or two stops, so that the first is seen in CPU and memory."""
    patience: float = 30.0
    """There have been too many workers for so long before the newest is stopped."""
    at_once: float = 10.0
    """A worker that ends earlier has not worked."""
    first_pause: float = 1.0
    """Before the next start after one that ended at once; doubles with each."""
    longest_pause: float = 60.0
    tries: int = 5
    """Starts that end at once, one after the other, before it is given up."""


class Fleet:
    """The processes, in the order of their starts. ``start`` makes one of its number (from 1 on),
    ``say`` tells a person what was done and why."""

    def __init__(
        self,
        start: Callable[[int], Process],
        say: Callable[[str], object],
        *,
        least: int,
        most: int,
        most_cpu: float = 0.9,
        grace: float = math.inf,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._say, self._clock = start, say, clock
        self.least, self.most, self._most_cpu = least, most, most_cpu
        self._pace = pace or Pace()
        self._grace = grace
        self._over_since: float | None = None
        self.processes: list[Process] = []
        self.codes: list[int] = []
        self.stops = 0
        self.failures = 0
        self._ended: list[tuple[Process, int, float]] = []
        self._started = 0
        self._failed = -math.inf
        self._finished: int | None = None
        self._finished_then: int | None = None
        self._next_change = 0.0
        self._next_start = 0.0
        self._too_many_since: float | None = None
        self.held_back = ""
        """Why there are fewer than wanted, or ""."""

    @property
    def running(self) -> list[Process]:
        """Those that were not told to stop."""
        return [process for process in self.processes if not process.stopping]

    # What has ended

    def reap(self) -> None:
        """Take note of those that have ended; what that means says `judge`."""
        for process in [*self.processes]:
            code = process.code()
            if code is not None:
                self.processes.remove(process)
                self._ended.append((process, code, process.age))
                self.codes.append(code)
            elif self._pace.at_once <= process.age < self._clock() - self._failed:
                self.failures = 0  # one that was started after it works
            if code is None and process.overdue > self._grace and not process.killed:
                self._say(
                    f"worker {process.number} (pid {process.pid}) does not stop: it is killed"
                )
                process.kill()

    @property
    def ended_well(self) -> bool:
        """One of those that are not judged yet has, by itself."""
        return any(code == 0 and not process.stopping for process, code, _ in self._ended)

    def judge(self, *, over: bool, finished: int | None = None) -> None:
        """Those that have ended: as they should if there is nothing left to do (``over``), else too
        early. ``finished``: pages of the run, if that is known."""
        ended, self._ended = self._ended, []
        self._finished = finished
        for process, code, age in ended:
            text = f"worker {process.number} (pid {process.pid}) ended with exit code {code}"
            at_once = age < self._pace.at_once
            if process.stopping or (code == 0 and (over or not at_once)):
                self._say(text)
                continue
            see = f", see {process.log}" if process.log else ""
            self._note_failure(f"{text} after {age:.1f} s{see}")

    def _note_failure(self, text: str) -> None:
        if self.failures == 0:
            self._finished_then = self._finished
        self.failures += 1
        self._failed = self._clock()
        longest, first = self._pace.longest_pause, self._pace.first_pause
        pause = min(longest, first * 2 ** min(self.failures - 1, 30))
        self._next_start = self._clock() + pause
        self._say(f"{text}; the next starts in {pause:g} s at the earliest")

    def has_failed(self, finished: int | None = None) -> bool:
        """Every start has ended at once, nobody is left, and no page was finished meanwhile."""
        return (
            not self.processes
            and self.failures >= self._pace.tries
            and finished == self._finished_then
        )

    def see_off(self) -> None:
        """The run is complete: who has not left after the grace period is told to."""
        self._over_since = self._over_since or self._clock()
        if self._clock() - self._over_since > self._grace:
            for process in self.running:
                self._say(f"worker {process.number} (pid {process.pid}) stays: it is stopped")
                process.stop()

    # How many there are

    def scale(self, wanted: int, load: Load) -> None:
        """One step towards ``wanted`` workers, as far as bounds and the machine allow. None is
        stopped while another one still ends: until then nobody knows what that has brought."""
        now = self._clock()
        target = min(self.most, max(self.least, wanted))
        running = self.running
        may_stop = now >= self._next_change and len(running) == len(self.processes)
        self.held_back = ""
        if load.is_short and len(running) > max(1, self.least):
            if may_stop:
                self._stop_newest("memory is short")
            return
        if len(running) <= target:
            self._too_many_since = None
        if len(running) < target:
            self._start_some(target, load, now)
        elif len(running) > target:
            self._too_many_since = self._too_many_since or now
            if may_stop and now >= self._too_many_since + self._pace.patience:
                self._stop_newest(f"{target} would do")

    def _start_some(self, target: int, load: Load, now: float) -> None:
        """The least number at once, after failures and beyond it one at a time."""
        if now < self._next_start:
            self.held_back = f"the next start is in {self._next_start - now:.0f} s"
            return
        while len(self.running) < target and not self.stops:
            few = len(self.running) < self.least
            if self.running and not few:
                if now < self._next_change:
                    return
                if not load.has_room(max(one.rss for one in self.running), self._most_cpu):
                    self.held_back = "CPU or memory has no room for one more"
                    return
            self._started += 1
            try:
                process = self._start(self._started)
            except (OSError, subprocess.SubprocessError) as error:
                if not (self.processes or self.codes):
                    raise  # there is no such command
                # No memory for one more, or the command is being replaced: the other workers go on.
                self._note_failure(f"worker {self._started} could not be started: {error}")
                return
            self.processes.append(process)
            if self.stops and not process.stopping:  # the signal has come meanwhile
                process.stop()
            self._say(f"worker {process.number} started (pid {process.pid})")
            self._next_change = now + self._pace.between
            if self.failures:
                self._next_start = now + self._pace.first_pause
                return

    def _stop_newest(self, why: str) -> None:
        process = self.running[-1]
        self._say(f"worker {process.number} (pid {process.pid}) is stopped: {why}")
        process.stop()
        self._next_change = self._clock() + self._pace.between

    def stop(self) -> None:
        """Stop all: gracefully, the second time at once, from the third on by SIGKILL."""
        self.stops += 1
        for process in self.processes:
            if self.stops <= 2:
                process.stop()
            else:
                process.kill()
