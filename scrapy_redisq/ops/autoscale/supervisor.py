"""Looks at the frontier, the machine and the processes, and brings them together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.scaling import OVER
from scrapy_redisq.errors import FrontierError, ServerError
from scrapy_redisq.ops.autoscale.crawl_command import CrawlCommand
from scrapy_redisq.ops.autoscale.fleet import Bounds, Fleet
from scrapy_redisq.ops.autoscale.machine import Load, Machine, exists
from scrapy_redisq.ops.autoscale.process import Process

TICK = 0.2
"""Seconds between two looks at the processes."""

LOOK = 1.0
"""Seconds between two at the frontier, unless one takes long: a fifth of the time at most."""


@dataclass(frozen=True)
class Job:
    """A fleet to run: ``words``, the workers' command, for the run ``run_name`` ("": they name
    it themselves); ``concurrency``: requests that a worker has in progress. ``logs``: the folder
    of what they say, None: where this process does."""

    words: list[str]
    run_name: str
    concurrency: int
    logs: Path | None
    bounds: Bounds


class Supervisor:
    """Starts and stops workers until the run is complete, or a signal ends it.

    ``status``: what the frontier said last, None: nothing yet. ``away``: why it cannot be looked
    at now, else "". ``wanted``: workers that would have work, ``because`` of what. ``say`` is told
    what is done, ``show`` that there was another look.
    """

    def __init__(
        self,
        frontier: Frontier,
        job: Job,
        say: Callable[[str], object],
        show: Callable[[Supervisor], object],
    ) -> None:
        self._frontier = frontier
        self._job = job
        self._run_name = job.run_name
        self._say, self._show = say, show
        self.fleet = Fleet(self._start, say, job.bounds)
        self._machine, self.load = Machine(), Load()
        self.status: dict[str, Any] | None = None
        self.wanted, self.because = 0, ""
        self.away = ""
        self._complete = False

    def run(self) -> int:
        """Until there is nothing left to do; -> the exit code."""
        try:
            return self._loop()
        except BaseException:
            if not self.fleet.stops:
                self.fleet.stop()
            raise
        finally:
            # Workers whose starter goes away are told once more to stop: that would be "at once".
            while self.fleet.processes:
                self.fleet.reap()
                time.sleep(TICK)

    def _start(self, number: int) -> Process:
        logs, words = self._job.logs, self._job.words
        begun = self._run_name and self.status and self.status["run_name"] == self._run_name
        if begun and CrawlCommand(words).spider:
            words = [*words, "-s", "REDISQ_RESUME=True"]  # whatever else it says: not another run
        return Process(number, words, logs / f"worker-{number}.log" if logs else None)

    def _loop(self) -> int:
        next_look, seen = 0.0, (0, 0)
        while True:
            self.fleet.reap()
            now, changes = time.monotonic(), (len(self.fleet.codes), self.fleet.stops)
            if now >= next_look or changes != seen:
                self._look()
                verdict = self._step()
                self._show(self)
                if verdict is not None:
                    return verdict
                took = time.monotonic() - now
                next_look, seen = time.monotonic() + max(LOOK, 4 * took), changes
            time.sleep(TICK)

    def _look(self) -> None:
        self.load = self._machine.look()
        try:
            status = self._frontier.look()
            # Where workers name the run themselves, and none goes on, they begin any.
            begins = status["state"] in OVER and not self.fleet.codes
            wanted = self._frontier.wanted_workers(
                least=self.fleet.bounds.least,
                concurrency=self._job.concurrency,
                status=status,
                run=self._run_name or ("that the command names" if begins else ""),
            )
        except (redis.RedisError, ServerError) as error:
            self.away = f"Redis is away, trying again: {error}"
        except FrontierError as error:  # workers pass over a key that is in the way
            self.away = f"The crawl cannot be looked at, trying again: {error}"
        else:
            self.away, self.status = "", status
            self.wanted, self.because = wanted.workers, wanted.because

    def _step(self) -> int | None:
        """Start and stop workers; -> the exit code if it is over."""
        fleet = self.fleet
        finished = self.status["finished"] if self.status else None
        complete = self._is_complete()
        ending = self._is_ending()
        fleet.judge(over=complete or ending, finished=finished)
        if complete:
            fleet.see_off()
        if not fleet.processes:
            if complete:
                self._say(f"the run {self._run_name} is complete".replace("  ", " "))
                return 0
            if fleet.stops:
                return fleet.verdict
            if fleet.has_failed(finished):
                code = fleet.codes[-1]
                self._say(
                    f"given up: {fleet.failures} workers in turn ended at once, the last with exit "
                    f"code {code}, and no page was finished: see what they said"
                )
                return code or 1
        if not (fleet.stops or complete or self.away or (ending and 0 in fleet.codes)):
            fleet.scale(self._wanted_here(), self.load)
        return None

    def _is_ending(self) -> bool:
        """Everything is finished: the first workers may have left, before the last one says that
        the run is complete. If nobody is left to say so, start() was not read to its end."""
        status = self.status
        if status is None or self.away or status["state"] != "running":
            return False
        return bool(status["created"] <= status["finished"] and not status["posted"])

    def _is_complete(self) -> bool:
        """Whether the run is, for which workers are started here. One with a name stays so when
        somebody begins another one, until it is opened again."""
        status = self.status
        if status is None or self.away:
            return self._complete
        complete = status["state"] == "complete"
        if not self._run_name:
            self._complete = complete and bool(self.fleet.codes)
        elif status["run_name"] == self._run_name:
            self._complete = complete
        elif complete:  # ours has ended before, so that its workers have nothing to do
            self._complete = self._complete or 0 in self.fleet.codes
        elif status["run_name"]:  # the same, else they are refused
            self._complete = self._complete or self.fleet.ended_well
        return self._complete

    def _wanted_here(self) -> int:
        """The frontier's number without the workers that were not started here."""
        assert self.status is not None
        alive = [worker for worker in self.status["workers"] if worker["alive"]]
        return self.wanted - sum(self._is_others(worker) for worker in alive)

    def _is_others(self, worker: Mapping[str, Any]) -> bool:
        """Neither started here, nor one of this machine that is gone: such a one counts as alive
        until its lease TTL has passed."""
        if worker["host"] != socket.gethostname():
            return True
        ours = any(process.has(worker["pid"]) for process in self.fleet.processes)
        return not ours and exists(worker["pid"])
