"""What one seed draws: settings, what the spider does, what goes wrong and when.

All is drawn at once and kept as plain values, so that a plan can be printed, and made smaller: with
fewer pages, without some of its features or faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

FEATURES = {
    "priorities": 0.3,
    "delays": 0.15,
    "leaves": 0.5,
    "chains": 0.3,
    "cookies": 0.3,
    "slow_start": 0.3,
    "hidden": 0.3,
    "failures": 0.4,
    "trouble": 0.25,
    "give_up": 0.15,
    "raises": 0.3,
    "item_raises": 0.2,
    "redirects": 0.25,
    "slow_callbacks": 0.3,
    "side": 0.15,
    "idle": 0.15,
    "close_spider": 0.1,
    "limits": 0.3,
    "robots": 0.15,
    "big": 0.1,
    "errbacks": 0.25,
    "rate": 0.15,
    "narrow": 0.15,
    "retry_after": 0.15,
    "refused_rows": 0.15,
    "shared_hidden": 0.2,
    "own_starts": 0.15,
    "again": 0.15,
    "keep_alive": 0.1,
    "deep_hidden": 0.3,
    "hidden_fails": 0.15,
    "tries_again": 0.2,
    "poison": 0.1,
    "latecomer": 0.1,
    "heavy": 0.04,
    "lines": 0.12,
    "rival": 0.15,
    "sessions": 0.5,
    "sees_end": 0.3,
    "seen_ttl": 0.15,
    "recurs": 0.12,
    "slot_budget": 0.12,
    "page_budget": 0.12,
    "stream": 0.4,
    "fails_again": 0.2,
    "copies": 0.2,
    "kept_tries": 0.3,
    "wide": 0.2,
    "waits_longer": 0.3,
    "heavy_lines": 0.2,
    "periods": 0.5,
    "old_limits": 0.5,
    "many_hidden": 0.1,
}
"""What a spider or its site may do -> how often one does."""

SEEN_TTL = 100_000.0
"""Virtual seconds, longer than any crawl, and than all steps of a server's clock. Dupefilters are
rotated once, by a step of `LATENESS`."""

LATENESS = (0.0, 0.9, 2.5)
"""By how many TTLs a dupefilter is rotated too late, as nothing was asked of it meanwhile: by the
last one all is forgotten."""

FEED, GROUP, LINES, MAX_IDLE = "redisq:{feed}", "redisq:sim", 40, 2.0
"""A feed, whose key is kept and forgotten with the frontier's; the group that reads it if it is a
stream; its lines; and how many virtual seconds without work end the crawl."""

CALM_TTL = 60.0
"""`REDISQ_LEASE_TTL` where nothing goes wrong: no sign of life brings what is late."""

RECURRING, EVERY = ("every0", "every1"), 3.0
"""Requests that come again, and how many virtual seconds after they were finished."""

PERIOD = 60.0
"""Virtual seconds for each of which a link is followed once, and what its page asks for."""

STRANGE = {"of": "another crawl"}
"""Arguments of another crawl on the same name."""

OF_SLOTS = frozenset({"limits", "rate", "narrow", "wide", "retry_after", "rival", "slot_budget"})
"""Features that only a crawl with slots keeps to."""

FAULTS = {
    "kill": 0.35,
    "freeze": 0.2,
    "cut": 0.25,
    "stop": 0.25,
    "stop_twice": 0.08,
    "join": 0.4,
    "outage": 0.25,
    "restart": 0.1,
    "lost_tail": 0.25,
    "lost_script": 0.15,
    "full": 0.15,
    "clock": 0.1,
    "flush": 0.15,
    "sink_away": 0.2,
    "sink_slow": 0.1,
    "messages": 0.4,
    "foreign_entry": 0.1,
    "pause_slot": 0.15,
    "pause_crawl": 0.1,
    "push": 0.25,
    "failover": 0.15,
    "leave": 0.15,
    "stranger": 0.1,
    "damage": 0.05,
    "requeue": 0.1,
    "quiet": 0.08,
    "told_to_stop": 0.08,
    "host_away": 0.15,
    "reset": 0.05,
    "host_dies": 0.15,
}
"""What may go wrong -> how often it does in a crawl."""


@dataclass(frozen=True)
class Fault:
    """``kind`` at a virtual second, for ``lasts`` seconds, to a worker (a number) if to one."""

    kind: str
    at: float
    lasts: float = 0.0
    worker: int = 0


@dataclass(frozen=True)
class Plan:
    """One crawl. ``workers``: when each of the first ones starts. ``masters`` of a cluster, 0: one
    server; ``replicas``: each has one."""

    seed: int
    pages: int
    hosts: int
    features: frozenset[str]
    faults: tuple[Fault, ...]
    workers: tuple[float, ...]
    masters: int = 0
    replicas: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def smaller(self, *, pages: int | None = None, without: frozenset[str] = frozenset()) -> Plan:
        """The same with so many pages, without features of these names, and faults of these
        numbers."""
        return replace(
            self,
            pages=pages or self.pages,
            features=self.features - without,
            faults=tuple(fault for n, fault in enumerate(self.faults) if str(n) not in without),
        )

    def words(self) -> str:
        """For people."""
        faults = [f"{n}:{fault.kind}@{fault.at:.2f}" for n, fault in enumerate(self.faults)]
        return (
            f"{self.pages} pages on {self.hosts} hosts, {len(self.workers)} workers, "
            f"{self.masters} masters{' with replicas' * self.replicas}, "
            f"{' '.join(f'{name}={value}' for name, value in self.settings.items())}; "
            f"{' '.join(sorted(self.features)) or 'plain'}; {' '.join(faults) or 'no fault'}"
        )


def draw(seed: int) -> Plan:
    """The plan of a seed. Each feature and kind of fault is drawn by a chance of its own: where one
    is added, the others stay as they are."""
    chance = random.Random(f"plan {seed}")
    pages = chance.choice([5, 10, 10, 20, 20, 40])
    features = frozenset(
        name for name, often in FEATURES.items() if random.Random(f"{name} {seed}").random() < often
    )
    calm = chance.random() < 0.1
    faults: list[Fault] = []
    for kind, often in FAULTS.items():
        chance = random.Random(f"{kind} {seed}")
        while chance.random() < often and not calm and len(faults) < 8:
            at = chance.choice([chance.uniform(0, 1), chance.uniform(0, 2), chance.uniform(0, 8)])
            lasts = chance.choice([0.05, 0.5, 2.0, 5.0, 12.0])
            faults.append(Fault(kind, round(at, 3), lasts, chance.randrange(4)))
    chance = random.Random(f"settings {seed}")
    workers = [0.0] + [
        round(chance.choice([0.0, chance.uniform(0, 0.2), chance.uniform(0, 4)]), 3)
        for _ in range(chance.randrange(4))
    ]
    settings: dict[str, Any] = {
        "REDISQ_LEASE_TTL": chance.choice([2, 4, 6, 10]),
        "CONCURRENT_REQUESTS": chance.choice([1, 2, 4, 4, 8]),
        "REDISQ_ORDER": chance.choice(["fifo", "fifo", "lifo"]),
        "REDISQ_SCHEDULING": chance.choice(["slot", "slot", "slot", "priority"]),
        "DUPEFILTER_CLASS": chance.choice(
            ["scrapy_redisq.BloomDupeFilter", "scrapy_redisq.ExactDupeFilter"]
        ),
        "REDISQ_MAX_DELIVERIES": chance.choice([5, 5, 20]),
    }
    if chance.random() < 0.2:
        settings["REDISQ_RUN"] = "run"
    if chance.random() < 0.1:
        settings["REDISQ_KEEP_SEEN"] = True
    if chance.random() < 0.15:
        settings["REDISQ_MAX_PENDING"] = chance.choice([5, 20])
    if random.Random(f"memory {seed}").random() < 0.1:
        settings["REDISQ_MAX_MEMORY"] = 0.5  # which is reached when the server is full
    if settings["REDISQ_SCHEDULING"] == "priority":
        features -= OF_SLOTS
    elif random.Random(f"give up {seed}").random() < 0.15:
        settings["REDISQ_SLOT_GIVE_UP"] = 3
    if random.Random(f"resume {seed}").random() < 0.1:
        settings["REDISQ_RESUME"] = False
    if "poison" in features:  # that it kills its worker is known after so many
        settings["REDISQ_MAX_DELIVERIES"] = 3
        settings.pop("REDISQ_RESUME", None)
    if "seen_ttl" in features:
        settings["REDISQ_SEEN_TTL"] = SEEN_TTL
    if {"REDISQ_RESUME", "REDISQ_KEEP_SEEN"} <= settings.keys():
        features -= {"recurs"}  # then a new run has it twice, as the documents say
    budgets = random.Random(f"budgets {seed}")
    if "slot_budget" in features:  # of each host, or of one
        settings["REDISQ_SLOT_BUDGET"] = budget = budgets.choice([2, 5, 10])
        if budgets.random() < 0.5:
            settings["REDISQ_SLOT_BUDGET"] = 0
            settings["REDISQ_SLOT_LIMITS"] = {"h0.sim": {"budget": budget}}
    if "page_budget" in features:
        settings["REDISQ_PAGE_BUDGET"] = budgets.choice([1, 2, 5])
    if "keep_alive" in features:
        features -= {"idle", "again"}  # a worker that stays is never idle, nor is there an end
    if "lines" in features:  # of a feed, which keeps the crawl open for a while
        features -= {"idle", "again", "keep_alive"}
        settings["REDISQ_FEEDS"] = {FEED: {"batch": chance.choice([1, 1, 2, 4])}}
        settings["MAX_IDLE_TIME_BEFORE_CLOSE"] = MAX_IDLE
        if "heavy_lines" in features:
            settings["REDISQ_FEEDS"] = {FEED: {"batch": LINES}}
    else:
        features -= {"stream", "heavy_lines"}
    if "recurs" not in features:
        features -= {"periods"}
    if "limits" not in features:
        features -= {"old_limits"}
    hosts = chance.choice([1, 2, 3, 5])
    chance = random.Random(f"cluster {seed}")
    masters = chance.choice([0, 0, 0, 0, 0, 1, 2, 3])
    if masters:
        features -= {"rival"}
    if "rival" in features:
        settings["REDISQ_LIMITS_NAME"] = "both"
    if not faults:
        settings["REDISQ_LEASE_TTL"] = CALM_TTL
    return Plan(
        seed,
        pages,
        hosts,
        features,
        tuple(sorted(faults, key=lambda fault: fault.at)),
        tuple(sorted(workers)),
        masters,
        masters > 0 and chance.random() < 0.6,
        settings,
    )
