"""What one exchange costs Redis when much is queued, in many slots, for many workers."""

from __future__ import annotations

import functools
import os
import statistics
from contextlib import ExitStack, closing
from typing import Any

import redis

from benchmarks.common import Figures, Result, Target, alternate
from benchmarks.filters import newest
from benchmarks.load import NAME, join
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.membership import Enqueue, Finish, Membership
from scrapy_redisq.frontier.scripts import execute
from tests.harness.servers import RedisServer, binaries

SIZES = (20, 1)
"""Enqueues, claims and finishes of an exchange. With 1 of each an exchange looks after one slot,
however many there are."""

SLOWER_THAN = 15
"""µs; no exchange is faster and few commands inside are slower. Were those logged, too, that alone
would double what an exchange takes."""

FLAT = 1.2
"""The dearest over the cheapest of a series."""

STRIDE = 7919
"""A prime: exchanges enqueue into slots all over the frontier, and no exchange twice into one."""

COLUMNS = ["series", "of each", "queued", "slots", "workers", "µs an exchange", "ratio"]

REST = b"x" * 96
"""Of an entry of 105 bytes; the others are its number. Were they alike, Lua would make one string
for all of them, and only one for each slot of what it leases."""

# Test code, not the protocol: writes what pushing so many requests would have left behind, without
# sending them. ARGV: rest of the entries, first number, first slot, one past the last slot, entries
# for each of them.
_FILL = """
local prefix = string.sub(KEYS[1], 1, -5)
local rest, number, each = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local first, last = tonumber(ARGV[3]), tonumber(ARGV[4])
for slot = first, last - 1 do
  local left = each
  while left > 0 do
    local entries = {}
    for i = 1, math.min(200, left) do
      entries[i] = string.format('\\0%09d', number) .. rest
      number = number + 1
    end
    redis.call('RPUSH', prefix .. 'queue:shop' .. slot .. ':0', unpack(entries))
    left = left - #entries
  end
  redis.call('ZADD', prefix .. 'levels:shop' .. slot, 0, '0')
  redis.call('ZADD', prefix .. 'ready', slot, 'shop' .. slot)
end
redis.call('HINCRBY', prefix .. 'counts', 'created', (last - first) * each)
"""


class Crowd:
    """A frontier of a given size on a server of its own, and one worker who is measured."""

    def __init__(self, queued: int, slots: int, workers: int) -> None:
        self.queued, self.slots, self.workers = queued, slots, workers
        # Compression costs the same at any length; without it, 10 million entries fill quicker.
        self.server = RedisServer(
            binaries()[newest()], "--list-compress-depth", "0", "--slowlog-max-len", "10000"
        )
        self.client: redis.Redis = self.server.client()
        _on_one_core(self.client)
        for number in range(1, workers):
            join(self.client, f"idle-{number}", "exact")
        self.member: Membership
        self.member, self._seen = join(self.client, "measured", "exact")
        self._number = 0
        self._fill()

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def _fill(self) -> None:
        each = self.queued // self.slots
        fill = self.client.register_script(_FILL)
        at_once = max(1, 100_000 // max(1, each))
        for first in range(0, self.slots, at_once):
            last = min(first + at_once, self.slots)
            for part in _parts(each, 200_000):
                fill([calls.meta_key(NAME, 0)], [REST, self._number, first, last, part])
                self._number += part * (last - first)

    def _exchange(self, size: int) -> None:
        for _ in range(size):
            self._number += 1
            fingerprint = self._seen.encode(os.urandom(20))
            slot = f"shop{self._number * STRIDE % self.slots}"
            entry = b"%09d" % self._number + REST
            self.member.add(Enqueue(slot, 0, entry, fingerprint))
        reply = self.member.received(execute(self.client, self.member.call(want=size)))
        assert len(reply.leases) == size
        for lease in reply.leases:
            self.member.add(Finish(lease.id, "done"))

    def cost(self, size: int, exchanges: int) -> Figures:
        """µs of an exchange that nothing disturbed: the quarter that took longest is near it."""
        for _ in range(3):  # the first ones after another server's turn find cold caches
            self._exchange(size)
        self.client.slowlog_reset()
        self.client.config_set("slowlog-log-slower-than", SLOWER_THAN)
        for _ in range(exchanges):
            self._exchange(size)
        self.client.config_set("slowlog-log-slower-than", -1)
        durations = [
            entry["duration"]
            for entry in self.client.slowlog_get(-1)
            if entry["command"].startswith(b"EVALSHA")
        ]
        return {"µs": statistics.quantiles(durations, n=4)[0]}


def _on_one_core(client: redis.Redis) -> None:
    """All servers on the same core: another one may be half as fast for what its neighbours do."""
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(client.info("server")["process_id"], {core})


def _parts(number: int, size: int) -> list[int]:
    return [min(size, number - first) for first in range(0, number, size)]


def _series(quick: bool) -> dict[str, list[tuple[int, int, int]]]:
    """What grows in each series: (queued, slots, workers)."""
    most = 1_000_000 if quick else 10_000_000
    usual = 20
    return {
        "queue": [(queued, usual, 1) for queued in (1000, 100_000, most)],
        "slots": [(most, slots, 1) for slots in (1, usual, 1000, 100_000)],
        "workers": [(100_000, usual, workers) for workers in (1, usual, 400)],
    }


def run(*, quick: bool) -> Result:
    """Measure the exchange in all sizes of a series in alternating rounds."""
    rounds, exchanges = (15, 25) if quick else (100, 25)
    rows: list[dict[str, Any]] = []
    targets = []
    for name, growing in _series(quick).items():
        costs = _measure(growing, rounds, exchanges)
        spans = []
        for size in SIZES:
            # With fewer slots than it has entries, an exchange has less to look after.
            compared = [costs[size, what] for what in growing if what[1] >= size]
            spans.append(max(compared) / min(compared))
            rows += [
                {
                    "series": name,
                    "of each": size,
                    "queued": what[0],
                    "slots": what[1],
                    "workers": what[2],
                    "µs an exchange": costs[size, what],
                    "ratio": costs[size, what] / compared[0],
                }
                for what in growing
            ]
        told = ", ".join(
            f"{span:.2f} with {size} of each" for span, size in zip(spans, SIZES, strict=True)
        )
        targets.append(
            Target(f"dearest over cheapest, {name}", f"≤ {FLAT:g}", told, max(spans) <= FLAT)
        )
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
            "slots that nobody has asked for lately: with 100,000 slots, only 20 of them in "
            "use, two thirds of the growth is gone. The rest is the sorted set of slots: O(log n).",
        ],
    )


def _measure(
    growing: list[tuple[int, int, int]], rounds: int, exchanges: int
) -> dict[tuple[int, tuple[int, int, int]], float]:
    """Median µs by size of the exchange and of the frontier."""
    with ExitStack() as stack:
        variants = {}
        for what in growing:
            crowd = stack.enter_context(closing(Crowd(*what)))
            for size in SIZES:
                variants[size, what] = functools.partial(crowd.cost, size, exchanges)
        names = {str(key): key for key in variants}
        measured = alternate({name: variants[key] for name, key in names.items()}, rounds)
    return {key: measured[name]["µs"] for name, key in names.items()}
