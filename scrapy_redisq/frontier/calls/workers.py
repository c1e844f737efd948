"""What workers are told by people: ``lua/workers/`` and ``lua/run/pause.lua``."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load


def tell(name: str, what: str, workers: Sequence[str] | None) -> Call[int]:
    """Tell workers, None: all, "quiet", "work" or "stop"; -> how many were told."""
    data = {"what": what, "workers": False if workers is None else workers}
    return Call.of(load("workers/tell"), meta_key(name, 0), data, int)


def pause_run(name: str, shard: int, *, paused: bool) -> Call[bool]:
    """Have no worker claim anything of a shard, or let them; -> whether there is a frontier."""
    return Call.of(load("run/pause"), meta_key(name, shard), {"paused": paused}, bool)
