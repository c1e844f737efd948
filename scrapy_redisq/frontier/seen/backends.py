"""What keeps a dupefilter in Redis: a class for each Lua file of ``lua/shared/seen/``.

A backend knows how a fingerprint is encoded for its Lua file, and with which parameters that is
called. It talks to no server.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.seen.bitmap_layout import bitmap_layers

FINGERPRINT_BYTES = 20
"""Scrapy's fingerprints: SHA-1."""


@dataclass(frozen=True)
class SeenStatus:
    """What a dupefilter holds and what it may have cost so far."""

    count: int
    """Fingerprints recorded."""
    capacity: int
    """Fingerprints that fit before it grows."""
    fill: float
    """``count / capacity``."""
    expected_loss: float
    """Share of new URLs that are now taken for seen, 0 to 1."""
    expected_lost: float
    """URLs lost so far, an upper estimate: all of ``count`` at today's share."""

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> SeenStatus:
        """The status from what ``seen/status.lua`` answers: numbers, or texts of numbers."""
        count, capacity, fill, loss = (float(value) for value in reply)
        return cls(int(count), int(capacity), fill, loss, count * loss)

    @classmethod
    def total(cls, parts: Iterable[SeenStatus]) -> SeenStatus:
        """The status of several shards together: a new URL meets each in proportion to its size."""
        parts = list(parts)
        count = sum(part.count for part in parts)
        capacity = sum(part.capacity for part in parts)
        lost = sum(part.expected_lost for part in parts)
        return cls(
            count, capacity, count / capacity if capacity else 0.0, lost / max(1, count), lost
        )


class SeenFilter(ABC):
    """One way to store which fingerprints have been seen."""

    name: ClassVar[str]
    """Also of its Lua file in ``lua/shared/seen/``."""

    @abstractmethod
    def encode(self, fingerprint: bytes) -> bytes | str:
        """The fingerprint as the Lua file takes it. Any length, best 20 random bytes."""

    @abstractmethod
    def parameters(self) -> list[Any]:
        """What the Lua file's functions take as ``params``."""


def _normalised(fingerprint: bytes) -> bytes:
    """20 bytes as they are (Scrapy's are SHA-1, so uniform); other lengths hashed to 20."""
    if len(fingerprint) == FINGERPRINT_BYTES:
        return fingerprint
    return hashlib.blake2b(fingerprint, digest_size=FINGERPRINT_BYTES).digest()


class _BloomSeen(SeenFilter):
    """A Bloom filter that grows: ``error_rate`` holds at any size, ``capacity`` is the first."""

    def __init__(self, error_rate: float, capacity: int) -> None:
        self.error_rate = error_rate
        self.capacity = capacity

    def encode(self, fingerprint: bytes) -> bytes:
        return _normalised(fingerprint)


class RedisBloomSeen(_BloomSeen):
    """Scalable Bloom filters of the RedisBloom module (or one that has its commands)."""

    name = "redisbloom"

    def parameters(self) -> list[Any]:
        # As texts: what Redis prints of a Lua number depends on its version.
        return [repr(self.error_rate), str(self.capacity)]


class BitmapSeen(_BloomSeen):
    """A scalable blocked Bloom filter on plain strings, for servers without RedisBloom."""

    name = "bitmap"

    def parameters(self) -> list[Any]:
        layers = bitmap_layers(self.error_rate, self.capacity)
        return [";".join(layer.text() for layer in layers)]


class ExactSeen(SeenFilter):
    """The first 64 bits of each fingerprint, in integer sets.

    Two URLs share 64 bits with a chance of n²/2⁶⁵ in a crawl of n URLs: 3e-4 for 100 million.
    ``capacity`` is how many are expected: up to twice of it cost least time. Any number fits.
    """

    name = "exact"

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity

    def encode(self, fingerprint: bytes) -> str:
        return exact_member(fingerprint)

    def parameters(self) -> list[Any]:
        return [str(self.capacity)]


def exact_member(identity: bytes) -> str:
    """What is known by ``identity`` as a member of an exact set (``seen/exact.lua``): 64 bits."""
    return str(int.from_bytes(_normalised(identity)[:8], "big", signed=True))


def seen_filter(config: FrontierConfig) -> SeenFilter:
    """The filter that ``config`` names as its ``backend``."""
    if config.backend == ExactSeen.name:
        return ExactSeen(config.capacity)
    if config.backend == RedisBloomSeen.name:
        return RedisBloomSeen(config.error_rate, config.capacity)
    return BitmapSeen(config.error_rate, config.capacity)
