"""How evenly the shards of a frontier lie on the masters of a cluster: computed, not measured."""

from __future__ import annotations

import statistics
from collections import Counter

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from benchmarks.common import Result, Target
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.slot_names import shard_numbers

MOST = 1.25
"""What the busiest master carries at most of its share, with shards by themselves."""

COLUMNS = ["masters", "shards", "by itself", "busiest x share, mean", "at most"]
COLUMNS += ["tags as they come, mean"]


def busiest(name: str, numbers: tuple[int, ...], masters: int) -> float:
    """The most shards of a master over their mean, with equal ranges of the hash slots."""
    shards = Counter(
        key_slot(f"{name}:{number}".encode()) * masters // REDIS_CLUSTER_HASH_SLOTS
        for number in numbers
    )
    return max(shards.values()) * masters / len(numbers)


def run(*, quick: bool) -> Result:
    """Compute it for many names."""
    names = [f"spider-{number}" for number in range(20 if quick else 500)]
    rows, targets = [], []
    for masters in (3, 6):
        by_itself = FrontierConfig(any_shards=True).laid_out(masters).shards
        for shards in sorted({by_itself, 3, 6, 8, 16, 32, 64}):
            spread = [busiest(name, shard_numbers(name, shards, True), masters) for name in names]
            plain = [busiest(name, tuple(range(shards)), masters) for name in names]
            rows.append(
                {
                    "masters": masters,
                    "shards": shards,
                    "by itself": "yes" if shards == by_itself else "",
                    "busiest x share, mean": statistics.mean(spread),
                    "at most": max(spread),
                    "tags as they come, mean": statistics.mean(plain),
                }
            )
            if shards == by_itself:
                targets.append(
                    Target(
                        f"busiest master over its share, {masters} masters, shards by themselves",
                        f"≤ {MOST:g}",
                        f"{max(spread):.3g} (the worst of {len(names)} names)",
                        max(spread) <= MOST,
                    )
                )
    return Result(
        "balance",
        "Shards on the masters of a cluster",
        COLUMNS,
        rows,
        targets=targets,
        notes=[
            f"{len(names)} names; the masters have equal ranges of the hash slots, and all shards "
            "have as much to do. Tags as they come: numbered from 0 on, without the search for "
            "numbers whose tags lie in the middle of equal parts."
        ],
    )
