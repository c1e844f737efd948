"""The metrics of frontiers in Prometheus' text format."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierError, RedisqError, SettingError
from scrapy_redisq.ops.metrics.families import METRICS, Histogram, of_memory, samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PATIENCE = 5.0
"""Seconds that crawls which cannot be read may take, all together: then the other crawls of a
server that hangs are not asked any more."""

MEMORY_EVERY = 60.0
"""Seconds between two looks at what takes how much memory of a crawl: these cost Redis some
milliseconds, and with 100,000 keys a tenth of a second."""

MEMORY_TAKES = 0.5
"""Seconds of a scrape after which no other crawl's memory is looked at: the next ones go on."""

Families = dict[str, Any]
"""prometheus-client's, by the names of `METRICS`."""

_NEVER: tuple[float, dict[str, Any] | None] = -math.inf, None


class Exposition:
    """Looks at frontiers, for one caller at a time; remembers what takes how much memory.

    Memory is looked at once in `MEMORY_EVERY` seconds, for `MEMORY_TAKES` of a scrape: crawls take
    turns, at least one a scrape. A crawl has no such figures before its first turn, nor from one
    that failed to the next.
    """

    def __init__(self) -> None:
        self._memory: dict[str, tuple[float, dict[str, Any] | None]] = {}

    def text(self, frontiers: Sequence[Frontier], *, up: bool = True) -> bytes:
        """All metrics. Redis may be away: then ``redisq_up`` is 0, as it is if ``up`` is False
        because not even the frontiers could be listed. Raises `SettingError` without
        prometheus-client."""
        try:
            from prometheus_client import core, generate_latest  # noqa: PLC0415
        except ImportError:
            raise SettingError(
                "metrics", None, "pip install 'scrapy-redisq[metrics]' (prometheus-client)"
            ) from None
        families = {
            name: getattr(core, f"{kind.title()}MetricFamily")(
                name.removesuffix("_total"), text, labels=labels
            )
            for name, (kind, text, labels) in METRICS.items()
        }
        self._fill(families, frontiers, up=up)
        filled = [family for family in families.values() if family.samples]
        # What collects is all that a registry has to be.
        registry: Any = SimpleNamespace(collect=lambda: filled)
        return bytes(generate_latest(registry))

    def _fill(self, families: Families, frontiers: Sequence[Frontier], *, up: bool) -> None:
        began = time.monotonic()
        told: list[Frontier] = []
        lost = 0.0
        for frontier in frontiers:
            asked_at = time.monotonic()
            is_there = False
            try:
                if lost < PATIENCE:
                    status = frontier.status()
                    if status["state"] == "absent":
                        continue  # it was reset
                    self._tell(families, frontier, status)
                    is_there = True
            except (redis.RedisError, RedisqError, OSError) as error:
                # Something foreign in the keys of one crawl is not the server's fault.
                up = up and isinstance(error, FrontierError)
            if is_there:
                told.append(frontier)
            else:
                lost += time.monotonic() - asked_at
            families["redisq_crawl_up"].add_metric([frontier.name], int(is_there))
        names = {frontier.name for frontier in told}
        self._memory = {name: look for name, look in self._memory.items() if name in names}
        self._measure(told)
        self._tell_memory(families, servers=up)
        families["redisq_look_duration_seconds"].add_metric([], time.monotonic() - began)
        families["redisq_up"].add_metric([], int(up))

    @staticmethod
    def _tell(families: Families, frontier: Frontier, status: dict[str, Any]) -> None:
        wanted = frontier.wanted_workers(status=status).workers
        # All of them before the first is told: a crawl that cannot be read is not told of in part.
        for name, labels, value in list(samples(status, frontier.why(status), wanted)):
            values = value if isinstance(value, Histogram) else (value,)
            families[name].add_metric([frontier.name, *labels], *values)

    def _tell_memory(self, families: Families, *, servers: bool) -> None:
        found = {name: look for name, look in self._memory.items() if look[1]}
        for crawl, (_, memory) in found.items():
            for name, labels, value in of_memory(memory or {}):
                families[name].add_metric([crawl, *labels], value)
        if found and servers:
            _, newest = max(found.values(), key=lambda look: look[0])
            for name, field in (("", "used_bytes"), ("max_", "most_bytes")):
                families[f"redisq_redis_memory_{name}bytes"].add_metric([], (newest or {})[field])

    def _measure(self, frontiers: Iterable[Frontier]) -> None:
        """Look at the memory of those of which that was longest ago."""
        began = time.monotonic()

        def looked_at(frontier: Frontier) -> float:
            return self._memory.get(frontier.name, _NEVER)[0]

        for frontier in sorted(frontiers, key=looked_at):
            now = time.monotonic()
            if now - looked_at(frontier) < MEMORY_EVERY:
                return
            memory = None
            # Of a server that does not answer, or by something foreign in the keys of this one.
            with contextlib.suppress(redis.RedisError, RedisqError, OSError):
                memory = frontier.memory()
            self._memory[frontier.name] = now, memory
            if time.monotonic() - began > MEMORY_TAKES:
                return
