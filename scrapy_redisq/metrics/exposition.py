"""The metrics of frontiers in Prometheus' text format."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierError, RedisqError, SettingError
from scrapy_redisq.metrics.families import METRICS, Histogram, Look, samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PATIENCE = 5.0
"""Seconds that crawls which cannot be read may take, all together: then the other crawls of a
server that hangs are not asked any more."""

MEMORY_EVERY = 60.0
"""Seconds between two looks at what takes how much memory: these cost Redis some milliseconds."""


class Exposition:
    """Looks at frontiers, one caller at a time; remembers what is not looked at each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[str, tuple[float, dict[str, Any]]] = {}

    def text(self, frontiers: Iterable[Frontier], *, up: bool = True) -> bytes:
        """All metrics. Redis may be away: then ``redisq_up`` is 0, as it is if ``up`` is False
        because not even the frontiers could be listed. Raises `SettingError` without
        prometheus-client."""
        try:
            from prometheus_client import generate_latest  # noqa: PLC0415
        except ImportError:
            raise SettingError(
                "metrics", None, "pip install 'scrapy-redisq[metrics]' (prometheus-client)"
            ) from None
        with self._lock:
            registry: Any = _Collected(self._families(frontiers, up=up))
            return bytes(generate_latest(registry))

    def _families(self, frontiers: Iterable[Frontier], *, up: bool) -> list[Any]:
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        kinds = {
            "gauge": GaugeMetricFamily,
            "counter": CounterMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        families = {
            name: kinds[kind](name.removesuffix("_total"), text, labels=labels)
            for name, (kind, text, labels) in METRICS.items()
        }
        began = time.monotonic()
        frontiers = [*frontiers]
        lost = 0.0
        for frontier in frontiers:
            asked_at = time.monotonic()
            try:
                look = self._look(frontier) if lost < PATIENCE else None
            except (redis.RedisError, RedisqError, OSError) as error:
                # Something foreign in the keys of one crawl is not the server's fault.
                up = up and isinstance(error, FrontierError)
                look = None
            if look is None:
                lost += time.monotonic() - asked_at
                families["redisq_crawl_up"].add_metric([frontier.name], 0)
                continue
            if look.status["state"] == "absent":
                continue  # it was reset
            families["redisq_crawl_up"].add_metric([frontier.name], 1)
            for name, labels, value in samples(look):
                values = value if isinstance(value, Histogram) else (value,)
                families[name].add_metric([frontier.name, *labels], *values)
        names = {frontier.name for frontier in frontiers}
        self._memory = {name: look for name, look in self._memory.items() if name in names}
        if self._memory and up:
            _, memory = max(self._memory.values(), key=lambda look: look[0])
            for name, field in (("", "used_bytes"), ("max_", "most_bytes")):
                families[f"redisq_redis_memory_{name}bytes"].add_metric([], memory[field])
        families["redisq_look_duration_seconds"].add_metric([], time.monotonic() - began)
        families["redisq_up"].add_metric([], int(up))
        return [family for family in families.values() if family.samples]

    def _look(self, frontier: Frontier) -> Look:
        status = frontier.status()
        if status["state"] == "absent":
            self._memory.pop(frontier.name, None)
            return Look(status, {}, 0, None)
        wanted = frontier.wanted_workers(status=status).workers
        why = frontier.why(status)
        return Look(status, why, wanted, self._memory_of(frontier))

    def _memory_of(self, frontier: Frontier) -> dict[str, Any] | None:
        known = self._memory.get(frontier.name)
        if known is None or time.monotonic() - known[0] >= MEMORY_EVERY:
            known = self._memory[frontier.name] = time.monotonic(), frontier.memory()
        return known[1]


class _Collected:
    """What prometheus-client calls a registry."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


_of_this_process = Exposition()


def metrics(frontiers: Iterable[Frontier], *, up: bool = True) -> bytes:
    """The metrics of ``frontiers``: see `Exposition.text`."""
    return _of_this_process.text(frontiers, up=up)
