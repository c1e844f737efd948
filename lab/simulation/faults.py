"""What goes wrong in a crawl, as its plan has it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.simulation.clock import WORKER
from lab.simulation.plan import FEED, STRANGE, Fault
from lab.simulation.server import FATES, META, SimulatedServer
from lab.simulation.site import RETRY_TIMES
from lab.simulation.workers import Worker
from scrapy_redisq.server.connection import SOCKET_TIMEOUT

if TYPE_CHECKING:
    from lab.simulation.world import World

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

SOON = 15.0
"""Seconds in which whoever starts has joined, also after an outage."""

PRECIOUS = (b":queue:", b":levels:", b":ready", b":delayed", b":leases:")
"""In names of keys without which requests are lost."""

DAMAGED = "damaged"
"""What is written over a key."""

TAKEN_FOR_DEAD = (
    *("freeze", "cut", "stop_twice", "outage", "restart"),
    *("lost_tail", "lost_script", "messages", "full", "failover", "host_dies"),
)
"""Faults by which what a worker holds may be given to another one while it goes on."""


@dataclass
class Happened:
    """A fault, since when and until when it happened."""

    kind: str
    since: float
    until: float = math.inf


class Faults:
    """Those of a world; each kind is a method. ``happening``: how many people are at."""

    def __init__(self, world: World) -> None:
        self._world, self._plan, self._site = world, world.plan, world.site
        self._network, self._people = world.network, world.people
        self._time, self._chance = world.clock, world.chance
        self.happening = 0

    def _server(self, fault: Fault) -> SimulatedServer:
        """The one that it is about."""
        return self._network.primaries[fault.worker % len(self._network.primaries)]

    def _some_servers(self, fault: Fault) -> list[SimulatedServer]:
        """That one, or all."""
        return list(self._network.servers) if fault.lasts in (0.5, 5.0) else [self._server(fault)]

    async def happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if not self._world.workers or (not self._world.alive() and self._world.is_complete()):
            return
        worker = self._world.workers[fault.worker % len(self._world.workers)]
        if worker.is_over and fault.kind in OF_A_WORKER:
            return
        self._world.say(f"-- {fault.kind} (worker {worker.number}, {fault.lasts} s)")
        self._world.met[fault.kind] += 1
        self._world.happened.append(happens := Happened(fault.kind, self._time.now))
        self._world.last_fault = self._time.now
        # Who stays has no end by which it shows that all start requests were read.
        is_waited_for = fault.kind in BY_PEOPLE or self._world.stays
        self.happening += is_waited_for
        await getattr(self, f"_{fault.kind}")(fault, worker)
        self.happening -= is_waited_for
        self._world.last_fault = happens.until = self._time.now
        self._world.say(f"-- {fault.kind} is over")

    def near(
        self, kinds: Collection[str], since: float, until: float = 0.0, before: float = 1.0
    ) -> bool:
        """Whether such a fault happens meanwhile, has just happened and is not known to all, or
        makes what has just happened be forgotten. The answer to a request that was lost is waited
        for."""
        late = self._plan.settings["REDISQ_LEASE_TTL"] / 4 + 3.0
        return any(
            one.kind in kinds
            and since <= one.until + late + SOCKET_TIMEOUT * (one.kind in ("messages", "cut"))
            and max(since, until) >= one.since - before
            for one in self._world.happened
        )

    async def _kill(self, fault: Fault, worker: Worker) -> None:
        self._world.kill(worker)
        await asyncio.sleep(fault.lasts)
        self._world.start_worker()

    async def _freeze(self, fault: Fault, worker: Worker) -> None:
        self._world.void()
        worker.process.stop()
        await asyncio.sleep(fault.lasts)
        worker.process.go_on(asyncio.get_running_loop())

    async def _cut(self, fault: Fault, worker: Worker) -> None:
        self._world.void()
        servers = self._some_servers(fault)
        for server in servers:
            server.cut_off.add(worker.number)
        await asyncio.sleep(fault.lasts)
        for server in servers:
            server.cut_off.discard(worker.number)

    async def _stop(self, fault: Fault, worker: Worker) -> None:
        self._world.stop(worker)
        await asyncio.sleep(fault.lasts)

    async def _stop_twice(self, fault: Fault, worker: Worker) -> None:
        self._world.stop(worker)
        await asyncio.sleep(min(fault.lasts, 0.5))
        if not worker.is_over:
            self._world.stop(worker)

    async def _leave(self, fault: Fault, worker: Worker) -> None:
        await self._stop(fault, worker)
        self._world.start_worker()

    async def _stranger(self, fault: Fault, worker: Worker) -> None:
        # A run that was begun by a push is anybody's.
        ours = self._network.first.redis.hget(META, "config:arguments")
        # And the name of a run that is lost, before a stranger has asked for it, may be anybody's.
        losing = (*LOSING, "lost_script", "reset")
        soon = self._time.now + SOON
        loses = any(one.kind in losing and one.at < soon for one in self._plan.faults)
        if ours and not loses and not self._world.is_complete():
            self._world.start_worker(**STRANGE)

    async def _join(self, fault: Fault, worker: Worker) -> None:
        self._world.start_worker()

    async def _outage(self, fault: Fault, worker: Worker) -> None:
        self._world.void(len(self._world.alive()))
        for server in (servers := self._some_servers(fault)):
            server.away += 1
            self._network.hang_up(server)
        await asyncio.sleep(fault.lasts)
        for server in servers:
            server.away -= 1

    async def _restart(self, fault: Fault, worker: Worker) -> None:
        await self._outage(fault, worker)
        await self._flush(fault, worker)

    async def _lost_tail(self, fault: Fault, worker: Worker) -> None:
        self._world.void(2 * len(self._world.alive()))
        server = self._server(fault)
        since = self._network.kept_since(server, self._time.now - 1.0)
        self._void_since(since)
        server.away += 1
        self._network.hang_up(server)
        await asyncio.sleep(fault.lasts)
        self._forget(server, since)
        server.away -= 1

    async def _host_dies(self, fault: Fault, worker: Worker) -> None:
        """With it a worker, and the last second of a server."""
        self._world.kill(worker)
        await self._lost_tail(fault, worker)
        self._world.start_worker()

    async def _lost_script(self, fault: Fault, worker: Worker) -> None:
        self._world.void(len(self._world.alive()))
        server = self._server(fault)
        server.remember()
        await server.next_call()
        self._forget(server, self._time.now)

    def _forget(self, server: SimulatedServer, since: float) -> None:
        """The server comes back without what was written since."""
        runs = self._network.runs()
        server.forget_since(since)
        self._lost_since(since, runs)

    def _lost_since(self, since: float, runs: set[tuple[str, bytes]]) -> None:
        self._world.losses.append((since - 1.0, self._time.now))
        self._world.lost_run |= not runs <= self._network.runs()
        self._people.lost()

    def _void_since(self, since: float) -> None:
        """What was fetched since may be fetched again."""
        self._world.voided += sum(at - 1_000 > since - 1.0 for at, *_ in self._site.log)

    async def _failover(self, fault: Fault, worker: Worker) -> None:
        """Half of the workers go on speaking with the old primary, for as long as it is not
        missed."""
        old, runs, since = self._server(fault), self._network.runs(), self._time.now - 1.0
        if not self._network.fail_over(old, since):
            return
        self._world.void(2 * len(self._world.alive()))
        self._void_since(since)
        self._lost_since(since, runs)
        began = self._time.now
        old.cut_off |= {one.number for one in self._world.alive() if self._chance.random() < 0.5}
        await asyncio.sleep(min(fault.lasts, 5.0))
        old.cut_off.clear()
        runs |= self._network.runs(old)  # it may have begun one since
        self._network.end_split(old)
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
        self._world.void(len(self._world.alive()))
        self._server(fault).clock_error += self._chance.choice([-3_600.0, -5.0, 5.0, 3_600.0])

    async def _flush(self, fault: Fault, worker: Worker) -> None:
        self._network.first.forget_scripts()

    async def _sink_away(self, fault: Fault, worker: Worker) -> None:
        await self._during(fault, [self._world], sink_away=(True, False))

    async def _sink_slow(self, fault: Fault, worker: Worker) -> None:
        await self._during(fault, [self._world], sink_slow=(True, False))

    async def _messages(self, fault: Fault, worker: Worker) -> None:
        share = self._chance.choice([0.05, 0.2, 0.4])
        voided: dict[int, float] = {}  # a worker does not get other leases with each message

        def fate(command: Any) -> str:
            if self._chance.random() >= share:
                return ""
            number = process.number if (process := WORKER.get()) else 0
            if self._time.now >= voided.get(number, 0.0):
                voided[number] = self._time.now + 1.0
                self._world.voided += 2 * self._plan.settings["CONCURRENT_REQUESTS"]
            return self._chance.choice(FATES)

        await self._during(fault, self._some_servers(fault), fate=(fate, lambda command: ""))

    async def _host_away(self, fault: Fault, worker: Worker) -> None:
        """A host answers nothing but 503. A page that has timed out by its own fault may have no
        retry left for that."""
        number = fault.worker % self._plan.hosts
        host = f"h{number}.sim"
        if any(page.host == number and 0 in page.answers for page in self._site.pages):
            return
        if self._plan.settings["REDISQ_SCHEDULING"] == "slot" and host not in self._site.away:
            self._site.away[host] = math.inf
            await asyncio.sleep(min(fault.lasts, 5.0))  # for longer a request may be given up
            del self._site.away[host]

    async def _pause_slot(self, fault: Fault, worker: Worker) -> None:
        slots = self._plan.settings["REDISQ_SCHEDULING"] == "slot"
        if slots and "side" not in self._plan.features:  # they fail where a slot is paused
            await self._people.pause(f"h{fault.worker % self._plan.hosts}.sim", fault.lasts)

    async def _pause_crawl(self, fault: Fault, worker: Worker) -> None:
        await self._people.pause("", fault.lasts)

    async def _push(self, fault: Fault, worker: Worker) -> None:
        await self._people.push()

    async def _requeue(self, fault: Fault, worker: Worker) -> None:
        requeued = await self._people.requeue()
        self._world.voided += requeued * (RETRY_TIMES + 1)

    async def _reset(self, fault: Fault, worker: Worker) -> None:
        """All of it has to be crawled again."""
        if any(one.clock_error < -60 for one in self._network.servers):
            return  # it forgets the step, and hosts that had failed would wait for as long
        self._world.void(2 * len(self._world.alive()))
        await self._people.reset()
        # Of when slots were used last.
        self._world.losses.append((self._time.now - 1.0, self._time.now))
        # Else the crawl of before could come back, and its pages would be done without their rows.
        for server in self._network.servers:
            server.sync()
        self._world.lost_run = True
        self._world.table.clear()
        self._world.fed.clear()
        self._people.lost()

    async def _quiet(self, fault: Fault, worker: Worker) -> None:
        await self._people.tell("quiet")
        await asyncio.sleep(fault.lasts)
        for _ in range(3):  # a worker that was away then comes back as it was
            await self._people.tell("work")
            await asyncio.sleep(10.0)

    async def _told_to_stop(self, fault: Fault, worker: Worker) -> None:
        await self._people.tell("stop")

    async def _foreign_entry(self, fault: Fault, worker: Worker) -> None:
        server = self._server(fault)
        for key in server.redis.keys("redisq:*:queue:h0.sim:0"):
            if server.redis.type(key) == b"list":
                server.redis.lpush(key, self._chance.randbytes(20))

    async def _damage(self, fault: Fault, worker: Worker) -> None:
        """Somebody deletes a key or writes over it; a person who is told so puts that in order."""
        server = self._server(fault)
        # Without the run on shard 0 the others are of no use. A slot would wait for ever for tokens
        # of a worker whose tokens are not known any more, or who is not.
        keys = server.redis.keys("redisq:*")
        spared = [META.encode(), FEED.encode(), b":tokens:", b":dead", b":letters"]
        if any(server.redis.hget(key, "out") for key in keys if b":slot:" in key):
            spared.append(b":workers")
        keys = [key for key in keys if not any(kind in key for kind in spared)]
        precious = [key for key in keys if any(kind in key for kind in PRECIOUS)]
        if not keys:
            return
        key = self._chance.choice(sorted(precious or keys if self._chance.random() < 0.6 else keys))
        self._world.void(len(self._world.alive()))
        self._world.note_letters()
        kind = server.redis.type(key)
        server.redis.delete(key)
        how = "deleted"
        if self._chance.random() < 0.5:
            how = "overwritten"
            (server.redis.lpush if kind == b"string" else server.redis.set)(key, DAMAGED)
        server.sync()  # a key that comes back by another fault is worse than one that stays away
        self._world.say(f"-- {how}: {key.decode()}")
        await asyncio.sleep(fault.lasts)
        if how == "overwritten":
            await self._people.mend(key.decode(), b"list" if kind == b"string" else b"string")

    async def remember(self) -> None:
        losses = [fault for fault in self._plan.faults if fault.kind in LOSING]
        until = max((fault.at + fault.lasts for fault in losses), default=0.0)
        while self._time.now < until:
            for server in self._network.primaries:
                server.remember()
            await asyncio.sleep(self._chance.uniform(0.1, 0.9))
