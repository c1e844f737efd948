"""One crawl of a plan: starts workers, lets faults happen, and goes on until all is over."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import json
import logging
import math
import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.settings import BaseSettings

from lab.simulation import clock as clocks
from lab.simulation import spider as spiders
from lab.simulation.clock import WORKER, Process, VirtualClock, VirtualLoop, run_here
from lab.simulation.network import Network
from lab.simulation.people import People
from lab.simulation.plan import FEED, LINES, Fault, Plan
from lab.simulation.server import FATES, META, SimulatedServer
from lab.simulation.site import BURST, DELAY, RATE, RETRY_DELAY, RETRY_TIMES, Site
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

RIVAL = 99
"""Number of the worker of another crawl."""

AGE = 1.0
"""Virtual seconds that a process takes until its crawl begins."""

IDLE = 3.0
"""Virtual seconds of nothing to do after which people stop workers that would stay."""

BY_PEOPLE = {
    "pause_slot",
    "pause_crawl",
    "push",
    "damage",
    "requeue",
    "quiet",
    "told_to_stop",
    "reset",
}
"""Faults that are over when somebody was heard."""

OF_A_WORKER = ("kill", "freeze", "cut", "stop", "stop_twice", "host_dies")
"""Faults that need one that lives."""

LOSING = ("lost_tail", "failover", "host_dies")
"""Faults by which a server loses its last second."""

PRECIOUS = (b":queue:", b":levels:", b":ready", b":delayed", b":leases:")
"""In names of keys without which requests are lost."""

DAMAGED = "damaged"
"""What is written over a key."""

SETTINGS: dict[str, Any] = {
    "TWISTED_REACTOR_ENABLED": False,
    "ADDONS": {"scrapy_redisq.Addon": 500},
    "DOWNLOAD_HANDLERS": {"http": "lab.simulation.spider.Downloads", "https": None},
    "COOKIES_ENABLED": False,
    "CONCURRENT_ITEMS": 3,  # so many tasks are made for each response
    "ITEM_PIPELINES": {"lab.simulation.spider.Refuse": 1, "lab.simulation.spider.Sink": 2},
    "REDISQ_CONNECT_TIMEOUT": 120,  # one fault may follow the other
    "REDISQ_RETRY_DELAYS": [RETRY_DELAY],
    "REDISQ_SET_ASIDE_WAIT": 5,
    "RETRY_TIMES": RETRY_TIMES,
    "URLLENGTH_LIMIT": 0,  # of what has nothing to do here, and would take its time
    "METAREFRESH_ENABLED": False,
    "COMPRESSION_ENABLED": False,
    "HTTPPROXY_ENABLED": False,
    "EXTENSIONS_BASE": {"scrapy.extensions.corestats.CoreStats": 0},
    "WARN_ON_GENERATOR_RETURN_VALUE": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "INFO",
}


@dataclass
class Worker:
    """One `scrapy crawl`. ``reason`` is what its spider was closed with, "" until then.
    ``is_strange``: of another crawl on the same name. ``run``: the one that was there when it was
    started."""

    process: Process
    crawler: Any
    is_strange: bool = False
    run: bytes | None = None
    started_at: float = 0.0
    task: asyncio.Task[None] | None = None
    reason: str = ""
    stopped: int = 0
    error: BaseException | None = None

    @property
    def number(self) -> int:
        return self.process.number

    @property
    def is_over(self) -> bool:
        return self.process.dead or (self.task is not None and self.task.done())


@dataclass
class Happened:
    """A fault, since when and until when it happened."""

    kind: str
    since: float
    until: float = math.inf


@dataclass
class World:
    """All there is in one crawl. ``events`` is its log: what is compared and shown."""

    plan: Plan
    server_path: str
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
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
    finished_at: float = math.inf
    """When the first worker closed as finished."""
    closed_at: float = 0.0
    """When the last worker closed."""
    voided: float = 0.0
    """How many leases may have been held by workers that others took for dead."""
    met: Counter[str] = field(default_factory=Counter)
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
        BaseSettings.copy = _copied  # type: ignore[method-assign, assignment]
        origin.process_age = lambda: AGE
        origin._processes_that_crawled.clear()
        time.process_time = lambda: 1.0
        report._MEMORY = Path("/dev/null")
        doubt.END, doubt.LAST = END, LAST
        _Log(self).install()
        plan = self.plan
        self.network = Network(
            self.server_path, plan.masters, plan.replicas, self.clock, self.chance
        )
        self.network.install()
        if "trace" in plan.traced:
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
        settings = {**SETTINGS, "REDISQ_URL": self.network.url, **self.plan.settings}
        if "limits" in self.plan.features:
            settings["REDISQ_SLOT_DELAY"] = DELAY
        if "keep_alive" in self.plan.features:
            settings["REDISQ_KEEP_ALIVE"] = True
        if "robots" in self.plan.features:
            settings["ROBOTSTXT_OBEY"] = True
        slots: dict[str, dict[str, Any]] = {}
        if "rate" in self.plan.features:
            slots["h0.sim"] = {"rate": f"{RATE * 60:.0f}/m", "burst": BURST}
        if "narrow" in self.plan.features:
            slots["h1.sim"] = {"concurrency": 1}
        settings["REDISQ_SLOT_LIMITS"] = slots
        return AsyncCrawlerRunner(settings)

    def config(self) -> FrontierConfig:
        """What a push finds in the project."""
        kind = "exact" if "Exact" in self.plan.settings["DUPEFILTER_CLASS"] else "bloom"
        return RedisqSettings.read(self._runner.settings).frontier_config(dupefilter=kind)

    def start_worker(self, **arguments: str) -> Worker:
        process = Process(len(self.workers) + 1)
        context = contextvars.copy_context()
        context.run(WORKER.set, process)
        crawler = context.run(self._runner.create_crawler, spiders.SimulatedSpider)
        worker = Worker(process, crawler, bool(arguments), self.network.first.run, self.clock.now)
        self.workers.append(worker)
        self._is_lost = False

        def closed(reason: str) -> None:
            worker.reason = reason
            self.closed_at = self.clock.now
            if reason == "finished" and not worker.is_strange:
                self._finished(worker)
            self._is_lost |= reason == "frontier_lost"
            self.say(f"w{worker.number} closed: {reason}")

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
        self.finished_at = min(self.finished_at, self.clock.now)
        missing = self.site.expected()[0] - self.table.keys()
        self.early.append((self.clock.now, worker.number, missing))
        # One may have joined when others had found all finished, and were leaving.
        began = self.clock.now - 1.0
        starting = {
            one.number
            for one in self.workers
            if self.starting.get(one.number, math.inf) < began and one.process.runs
            if not one.reason and one is not worker and _run_of(one) == _run_of(worker)
        }
        if starting:
            self.left_starting.append((self.clock.now, worker.number, starting))
        if "latecomer" in self.plan.features and not self._is_late:
            self._is_late = True
            self._later(self.chance.choice([0.001, 0.02, 0.2, 0.5]), self.start_worker)

    _is_late = False
    """A latecomer has come."""

    def _left(self, worker: Worker, task: asyncio.Task[None]) -> None:
        worker.error = None if task.cancelled() else task.exception()
        self.say(f"w{worker.number} is gone {worker.error or ''}")

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_over]

    def kill(self, worker: Worker) -> None:
        self.say(f"w{worker.number} is killed")
        self.void()
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
        goes_on = [
            worker.number
            for worker in [*self.workers, *self.rivals]
            if active[host, worker.number]
            and worker.process.runs
            and not any(worker.number in server.cut_off for server in self.network.servers)
        ]
        if goes_on:
            self.site.crowded.append((self.clock.now, host))
            if self.clock.now > self.site.away.get(host, math.inf) + 1.1:
                self.site.pressed.append((self.clock.now, host))

    def void(self, workers: int = 1) -> None:
        """What so many workers hold may be fetched again."""
        self.voided += workers * 2 * self.plan.settings["CONCURRENT_REQUESTS"]
        self.last_fault = max(self.last_fault, self.clock.now)

    # The crawl

    async def _live(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        if "lines" in self.plan.features:
            self._feed()
        if "seen_ttl" in self.plan.features:
            self._later(random.Random(f"rotate {self.plan.seed}").uniform(0.1, 4), self._rotate)
        if "rival" in self.plan.features:
            chance = random.Random(f"rival {self.plan.seed}")
            life = chance.choice([chance.uniform(AGE, 4), math.inf])
            self._later(chance.uniform(0, 2), functools.partial(self._start_rival, life))
        for at in self.plan.workers:
            self._later(at, self.start_worker)
        for fault in self.plan.faults:
            self._tasks.add(asyncio.ensure_future(self._happen(fault)))
        self._tasks.add(asyncio.ensure_future(self._remember()))
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
            if self._stays and (started != len(self.workers) or not self._is_idle()):
                idle_since, started = self.clock.now, len(self.workers)  # a new one reads start()
            elif self._stays and self.clock.now - idle_since > IDLE:
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
                self.start_worker()
                alone_since = self.clock.now
        self.ended_at = self.clock.now

    def _rotate(self) -> None:
        """As if a TTL were over."""
        for server in self.network.primaries:
            for key in server.redis.keys("redisq:*:meta"):
                if server.redis.hexists(key, "rotates"):
                    server.redis.hset(key, "rotates", server.redis.hget(key, "sign"))

    def _feed(self) -> None:
        """Another program fills the feed, and its server has that for good."""
        server, url = self.network.primary_of(FEED), self.site.pages[0].url
        for n in range(LINES):
            line = {"url": f"{url}?line{n}", "callback": "parse_key", "dont_filter": n % 2 == 0}
            line["cb_kwargs"] = {"key": f"line{n}"}
            server.redis.rpush(FEED, json.dumps(line))
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
        started = len(self.workers) >= len(self.plan.workers)
        if not all(rival.is_over for rival in self.rivals):
            return False
        if not started or self.alive() or any(one.away for one in self.network.primaries):
            return False
        if not (self._is_idle() if self._stays else self.is_complete()):
            return False
        if self._is_lost:
            return False
        return not self.people.are_busy and self._happening == 0

    @property
    def _stays(self) -> bool:
        """Whether workers stay when all is done, until somebody stops them."""
        return "keep_alive" in self.plan.features

    def _is_idle(self) -> bool:
        """Whether all is done, as far as that can be said, and no fault comes any more."""
        if self.people.are_busy or any(fault.at > self.clock.now for fault in self.plan.faults):
            return False
        return self.network.is_done()

    async def _remember(self) -> None:
        losses = [fault for fault in self.plan.faults if fault.kind in LOSING]
        until = max((fault.at + fault.lasts for fault in losses), default=0.0)
        while self.clock.now < until:
            for server in self.network.primaries:
                server.remember()
            await asyncio.sleep(self.chance.uniform(0.1, 0.9))

    # Faults

    def _server(self, fault: Fault) -> SimulatedServer:
        """The one that it is about."""
        return self.network.primaries[fault.worker % len(self.network.primaries)]

    def _some_servers(self, fault: Fault) -> list[SimulatedServer]:
        """That one, or all."""
        return list(self.network.servers) if fault.lasts in (0.5, 5.0) else [self._server(fault)]

    async def _happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if not self.workers or (not self.alive() and self.is_complete()):
            return
        worker = self.workers[fault.worker % len(self.workers)]
        if worker.is_over and fault.kind in OF_A_WORKER:
            return
        self.say(f"-- {fault.kind} (worker {worker.number}, {fault.lasts} s)")
        self.met[fault.kind] += 1
        self.happened.append(happens := Happened(fault.kind, self.clock.now))
        self.last_fault = self.clock.now
        # Who stays has no end by which it shows that all start requests were read.
        is_waited_for = fault.kind in BY_PEOPLE or self._stays
        self._happening += is_waited_for
        await getattr(self, f"_{fault.kind}")(fault, worker)
        self._happening -= is_waited_for
        self.last_fault = happens.until = self.clock.now
        self.say(f"-- {fault.kind} is over")

    async def _kill(self, fault: Fault, worker: Worker) -> None:
        self.kill(worker)
        await asyncio.sleep(fault.lasts)
        self.start_worker()

    async def _freeze(self, fault: Fault, worker: Worker) -> None:
        self.void()
        worker.process.stop()
        await asyncio.sleep(fault.lasts)
        worker.process.go_on(asyncio.get_running_loop())

    async def _cut(self, fault: Fault, worker: Worker) -> None:
        self.void()
        servers = self._some_servers(fault)
        for server in servers:
            server.cut_off.add(worker.number)
        await asyncio.sleep(fault.lasts)
        for server in servers:
            server.cut_off.discard(worker.number)

    async def _stop(self, fault: Fault, worker: Worker) -> None:
        self.stop(worker)
        await asyncio.sleep(fault.lasts)

    async def _stop_twice(self, fault: Fault, worker: Worker) -> None:
        self.stop(worker)
        await asyncio.sleep(min(fault.lasts, 0.5))
        if not worker.is_over:
            self.stop(worker)

    async def _leave(self, fault: Fault, worker: Worker) -> None:
        await self._stop(fault, worker)
        self.start_worker()

    async def _stranger(self, fault: Fault, worker: Worker) -> None:
        # A run that was begun by a push is anybody's.
        ours = self.network.first.redis.hget(META, "config:arguments")
        # And the name of a run that is lost may be anybody's.
        loses = any(map(self.met.get, (*LOSING, "lost_script", "reset")))
        if ours and not loses and not self.is_complete():
            self.start_worker(of="another crawl")

    async def _join(self, fault: Fault, worker: Worker) -> None:
        self.start_worker()

    async def _outage(self, fault: Fault, worker: Worker) -> None:
        self.void(len(self.alive()))
        for server in (servers := self._some_servers(fault)):
            server.away += 1
            self.network.hang_up(server)
        await asyncio.sleep(fault.lasts)
        for server in servers:
            server.away -= 1

    async def _restart(self, fault: Fault, worker: Worker) -> None:
        await self._outage(fault, worker)
        await self._flush(fault, worker)

    async def _lost_tail(self, fault: Fault, worker: Worker) -> None:
        self.void(2 * len(self.alive()))
        server = self._server(fault)
        since = self.network.kept_since(server, self.clock.now - 1.0)
        self._void_since(since)
        server.away += 1
        self.network.hang_up(server)
        await asyncio.sleep(fault.lasts)
        self._forget(server, since)
        server.away -= 1

    async def _host_dies(self, fault: Fault, worker: Worker) -> None:
        """With it a worker, and the last second of a server."""
        self.kill(worker)
        await self._lost_tail(fault, worker)
        self.start_worker()

    async def _lost_script(self, fault: Fault, worker: Worker) -> None:
        self.void(len(self.alive()))
        server = self._server(fault)
        server.remember()
        await server.next_call()
        self._forget(server, self.clock.now)

    def _forget(self, server: SimulatedServer, since: float) -> None:
        """The server comes back without what was written since."""
        runs = self.network.runs()
        server.forget_since(since)
        self._lost_since(since, runs)

    def _lost_since(self, since: float, runs: set[tuple[str, bytes]]) -> None:
        self.losses.append((since - 1.0, self.clock.now))
        self.lost_run |= not runs <= self.network.runs()
        self.people.lost()

    def _void_since(self, since: float) -> None:
        """What was fetched since may be fetched again."""
        self.voided += sum(at - 1_000 > since - 1.0 for at, *_ in self.site.log)

    async def _failover(self, fault: Fault, worker: Worker) -> None:
        """Half of the workers go on speaking with the old primary, for as long as it is not
        missed."""
        old, runs, since = self._server(fault), self.network.runs(), self.clock.now - 1.0
        if not self.network.fail_over(old, since):
            return
        self.void(2 * len(self.alive()))
        self._void_since(since)
        self._lost_since(since, runs)
        began = self.clock.now
        old.cut_off |= {one.number for one in self.alive() if self.chance.random() < 0.5}
        await asyncio.sleep(min(fault.lasts, 5.0))
        old.cut_off.clear()
        runs |= self.network.runs(old)  # it may have begun one since
        self.network.end_split(old)
        self._void_since(began + 1.0)
        self._lost_since(began, runs)

    async def _during(self, fault: Fault, things: list[Any], **values: tuple[Any, Any]) -> None:
        """Attributes of these things have the first value for a while, and then the second one."""
        for which in (0, 1):
            for thing in things:
                for name, pair in values.items():
                    setattr(thing, name, pair[which])
            if not which:
                await asyncio.sleep(fault.lasts)

    async def _full(self, fault: Fault, worker: Worker) -> None:
        await self._during(fault, self._some_servers(fault), is_full=(True, False))

    async def _clock(self, fault: Fault, worker: Worker) -> None:
        self.void(len(self.alive()))
        self._server(fault).clock_error += self.chance.choice([-3_600.0, -5.0, 5.0, 3_600.0])

    async def _flush(self, fault: Fault, worker: Worker) -> None:
        self.network.first.forget_scripts()

    async def _sink_away(self, fault: Fault, worker: Worker) -> None:
        await self._during(fault, [self], sink_away=(True, False))

    async def _sink_slow(self, fault: Fault, worker: Worker) -> None:
        await self._during(fault, [self], sink_slow=(True, False))

    async def _messages(self, fault: Fault, worker: Worker) -> None:
        share = self.chance.choice([0.05, 0.2, 0.4])

        def fate(command: Any) -> str:
            if self.chance.random() >= share:
                return ""
            self.voided += 2 * self.plan.settings["CONCURRENT_REQUESTS"]
            return self.chance.choice(FATES)

        await self._during(fault, self._some_servers(fault), fate=(fate, lambda command: ""))

    async def _host_away(self, fault: Fault, worker: Worker) -> None:
        """A host answers nothing but 503. A page that has timed out by its own fault may have no
        retry left for that."""
        number = fault.worker % self.plan.hosts
        host = f"h{number}.sim"
        if any(page.host == number and 0 in page.answers for page in self.site.pages):
            return
        if self.plan.settings["REDISQ_SCHEDULING"] == "slot" and host not in self.site.away:
            self.site.away[host] = math.inf
            await asyncio.sleep(min(fault.lasts, 5.0))  # for longer a request may be given up
            del self.site.away[host]

    async def _pause_slot(self, fault: Fault, worker: Worker) -> None:
        slots = self.plan.settings["REDISQ_SCHEDULING"] == "slot"
        if slots and "side" not in self.plan.features:  # such downloads fail where a slot is paused
            await self.people.pause(f"h{fault.worker % self.plan.hosts}.sim", fault.lasts)

    async def _pause_crawl(self, fault: Fault, worker: Worker) -> None:
        await self.people.pause("", fault.lasts)

    async def _push(self, fault: Fault, worker: Worker) -> None:
        await self.people.push()

    async def _requeue(self, fault: Fault, worker: Worker) -> None:
        requeued = await self.people.requeue()
        self.voided += requeued * (RETRY_TIMES + 1)

    async def _reset(self, fault: Fault, worker: Worker) -> None:
        """All of it has to be crawled again."""
        self.void(2 * len(self.alive()))
        await self.people.reset()
        self.losses.append((self.clock.now - 1.0, self.clock.now))  # of when slots were used last
        # Else the crawl of before could come back, and its pages would be done without their rows.
        for server in self.network.servers:
            server.sync()
        self.lost_run = True
        self.table.clear()
        self.fed.clear()
        self.people.lost()

    async def _quiet(self, fault: Fault, worker: Worker) -> None:
        await self.people.tell("quiet")
        await asyncio.sleep(fault.lasts)
        for _ in range(3):  # a worker that was away then comes back as it was
            await self.people.tell("work")
            await asyncio.sleep(10.0)

    async def _told_to_stop(self, fault: Fault, worker: Worker) -> None:
        await self.people.tell("stop")

    async def _foreign_entry(self, fault: Fault, worker: Worker) -> None:
        server = self._server(fault)
        for key in server.redis.keys("redisq:*:queue:h0.sim:0"):
            server.redis.lpush(key, self.chance.randbytes(20))

    async def _damage(self, fault: Fault, worker: Worker) -> None:
        """Somebody deletes a key or writes over it; a person who is told so puts that in order."""
        server = self._server(fault)
        # Without the run on shard 0 the others are of no use. A slot would wait for ever for tokens
        # of a worker whose tokens are not known any more, or who is not.
        keys = server.redis.keys("redisq:*")
        spared = [META.encode(), FEED.encode(), b":tokens:"]
        if any(server.redis.hget(key, "out") for key in keys if b":slot:" in key):
            spared.append(b":workers")
        keys = [key for key in keys if not any(kind in key for kind in spared)]
        precious = [key for key in keys if any(kind in key for kind in PRECIOUS)]
        if not keys:
            return
        key = self.chance.choice(sorted(precious or keys if self.chance.random() < 0.6 else keys))
        self.void(len(self.alive()))
        kind = server.redis.type(key)
        server.redis.delete(key)
        how = "deleted"
        if self.chance.random() < 0.5:
            how = "overwritten"
            (server.redis.lpush if kind == b"string" else server.redis.set)(key, DAMAGED)
        self.say(f"-- {how}: {key.decode()}")
        await asyncio.sleep(fault.lasts)
        if how == "overwritten":
            await self.people.mend(key.decode(), b"list" if kind == b"string" else b"string")

    _happening = 0
    """What people are at."""
    lost_run = False
    """The server came back without the run, or with the one before it."""


def _run_of(worker: Worker) -> str | None:
    """The run that it has joined."""
    joined = getattr(worker.crawler.engine.scheduler, "worker", None)
    return joined and joined.run_session.sessions[0].run_id


def _copied(settings: BaseSettings) -> BaseSettings:
    """A copy of settings, which takes Scrapy's own a tenth of a crawl's time."""
    clone = copy.copy(settings)
    clone.attributes = {name: copy.copy(one) for name, one in settings.attributes.items()}
    for one in clone.attributes.values():
        if isinstance(one.value, BaseSettings):
            one.value = _copied(one.value)
        elif isinstance(one.value, (list, dict)):
            one.value = copy.copy(one.value)
    return clone


class _Log(logging.Handler):
    """What workers log, as events."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def install(self) -> None:
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        process = WORKER.get()
        who = f"w{process.number}" if process else "world"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            self._world.met["traceback"] += 1
            last = "".join(traceback.format_exception(*record.exc_info))
            if not _is_expected(record):
                self._world.problems.append(f"{who}: a traceback: {text}\n{last}")
        self._world.say(f"{who} {record.levelname} {record.name}: {text}")


def _is_expected(record: logging.LogRecord) -> bool:
    """Scrapy's own of exceptions that the spider or the pipeline raises on purpose."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return isinstance(error, (KeyError, ValueError)) and record.name in (
        "scrapy.core.scraper",
        "scrapy.core.engine",
    )
