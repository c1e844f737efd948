"""Which worker starts and stops next, of those that one process looks after."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from scrapy_redisq.ops.autoscale.machine import Load
from scrapy_redisq.ops.autoscale.process import Process

BETWEEN = 3.0
"""Seconds between two starts, or two stops, so that the first is seen in CPU and memory."""

AT_ONCE = 10.0
"""A worker that ends within so many seconds has not worked."""

LONGEST_PAUSE = 60.0
"""Seconds before the next start at most, after workers that ended at once."""

TRIES = 5
"""Starts that end at once, one after the other, before it is given up."""


@dataclass(frozen=True)
class Bounds:
    """Within which a fleet is held. ``least`` and ``most``: workers. ``most_cpu``: the share of the
    CPUs from which on no worker is started. ``grace``: seconds that one has to stop in. There have
    been too many for ``patience`` seconds before the newest is stopped. ``first_pause``: seconds
    before the next start after one that ended at once, which double with each."""

    least: int
    most: int
    most_cpu: float = 0.9
    grace: float = math.inf
    patience: float = 30.0
    first_pause: float = 1.0


class Fleet:
    """The processes, in the order of their starts. ``start`` makes one of its number (from 1 on),
    ``say`` tells a person what was done and why. ``codes``: of those that have ended; ``stops``:
    how often all were stopped; ``verdict``: the highest code after that; ``failures``: starts in
    turn that ended at once; ``held_back``: why there are fewer than wanted, or ""."""

    def __init__(
        self,
        start: Callable[[int], Process],
        say: Callable[[str], object],
        bounds: Bounds,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._say, self._clock = start, say, clock
        self.bounds = bounds
        self.processes: list[Process] = []
        self.codes: list[int] = []
        self.stops = self.verdict = self.failures = 0
        self.held_back = ""
        self._ended: list[tuple[Process, int, float]] = []
        self._started = 0
        self._failed = -math.inf
        self._finished: int | None = None
        self._finished_then: int | None = None
        self._next_change = self._next_start = 0.0
        self._too_many_since = self._over_since = math.inf

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
                if self.stops:
                    self.verdict = max(self.verdict, code)
                continue
            if AT_ONCE <= process.age < self._clock() - self._failed:
                self.failures = 0  # one that was started after it works
            if process.overdue > self.bounds.grace and not process.killed:
                self._say(f"{process} does not stop: it is killed")
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
            text = f"{process} ended with exit code {code}"
            if process.stopping or (code == 0 and (over or age >= AT_ONCE)):
                self._say(text)
            else:
                see = f", see {process.log}" if process.log else ""
                self._note_failure(f"{text} after {age:.1f} s{see}")

    def _note_failure(self, text: str) -> None:
        if self.failures == 0:
            self._finished_then = self._finished
        pause = min(LONGEST_PAUSE, self.bounds.first_pause * 2.0 ** min(self.failures, 30))
        self.failures += 1
        self._failed = self._clock()
        self._next_start = self._failed + pause
        self._say(f"{text}; the next starts in {pause:g} s at the earliest")

    def has_failed(self, finished: int | None = None) -> bool:
        """Every start has ended at once, nobody is left, and no page was finished meanwhile."""
        return not self.processes and self.failures >= TRIES and finished == self._finished_then

    def see_off(self) -> None:
        """The run is complete: who has not left after the grace period is told to."""
        self._over_since = min(self._over_since, self._clock())
        if self._clock() - self._over_since > self.bounds.grace:
            for process in self.running:
                self._say(f"{process} stays: it is stopped")
                process.stop()

    # How many there are

    def scale(self, wanted: int, load: Load) -> None:
        """One step towards ``wanted`` workers, as far as bounds and the machine allow. None is
        stopped while another one still ends: until then nobody knows what that has brought."""
        now = self._clock()
        target = min(self.bounds.most, max(self.bounds.least, wanted))
        running = self.running
        may_stop = now >= self._next_change and len(running) == len(self.processes)
        self.held_back = ""
        if load.is_short and len(running) > max(1, self.bounds.least):
            if may_stop:
                self._stop_newest("memory is short")
        elif len(running) > target:
            self._too_many_since = min(self._too_many_since, now)
            if may_stop and now >= self._too_many_since + self.bounds.patience:
                self._stop_newest(f"{target} would do")
        else:
            self._too_many_since = math.inf
            self._start_some(target, load, now)

    def _start_some(self, target: int, load: Load, now: float) -> None:
        """The least number at once, after failures and beyond it one at a time."""
        while len(self.running) < target and not self.stops:
            if now < self._next_start:
                self.held_back = f"the next start is in {self._next_start - now:.0f} s"
                return
            if self.running and len(self.running) >= self.bounds.least:
                if now < self._next_change:
                    return
                if not load.has_room(max(one.rss for one in self.running), self.bounds.most_cpu):
                    self.held_back = "CPU or memory has no room for one more"
                    return
            if not self._start_one():
                return
            self._next_change = now + BETWEEN
            if self.failures:
                self._next_start = now + self.bounds.first_pause

    def _start_one(self) -> bool:
        self._started += 1
        try:
            process = self._start(self._started)
        except (OSError, subprocess.SubprocessError) as error:
            if not (self.processes or self.codes):
                raise  # there is no such command
            # No memory for one more, or the command is being replaced: the other workers go on.
            self._note_failure(f"worker {self._started} could not be started: {error}")
            return False
        self.processes.append(process)
        if self.stops and not process.stopping:  # the signal has come meanwhile
            process.stop()
        self._say(f"worker {process.number} started (pid {process.pid})")
        return True

    def _stop_newest(self, why: str) -> None:
        process = self.running[-1]
        self._say(f"{process} is stopped: {why}")
        process.stop()
        self._next_change = self._clock() + BETWEEN

    def stop(self) -> None:
        """Stop all: gracefully, the second time at once, from the third on by SIGKILL."""
        self.stops += 1
        for process in self.processes:
            if self.stops <= 2:
                process.stop()
            else:
                process.kill()
