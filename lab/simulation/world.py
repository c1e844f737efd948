"""One crawl of a plan: starts workers, lets faults happen, and goes on until all is over."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import json
import math
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from scrapy import signals
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.settings import BaseSettings

from lab.simulation import clock as clocks
from lab.simulation import spider as spiders
from lab.simulation.clock import WORKER, Process, VirtualClock, VirtualLoop, run_here
from lab.simulation.faults import Faults, Happened
from lab.simulation.letters import Letter, dead_letters
from lab.simulation.network import Network
from lab.simulation.people import People
from lab.simulation.plan import (
    EVERY,
    FEED,
    LATENESS,
    LINES,
    PERIOD,
    RECURRING,
    SEEN_TTL,
    STRANGE,
    Plan,
)
from lab.simulation.server import META
from lab.simulation.site import DELAY, Site
from lab.simulation.workers import AGE, Log, Worker, copied, run_of, settings_of
from scrapy_redisq.errors import ConfigurationMismatch, RedisqError
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.pipelines import doubt
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker import origin, report

END, LAST = 15.0, 5.0
"""In place of minutes, after which a row is known as bad that no other one follows; and in place of
half a minute, after which it is tried again."""

LONGEST = 700.0
"""Virtual seconds after which a crawl counts as one that never ends."""

MOST_WORKERS = 40

SURELY = 1.0
"""Virtual seconds by which a worker that has joined later has come later."""

LATE = 2.0
"""Virtual seconds by which what comes again may be late."""

HEAVY_LINE = 300_000
"""Bytes of a heavy line of a feed."""

RIVAL = 99
"""Number of the worker of another crawl."""

CALM, TIMES, UNREST = 12.0, 4, 120.0
"""What comes again is left alone for so many intervals, so many virtual seconds after the last
fault and start of a worker; but it is ended so long after the last fault at the latest."""

IDLE = 3.0
"""Virtual seconds of nothing to do after which people stop workers that would stay."""


@dataclass
class World:
    """All there is in one crawl. ``events`` is its log: what is compared and shown."""

    plan: Plan
    server_path: str
    is_traced: bool = False
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    rows: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The keys of the rows that an item came with."""
    workers: list[Worker] = field(default_factory=list)
    sink_away: bool = False
    sink_slow: bool = False
    fed: list[tuple[int, str]] = field(default_factory=list)
    """What idle spiders have asked for: (worker, key)."""
    early: list[tuple[float, int, set[str]]] = field(default_factory=list)
    """When workers closed as finished, and what was not in the sink by then."""
    starting: dict[int, float] = field(default_factory=dict)
    """Workers that read start(), and since when."""
    left_starting: list[tuple[float, int, set[int]]] = field(default_factory=list)
    """When workers closed as finished, and which others of their run were reading start()."""
    happened: list[Happened] = field(default_factory=list)
    completed_at: float = math.inf
    """When a run was complete for the first time."""
    run_ended_at: float = math.inf
    """When that run ended, as a worker that comes is told: its last worker left, and completed it
    later."""
    closed_at: float = 0.0
    """When the last worker closed."""
    voided: float = 0.0
    """How many leases may have been held by workers that others took for dead."""
    met: Counter[str] = field(default_factory=Counter)
    former_letters: list[Letter] = field(default_factory=list)
    """The dead letters of runs when they were complete, or before a key was damaged."""
    sessions_lost: list[float] = field(default_factory=list)
    """When a worker was told that another one had died with a session."""
    rotated: tuple[float, float] | None = None
    """When the dupefilters were to be rotated, and by how many TTLs that was too late."""
    losses: list[tuple[float, float]] = field(default_factory=list)
    """From when to when the server may have lost what it was told."""
    ended_at: float = 0.0
    late: float = 0.0
    """Seconds from the last page or fault to the end."""
    last_fault: float = 0.0

    def run(self) -> None:
        """Run it; afterwards everything can be looked at."""
        self.clock.install(self.plan.seed)
        self.chance = random.Random(f"world {self.plan.seed}")
        self.site = Site(self.plan)
        self.people = People(self)
        spiders.WORLD[:] = [self]
        asyncio.to_thread = run_here  # type: ignore[assignment]
        BaseSettings.copy = copied  # type: ignore[method-assign, assignment]
        origin.process_age = lambda: AGE
        origin._processes_that_crawled.clear()
        time.process_time = lambda: 1.0
        report._MEMORY = Path("/dev/null")
        doubt.END, doubt.LAST = END, LAST
        Log(self)
        plan = self.plan
        self.network = Network(
            self.server_path, plan.masters, plan.replicas, self.clock, self.chance
        )
        self.network.install()
        self.network.run_is_complete = self._run_is_complete
        self.faults = Faults(self)
        if self.is_traced:
            self.network.trace = self.say
        self.network.latency = self.chance.choice([0.0002, 0.002, 0.02])
        loop = VirtualLoop(self.clock)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live())
        except clocks.Stuck:
            self.problems.append("hang: nobody will ever do anything again")
        for server in self.network.servers:
            server.away = 0  # a fault may last longer than the crawl

    def say(self, text: str) -> None:
        self.events.append(f"{self.clock.now:9.4f} {text}")

    # Workers

    @functools.cached_property
    def _runner(self) -> AsyncCrawlerRunner:
        return AsyncCrawlerRunner(settings_of(self.plan, self.network.url))

    def settings(self) -> RedisqSettings:
        """What a push finds in the project."""
        return RedisqSettings.read(self._runner.settings)

    def config(self) -> FrontierConfig:
        kind = "exact" if "Exact" in self.plan.settings["DUPEFILTER_CLASS"] else "bloom"
        return self.settings().frontier_config(dupefilter=kind)

    def look_at_limits(self) -> None:
        """They are those of the worker that joined last, whoever has come back since. The first
        worker has brought no delay."""
        met = any(map(self.met.get, ("messages", "reset", "damage", "stranger", "clock")))
        if "old_limits" not in self.plan.features or self.losses or met:
            return
        others = [one.joined_at for one in self.workers[1:] if one.joined_at < math.inf]
        if max(others, default=0.0) < self.workers[0].joined_at + SURELY:
            return
        for server in self.network.primaries:
            for key in server.redis.keys("redisq:{sim*:meta"):
                limit = server.redis.hget(key.removesuffix(b"meta") + b"limits", "*") or b""
                if not limit.startswith(b"%d " % (1e6 * DELAY)):
                    self.older_limits.append(f"limits: of an older worker at {self.clock.now:.2f}")

    older_limits: list[str] = field(default_factory=list)
    """What was wrong by `look_at_limits`."""

    def start_worker(self, **arguments: str) -> Worker:
        if self.workers:
            self.look_at_limits()
        process = Process(len(self.workers) + 1)
        context = contextvars.copy_context()
        context.run(WORKER.set, process)
        crawler = context.run(self._runner.create_crawler, spiders.SimulatedSpider)
        worker = Worker(process, crawler, bool(arguments), self.network.first.run, self.clock.now)
        self.workers.append(worker)
        self._is_lost = False

        def closed(reason: str) -> None:
            worker.reason = reason
            self.closed_at = worker.closed_at = self.clock.now
            if reason == "finished" and not worker.is_strange:
                self._finished(worker)
            if reason == "frontier_lost":
                self._is_lost = True
                self.site.asked_for.clear()  # by a run that nobody has any more
            self.say(f"w{worker.number} closed: {reason}")

        def joined() -> None:
            if run_of(worker):
                worker.joined_at = self.clock.now

        if "old_limits" in self.plan.features and worker.number == 1:
            crawler.settings.set("REDISQ_SLOT_DELAY", 0, "cmdline")
        crawler.signals.connect(joined, signals.spider_opened, weak=False)
        crawler.signals.connect(closed, signals.spider_closed, weak=False)
        self.say(f"w{worker.number} starts")
        worker.task = context.run(self._runner.crawl, crawler, **arguments)
        worker.task.add_done_callback(lambda task: self._left(worker, task))
        return worker

    rivals: list[Worker] = field(default_factory=list)
    """Of another crawl, which shares the limits of hosts."""

    def _start_rival(self, kill_after: float) -> None:
        """A crawl of one worker, which may be killed and is never started again."""
        process, context = Process(RIVAL), contextvars.copy_context()
        context.run(WORKER.set, process)
        crawler = context.run(self._runner.create_crawler, spiders.Rival)
        rival = Worker(process, crawler)
        self.rivals.append(rival)
        self.say("the rival starts")
        rival.task = context.run(self._runner.crawl, crawler)
        if kill_after < math.inf:
            self._later(kill_after, process.kill)

    def _finished(self, worker: Worker) -> None:
        missing = self.site.expected()[0] - self.table.keys()
        self.early.append((self.clock.now, worker.number, missing))
        # One may have joined when others had found all finished, and were leaving, or waited for
        # one that is dead, or for the end of the run.
        dead = "sees_end" in self.plan.features or any(one.process.dead for one in self.workers)
        began = self.clock.now - 1.0 - self.plan.settings["REDISQ_LEASE_TTL"] * dead
        starting = {
            one.number
            for one in self.workers
            if self.starting.get(one.number, math.inf) < began and one.process.runs
            if not one.reason and one is not worker and run_of(one) == run_of(worker)
        }
        if starting:
            self.left_starting.append((self.clock.now, worker.number, starting))
        if "latecomer" in self.plan.features and self._late_at < 0:
            late = self.chance.choice([0.001, 0.02, 0.2, 0.5])
            self._late_at = self.clock.now + late
            self._later(late, self.start_worker)

    def _run_is_complete(self) -> None:
        self.completed_at = min(self.completed_at, self.clock.now)
        if ended := self.network.first.redis.hget(META, "ended"):
            self.run_ended_at = min(self.run_ended_at, int(ended) / 1e6 - clocks.EPOCH)
        self.note_letters()

    def note_letters(self) -> None:
        """They go when the next run begins, or with a key that somebody damages."""
        token, away = WORKER.set(None), [server.away for server in self.network.servers]
        for server in self.network.servers:
            server.away = 0
        with contextlib.suppress(redis.RedisError, RedisqError):
            self.former_letters += dead_letters(self)
        WORKER.reset(token)
        for server, one in zip(self.network.servers, away, strict=True):
            server.away = one

    _late_at = -math.inf
    """When a latecomer comes."""

    def _left(self, worker: Worker, task: asyncio.Task[None]) -> None:
        worker.error = None if task.cancelled() else task.exception()
        self.say(f"w{worker.number} is gone {worker.error or ''}")

    def _happened(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            self.problems.append(f"the simulation: {task.exception()!r}")

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_over]

    def kill(self, worker: Worker) -> None:
        self.say(f"w{worker.number} is killed")
        mine = [at - clocks.BOOTED for at, *_, number in self.site.log if number == worker.number]
        self.void(most=len(mine))
        if self.sink_away:  # pages wait for it, and did while it was slow
            slow = [one.since for one in self.happened if one.kind.startswith("sink")]
            self.voided += sum(at > min(slow) for at in mine)
        worker.process.kill()

    async def killed_by(self, process: Process | None) -> None:
        """What is fetched kills its worker."""
        worker = next(worker for worker in self.workers if worker.process is process)
        self.met["kill"] += 1
        self.happened.append(Happened("kill", self.clock.now, self.clock.now))
        self.kill(worker)
        self.last_fault = self.clock.now
        self._later(0.5, self.start_worker)
        await asyncio.get_running_loop().create_future()

    def stop(self, worker: Worker) -> None:
        """SIGTERM."""
        worker.stopped += 1
        self.say(f"w{worker.number} is told to stop")
        if worker.stopped > 1:
            self.kill(worker)
            return
        context = contextvars.copy_context()
        context.run(WORKER.set, worker.process)
        loop = asyncio.get_running_loop()
        context.run(loop.call_soon, self._stop_crawler, worker)

    def _stop_crawler(self, worker: Worker) -> None:
        self._tasks.add(asyncio.ensure_future(worker.crawler.stop_async()))

    def downloads(self, host: str) -> None:
        """A download begins at a host. Of one that is away all know within a second."""
        active = self.site.active
        number = sum(
            active[host, worker.number]
            for worker in [*self.workers, *self.rivals]
            if worker.process.runs
            and not any(worker.number in server.cut_off for server in self.network.servers)
        )
        if number:
            self.site.crowded.append((self.clock.now, host, number))
            if self.clock.now > self.site.away.get(host, math.inf) + 1.1:
                self.site.pressed.append((self.clock.now, host))

    def void(self, workers: int = 1, most: float = math.inf) -> None:
        """What so many workers hold may be fetched again, but no more than ``most``."""
        self.voided += min(most, workers * 2 * self.plan.settings["CONCURRENT_REQUESTS"])
        self.last_fault = max(self.last_fault, self.clock.now)

    # The crawl

    async def _live(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        if "lines" in self.plan.features:
            self._feed()
        if "seen_ttl" in self.plan.features:
            chance = random.Random(f"rotate {self.plan.seed}")
            self._later(chance.uniform(0.1, 4), functools.partial(self._rotate, chance))
        if "rival" in self.plan.features:
            chance = random.Random(f"rival {self.plan.seed}")
            life = chance.choice([chance.uniform(AGE, 4), math.inf])
            self._later(chance.uniform(0, 2), functools.partial(self._start_rival, life))
        for at in self.plan.workers:
            self._later(at, self.start_worker)
        for fault in self.plan.faults:
            self._tasks.add(task := asyncio.ensure_future(self.faults.happen(fault)))
            task.add_done_callback(self._happened)
        self._tasks.add(asyncio.ensure_future(self.faults.remember()))
        if "recurs" in self.plan.features:
            self._tasks.add(asyncio.ensure_future(self._end_recurring()))
        alone_since = 0.0
        begun_again = "again" not in self.plan.features
        idle_since, started = 0.0, 0
        while not self._is_over() or not begun_again:
            await asyncio.sleep(0.25)
            if not begun_again and self._is_over():
                await asyncio.sleep(3.0)  # of what ended while they started workers are a part
                if self._is_over() and self.clock.now - self.closed_at > 2 * AGE:
                    begun_again = True
                    await self._begin_again()
                alone_since = self.clock.now
            if self.alive():
                alone_since = self.clock.now
            if self.stays and (started != len(self.workers) or not self._is_idle()):
                idle_since, started = self.clock.now, len(self.workers)  # a new one reads start()
            elif self.stays and self.clock.now - idle_since > IDLE:
                for worker in self.alive():
                    if not worker.stopped:
                        self.stop(worker)
            if self.clock.now > LONGEST:
                self.problems.append(f"hang: not over after {LONGEST:g} s")
                return
            # A person would look again when the dead ones are given up.
            if self.clock.now - alone_since > self.plan.settings["REDISQ_LEASE_TTL"] + 1:
                if len(self.workers) >= MOST_WORKERS:
                    self.problems.append("no worker ends the run")
                    return
                last = self.workers[-1]
                others = isinstance(last.error, ConfigurationMismatch) and not last.is_strange
                self.start_worker(**(STRANGE if others else {}))  # who goes on with their run
                alone_since = self.clock.now
        self.ended_at = self.clock.now

    async def _end_recurring(self) -> None:
        """People end what comes again when nothing else has been left to do for a while."""
        since = 0.0
        lasts = (PERIOD + 2 * EVERY + LATE) * ("periods" in self.plan.features)
        while self.calm is None and self.clock.now < self.last_fault + UNREST:
            await asyncio.sleep(0.25)
            came = all(any(key in name for name in self.site.hits) for key in RECURRING)
            few_left = came and 0 <= self.network.left() <= len(RECURRING)
            if not few_left or self._is_disturbed():
                since = self.clock.now
            if self.clock.now > since + max(TIMES * EVERY, lasts):
                self.calm = (since, self.clock.now)
        while True:
            self.people.end_recurring()
            await asyncio.sleep(1.0)

    calm: tuple[float, float] | None = None
    """From when to when nothing was left to do but what comes again."""

    def _rotate(self, chance: random.Random) -> None:
        """As if a TTL were over, and all had been idle for some time."""
        late = chance.choice(LATENESS)
        budgets = {"slot_budget", "page_budget"} & self.plan.features  # more is asked for then
        late = 0.0 if budgets and late > 1 else late
        self.rotated = self.clock.now, late
        for server in self.network.primaries:
            for key in server.redis.keys("redisq:*:meta"):
                if server.redis.type(key) == b"hash" and server.redis.hexists(key, "rotates"):
                    due = int(server.redis.hget(key, "sign")) - int(late * SEEN_TTL * 1e6)
                    server.redis.hset(key, "rotates", due)

    def _feed(self) -> None:
        """Another program fills the feed, and its server has that for good."""
        server, url = self.network.primary_of(FEED), self.site.pages[0].url
        kind = random.Random(f"feed {self.plan.seed}").choice(["list", "list", "zset"])
        for n in range(LINES):
            line = {"url": f"{url}?line{n}", "callback": "parse_key", "dont_filter": n % 2 == 0}
            if "heavy_lines" in self.plan.features:
                line["meta"] = {"heavy": "x" * HEAVY_LINE}
            text = json.dumps({**line, "cb_kwargs": {"key": f"line{n}"}})
            if "stream" in self.plan.features:
                server.redis.xadd(FEED, {"line": text}, id=f"{n + 1}-0")
            elif kind == "zset":
                server.redis.zadd(FEED, {text: -n})
            else:
                server.redis.rpush(FEED, text)
        server.sync()

    async def _begin_again(self) -> None:
        """Another crawl on the same name."""
        self.say("-- the crawl begins again")
        if not {"REDISQ_RUN", "REDISQ_KEEP_SEEN"} & self.plan.settings.keys():
            self.table_before, self.table = self.table, {}
            self.fed.clear()
            for key in self.table_before:  # nobody pushes it again
                if key.startswith("pushed"):
                    self.table[key] = self.table_before[key]
        for at in self.plan.workers:
            self._later(at, self.start_worker)
        await asyncio.sleep(self.plan.workers[-1] + 0.5)

    _is_lost = False
    """Workers have said so, and people have not started the crawl again."""

    table_before: dict[str, int] | None = None
    """What the sink held before the crawl began again."""

    def _later(self, at: float, action: Any) -> None:
        asyncio.get_running_loop().call_later(at, action, context=contextvars.Context())

    def is_complete(self) -> bool:
        return self.network.first.state == b"complete"

    def _is_over(self) -> bool:
        if not all(rival.is_over for rival in self.rivals) or self.clock.now < self._late_at + 0.01:
            return False
        if len(self.workers) < len(self.plan.workers) or self.alive():
            return False
        if any(one.away for one in self.network.primaries):
            return False
        # What an old primary was told is said again.
        if self.network.split or not (self._is_idle() if self.stays else self.is_complete()):
            return False
        return not (self._is_lost or self.people.busy or self.faults.happening)

    @property
    def stays(self) -> bool:
        """Whether workers stay when all is done, until somebody stops them."""
        return "keep_alive" in self.plan.features

    def _is_idle(self) -> bool:
        """Whether all is done, as far as that can be said, and no fault comes any more."""
        if self.people.busy or any(fault.at > self.clock.now for fault in self.plan.faults):
            return False
        # Who has read start() to its end may be killed before a server hears of that.
        is_seeded = self.network.first.redis.hget(META, "seeded")
        is_there = is_seeded and not any(one.away for one in self.network.primaries)
        # Of workers that somebody has deleted nobody counts it back.
        starting = self.alive() and not self.met["damage"] and self.network.is_starting()
        return is_there and not starting and self.network.is_done()

    def _is_disturbed(self) -> bool:
        """Whether somebody does something, or a fault is to come or not over, or was just now."""
        return (
            bool(self.people.busy)
            or any(fault.at > self.clock.now for fault in self.plan.faults)
            or any(one.until > self.clock.now - CALM for one in self.happened)
            or any(one.started_at > self.clock.now - CALM for one in self.workers)
            or not self.alive()
        )

    @property
    def has_forgotten(self) -> bool:
        """Whether dupefilters have forgotten all that they knew at some moment."""
        return self.rotated is not None and self.rotated[1] > 1

    lost_run = False
    """The server came back without the run, or with the one before it."""
