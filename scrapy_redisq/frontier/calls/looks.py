"""What people ask of a shard while a crawl runs: ``lua/run/waits.lua``. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, unpack

MOST_LOOKED_AT = 200
"""Slots that a look at what a shard waits for takes in, 50 a call."""


class Waits(msgspec.Struct):
    """What ``run/waits.lua`` says of a shard. Times in us, -1: there is none."""

    shard: int
    slots: int
    due: int
    busy: int
    next: float
    delayed: tuple[int, float, float]
    """How many; until the first and until the last is due."""
    aside: tuple[int, int, int]
    """Slots that are set aside; of these looked at; of these with requests."""
    paused: tuple[int, int, int]
    stuck: float
    keep_alive: bool
    waiting: float
    starting: float
    parts: int
    looked: int
    kinds: Mapping[str, tuple[int, Any]]
    starts: float


def waits(name: str, shard: int, part: int = 0, *, most: int = MOST_LOOKED_AT) -> Call[Waits]:
    """-> what the slots of a shard wait for, in as many parts as the first one says."""

    def decode(reply: Any) -> Waits:
        told = unpack(reply)
        told["kinds"] = told["kinds"] or {}  # Lua cannot tell an empty map from an empty array
        return msgspec.convert({**told, "shard": shard}, Waits, strict=False)

    data = {"most": most, "part": part}
    return Call.of(load("run/waits"), meta_key(name, shard), data, decode)
