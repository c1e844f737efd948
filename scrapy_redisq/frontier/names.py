"""How the keys of a shard are called, and slots in them; what a script's reply is read with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

EVERY_META = "redisq:{*:0}:meta"
"""Pattern of the meta keys of all frontiers' first shards."""

NEVER = "redisq:never"
"""Prefix of keys that are never there, to try what a user may do with a key."""

MAX_SLOT_LENGTH = 200
"""Bytes of a slot's name in Redis; longer ones are cut and end in a hash."""

_HASH = re.compile(r"~[0-9a-f]{40}\Z")
"""The end of a name that was cut."""


def key_prefix(name: str, shard: int) -> str:
    """Prefix of all keys of one shard; in braces the hash tag of Redis Cluster."""
    return f"redisq:{{{name}:{shard}}}:"


def meta_key(name: str, shard: int) -> str:
    """The key that every script is given; the others are derived in ``lua/shared/keys.lua``."""
    return key_prefix(name, shard) + "meta"


def wake_channel(name: str, shard: int) -> str:
    """Where idle workers hear that there is something to do, or that the run is complete."""
    return key_prefix(name, shard) + "wake"


def limits_channel(name: str) -> str:
    """Where workers of all crawls that share the limits called ``name`` hear of slots."""
    return f"redisq:limits:{{{name}}}:wake"


def slot_name(slot: str) -> str:
    """A slot as a part of key names: bounded, and text that can be encoded.

    A name that was cut stays as it is: people give back what a list has shown them. No host is
    called so by itself: a "~" is in none.
    """
    if len(slot) <= MAX_SLOT_LENGTH and slot.isascii():
        return slot
    encoded = slot.encode("utf-8", "backslashreplace")
    was_cut = len(encoded) <= MAX_SLOT_LENGTH + 41 and _HASH.search(slot)
    if len(encoded) <= MAX_SLOT_LENGTH or was_cut:
        return encoded.decode()
    head = encoded[:MAX_SLOT_LENGTH].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha1(encoded).hexdigest()}"


def name_in(meta: str) -> str | None:
    """The name in the meta key of a first shard; None if it is no such key."""
    found = re.fullmatch(r"redisq:\{([^{}]+):0\}:meta", meta)
    return found[1] if found else None


def keys_of(name: str) -> str:
    """Pattern of all keys of a frontier, and perhaps of others whose names begin like its own."""
    escaped = re.sub(r"([*?\[\]\\^])", r"\\\1", name)
    return f"redisq:{{{escaped}:*"


def seen_alone(name: str) -> str:
    """Prefix of the keys of a dupefilter without a frontier; its backend's name follows."""
    return key_prefix(name, 0) + "seen:alone:"


def pairs(flat: Iterable[Any]) -> dict[str, str]:
    """A Redis hash from its flat reply."""
    items = iter(flat)
    return dict(zip(items, items, strict=True))


STAT = "stat:"
"""Begins the names of those counts that are stats of Scrapy."""


def stats_in(counts: Mapping[str, Any]) -> dict[str, int]:
    """Scrapy's stats of all workers, which are in the counts of shard 0."""
    stats = {name: number(counts[name]) for name in sorted(counts) if name.startswith(STAT)}
    return {name.removeprefix(STAT): value for name, value in stats.items()}


def number(text: Any) -> int:
    """A script's count, 0 where the text is no number."""
    try:
        return int(text)
    except ValueError:
        return 0
