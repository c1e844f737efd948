"""Dupefilters alone: false positives, inserts per second, Redis time for a new URL."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import redis

from benchmarks.common import Figures, Result, Target, alternate
from lab.servers import RedisServer, any_server
from scrapy_redisq.frontier.scripts import raw_string, source
from scrapy_redisq.frontier.seen import SeenFilter, SeenStatus
from scrapy_redisq.server.embedded.binaries import bloom_module

POINTS = {"half": 0.5, "full": 1.0, "twice": 2.0}
FAR = {"10 times": 10.0}
"""Where only errors are of interest: filters that were designed far too small."""
CPU_GOALS = {"redisbloom": 1.0, "exact": 1.5, "bitmap": 10.0}  # µs
MOST_ERRORS = 2.0  # times the configured rate

# Error rate, designed size, probes. The first is the default, for times; at the second there are
# errors enough to tell a rate from chance.
FULL = [(1e-6, 1_000_000, 300_000), (1e-4, 200_000, 300_000)]
QUICK = [(1e-6, 20_000, 1_000)]
TELLING = 10  # expected false positives, at least

BATCH = 300
"""Fingerprints a call: as many as one exchange may carry."""

SMALL_BATCH = 50
"""URLs of one page, as an exchange of a single worker often carries."""

SETTLED = 0.3
"""Seconds without change after which memory counts as settled: Redis cleans up ten times in one."""

COLUMNS = ["filter", "rate", "filled", "URLs", "wrong", "of", "x rate"]
COLUMNS += ["inserts/s", "µs new", "known", "new, few"]

# Everything comes in one argument, as in the frontier's scripts. -> how many were new
_INPUT = "local params, given = unpack(cmsgpack.unpack(ARGV[1]))\n"
_SUM = """
local sum = 0
for i = 1, #given do sum = sum + answers[i] end
return sum
"""
_ADD = "local answers = seen().add(KEYS[1], params, given)" + _SUM

# The same call without a filter: what is the script's own cost, and no dupefilter's.
_NOTHING = "local answers = {} for i = 1, #given do answers[i] = 1 end" + _SUM

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


class Filter(RedisServer):
    """A server with one dupefilter, driven by the Lua that the frontier's scripts have."""

    def __init__(self, backend: str, error_rate: float, capacity: int) -> None:
        super().__init__(any_server("redis-7"), bloom=backend == "redisbloom")
        self.redis = redis.Redis.from_url(self.unix_url)
        self.exact = backend == "exact"
        self._seen = SeenFilter(backend, error_rate, capacity)

        def script(body: str, before: str = "") -> Any:
            text = source(f"seen=shared/seen/{backend}", body=_INPUT + body)
            made = self.redis.register_script(before + text)
            self._call(made, self._fresh(BATCH))
            return made

        self._add, self._ask = script(_ADD), script(_ADD, _READ_ONLY)
        self._nothing = script(_NOTHING)
        self._status = script("return seen().status(KEYS[1], params)")
        # Scripts are loaded and the statistics of commands are there; only the filter is weighed.
        self.redis.flushdb()
        self.added = 0
        self.redis.close()  # it opens again when it is used
        self._memory_before = used_memory(self)

    def _fresh(self, number: int) -> list[Any]:
        """Random fingerprints, encoded: nobody has seen them."""
        encoded = (self._seen.encode(os.urandom(20)) for _ in range(number))
        return [raw_string(one) if isinstance(one, bytes) else one for one in encoded]

    def _call(self, script: Any, items: list[Any]) -> Any:
        given = msgspec.msgpack.encode([self._seen.parameters(), items])
        return script(["redisq:{books:0}:seen:1"], [given])

    def grow_to(self, number: int) -> None:
        """Record new fingerprints until so many were."""
        while self.added < number:
            items = self._fresh(min(BATCH, number - self.added))
            self._call(self._add, items)
            self.added += len(items)

    def false_positives(self, probes: int) -> tuple[int, int]:
        """-> (fingerprints taken for seen though new, of how many); none is recorded.

        The exact filter is not asked but counted: all that was ever added to it was new.
        """
        if self.exact:
            count = SeenStatus.from_reply(self._call(self._status, [])).count
            return self.added - count, self.added
        asked = -(-probes // BATCH) * BATCH
        new = sum(self._call(self._ask, self._fresh(BATCH)) for _ in range(asked // BATCH))
        return asked - new, asked

    def costs(self, number: int) -> Figures:
        """Redis µs for a new and for a known fingerprint, of so many."""
        few = self._costs(number, SMALL_BATCH)
        return {**self._costs(number, BATCH), "new, few": few["µs new"]}

    def _costs(self, number: int, batch: int) -> Figures:
        """Those over the µs of a script without filter. Time of the processor, which other work on
        the machine prolongs less than time by the clock."""
        batches = [self._fresh(batch) for _ in range(number // batch)]
        self.added += len(batches) * batch
        taken = []
        for script in (self._nothing, self._add, self._add):
            began = self._cpu()
            for items in batches:
                self._call(script, items)
            taken.append((self._cpu() - began) / len(batches) / batch)
        nothing, new, known = taken
        return {"µs new": new - nothing, "known": known - nothing}

    def _cpu(self) -> float:
        """µs that Redis' main thread has run."""
        taken = self.redis.info("cpu")
        seconds = taken["used_cpu_user_main_thread"] + taken["used_cpu_sys_main_thread"]
        return float(seconds) * 1e6

    def bytes_each(self) -> float:
        """Memory of a recorded fingerprint, all of the filter shared among them."""
        self.redis.close()  # its buffers are no part of the filter
        return (used_memory(self) - self._memory_before) / self.added


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


def run(*, quick: bool) -> Result:
    """Measure all filters of this machine side by side at each size."""
    rows: list[dict[str, Any]] = []
    for number, (rate, capacity, probes) in enumerate(QUICK if quick else FULL):
        points = {"full": 1.0} if quick else POINTS | (FAR if number else {})
        with ExitStack() as stack:
            filters = {
                name: stack.enter_context(Filter(name, rate, capacity))
                for name in backends()
                if name != "exact" or number == 0  # it knows no error rate
            }
            for filled, times in points.items():
                for row in _at(round(times * capacity), filters, rate, probes, quick):
                    rows.append({"rate": 0.0 if row["filter"] == "exact" else rate, **row})
                    rows[-1]["filled"] = filled
    return Result(
        "seen",
        "Dupefilters: errors, speed and Redis time for a URL",
        COLUMNS,
        rows,
        targets=_targets(rows),
        notes=[
            "wrong: new URLs taken for seen, of those that were asked about without recording "
            "them (exact: of all that were recorded); x rate: over the configured rate.",
            f"µs: Redis' processor time for a URL, {BATCH} in a call (few: {SMALL_BATCH}), over "
            "that of a script without filter; new or known to the filter.",
            "inserts/s: one client, its own work included.",
        ],
    )


def _at(
    size: int, filters: dict[str, Filter], rate: float, probes: int, quick: bool
) -> Iterator[dict[str, Any]]:
    """Fill all filters up to ``size``, the last tenth in alternating rounds, and probe them."""
    rounds = 1 if quick else 7
    window = max(10 * BATCH, size // 20 // rounds)
    speed = {}
    for name, one in filters.items():
        before, began = one.added, time.perf_counter()
        one.grow_to(size - 2 * rounds * window)
        speed[name] = (one.added - before) / (time.perf_counter() - began)
    variants = {name: functools.partial(one.costs, window) for name, one in filters.items()}
    for name, costs in alternate(variants, rounds).items():
        one = filters[name]
        lost, asked = one.false_positives(probes)
        yield {
            "filter": name,
            "URLs": one.added,
            "wrong": lost,
            "of": asked,
            # Only if so many were asked that it is no chance.
            "x rate": lost / asked / rate if not one.exact and asked * rate >= TELLING else "",
            "inserts/s": speed[name],
            **costs,
        }


def _targets(rows: list[dict[str, Any]]) -> list[Target]:
    targets = []
    if telling := [row for row in rows if isinstance(row["x rate"], float)]:
        worst = max(telling, key=lambda row: float(row["x rate"]))
        what = "false positives over the configured rate, the most"
        shown = f"{worst['x rate']:.2f} ({worst['filter']}, {worst['filled']})"
        targets.append(Target.at_most(what, worst["x rate"], MOST_ERRORS, shown=shown, unit=""))
    for name, goal in CPU_GOALS.items():
        if mine := [row for row in rows if row["filter"] == name and row["rate"] in {0.0, 1e-6}]:
            shown = ", ".join(f"{row['µs new']:.2f} {row['filled']}" for row in mine)
            worst = max(row["µs new"] for row in mine)
            what = f"Redis µs for a new URL, {name}"
            targets.append(Target.at_most(what, worst, goal, shown=shown, unit=""))
    return targets
