"""A dupefilter alone on a server, driven by the Lua that the frontier's scripts contain."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec
import redis

from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier.scripts import raw_string, source
from scrapy_redisq.frontier.seen import SeenFilter, SeenStatus
from scrapy_redisq.server.embedded.binaries import bloom_module

BATCH = 300
"""Fingerprints a call: as many as one exchange may carry."""

SETTLED = 0.3
"""Seconds without change after which memory counts as settled: Redis cleans up ten times in one."""

BASE = "redisq:{books:0}:seen:1"

# As in the frontier's scripts, everything comes in one argument. -> how many were new
_INPUT = "local params, given = unpack(cmsgpack.unpack(ARGV[1]))\n"
_SUM = """
local sum = 0
for i = 1, #answers do sum = sum + answers[i] end
return sum
"""
_ADD = "local answers = seen().add(KEYS[1], params, given)" + _SUM

# The same call without a filter: what is the script's own cost, and no dupefilter's.
_NOTHING = (
    """
local answers = {}
for i = 1, #given do answers[i] = 1 end
"""
    + _SUM
)

# Asking a Bloom filter without recording: the same fragment, its writes turned into questions.
_READ_ONLY = """
local real, redis = redis, {}
function redis.call(command, ...)
  if command == 'HSET' or command == 'SETRANGE' or command == 'BF.RESERVE' then return 0 end
  if command ~= 'BF.MADD' then return real.call(command, ...) end
  local reply = real.call('BF.MEXISTS', ...)
  for i = 1, #reply do reply[i] = 1 - reply[i] end
  return reply
end
"""


def backends() -> list[str]:
    """The dupefilters that can run on this machine."""
    return ["exact", "bitmap", *(["redisbloom"] if bloom_module() else [])]


class Filter:
    """One dupefilter on a server of its own."""

    def __init__(self, backend: str, error_rate: float, capacity: int) -> None:
        self.backend = backend
        self.server = RedisServer(any_server("redis-7"), bloom=backend == "redisbloom")
        self.client = redis.Redis.from_url(self.server.unix_url)
        self._seen = SeenFilter(backend, error_rate, capacity)
        self._parameters = self._seen.parameters()

        def script(body: str, before: str = "") -> Any:
            text = source(f"seen=shared/seen/{backend}", body=_INPUT + body)
            return self.client.register_script(before + text)

        self._add = script(_ADD)
        self._ask = script(_ADD, _READ_ONLY)
        self._nothing = script(_NOTHING)
        self._status = script("return seen().status(KEYS[1], params)")
        for script in (self._add, self._ask, self._nothing, self._status):
            self._call(script, self.fresh(BATCH))
        # Scripts are loaded and the statistics of commands are there; only the filter is weighed.
        self.client.flushdb()
        self.added = 0
        self.client.close()  # it opens again when it is used
        self.memory_before = used_memory(self.server)

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def fresh(self, number: int) -> list[Any]:
        """Random fingerprints, encoded: nobody has seen them."""
        encoded = (self._seen.encode(os.urandom(20)) for _ in range(number))
        return [raw_string(one) if isinstance(one, bytes) else one for one in encoded]

    def _call(self, script: Any, items: list[Any]) -> Any:
        return script([BASE], [msgspec.msgpack.encode([self._parameters, items])])

    def add(self, number: int) -> None:
        """Record so many new fingerprints."""
        for first in range(0, number, BATCH):
            self._call(self._add, self.fresh(min(BATCH, number - first)))
        self.added += number

    def grow_to(self, number: int) -> None:
        """Record until so many were."""
        self.add(max(0, number - self.added))

    def false_positives(self, probes: int) -> tuple[int, int]:
        """-> (fingerprints taken for seen though new, of how many); none is recorded.

        The exact filter is not asked but counted: all that was ever added to it was new.
        """
        if self.backend == "exact":
            return self.added - self.status().count, self.added
        lost = asked = 0
        while asked < probes:
            lost += BATCH - self._call(self._ask, self.fresh(BATCH))
            asked += BATCH
        return lost, asked

    def costs(self, number: int, batch: int) -> dict[str, float]:
        """Redis µs for a new and for a known fingerprint, over those of a script without filter.

        Time of the processor, which other work on the machine prolongs less than time by the clock.
        """
        batches = [self.fresh(batch) for _ in range(number // batch)]
        self.added += len(batches) * batch
        taken = {}
        for what, script in (("nothing", self._nothing), ("new", self._add), ("known", self._add)):
            began = self._cpu()
            for items in batches:
                self._call(script, items)
            taken[what] = (self._cpu() - began) / len(batches) / batch
        return {what: taken[what] - taken["nothing"] for what in ("new", "known")}

    def _cpu(self) -> float:
        """µs that Redis' main thread has run."""
        taken = self.client.info("cpu")
        seconds = taken["used_cpu_user_main_thread"] + taken["used_cpu_sys_main_thread"]
        return float(seconds) * 1e6

    def status(self) -> SeenStatus:
        return SeenStatus.from_reply(self._call(self._status, []))

    def bytes_each(self) -> float:
        """Memory of a recorded fingerprint, all of the filter shared among them."""
        self.client.close()  # its buffers are no part of the filter
        return (used_memory(self.server) - self.memory_before) / self.added


def used_memory(server: RedisServer) -> int:
    """Bytes allocated once no other client is left and Redis has freed and shrunk what it can."""
    lowest, since = sys.maxsize, time.monotonic()
    with server.client() as client:
        client.slowlog_reset()  # on a busy machine it takes as much as a small filter
        while time.monotonic() - since < SETTLED:
            memory = client.info("memory")
            others = client.info("clients")["connected_clients"] - 1
            if others or memory["lazyfree_pending_objects"] or memory["used_memory"] < lowest:
                lowest, since = memory["used_memory"], time.monotonic()
            time.sleep(0.02)
    return lowest
