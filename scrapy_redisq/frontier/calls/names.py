"""How the keys of a shard are called, and what a script's reply is read with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def prefix(name: str, shard: int) -> str:
    """What all keys of one shard begin with; in braces the hash tag of Redis Cluster."""
    return f"redisq:{{{name}:{shard}}}:"


def meta_key(name: str, shard: int) -> str:
    """The key that every script is given; the others are derived in ``lua/shared/keys.lua``."""
    return prefix(name, shard) + "meta"


def wake_channel(name: str, shard: int) -> str:
    """Where idle workers hear that there is something to do, or that the run is complete."""
    return prefix(name, shard) + "wake"


def parse_queue_key(rest: str) -> tuple[str, str] | None:
    """(slot, priority) of a queue's key without prefix; None if it is no queue's."""
    slot, _, priority = rest.removeprefix("queue:").rpartition(":")
    if rest.startswith("queue:") and re.fullmatch(r"-?[0-9]{1,16}", priority):
        return slot, priority
    return None


def pairs(flat: Iterable[Any]) -> dict[str, str]:
    """A Redis hash from its flat reply."""
    items = iter(flat)
    return dict(zip(items, items, strict=True))


def number(text: Any) -> int:
    """What a script counts, 0 where something else stands."""
    try:
        return int(text)
    except ValueError:
        return 0
