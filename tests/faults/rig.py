"""One crawl under fault: a server, a site, a sink, workers, and a log of what was done to them."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.databases.database import Database
from lab.proxy import Proxy
from lab.sentinels import Sentinels
from lab.servers import RedisServer, any_server, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from tests.faults.size import SIZE, Size
from tests.harness.crawl import Crawl, together, wait_until_joined

PASSWORD = "hunter2-of-the-rig"
MOST_LEASES = 2 * SIZE.concurrency
"""L: the most leases that one worker holds, by default twice CONCURRENT_REQUESTS."""

FACTS = 2
"""Rows a page in a database, beside the page's own."""

# With the time in seconds since 1970, to the millisecond.
LOG_FORMAT = "%(created).3f [%(name)s] %(levelname)s: %(message)s"

Page = Callable[[str], "Answer | str | None"]


def line_with(log: str, text: str) -> tuple[float, str]:
    """(seconds since 1970, the line) of the first line of a log that has ``text`` in it."""
    (line, *_) = [line for line in log.splitlines() if text in line]
    return float(line.split(maxsplit=1)[0]), line


class Rig:
    """A crawl of ``pages`` pages, each linked from three others, by ``scrapy crawl`` processes.

    ``random`` is seeded: what is chosen at random is chosen again with the same seed. ``gone``
    are the workers that need not finish: they were killed or told to close.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.size: Size = SIZE
        self.pages = SIZE.pages
        self.ttl = SIZE.ttl
        self.random = random.Random(seed)
        self.folder = folder
        self.sink = folder / "sink.sqlite"
        self.settings: dict[str, Any] = {}
        self.workers: list[Crawl] = []
        self.gone: list[Crawl] = []
        self.measured: dict[str, float | str] = {}
        self.released = threading.Event()
        self.database: Database | None = None
        self.url = ""
        """Where workers go to, if not to the server directly."""
        self._hold = False
        self._stack = ExitStack()
        self._paths: set[str] = set()
        self._looked_at = 0
        self._seed = seed

    def close(self) -> None:
        for worker in self.workers:
            if worker.running:
                worker.kill()
        self._stack.close()

    # What there is

    def set_up(
        self,
        *,
        server: str = "redis-7",
        pages: int | None = None,
        delay: float = 0.0,
        page: Page | None = None,
        aof: bool = False,
        options: tuple[str, ...] = (),
        ttl: float | None = None,
        hold: bool = False,
        database: Database | None = None,
        cluster: Mapping[str, Any] | None = None,
        group: Sentinels | None = None,
        hosts: int = 1,
        socket_timeout: float = 2,
        **settings: Any,
    ) -> Rig:
        """Start the server and the site. ``settings`` hold for all workers, which write to
        ``database`` if there is one. ``server`` is its kind, where this machine has that one; with
        options of a `Cluster` it is the kind of its nodes; of a ``group`` the first primary is it.
        The pages lie on so many ``hosts``, with links from each to all others.

        ``hold``: the last page does not arrive before `finish`, so that nobody who is late finds
        the run complete, and begins another one.
        """
        self._hold = hold
        self._socket_timeout = socket_timeout
        self.pages = pages or self.pages
        self.ttl = ttl or self.ttl
        self.server: RedisServer | Cluster
        if group is not None:
            self._stack.callback(group.close)
            self.server, self.url = group.servers[0], group.url()
        elif cluster is None:
            self.server = self.start_server(server, *options, aof=aof)
            if aof:
                self.server.renew_log()
        else:
            nodes = Cluster(any_server(server), *options, aof=aof, password=PASSWORD, **cluster)
            self.server = self._stack.enter_context(nodes)

        def base(number: int) -> str:
            return f"http://127.0.0.{number % hosts + 1}:{self.site.port}" if hosts > 1 else ""

        page = page or linked_pages(self.pages, delay=delay, base=base)
        self.site = Site(self._holding_back(page) if hold else page, hosts)
        self._stack.enter_context(self.site)
        self.make_sink(self.sink)
        self.settings = {
            "LOG_FORMAT": LOG_FORMAT,
            "SINK": self.sink,
            "CONCURRENT_REQUESTS": SIZE.concurrency,
            "REDISQ_LEASE_TTL": self.ttl,
            "REDISQ_MAX_DELIVERIES": 50,
            **settings,
        }
        if database is not None:
            self.database = database
            self.settings["REDISQ_DATABASE_URL"] = database.url
        return self

    def _holding_back(self, page: Page) -> Page:
        last = f"/{self.pages - 1}"

        def held(path: str) -> Answer | str | None:
            answer = page(path)
            if path == last and isinstance(answer, Answer):
                answer.until = self.released
            return answer

        return held

    @staticmethod
    def make_sink(path: Path) -> Path:
        """An empty sink."""
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE pages (url TEXT PRIMARY KEY, page TEXT, stored INTEGER)")
        return path

    def start_server(self, kind: str, *options: str, **more: Any) -> RedisServer:
        server = RedisServer(any_server(kind), *options, password=PASSWORD, **more)
        self._stack.callback(server.close)
        return server

    def proxy(self) -> Proxy:
        """A proxy in front of the server; workers use it when they are given its URL."""
        assert isinstance(self.server, RedisServer)
        return self._stack.enter_context(Proxy(self.server.port, seed=self._seed))

    # Workers

    def worker(
        self,
        spider: str = "",
        *,
        url: str | None = None,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        fresh: bool = False,
        **arguments: Any,
    ) -> Crawl:
        """Start one worker; ``url`` where it does not go to the server directly."""
        place = url or self.url or self.server.url
        option = "&" if "?" in place else "?"
        given = {
            "REDISQ_URL": f"{place}{option}socket_timeout={self._socket_timeout:g}",
            **self.settings,
            **(settings or {}),
        }
        worker = Crawl(
            spider or ("fault" if self.database is None else "stored"),
            self.folder,
            settings=given,
            arguments={"site": self.site.url, **arguments},
            environment=environment,
            feed=False,
            fresh=fresh,
        )
        self.workers.append(worker)
        return worker

    def fleet(
        self, number: int | None = None, first: Mapping[str, Any] | None = None, **options: Any
    ) -> list[Crawl]:
        """Start several workers, which begin when all have joined.

        They are alike, but for the options of the ``first`` one.
        """
        with together(self.folder) as gate:
            workers = []
            for place in range(number or self.size.workers):
                given = {**options, **(first or {})} if place == 0 else options
                settings = {**given.get("settings", {}), **gate}
                workers.append(self.worker(**{**given, "settings": settings}))
            wait_until_joined(workers)
        return workers

    def under_way(self, share: float) -> list[Crawl]:
        """Start a fleet, and wait until it has asked for this share of all pages."""
        fleet = self.fleet()
        self.wait_for_pages(share)
        return fleet

    def kill(self, worker: Crawl) -> None:
        """SIGKILL."""
        worker.kill()
        self.gone.append(worker)

    def kill_at_random(self, seconds: float) -> int:
        """Start a fleet, kill one of it every second or two, and start another one in its place.

        -> how many were killed
        """
        return self.keep_killing(self.fleet(), self.size.pick(1, 2), seconds)

    def keep_killing(self, fleet: list[Crawl], every: float, seconds: float, **options: Any) -> int:
        """The same of a fleet that there is; new ones are started with ``options``."""

        def kill_one() -> None:
            place = self.random.randrange(len(fleet))
            self.kill(fleet[place])
            fleet[place] = self.worker(**options)

        return self.repeat(kill_one, every, seconds)

    def crash_again_and_again(
        self, point: Callable[[], str], number: int, runs: int, until: Callable[[], bool]
    ) -> None:
        """Start workers that crash at a ``point`` of a page's life, and others in their place,
        until so many have crashed or ``until`` holds; then workers that live."""

        def crashing() -> dict[str, str]:
            return {"FAULT_CRASH": point()}

        fleet = [self.worker(environment=crashing()) for _ in range(number)]

        def crashed_often() -> bool:
            for place, worker in enumerate(fleet):
                if not worker.running:
                    assert worker.process.returncode == -signal.SIGKILL, worker.log
                    self.gone.append(worker)
                    more = len(self.gone) < runs
                    fleet[place] = self.worker(environment=crashing() if more else {})
            return len(self.gone) >= runs or until()

        wait_until(crashed_often, 240, f"{runs} crashes, or that nothing is left to crash at")
        for worker in fleet:  # one of them may have crashed since
            self.kill(worker)
            self.worker()

    def kill_the_server(self, lost: float) -> int:
        """SIGKILL of the server after ``lost`` seconds, which are cut off its log, and a start; ->
        how many pages were asked for meanwhile, 0 if nothing is lost."""
        assert isinstance(self.server, RedisServer)
        log, hits = self.server.log_file, len(self.site.hits)
        size = log.stat().st_size
        self.stay(lost)
        self.server.kill()
        if lost:
            with log.open("r+b") as file:
                file.truncate(size)
        self.server.start()
        return len(self.site.hits) - hits if lost else 0

    def survivors(self) -> list[Crawl]:
        return [worker for worker in self.workers if worker not in self.gone]

    def finish(self, seconds: float | None = None) -> None:
        """Let the last page go when all survivors have joined, and wait until they have ended.

        With ``hold`` it goes when the dead are known to be dead: the frontier is not complete for
        others as long as one of them may be alive.
        """
        wait_until_joined(self.survivors())
        if self.gone and self._hold:
            wait_until(
                lambda: len(self.status()["workers"]) == len(self.survivors()),
                self.ttl + 20,
                "the dead are no longer registered",
            )
        self.released.set()
        for worker in self.survivors():
            worker.wait(seconds or self.size.pick(60, 400))

    # Looking on

    def fetched(self) -> int:
        """How many different pages have been asked for."""
        hits = self.site.hits
        while self._looked_at < len(hits):
            self._paths.add(hits[self._looked_at].path)
            self._looked_at += 1
        return len(self._paths)

    def wait_for_pages(self, share: float, seconds: float | None = None) -> None:
        """Wait until this share of all pages has been asked for."""
        number = int(share * self.pages)
        wait_until(
            lambda: self.fetched() >= number,
            seconds or self.size.pick(40, 300),
            f"{number} pages, not {self.fetched()}",
        )

    def wait_for_flow(self, seconds: float) -> float:
        """Wait until pages are asked for that were not when this was called; -> how long."""
        hits, began = len(self.site.hits), time.monotonic()
        wait_until(lambda: len(self.site.hits) > hits, seconds, "a page is asked for")
        return time.monotonic() - began

    def wait_for_flow_again(self, seconds: float, quiet: float) -> float:
        """Wait until pages are asked for ``quiet`` seconds from now or later; -> how long."""
        began = time.monotonic()
        self.stay(quiet)
        self.wait_for_flow(seconds - quiet)
        return time.monotonic() - began

    def clock(self, offset: str) -> dict[str, str]:
        """The environment of a worker whose clock is ``offset`` seconds off."""
        path = [str(Path(__file__).parent / "clock"), os.environ.get("PYTHONPATH", "")]
        return {"FAULT_CLOCK": offset, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def stay(self, seconds: float, condition: Callable[[], bool] = lambda: True) -> None:
        """Let the fault last: wait ``seconds``, during which ``condition`` must hold."""
        until = time.monotonic() + seconds
        wait_until(lambda: not condition() or time.monotonic() > until, seconds + 60, "the time")
        assert condition()

    def repeat(self, action: Callable[[], Any], every: float, seconds: float) -> int:
        """Do something at intervals for a while, or until no worker runs; -> how often."""
        times, until = 0, time.monotonic() + seconds
        while time.monotonic() < until and any(worker.running for worker in self.workers):
            action()
            times += 1
            due = time.monotonic() + every
            wait_until(lambda due=due: time.monotonic() >= due, every + 60, "the next time")
        return times

    def frontier(self, name: str = "fault", server: RedisServer | None = None) -> Frontier:
        return Frontier.from_url((server or self.server).url, name)

    def status(self, name: str = "fault", server: RedisServer | None = None) -> dict[str, Any]:
        with self.frontier(name, server) as frontier:
            return frontier.status()

    def rows(self, sink: Path | None = None) -> list[tuple[str, str, int]]:
        """(URL, page, how often it was stored) of each row in the sink; 1 in a database."""
        if self.database is not None:
            return [
                (url, str(page), 1)
                for url, page in self.database.query("SELECT url, page FROM pages")
            ]
        with closing(sqlite3.connect(sink or self.sink, timeout=60)) as db:
            return db.execute("SELECT url, page, stored FROM pages").fetchall()

    def warnings(self, worker: Crawl, text: str) -> list[float]:
        """When the worker warned of ``text``, in seconds since 1970."""
        return [
            float(line.split(maxsplit=1)[0])
            for line in worker.log.splitlines()
            if "] WARNING: " in line and text in line
        ]
