"""A frontier of any shape, and a worker whose exchanges are measured."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass

import redis

from benchmarks.common import Figures
from benchmarks.loads.members import NAME, join
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

# Test code, not the protocol: writes what pushing so many requests would have left behind, without
# sending them. ARGV: rest of the entries, first number, first slot, one past the last slot, entries
# for each of them, us since 1970 at which the first is due.
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
  redis.call('ZADD', prefix .. 'ready', tonumber(ARGV[6]) + slot, 'shop' .. slot)
end
redis.call('HINCRBY', prefix .. 'counts', 'created', (last - first) * each)
"""


@dataclass(frozen=True)
class Shape:
    """How large a frontier is, and whether its slots have a delay and whether none is due."""

    queued: int
    slots: int
    workers: int = 1
    limited: bool = False
    parked: bool = False


class Crowd:
    """A frontier of a given shape on a server of its own, and one worker who is measured."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Compression costs the same at any length; without it, 10 million entries fill quicker.
        self.server = RedisServer(
            any_server("redis-7"), "--list-compress-depth", "0", "--slowlog-max-len", "10000"
        )
        self.client: redis.Redis = self.server.client()
        _on_one_core(self.client)
        for number in range(1, shape.workers):
            join(self.client, f"idle-{number}", "exact")
        limits = {"*": DELAY.to_text()} if shape.limited else None
        self.member: ShardSession
        self.member, self._seen = join(self.client, "measured", "exact", limits=limits)
        self._turns: list[TurnReport] = []
        self._number = 0
        self._fill()

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def _fill(self) -> None:
        slots = self.shape.slots
        each = self.shape.queued // slots
        due = (self.client.time()[0] + PARKED) * 1_000_000 if self.shape.parked else 0
        fill = self.client.register_script(_FILL)
        at_once = max(1, 100_000 // max(1, each))
        for first in range(0, slots, at_once):
            last = min(first + at_once, slots)
            for part in _parts(each, 200_000):
                fill([meta_key(NAME, 0)], [REST, self._number, first, last, part, due])
                self._number += part * (last - first)

    def _exchange(self, size: int) -> None:
        for _ in range(size):
            self._number += 1
            fingerprint = self._seen.encode(os.urandom(20))
            slot = f"shop{self._number * STRIDE % self.shape.slots}"
            entry = b"%09d" % self._number + REST
            self.member.add(Enqueue(slot, 0, entry, fingerprint))
        call = self.member.call(want=size, turns=self._turns)
        reply = self.member.received(execute(self.client, call))
        assert len(reply.leases) == (0 if self.shape.parked else size)
        # Every turn is given up unused.
        self._turns = [TurnReport(turn.slot, 0, 0, 0, 1, 0) for turn in reply.turns]
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
