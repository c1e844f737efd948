"""What people ask of a shard while a crawl runs: why it waits, and where a request is.

``lua/run/waits.lua``, ``lua/slots/find.lua``, ``lua/seen/ask.lua`` and ``lua/seen/forget.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.calls.requests import fingerprint_item
from scrapy_redisq.frontier.scripts import Call, load, unpack
from scrapy_redisq.frontier.seen import SeenFilter, exact_member

MOST_LOOKED_AT = 100
"""Slots that a look at what a shard waits for takes in, 20 a call."""


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
    oldest: float = -1
    room: tuple[float, float] = (0, 0)
    """Downloads that the slots looked at have requests for and may have at a time; their leases."""


def waits(name: str, shard: int, part: int = 0, *, most: int = MOST_LOOKED_AT) -> Call[Waits]:
    """-> what the slots of a shard wait for, in as many parts as the first one says."""

    def decode(reply: Any) -> Waits:
        told = unpack(reply)
        told["kinds"] = told["kinds"] or {}  # Lua cannot tell an empty map from an empty array
        return msgspec.convert({**told, "shard": shard}, Waits, strict=False)

    data = {"most": most, "part": part}
    return Call.of(load("run/waits"), meta_key(name, shard), data, decode)


class Asked(NamedTuple):
    """What is known of a fingerprint. ``seen`` is None if the dupefilter was not asked; ``start``:
    it is a start request of the run."""

    seen: bool | None
    start: bool


def ask_seen(
    name: str,
    shard: int,
    run: str,
    generation: str,
    fingerprint: bytes,
    seen: SeenFilter,
    *,
    filtered: bool = True,
) -> Call[Asked]:
    """-> whether a fingerprint is known. ``filtered``: the dupefilter decides about links."""
    encoded = seen.encode(fingerprint)
    data = {
        "generation": generation,
        "run": run,
        "seen": seen.parameters(),
        "fingerprint": fingerprint_item(encoded) if filtered else False,
        "start": exact_member(fingerprint),
    }

    def decode(reply: Any) -> Asked:
        known, start = reply
        return Asked(None if known < 0 else bool(known), bool(start))

    return Call.of(load("seen/ask", seen.name), meta_key(name, shard), data, decode)


def forget_seen(name: str, shard: int, run: str, generation: str, fingerprint: bytes) -> Call[bool]:
    """Take a fingerprint out of an exact dupefilter; -> whether it was there."""
    data = {"generation": generation, "run": run, "fingerprint": exact_member(fingerprint)}
    return Call.of(load("seen/forget"), meta_key(name, shard), data, bool)


PLACES = ("leases", "delayed", "letters", "queues")
"""Where a request of a slot may be."""


class Portion(NamedTuple):
    """What `find` looked at. ``cursor`` is "" at the end, "refused" if it cannot be looked;
    ``found``: who or which priority, which one, and what is stored: see ``slots/find.lua``."""

    cursor: str
    looked: int
    found: Sequence[tuple[str, str, bytes]]


def find(name: str, shard: int, place: str, slot: str, text: str, cursor: str) -> Call[Portion]:
    """Look for requests of a slot with ``text`` in them, at about 300 of one place."""

    def decode(reply: Any) -> Portion:
        cursor, looked, *flat = reply
        texts = [item.decode("utf-8", "surrogateescape") for item in (cursor, *flat[::3])]
        ids = [item.decode("utf-8", "surrogateescape") for item in flat[1::3]]
        return Portion(texts[0], int(looked), list(zip(texts[1:], ids, flat[2::3], strict=True)))

    data = {"place": place, "slot": slot, "text": text, "cursor": cursor}
    return Call.of(load("slots/find"), meta_key(name, shard), data, decode)
