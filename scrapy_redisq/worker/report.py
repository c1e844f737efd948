"""A worker's report to people, and orders of people to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.frontier.names import STAT

if TYPE_CHECKING:
    from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two reports at least. They go with exchanges that there are anyway."""

COUNT_EVERY = 1.0
"""Seconds between two times that a worker adds to the counts of the frontier."""

WINDOW = 60.0
"""Seconds over which pages a minute are counted."""

LOOK = 0.25
"""Seconds between two looks whether the loop is blocked."""

_MEMORY = Path("/proc/self/statm")

STATUS_COUNT = "downloader/response_status_count/"
"""Begins the names of Scrapy's stats of responses."""

STATUSES = frozenset(str(int(status)) for status in HTTPStatus)


def responses(stats: Mapping[Any, Any]) -> Counter[str]:
    """Responses by ``status_NNN``, of Scrapy's stats. Statuses that are not registered count
    together by their class (``status_5xx``): sites may make up any number of them."""
    counts: Counter[str] = Counter()
    for name, number in [*stats.items()]:  # a thread of the project may add one
        if isinstance(name, str) and name.startswith(STATUS_COUNT):
            status = name.removeprefix(STATUS_COUNT)
            counts[f"status_{status if status in STATUSES else status[:1] + 'xx'}"] += number
    return counts


MOST_STATS, LONGEST_NAME, MOST = 500, 200, 2**53
"""Stats that a worker tells of, characters of their names, and their values, at most."""

_EXTREME = re.compile(r"(.*[^a-zA-Z])?(max|min)", re.ASCII)


def stats_to_tell(stats: Mapping[Any, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Whole numbers of Scrapy's stats, as counts of the frontier: those that workers add up, and
    those of which the highest or the lowest one counts, as the end of the name says."""
    whole = {
        STAT + name: value
        for name, value in [*stats.items()]
        if type(value) is int  # True is none
        and abs(value) < MOST
        and isinstance(name, str)
        and len(name) <= LONGEST_NAME
        and name.isprintable()  # what UTF-8 cannot have is not
    }
    told = {name: whole[name] for name in [*whole][:MOST_STATS]}
    extremes = {name: told.pop(name) for name in [*told] if _EXTREME.fullmatch(name[len(STAT) :])}
    return told, extremes


class Reporter:
    """Makes a worker's report when one is due, and adds its work to the counts of all workers."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._due = time.monotonic()  # the first one goes with the first exchange
        self._looks = deque([(self._due, 0)])
        self.blocked = 0.0
        """Seconds for which nothing else has run, at most."""
        self._counted: dict[str, int] = {}
        self._count_at = 0.0

    async def watch(self) -> None:
        """Until cancelled: notice for how long a callback, or whatever it is, lets nothing else
        run. No sign of life is given meanwhile either."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LOOK)
            self.blocked = max(self.blocked, time.monotonic() - before - LOOK)

    def report(self) -> dict[str, Any]:
        """Figures as an exchange takes them, with a report if one is due. The last exchange has the
        last."""
        told: dict[str, Any] = {"pages": self._worker.pages, "items": self._worker.items}
        now = time.monotonic()
        if now < self._due and not self._worker.run_session.stopping:
            return told
        self._due = now + EVERY
        stats, extremes = stats_to_tell(self._worker.stats.get_stats())
        self._count(stats)
        memory = None  # where the system does not say
        with contextlib.suppress(OSError, ValueError, IndexError):
            memory = int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        report = {
            "pages_per_minute": round(self.pages_per_minute(), 1),
            "cpu_seconds": round(time.process_time(), 2),
            "rss_bytes": memory,
            "blocked_seconds": round(self.blocked, 2),
            **self.doing(),
        }
        told |= {"report": json.dumps(report), "extremes": extremes}
        return {name: value for name, value in told.items() if value}

    def doing(self) -> dict[str, Any]:
        """The state of the worker."""
        worker, downloading = self._worker, self._worker.engine.downloads.number
        return {
            "downloading": downloading,
            "in_callbacks": max(0, len(worker.engine.in_progress) - downloading),
            "waiting_for_sink": worker.in_progress.unwritten,
            "waiting_to_send": worker.run_session.waiting(),
            "kept": len(worker.kept),
            "sink": "away" if worker.sinks_away else "",
            "quiet": worker.orders.quiet,
        }

    def count_work(self) -> None:
        """Add what the worker did, about once a second: to change counts takes Redis a twentieth of
        a small exchange."""
        worker, now = self._worker, time.monotonic()
        if now < self._count_at and not worker.engine.closing:
            return
        self._count_at = now + COUNT_EVERY
        if isinstance(worker.dupefilter, RedisqDupeFilter):
            worker.dupefilter.count_filtered()
        done = {"pages": worker.pages, "items": worker.items, "errors": worker.in_progress.errors}
        self._count({**done, **responses(worker.stats.get_stats())})

    def _count(self, done: Mapping[str, int]) -> None:
        for name, number in done.items():
            if more := number - self._counted.get(name, 0):
                self._worker.run_session.count(name, more)
        self._counted |= done

    def soon(self) -> None:
        """Something has changed: the next exchange has a report."""
        self._due = 0.0

    def pages_per_minute(self) -> float:
        """Over the last minute, or since the worker began."""
        now, pages = time.monotonic(), self._worker.pages
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW:
            self._looks.popleft()
        then, before = self._looks[0]
        self._looks.append((now, pages))
        return 60 * (pages - before) / (now - then) if now > then else 0.0


class Orders:
    """Heeds what people have told this worker, also when it has joined again under another id.
    ``changed`` is called when it is to be quiet, or no longer."""

    quiet = False
    """The worker claims nothing, and finishes what it holds."""

    def __init__(self, engine: Engine, changed: Callable[[], None], *, paused: bool) -> None:
        self.paused = False
        """The crawl is paused: the worker begins nothing either."""
        self._engine = engine
        self._changed = changed
        self._stopped = False
        if paused:
            self._pause(paused)

    def _pause(self, paused: bool) -> None:
        self.paused = paused
        logger.info(
            "The crawl is paused (scrapy redisq pause): nothing is started until it is resumed"
            if paused
            else "The crawl goes on (scrapy redisq resume)"
        )

    def heed(self, told: str) -> None:
        """``told`` by an exchange with shard 0 is "quiet", "work" or "stop", or "paused" as long as
        the crawl is; anything else means nothing."""
        if told != "stop" and self.paused != (told == "paused"):
            self._pause(told == "paused")
            self._changed()
        if told == "stop" and not self._stopped:
            self._stopped = self._engine.stop()
            if self._stopped:
                logger.info("Told to stop (scrapy redisq workers stop)")
        elif told in {"quiet", "work"} and self.quiet != (told == "quiet"):
            self.quiet = told == "quiet"
            logger.info(
                "Told to be quiet (scrapy redisq workers quiet): this worker finishes what it "
                "holds and claims nothing, until it is told to work or to stop"
                if self.quiet
                else "Told to work (scrapy redisq workers work): this worker claims requests again"
            )
            self._changed()
