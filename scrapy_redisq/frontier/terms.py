"""On which terms a worker takes part in a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from scrapy_redisq.frontier.calls import ANY_RUN, RunTerms
from scrapy_redisq.frontier.config import REWIND, FrontierConfig
from scrapy_redisq.frontier.limits import BACK_OFF, BackOff

SUSPECT_FROM = 2
"""Deliveries from which a request is a suspect. One worker's death says nothing about any of the
requests that it held; a second one leaves few that were there both times."""


@dataclass(frozen=True)
class Terms:
    """How a worker takes part. Durations in seconds."""

    name: str
    config: FrontierConfig
    lease_ttl: float
    max_deliveries: int
    dead_max: int
    max_entry_bytes: int
    run: RunTerms = ANY_RUN
    started: float = field(default_factory=time.monotonic)
    """When the worker was, by time.monotonic()."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Of slots by pattern, see ``lua/shared/slots/state.lua``."""
    throttle: str = ""
    """Terms of AutoThrottle, see ``lua/shared/slots/state.lua``."""
    back_off: BackOff = BACK_OFF
    rewind: float = REWIND
    """For so long what no page stands for is kept after it was acknowledged, see `ShardSession`."""
    young: float = REWIND
    """A run that began no longer ago is begun anew where shard 0 has lost it."""
    history: int = 0
    """Finished requests that are kept for people, over all shards; 0: none."""
    release: str = ""
    settings: str = ""
    """What the worker runs, for people, see `calls.Registration`."""
    wait_replicas: int = 0
    """Replicas that are to have what is sent to a shard before it counts as safe at once."""
    suspect_from: int = SUSPECT_FROM
    """Deliveries from which a request is a suspect."""
