"""Memory: bytes of a request that is queued or leased, and of a URL that has been seen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from benchmarks.common import Result, Target
from benchmarks.loads.contents import CONTENTS
from benchmarks.loads.filters import backends
from benchmarks.loads.weighing import (
    DESIGNED,
    ERROR_RATE,
    GROWN,
    idle_slot,
    leased,
    of_peer,
    queued,
    seen,
    seen_by_set,
)
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS

COLUMNS = ["what", "how many", "bytes each"]

QUEUED = 115  # bytes, goals
COMPRESSED = 25
EXACT = 10
BLOOM = 5
BLOOM_GROWING = 9

COMPRESSED_ROW = "  list-compress-depth 1"


SEEN = (1_000_000, 10_000_000)
"""Sizes of dupefilters."""

LOOKS = 20
"""At the memory of one between the designed size and three times of it."""


def run(*, quick: bool) -> Result:
    """Weigh everything, two at a time: times play no part here."""
    requests, slots, of_peers = (1_000, 500, 0) if quick else (300_000, 20_000, 50_000)
    holders = 2 if quick else 100  # workers that hold 100 requests each
    sizes, looks = ((2_000,), 2) if quick else (SEEN, LOOKS)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2) as pool:
        # The long ones first.
        filters = {
            (backend, number): pool.submit(
                seen, backend, number, looks if number == sizes[0] else 0
            )
            for number in reversed(sizes)
            for backend in backends()
        }
        sets = {number: pool.submit(seen_by_set, number) for number in reversed(sizes)}
        held = holders * MAX_CLAIMS
        weighed: list[tuple[str, int, Future[float]]] = []
        for content in CONTENTS:
            plain, compressed = (pool.submit(queued, content, requests, n) for n in (0, 1))
            weighed.append((f"queued: {content.name}", requests, plain))
            weighed.append((COMPRESSED_ROW, requests, compressed))
            weighed.append(("  leased", held, pool.submit(leased, content, holders)))
            if of_peers:
                peer = pool.submit(of_peer, content, of_peers, seen=False)
                weighed.append(("  scrapy-redis, queued", of_peers, peer))
        idle = pool.submit(idle_slot, slots)
        weighed.append(("slot that was used and is empty", slots, idle))
        peers_seen = pool.submit(of_peer, CONTENTS[0], of_peers, seen=True) if of_peers else None

        def add(what: str, number: int, value: float) -> None:
            rows.append({"what": what, "how many": number, "bytes each": value})

        for what, number, future in weighed:
            add(what, number, future.result())
        for number in sizes:
            for backend in backends():
                for when, value in filters[backend, number].result().items():
                    add(f"seen, {backend}: {number:,}, {when}", number, value)
            add(f"seen, scrapy-redis: {number:,}, its set", number, sets[number].result())
        if peers_seen:
            add(f"seen, scrapy-redis: {of_peers:,}", of_peers, peers_seen.result())
    return Result(
        "memory",
        "Bytes in Redis",
        COLUMNS,
        rows,
        targets=list(_targets(rows)),
        notes=[
            "URLs of 77 bytes, a callback. numbered: only a number differs from one URL to the "
            "next; words: two to four words of 76 at random.",
            f"Bloom filters: error rate {ERROR_RATE:g}; past the designed size they are looked at "
            "in steps of a tenth of it.",
        ],
    )


def _targets(rows: list[dict[str, Any]]) -> Iterator[Target]:
    """The goals, each for the rows that begin and end so."""
    goals: list[tuple[str, float, str, str | tuple[str, ...]]] = [
        ("queued request", QUEUED, f"queued: {CONTENTS[0].name}", ""),
        ("queued request, list-compress-depth 1", COMPRESSED, COMPRESSED_ROW, ""),
        ("seen URL, exact", EXACT, "seen, exact", DESIGNED),
    ]
    for name in backends()[1:]:
        goals.append((f"seen URL, {name}, designed size", BLOOM, f"seen, {name}", DESIGNED))
        goals.append((f"seen URL, {name}, growing", BLOOM_GROWING, f"seen, {name}", GROWN))
    for what, most, begins, ends in goals:
        values = [
            row["bytes each"]
            for row in rows
            if row["what"].startswith(begins) and row["what"].endswith(ends)
        ]
        if what.startswith("queued"):
            values = values[:1]  # of the first content
        measured = ", ".join(f"{value:.3g} B" for value in values)
        yield Target(what, f"≤ {most:g} B", measured, max(values) <= most)
