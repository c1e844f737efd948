"""What workers are told by people: ``lua/workers/``."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load


def tell(name: str, what: str, workers: Sequence[str] | None) -> Call[int]:
    """Tell workers, None: all, "quiet", "work" or "stop"; -> how many were told."""
    data = {"what": what, "workers": False if workers is None else workers}
    return Call.of(load("workers/tell"), meta_key(name, 0), data, int)
