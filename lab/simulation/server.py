"""One Redis, and what goes wrong with it.

The server is real, and so are the scripts; only the TIME that they ask for is that of the virtual
clock (`TIME`). Each command of a worker is one request and one reply, between two virtual sleeps.
Masters of a cluster are databases of one Redis.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import redis

from lab.simulation.clock import EPOCH, WORKER, VirtualClock
from lab.simulation.plan import FEED, GROUP
from lab.simulation.wire import Plain, Wire
from scrapy_redisq.frontier import scripts

if TYPE_CHECKING:
    from lab.simulation.network import Network

SECONDS, MICROSECONDS = "simulation:seconds", "simulation:microseconds"
"""Keys of what the clock shows."""
TIME = "server.call('TIME')"
"""What is replaced in the scripts, and by what."""
VIRTUAL_TIME = f"redis.call('MGET', '{SECONDS}', '{MICROSECONDS}')"

SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 'redisq:*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
  found[#found + 1] = redis.call('PTTL', key)
end
return found
"""
RESTORE = """
for _, key in ipairs(redis.call('KEYS', 'redisq:*')) do redis.call('DEL', key) end
for i = 1, #ARGV, 3 do
  redis.call('RESTORE', ARGV[i], math.max(0, tonumber(ARGV[i + 2])), ARGV[i + 1])
end
"""

AOF = ((b"aof_enabled:0", b"aof_enabled:1"), (b"rewrite_time_sec:-1", b"rewrite_time_sec:0"))
"""What INFO says of a server that keeps a log, of which `SimulatedServer.forget_since` loses the
end."""

FATES = ("request_lost", "reply_lost", "late", "doubled")
"""What may become of a request; the worker hears nothing, or of ``doubled`` one reply."""

META = "redisq:{sim:0}:meta"
"""Of shard 0, which keeps the state of the run."""

_source = scripts.source


def _timed(file: str, backend: str = "", body: str = "") -> str:
    return _source(file, backend, body).replace(TIME, VIRTUAL_TIME)


def give_scripts_time() -> None:
    """Let the scripts ask the simulated server for the time."""
    if scripts.source is not _timed:
        scripts.source = _timed
        scripts.load.cache_clear()


class SimulatedServer:
    """A Redis that can be away, full, slow and forgetful: the one whose number is ``number``.

    ``away``: how many faults keep it away now. ``clock_error``: seconds by which its clock is
    wrong. ``fate(command)`` says what becomes of a request, one of `FATES` or "". ``cut_off`` are
    numbers of workers that do not reach it. ``moved_to`` has taken its place. ``run`` and ``state``
    are those of the run that it keeps.
    """

    def __init__(
        self, number: int, wire: Wire, clock: VirtualClock, chance: random.Random, network: Network
    ) -> None:
        self.number = number
        self.redis: Any = Plain(wire, number)
        self.network = network
        self._wire = wire
        self._clock = clock
        self._chance = chance
        self.away = 0
        self.is_full = False
        self.clock_error = 0.0
        self.fate: Callable[[Any], str] = lambda command: ""
        self.cut_off: set[int] = set()
        self.moved_to: SimulatedServer | None = None
        self.run: bytes | None = None
        self.state: bytes | None = None
        self._snapshots: list[tuple[float, list[bytes]]] = []
        self._called = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self._pending: dict[bytes, tuple[int, float]] = {}
        """Entries of the feed that are aside -> how often, and since which virtual second."""
        self._scripts: set[str] = set()
        """SHA-1 of those that it knows. The real Redis also knows those of former crawls, so that
        they are not compiled for each crawl."""

    # What happens to it

    def remember(self) -> None:
        """Keep what it holds now, for `forget_since`."""
        self._snapshots.append((self._clock.now, self.redis.eval(SNAPSHOT, 0)))

    def sync(self) -> None:
        """What it holds now is on its disk: nothing of it is lost any more."""
        self._snapshots = [(0.0, self.redis.eval(SNAPSHOT, 0))]

    def forget_since(self, moment: float, of: SimulatedServer | None = None) -> None:
        """Hold what it, or another one, held when its state was kept last before ``moment``. What
        is on its way to it does not outlive that: its connections end."""
        for task in self._late:
            task.cancel()
        kept = [held for at, held in (of or self)._snapshots if at <= moment] or [[]]
        self.redis.eval(RESTORE, 0, *kept[-1])
        self._pending = {}
        self._snapshots = [*([] if of else self._snapshots), (0.0 if of else moment, kept[-1])]
        self._take_run(self._wire.ask(self.number, ("HMGET", META, "run", "state"))[0])

    # What is asked of it

    def execute(self, *command: Any) -> Any:
        """What it answers; an exception of redis-py's is raised."""
        self.network.calls += 1
        self._called.set()
        if (told := self._cluster(command)) is not None:
            return told
        self._know_script(command)
        now = EPOCH + self._clock.now + self.clock_error
        commands: list[tuple[Any, ...]] = [
            ("MSET", SECONDS, int(now), MICROSECONDS, int(now % 1 * 1e6))
        ]
        # Entries are aside for virtual milliseconds: Redis counts real ones.
        for entry, (_, since) in self._pending.items():
            aside = ("IDLE", int((self._clock.now - since) * 1000), "JUSTID")
            commands.append(("XCLAIM", FEED, GROUP, "worker", 0, entry, *aside))
        full = [("CONFIG SET", "maxmemory", number) for number in (1, 0) if self.is_full]
        commands += [*full[:1], command, *full[1:]]  # nothing can be added
        looks = ("HMGET", META, "run", "state"), ("XPENDING", FEED, GROUP, "-", "+", 100)
        *answers, told, pending = self._wire.ask(self.number, *commands, *looks)
        reply = answers[commands.index(command)]
        self._take_run(told)
        self._take_pending(pending)
        self.network.spread_news()
        if command[0] == "EVALSHA":
            self.network.largest_reply = max(self.network.largest_reply, _size(reply))
        if command[0] == "INFO" and isinstance(reply, bytes):
            for there, told in AOF:
                reply = reply.replace(there, told)
        return self.redis.decoded(command, reply)

    def _know_script(self, command: tuple[Any, ...]) -> None:
        if command[0] == "EVAL":
            self._scripts.add(hashlib.sha1(command[1].encode()).hexdigest())
            return
        if command[0] != "EVALSHA":
            return
        self.network.largest = max(self.network.largest, len(command[-1]))
        if command[1] not in self._scripts:
            raise redis.exceptions.NoScriptError("simulated: NOSCRIPT No matching script")

    def forget_scripts(self) -> None:
        """SCRIPT FLUSH, and what a restart does."""
        self._scripts.clear()

    def _cluster(self, command: tuple[Any, ...]) -> Any:
        """What a node of a cluster answers by itself."""
        if command[:2] == ("CLUSTER", "INFO"):
            return b"cluster_state:ok"
        if command[:2] == ("CLUSTER", "SLOTS"):
            return self.network.slots(self)
        if command[0] == "WAIT":
            return self.network.replicated(self)
        if self.moved_to is not None and command[0] != "PING":
            raise redis.exceptions.MovedError(f"0 n{self.moved_to.number}.sim:7000")
        return None

    async def next_call(self) -> None:
        """Return when it has executed one more."""
        self._called.clear()
        await self._called.wait()

    def _take_pending(self, told: Any) -> None:
        known, self._pending = self._pending, {}
        for entry, _, _, often in () if isinstance(told, Exception) else told:
            before, since = known.get(entry, (0, 0.0))
            self._pending[entry] = (often, since if before == often else self._clock.now)

    def _take_run(self, told: Any) -> None:
        before = self.state
        self.run, self.state = (None, None) if isinstance(told, Exception) else told
        if self.run:
            self.network.begun.add(self.run)
        if self.state == b"complete" != before:
            self.network.run_is_complete()

    def refuse(self) -> None:
        """Raise what a client is told that does not reach it."""
        process = WORKER.get()
        if self.away:
            raise redis.ConnectionError("simulated: connection refused")
        if process is not None and process.number in self.cut_off:
            raise redis.TimeoutError("simulated: timed out")

    async def ask(self, timeout: float, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Commands in one request, and what is answered to each; errors are among that."""
        process = WORKER.get()
        latency = self.network.latency
        self.network.trace(f"w{process.number if process else 0} {str(commands[0])[:2000]}")
        fate = self.fate(commands[0])
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * latency)
        if process is not None and process.number in self.cut_off:
            await asyncio.sleep(timeout)
        self.refuse()
        if fate == "request_lost":
            await asyncio.sleep(timeout)
            raise redis.TimeoutError("simulated: timed out")
        if fate in ("late", "doubled"):
            late = (fate == "late") * timeout
            self._again(self._chance.choice([0.05, 0.5, 3.0]) + late, commands)
        if fate == "late":
            await asyncio.sleep(timeout)
            raise redis.TimeoutError("simulated: timed out")
        replies = [self.told(command) for command in commands]
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * latency)
        if fate == "reply_lost" or (process is not None and process.number in self.cut_off):
            raise redis.ConnectionError("simulated: connection reset by peer")
        return replies

    def told(self, command: tuple[Any, ...]) -> Any:
        """What it answers; an error is not raised."""
        try:
            return self.execute(*command)
        except redis.ResponseError as error:
            return error

    def _again(self, seconds: float, commands: list[tuple[Any, ...]]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(seconds)
            for command in () if self.away else commands:
                self.told(command)

        token = WORKER.set(None)  # it is on its way, whoever dies
        task = asyncio.ensure_future(arrive())
        WORKER.reset(token)
        self._late.add(task)
        task.add_done_callback(self._late.discard)


def _size(reply: Any) -> int:
    """Bytes of texts."""
    if isinstance(reply, list):
        return sum(map(_size, reply))
    return len(reply) if isinstance(reply, bytes) else 0
