"""The frontiers of a server: each is opened once, and looked at in threads for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.stored import frontier_names
from scrapy_redisq.errors import FrontierError, SettingError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.ops.dashboard import redis_servers
from scrapy_redisq.ops.dashboard.lists import Letter
from scrapy_redisq.ops.dashboard.shared import Listed, Shared
from scrapy_redisq.ops.doctor import Report
from scrapy_redisq.ops.metrics.exporter import Programs
from scrapy_redisq.ops.serving import in_thread
from scrapy_redisq.server.connection import Server

T = TypeVar("T")

BY = "dashboard"
"""Who has done what the action log has of this."""

THREADS = 12
"""Looks and changes that go on at the same time."""

STATUS_LASTS, SERVERS_LAST, LISTS_LAST, SERIES_LASTS, NAMES_LAST = 1.0, 2.0, 2.0, 5.0, 5.0
DOCTOR_LASTS, MEMORY_LASTS = 10.0, 15.0
"""Seconds for which what was seen is shown to other viewers, too."""

Opener = Callable[[Server, str], Frontier]
Examiner = Callable[[Server, str | None], Report]
"""Looks for what is wrong with a server, and with the frontier of that name."""


def _no_room(why: str) -> None:
    """In the place of waiting: a thread that does is lost to all who look; `Crawls.close` waits."""
    raise FrontierError(f"the frontier {why}: push later what is not there yet")


class NoCrawl(LookupError):
    """Raised when there is no frontier of this name."""


class Crawl:
    """One frontier, as all viewers share it; ``doctor``: the report of it and of its server."""

    def __init__(
        self, frontier: Frontier, threads: Executor, doctor: Shared[dict[str, Any]]
    ) -> None:
        self.frontier = frontier
        self.doctor = doctor
        self.status = Shared(threads, frontier.look, lasts=STATUS_LASTS)
        self.memory = Shared(threads, frontier.memory, lasts=MEMORY_LASTS)
        self.hosts = Listed(threads, frontier.slots, lasts=LISTS_LAST)
        self.letters = Listed(threads, lambda: map(Letter.of, frontier.dead()), lasts=LISTS_LAST)
        self._threads = threads
        self._series: dict[int, Shared[dict[str, Any]]] = {}

    def series(self, resolution: int) -> Shared[dict[str, Any]]:
        """Samples, and the marks beside them."""

        def look() -> dict[str, Any]:
            return {**self.frontier.series(resolution), "marks": self.frontier.marks()}

        if resolution not in self._series:
            self._series[resolution] = Shared(self._threads, look, lasts=SERIES_LASTS)
        return self._series[resolution]

    def changed(self) -> None:
        """A person changed something, and wants to see it."""
        for seen in (self.status, self.hosts, self.letters, self.doctor):
            seen.forget()


class Crawls:
    """All of them. ``open_to_push`` gives a frontier with the project's fingerprinter, ``examine``
    heeds its settings."""

    def __init__(self, server: Server, open_to_push: Opener, examine: Examiner) -> None:
        self._server = server
        self._open_to_push = open_to_push
        self._examine = examine
        self._threads = ThreadPoolExecutor(THREADS, "dashboard")
        # One examination at a time: each asks a lot, and beside a Redis that hangs it takes long.
        self._doctors = ThreadPoolExecutor(1, "doctor")
        self._client = server.client()
        self._crawls: dict[str, Crawl] = {}
        self._to_push: dict[str, Frontier] = {}
        self._opening = threading.Lock()
        self.programs = Programs(server)
        self.names = Shared(self._threads, self._names, lasts=NAMES_LAST)
        self.servers = Shared(self._threads, self._servers, lasts=SERVERS_LAST)
        self.doctor = self._doctor(None)

    def close(self) -> None:
        """Wait for what is being done, and close the connections."""
        for threads in (self._threads, self._doctors):
            threads.shutdown(cancel_futures=True)
        for frontier in self._to_push.values():
            frontier.close()
        self.programs.close()
        self._client.close()

    async def run(self, what: Callable[[], T]) -> T:
        """Do ``what`` in a thread. Raises `NoThread`."""
        return await in_thread(self._threads, what)

    async def crawl(self, name: str) -> Crawl:
        """Raises `NoCrawl`, and what Redis' client does."""
        if known := self._crawls.get(name):
            return known
        return await self.run(lambda: self._open(name))

    async def to_push(self, name: str) -> Frontier:
        """The same, to push to it and to ask about URLs; raises as `crawl` does, and `SettingError`
        where it has another fingerprinter than the project."""
        await self.crawl(name)
        return await self.run(lambda: self._opened_to_push(name))

    async def overview(self) -> dict[str, Any]:
        """The status of each frontier, and of the servers; ``problems`` of those that cannot be
        read. Raises if none can because Redis is away."""
        names, not_all = await self.names.get()
        found = await asyncio.gather(*map(self._status_of, names), return_exceptions=True)
        crawls, problems = [], {}
        for name, status in zip(names, found, strict=True):
            if isinstance(status, TROUBLE) and len(names) == 1:
                raise status
            if isinstance(status, (FrontierError, *TROUBLE)):
                problems[name] = self.redact(status)
            elif isinstance(status, dict) and status["state"] != "absent":
                crawls.append(status)
            elif isinstance(status, BaseException) and not isinstance(status, NoCrawl):
                raise status
        if problems and not crawls:
            raise ConnectionError(next(iter(problems.values())))
        servers = await self.servers.told()
        age = max(told["age"] for told in (servers, *crawls))
        return {**servers, "crawls": crawls, "problems": problems, "not_all": not_all, "age": age}

    async def _status_of(self, name: str) -> dict[str, Any]:
        return await (await self.crawl(name)).status.told()

    def redact(self, error: object) -> str:
        """The text of an error, without passwords; redis-py's do not say what is away."""
        is_away = isinstance(error, (redis.ConnectionError, redis.TimeoutError))
        return "Redis is away: " * is_away + self._server.redact(error)

    def _names(self) -> tuple[list[str], str]:
        try:
            return frontier_names(self._client)
        except TROUBLE:
            with contextlib.suppress(Exception):
                self._server.revive()
            raise

    def _servers(self) -> dict[str, Any]:
        return {"servers": redis_servers.told(self._client)}

    def _doctor(self, name: str | None) -> Shared[dict[str, Any]]:
        def look() -> dict[str, Any]:
            return self._examine(self._server, name).to_json()

        return Shared(self._doctors, look, lasts=DOCTOR_LASTS)

    def _open(self, name: str) -> Crawl:
        try:
            frontier = Frontier(self._server, name, client=self._client)
        except SettingError as error:
            raise NoCrawl(str(error)) from None
        with contextlib.suppress(FrontierError):  # whoever looks at it is told what is wrong
            if frontier.config() is None:
                raise NoCrawl(f"there is no crawl {name!r}")
        frontier.by = BY
        opened = Crawl(frontier, self._threads, self._doctor(name))
        return self._crawls.setdefault(name, opened)  # somebody else may have opened it meanwhile

    def _opened_to_push(self, name: str) -> Frontier:
        with self._opening:
            if name not in self._to_push:
                frontier = self._open_to_push(self._server, name)
                frontier.by, frontier.waiting_to_push = BY, _no_room
                self._to_push[name] = frontier
            return self._to_push[name]
