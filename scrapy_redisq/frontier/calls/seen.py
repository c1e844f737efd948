"""Dupefilters: ``lua/seen/``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.calls.requests import fingerprint_item
from scrapy_redisq.frontier.scripts import Call, load
from scrapy_redisq.frontier.seen import SeenFilter, SeenStatus


def record_seen(
    name: str, generation: str, seen: SeenFilter, fingerprints: Sequence[bytes]
) -> Call[list[int]]:
    """Record fingerprints in a dupefilter that stands alone; -> 1 for each that was new, else 0."""
    data = {
        "generation": generation,
        "seen": seen.parameters(),
        "fingerprints": [fingerprint_item(seen.encode(each)) for each in fingerprints],
    }

    def decode(reply: Any) -> list[int]:
        answers = list(reply)
        if len(answers) != len(fingerprints) or not {0, 1}.issuperset(answers):
            raise ValueError(f"{answers!r:.100} is no answer of 0 or 1 for each fingerprint")
        return answers

    return Call.of(load("seen/add", seen.name), meta_key(name, 0), data, decode)


def seen_status(name: str, shard: int, generation: str, seen: SeenFilter) -> Call[SeenStatus]:
    """What a dupefilter holds, and how much it errs."""
    data = {"generation": generation, "seen": seen.parameters()}
    script = load("seen/status", seen.name)
    return Call.of(script, meta_key(name, shard), data, SeenStatus.from_reply)


def sweep(
    name: str, shard: int, backend: str, everything: bool = False, *, forget_shards: str = ""
) -> Call[str | None]:
    """-> the backend of the next dupefilter to delete; None when nothing is left.

    ``forget_shards``: the run that has no shards of former ones left.
    """
    data = {"backend": backend, "all": everything, "forget_shards": forget_shards or False}
    return Call.of(
        load("seen/sweep", backend),
        meta_key(name, shard),
        data,
        lambda reply: reply.decode() if reply else None,
    )
