"""Observations of a frontier, summed over its shards: `why` and `scaling` conclude from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapy_redisq.frontier.admin import Waits
from scrapy_redisq.server.condition import Condition

KINDS = ("delay", "concurrency", "parked", "aside", "paused")
"""Causes that keep slots back, in the order in which they are told."""


class Observed:
    """``status`` as `Frontier.status` gives it, ``waits`` of its shards, ``servers`` that hold
    them, ``away``: what shards said that did not answer. Times are seconds."""

    def __init__(
        self,
        status: Mapping[str, Any],
        waits: Iterable[Waits],
        servers: Sequence[Condition] = (),
        away: Mapping[int, str] | None = None,
    ) -> None:
        self.status, self.servers, self.away = status, servers, away or {}
        self.state, self.leased = status.get("state"), status.get("leased", 0)
        workers = status.get("workers", [])
        self.alive = [worker for worker in workers if worker["alive"]]
        self.dead = [worker for worker in workers if not worker["alive"]]
        self.lines = sum(lines or 0 for lines in status.get("feeds", {}).values())
        """Lines that wait in feeds."""
        self.waits = list(waits)
        # The first part says what is true of a whole shard.
        self.shards = list({wait.shard: wait for wait in reversed(self.waits)}.values())
        self.slots = sum(wait.slots for wait in self.shards)
        self.starting = max((int(wait.starting) for wait in self.shards), default=0)
        self.keep_alive = any(wait.keep_alive for wait in self.shards)
        self.delays = [
            (n, first / 1e6, last / 1e6) for n, first, last in (w.delayed for w in self.shards) if n
        ]
        """Of each shard: how many requests are delayed; until the first and the last is due."""
        nexts = [wait.next for wait in self.shards if wait.next >= 0]
        self.next_start = min(nexts) / 1e6 if nexts else None
        # A worker that found nothing on one shard may have work of another, or from before.
        waiting = min((wait.waiting for wait in self.shards), default=0)
        without = sum(not worker.get("leased") for worker in self.alive)
        self.idle = max(0, min(int(waiting), without))
        looked: Counter[int] = Counter()
        for wait in self.waits:
            looked[wait.shard] += wait.looked
        self.estimated = any(looked[wait.shard] < wait.slots for wait in self.shards)
        self.scale = {w.shard: max(1.0, w.slots / max(1, looked[w.shard])) for w in self.shards}
        """Hosts that each host in the sample stands for, by shard."""
        self._count_kinds()

    def _count_kinds(self) -> None:
        self.kinds: defaultdict[str, float] = defaultdict(float)
        """Hosts by what they wait for; estimates are no whole numbers."""
        self.causes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.allowed, self.in_use = 0, 0.0
        for wait in self.waits:
            scale = self.scale[wait.shard]
            for kind, (count, by) in wait.kinds.items():
                self.kinds[kind] += count * scale
                if kind == "concurrency":
                    self.allowed += sum(by)
                elif kind == "due" and by:
                    self.in_use += by["busy"] * scale
                elif kind in KINDS and by:
                    self.causes[kind].update({str(what): int(n) for what, n in by.items()})
        if self.estimated:
            # Few of many slots may be set aside or paused, and are named in sets of their own.
            self.kinds["aside"] = sum(_with_requests(wait.aside) for wait in self.shards)
            self.kinds["paused"] = sum(_with_requests(wait.paused) for wait in self.shards)
        self.free = round(self.kinds["due"])
        self.kept_back = {kind: n for kind in KINDS if (n := round(self.kinds[kind]))}

    def starts(self) -> float | None:
        """Starts a minute that the limits of hosts allow; None: a host has none."""
        if not any(wait.looked for wait in self.waits) or any(w.starts < 0 for w in self.waits):
            return None
        return sum(wait.starts * self.scale[wait.shard] for wait in self.waits)


def _with_requests(told: tuple[int, int, int]) -> int:
    """How many slots of a set have requests, as far as those that were looked at say."""
    total, looked_at, with_requests = told
    return round(with_requests * total / looked_at) if looked_at else 0
