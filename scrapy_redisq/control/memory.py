"""Memory in Redis of each part of a frontier, and how long the memory will do."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from scrapy_redisq.control.stored import SCAN_BATCH, SCAN_BATCHES
from scrapy_redisq.frontier.names import key_prefix, keys_of
from scrapy_redisq.server.condition import Condition

PARTS: dict[str, tuple[str, ...]] = {
    "queues": ("ready", "levels", "queue", "delayed", "post", "posted"),
    "leases": ("leases", "busy", "tokens", "workers", "worker"),
    "seen": ("seen", "trash", "ended"),
    "dead": ("dead", "letters"),
    "slots": (
        *("slot", "limits", "taken", "aside", "paused", "ruled"),
        *("robots", "robots_until"),
    ),
    "series": ("series", "marks", "actions", "history", "histories"),
    "run": ("meta", "counts"),
}
"""The first words of the keys of each part of a frontier."""

_PART_OF = {word: part for part, words in PARTS.items() for word in words}

SAMPLED = 60
"""Keys of a kind whose memory is asked for."""
LARGEST = 20
"""Of the longest queues each is asked for."""
MOST_QUEUES = 20_000
"""Queues whose length is asked for, to find the longest."""
AT_A_TIME = 50
"""Commands in one round trip, each of some microseconds."""
NODES = 100
"""Parts of a large key that Redis looks at to estimate it (SAMPLES)."""

LEAST_FILL = 0.1
"""Of a Bloom filter, from which on bytes a URL can be told."""

SHORTEST = 600.0
"""Seconds of samples from which growth can be told."""
WINDOW = 7_200.0
"""Seconds back to which growth is looked for."""

DENIED = "the user lacks a right: ACL SETUSER … +scan +memory|usage (Redis 6: +memory)"
TOO_MANY = "a server has more than a million keys: not all of them were looked at"


@dataclass
class Found:
    """Measurements of all servers."""

    bytes: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    keys: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    largest: tuple[int, str] = (0, "")
    """Bytes and name of the largest key that was met."""
    problem: str = ""


def measure(nodes: Iterable[redis.Redis], name: str, shards: Sequence[int]) -> Found:
    """Ask ``nodes`` what the keys of these shards take. No call takes Redis more than about a
    millisecond. What a server refuses is `Found.problem`. Raises what the clients do, if a server
    goes away."""
    found = Found()
    prefixes = [key_prefix(name, shard).encode() for shard in shards]
    try:
        for node in nodes:
            _measure_node(node, name, prefixes, found)
    except redis.ResponseError as error:
        found.problem = DENIED if "perm" in str(error).lower() else str(error)
    return found


def _measure_node(node: redis.Redis, name: str, prefixes: Sequence[bytes], found: Found) -> None:
    for word, named in _scan(node, name, prefixes, found).items():
        large = _longest(node, named) if word == "queue" else []
        keys = sorted(named.difference(large))
        chosen = random.Random(0).sample(keys, min(SAMPLED, len(keys)))
        sizes, sampled = _usages(node, large), _usages(node, chosen)
        for size, key in zip(sizes + sampled, large + chosen, strict=False):
            found.largest = max(found.largest, (size, key.decode("utf-8", "replace")))
        each = len(keys) / len(chosen) if chosen else 0.0
        part = _PART_OF.get(word, "run")
        found.bytes[part] += sum(sizes) + each * sum(sampled)
        found.keys[part] += len(sizes) + each * len(sampled)


def _scan(
    node: redis.Redis, name: str, prefixes: Sequence[bytes], found: Found
) -> dict[str, set[bytes]]:
    """The frontier's keys by their first word."""
    groups: dict[str, set[bytes]] = defaultdict(set)
    cursor = 0
    for _ in range(SCAN_BATCHES):
        cursor, keys = node.scan(cursor, match=keys_of(name), count=SCAN_BATCH)
        for key in keys:
            assert isinstance(key, bytes)
            start = next((start for start in prefixes if key.startswith(start)), None)
            if start is not None:
                groups[key[len(start) :].decode("utf-8", "replace").partition(":")[0]].add(key)
        if cursor == 0:
            return groups
    found.problem = TOO_MANY
    return {}


def _longest(node: redis.Redis, keys: Iterable[bytes]) -> list[bytes]:
    """The longest queues, of `MOST_QUEUES`."""
    asked = list(itertools.islice(keys, MOST_QUEUES))
    lengths = _ask(node, asked, lambda pipeline, key: pipeline.llen(key))
    known = [(n, key) for n, key in zip(lengths, asked, strict=True) if isinstance(n, int)]
    return [key for _, key in heapq.nlargest(LARGEST, known)]


def _usages(node: redis.Redis, keys: Sequence[bytes]) -> list[int]:
    """Bytes of those that are there. Raises the first error."""
    replies = _ask(node, keys, lambda pipeline, key: pipeline.memory_usage(key, samples=NODES))
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            raise reply
    return [reply for reply in replies if isinstance(reply, int)]


def _ask(
    node: redis.Redis, keys: Sequence[bytes], command: Callable[[Any, bytes], object]
) -> list[Any]:
    replies: list[Any] = []
    for first in range(0, len(keys), AT_A_TIME):
        with node.pipeline(transaction=False) as pipeline:
            for key in keys[first : first + AT_A_TIME]:
                command(pipeline, key)
            replies += pipeline.execute(raise_on_error=False)
    return replies


def summary(
    found: Found,
    status: Mapping[str, Any],
    servers: Sequence[Condition],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The reply of `Frontier.memory`, of measurements and of what else is known."""
    measured = not found.problem
    waiting = status["queued"] + status["delayed"]
    per_request = found.bytes["queues"] / waiting if measured and waiting else None
    per_url = found.bytes["seen"] / status["seen"] if measured and _is_filled(status) else None
    used = sum(server.used for server in servers)
    most = sum(server.most for server in servers) if all(s.most for s in servers) else 0
    growth = growth_of(samples)
    left = max(0, most - used)
    each = (per_request or 0) + (per_url or 0)
    parts = {
        part: {"bytes": round(found.bytes[part]), "keys": round(found.keys[part])} for part in PARTS
    }
    return {
        "parts": parts if measured else None,
        "bytes": round(sum(found.bytes.values())) if measured else None,
        "bytes_per_request": None if per_request is None else round(per_request, 1),
        "bytes_per_url": None if per_url is None else round(per_url, 1),
        "used_bytes": used,
        "most_bytes": most,
        "room_requests": int(left / each) if most and each else None,
        "bytes_per_hour": None if growth is None else round(growth * 3_600),
        "full_in": round(left / growth) if most and growth and growth > 0 else None,
        "largest": {"key": found.largest[1], "bytes": found.largest[0]} if measured else None,
        "complete": measured,
        "problem": found.problem,
    }


def _is_filled(status: Mapping[str, Any]) -> bool:
    """A Bloom filter that is nearly empty takes the memory of those that it is made for."""
    seen, dupefilter = status["seen"], status["dupefilter"]
    exact = dupefilter is None or dupefilter["backend"] == "exact"
    return bool(seen) and (exact or dupefilter["fill"] >= LEAST_FILL)


def growth_of(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Bytes a second that the servers' memory has grown by of late; None if that is not known."""
    known = [(sample["at"], sample["memory"]) for sample in samples if sample.get("memory")]
    known = [one for one in known if one[0] >= known[-1][0] - WINDOW] if known else []
    if not known or known[-1][0] - known[0][0] < SHORTEST:
        return None
    (first_at, first), (last_at, last) = known[0], known[-1]
    return float((last - first) / (last_at - first_at))
