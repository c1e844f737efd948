"""Dupefilters: how "seen" is stored in Redis, and what this process remembers of it.

A backend is a Lua file of ``lua/shared/seen/``::

    redisbloom  scalable Bloom filters of the module, where it is loaded
    bitmap      a scalable blocked Bloom filter on plain strings
    exact       64-bit fingerprints in integer sets
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.growth import server_state
from scrapy_redisq.frontier.scripts import Client, execute

FINGERPRINT_BYTES = 20
"""Scrapy's fingerprints: SHA-1."""

SEEN_LATER = 0.1
"""Share of a TTL after which a process forgets what it has met, and old generations are deleted."""


class SeenFilter(Struct, frozen=True):
    """How a backend is called: how a fingerprint is encoded for it, and with which parameters.

    ``error_rate`` of the Bloom filters holds at any size, ``capacity`` is how many are expected.
    Two URLs share the 64 bits of an exact filter with a chance of n²/2⁶⁵ in a crawl of n URLs:
    3e-4 for 100 million.
    """

    name: str
    error_rate: float = 1e-6
    capacity: int = 0

    def encode(self, fingerprint: bytes) -> bytes | str:
        """The fingerprint as the Lua file takes it. Any length, best 20 random bytes."""
        return exact_member(fingerprint) if self.name == "exact" else _normalised(fingerprint)

    def parameters(self) -> list[str]:
        """The ``params`` of the Lua file's functions."""
        # As texts: what Redis prints of a Lua number depends on its version.
        capacity = str(self.capacity)
        return [capacity] if self.name == "exact" else [repr(self.error_rate), capacity]


def seen_filter(config: FrontierConfig) -> SeenFilter:
    """The filter that ``config`` names as its ``backend``."""
    return SeenFilter(config.backend, config.error_rate, config.capacity)


def exact_member(identity: bytes) -> str:
    """An ``identity`` as a member of an exact set (``seen/exact.lua``): 64 bits."""
    return str(int.from_bytes(_normalised(identity)[:8], "big", signed=True))


def _normalised(fingerprint: bytes) -> bytes:
    """20 bytes as they are (Scrapy's are SHA-1, so uniform); other lengths hashed to 20."""
    if len(fingerprint) == FINGERPRINT_BYTES:
        return fingerprint
    return hashlib.blake2b(fingerprint, digest_size=FINGERPRINT_BYTES).digest()


class SeenStatus(Struct, frozen=True):
    """A dupefilter: its fingerprints, how many fit before it grows, and the share of new URLs that
    it (each of its generations) takes for seen by now, at most."""

    count: int
    capacity: int
    expected_loss: float

    @property
    def fill(self) -> float:
        return self.count / max(1, self.capacity)

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> SeenStatus:
        """The reply of a file of ``lua/shared/seen/``: numbers, or texts of them."""
        return cls(int(reply[0]), int(reply[1]), float(reply[2]))

    @classmethod
    def total(cls, parts: Sequence[SeenStatus]) -> SeenStatus:
        """The status of several shards together: a new URL meets one of them."""
        count = sum(part.count for part in parts)
        lost = sum(part.count * part.expected_loss for part in parts)
        return cls(count, sum(part.capacity for part in parts), lost / max(1, count))


def probe(client: Client, prefixes: Iterable[str]) -> bool:
    """Can this server, with this user's rights, run the RedisBloom backend?

    In a cluster those nodes that have keys with these ``prefixes``: all must. Raises as `execute`.
    """
    return all(execute(client, server_state(prefix, probe=True)).has_bloom for prefix in prefixes)


class SeenCache:
    """URLs that this process has just met, so that repeated links cost a look-up and nothing more.

    The last ``size`` to ``2 * size`` keys: two generations, the older forgotten at once. With a
    ``ttl`` of what was seen, in seconds, now and then all is forgotten.
    """

    def __init__(self, size: int = 50_000, ttl: float = 0.0) -> None:
        self._size = size
        self._lasts = ttl * SEEN_LATER
        self._until = time.monotonic() + self._lasts
        self._young: set[object] = set()
        self._old: set[object] = set()

    def __contains__(self, key: object) -> bool:
        if self._lasts and time.monotonic() >= self._until:
            self._until = time.monotonic() + self._lasts
            self.clear()
        return key in self._young or key in self._old

    def add(self, key: object) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, set()
        self._young.add(key)

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()
