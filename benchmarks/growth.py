"""What one exchange costs Redis when much is queued, in many slots, for many workers."""

from __future__ import annotations

import functools
import os
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common import Figures, Result, Target, alternate
from benchmarks.loads.load import NAME, join
from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier.limits import SlotLimit
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.operations import Enqueue, Finish, TurnReport
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession

PARKED = 86_400
"""Seconds until the first of the slots that are not due is due."""

DELAY = SlotLimit(delay=0.001)
"""Of every slot with limits. It is over by the next exchange, so ten slots are enough."""

SLOWER_THAN = 15
"""µs; no exchange is faster and few commands inside are slower. Were those logged, too, that alone
would double what an exchange takes."""

STRIDE = 7919
"""A prime: exchanges enqueue into slots all over the frontier, and no exchange twice into one."""

REST = b"x" * 96
"""Of an entry of 105 bytes; the others are its number. Were they alike, Lua would make one string
for all of them, and only one for each slot of what it leases."""


@dataclass(frozen=True)
class Shape:
    """How large a frontier is, and whether its slots have a delay and whether none is due."""

    queued: int
    slots: int
    workers: int = 1
    limited: bool = False
    parked: bool = False


class Crowd(RedisServer):
    """A server with a frontier of a given shape, and one worker who is measured."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Compression costs the same at any length; without it, 10 million entries fill quicker.
        options = ("--list-compress-depth", "0", "--slowlog-max-len", "10000")
        super().__init__(any_server("redis-7"), *options)
        self.redis = self.client()
        # All servers on the same core: another one may be half as fast for what its neighbours do.
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(self.pid, {core})
        for number in range(1, shape.workers):
            join(self.redis, f"idle-{number}", "exact")
        limits = {"*": DELAY.to_text()} if shape.limited else None
        self.member: ShardSession
        self.member, self._seen = join(self.redis, "measured", "exact", limits=limits)
        self._turns: list[TurnReport] = []
        self._number = 0
        self._fill()

    def _fill(self) -> None:
        """What pushing so many requests would have left behind, without the pushes."""
        each = self.shape.queued // self.shape.slots
        due = (self.redis.time()[0] + PARKED) * 1_000_000 if self.shape.parked else 0
        prefix = meta_key(NAME, 0).removesuffix("meta")
        with self.redis.pipeline(transaction=False) as pipeline:
            for slot in range(self.shape.slots):
                for first in range(0, each, 1000):
                    numbers = range(self._number, self._number + min(1000, each - first))
                    entries = [b"\0%09d" % number + REST for number in numbers]
                    pipeline.rpush(f"{prefix}queue:shop{slot}:0", *entries)
                    self._number = numbers.stop
                pipeline.zadd(f"{prefix}levels:shop{slot}", {"0": 0})
                pipeline.zadd(f"{prefix}ready", {f"shop{slot}": due + slot})
                if len(pipeline) > 100:
                    pipeline.execute()
            pipeline.hincrby(f"{prefix}counts", "created", self.shape.slots * each)
            pipeline.execute()

    def _exchange(self, size: int) -> None:
        for _ in range(size):
            self._number += 1
            fingerprint = self._seen.encode(os.urandom(20))
            slot = f"shop{self._number * STRIDE % self.shape.slots}"
            entry = b"%09d" % self._number + REST
            self.member.add(Enqueue(slot, 0, entry, fingerprint))
        call = self.member.call(want=size, turns=self._turns)
        reply = self.member.received(execute(self.redis, call))
        assert len(reply.leases) == (0 if self.shape.parked else size)
        # Every turn is given up unused.
        self._turns = [TurnReport(turn.slot, 0, 0, 0, 1, 0) for turn in reply.turns]
        for lease in reply.leases:
            self.member.add(Finish(lease.id, "done"))

    def cost(self, size: int, exchanges: int) -> Figures:
        """µs of an exchange that nothing disturbed: the quarter that took longest is near it."""
        for _ in range(3):  # the first ones after another server's turn find cold caches
            self._exchange(size)
        self.redis.slowlog_reset()
        self.redis.config_set("slowlog-log-slower-than", SLOWER_THAN)
        for _ in range(exchanges):
            self._exchange(size)
        self.redis.config_set("slowlog-log-slower-than", -1)
        durations = [
            entry["duration"]
            for entry in self.redis.slowlog_get(-1)
            if entry["command"].startswith(b"EVALSHA")
        ]
        return {"µs": statistics.quantiles(durations, n=4)[0]}


FLAT = 1.2
"""The dearest over the cheapest of a series."""

COLUMNS = ["series", "of each", "queued", "slots", "workers", "µs an exchange", "ratio"]

SOME, MOST = 1000, 10_000_000
SERIES = {
    "queue": [Shape(queued, 20) for queued in (SOME, 100_000, MOST)],
    "slots": [Shape(MOST, slots) for slots in (1, 20, 1000, 100_000)],
    "workers": [Shape(100_000, 20, workers) for workers in (1, 20, 400)],
    "slots with a delay": [Shape(1_000_000, slots, limited=True) for slots in (10, 1000, 100_000)],
}
SERIES["slots with a delay, none due"] = [
    replace(shape, parked=True) for shape in SERIES["slots with a delay"]
]


def sizes(shape: Shape) -> tuple[int, int]:
    """Enqueues, claims and finishes of an exchange. With 1 of each an exchange looks after one
    slot, however many there are. Of slots with limits there are ten at least."""
    return (10 if shape.limited else 20), 1


def run(*, quick: bool) -> Result:
    """Measure the exchange in all sizes of a series in alternating rounds."""
    rounds, exchanges = (1, 10) if quick else (100, 25)
    rows: list[dict[str, Any]] = []
    targets = []
    for name, shapes in SERIES.items():
        last = shapes[-1]
        small = replace(last, queued=SOME, slots=min(last.slots, 20), workers=min(last.workers, 2))
        growing = [small] if quick else shapes
        with ExitStack() as stack:
            crowds = {shape: stack.enter_context(Crowd(shape)) for shape in growing}
            variants = {
                (size, shape): functools.partial(crowd.cost, size, exchanges)
                for shape, crowd in crowds.items()
                for size in sizes(shape)
            }
            costs = {key: found["µs"] for key, found in alternate(variants, rounds).items()}
        spans = {}
        for size in sizes(growing[0]):
            # With fewer slots than it has entries, an exchange has less to look after.
            compared = [costs[size, shape] for shape in growing if shape.slots >= size]
            spans[size] = max(compared) / min(compared)
            rows += [
                {
                    "series": name,
                    "of each": size,
                    "queued": shape.queued,
                    "slots": shape.slots,
                    "workers": shape.workers,
                    "µs an exchange": costs[size, shape],
                    "ratio": costs[size, shape] / compared[0],
                }
                for shape in growing
            ]
        told = ", ".join(f"{span:.2f} with {size} of each" for size, span in spans.items())
        what = f"dearest over cheapest, {name}"
        targets.append(Target.at_most(what, max(spans.values()), FLAT, shown=told, unit=""))
    return Result(
        "growth",
        "Redis time of an exchange as a frontier grows",
        COLUMNS,
        rows,
        targets=targets,
        notes=[
            "Of each: enqueues, claims and finishes of an exchange. Claims take turns among the "
            "slots, so an exchange with 20 of each looks after 20 slots if there are so many, and "
            "after one if there is one: that costs less, at any size of the frontier. The "
            "comparison begins with as many slots as entries, where the ratio is 1.",
            "What grows with the slots is mostly memory outside the processor's cache, the keys of "
            "slots that nobody has asked for lately; where few of many slots are in use most of it "
            "is gone. The rest is the sorted set of slots: O(log n).",
            "Slots with a delay: every claim of one takes its turn and gives it up in the next "
            "exchange. None due: an exchange enqueues, and finds nothing to claim.",
        ],
    )
