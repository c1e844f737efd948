"""Dupefilter backends: how "seen" is stored in Redis, and in what shape.

::

    RedisBloomSeen  redisbloom.lua  scalable Bloom filters of the module, where it is loaded
    BitmapSeen      bitmap.lua      a scalable blocked Bloom filter on plain strings
    ExactSeen       exact.lua       64-bit fingerprints in integer sets

A backend knows its Lua file in ``lua/shared/seen/``, how a fingerprint is encoded for it and with
which parameters it is called. It talks to no server.
"""

from __future__ import annotations

import functools
import hashlib
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import redis
import redis.asyncio

from scrapy_redisq.frontier.config import FrontierConfig

__all__ = [
    "BitmapSeen",
    "ExactSeen",
    "Layer",
    "RedisBloomSeen",
    "SeenFilter",
    "SeenStatus",
    "bitmap_layers",
    "blocked_bloom_error",
    "exact_member",
    "probe",
    "probe_async",
    "seen_filter",
]

FINGERPRINT_BYTES = 20
"""Scrapy's fingerprints: SHA-1."""

BLOCK_BYTES = 128
QUARTERS = 4
QUARTER_BITS = BLOCK_BYTES * 8 // QUARTERS
"""256: one byte of the fingerprint chooses one bit of a quarter."""

HASHES = (4, 8, 12, 16)
"""Bits per fingerprint to choose from: the same number in each quarter, and 16 bytes are left
when four of the 20 have chosen the block."""

HEADROOM = 1.05
"""Size of the first layer over the designed size: at 1e-6 it then takes just under 5 bytes a URL,
and two layers reach to about twice the designed size. Each layer costs a lookup."""

PEAK = 1.96
"""Most bytes a URL just after a new layer was made, over those of the full first layer: 8.9 bytes
at 1e-6. Larger makes fewer layers, smaller less memory that waits to be filled."""

MIN_GROWTH = 0.3
"""Least size of a new layer as a share of all before it, where PEAK leaves less."""

MAX_LAYERS = 40
MAX_SEGMENT_BYTES = 32 * 1024 * 1024
MIN_SEGMENT_BYTES = 4 * 1024


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
    """20 bytes as they are (Scrapy's are SHA-1, so uniform); others hashed to 20."""
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


# --- is RedisBloom there? ----------------------------------------------------------------------

_PROBE = """
local function problem_of(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end
redis.call('UNLINK', KEYS[1]) -- a first write that removes: works at maxmemory too
local problem = problem_of('BF.RESERVE', KEYS[1], '0.01', '100', 'EXPANSION', '1')
  or problem_of('BF.MADD', KEYS[1], 'probe') or problem_of('BF.MEXISTS', KEYS[1], 'probe')
redis.call('UNLINK', KEYS[1])
if not problem then return 1 end
local text = string.lower(problem)
for _, sign in ipairs({'unknown', 'noperm', "can't run", 'permission', 'acl'}) do
  if string.find(text, sign, 1, true) then return 0 end
end
return redis.error_reply(problem)
"""


def _probe_command() -> tuple[str, str, int, str]:
    # A name of its own: the script deletes what is there.
    return ("EVAL", _PROBE, 1, f"redisq:{{probe:{uuid.uuid4().hex}}}")


def probe(client: redis.Redis) -> bool:
    """Can this server, with this user's rights, run the RedisBloom backend?

    Makes a small filter, adds to it, asks for it and removes it, in one step that leaves nothing:
    modules with these commands are named differently from server to server, and an ACL may forbid
    some of them. What says nothing about the module, such as READONLY, is raised as redis-py's
    error.
    """
    return bool(client.execute_command(*_probe_command()))  # type: ignore[no-untyped-call]


async def probe_async(client: redis.asyncio.Redis) -> bool:
    """As `probe`, for an asynchronous client."""
    # redis-py left this one method without types.
    return bool(await client.execute_command(*_probe_command()))  # type: ignore[no-untyped-call]


# --- the shape of the bitmap filter ------------------------------------------------------------


def blocked_bloom_error(load: float, hashes: int) -> float:
    """False-positive rate of a blocked Bloom filter with ``load`` fingerprints a block on average.

    Each fingerprint sets ``hashes`` bits of one 128-byte block, the same number in each of its
    four quarters. A block holds j of them with Poisson probability (Putze, Sanders and Singler,
    "Cache-, Hash- and Space-Efficient Bloom Filters", 2007, section 3); the error given j is
    exact, see `_block_errors`.
    """
    errors = _block_errors(hashes)
    probability = math.exp(-load)
    total, left = 0.0, 1.0
    for j, error in enumerate(errors):
        total += probability * error
        left -= probability
        probability *= load / (j + 1)
        if j > load and probability < 1e-16:
            break
    return total + max(0.0, left)


@functools.cache
def _block_errors(hashes: int, most: int = 600) -> list[float]:
    """False-positive rate of one block that holds 0, 1, … ``most`` fingerprints.

    In a quarter of B bits that took m bits at random, d given bits are all set with probability
    Σᵢ (-1)ⁱ C(d, i) (1 - i/B)ᵐ; a new fingerprint asks for d different bits of its h with
    probability S(h, d) B! / (B - d)! / Bʰ (S: Stirling numbers of the second kind). Quarters are
    independent.
    """
    bits, h = QUARTER_BITS, hashes // QUARTERS
    stirling = [
        sum((-1) ** (d - i) * math.comb(d, i) * i**h for i in range(d + 1)) // math.factorial(d)
        for d in range(h + 1)
    ]
    different = [stirling[d] * math.perm(bits, d) / bits**h for d in range(h + 1)]
    errors = []
    for j in range(most + 1):
        empty = [(1 - i / bits) ** (j * h) for i in range(h + 1)]
        quarter = sum(
            different[d] * sum((-1) ** i * math.comb(d, i) * empty[i] for i in range(d + 1))
            for d in range(1, h + 1)
        )
        errors.append(max(0.0, quarter) ** QUARTERS)
    return errors


@functools.cache
def _best_shape(error: float) -> tuple[float, int, float]:
    """The load of a block, the number of hashes and the slope that reach ``error`` in least space.

    The slope p describes the error before the layer is full: near enough error · fillᵖ.
    """
    best = (0.0, HASHES[0])
    for hashes in HASHES:
        low, high = 0.01, 400.0
        for _ in range(30):
            middle = (low + high) / 2
            if blocked_bloom_error(middle, hashes) <= error:
                low = middle
            else:
                high = middle
        best = max(best, (low, hashes))
    load, hashes = best
    return load, hashes, math.log2(error / blocked_bloom_error(load / 2, hashes))


@dataclass(frozen=True)
class Layer:
    """The shape of one layer of the bitmap filter."""

    blocks: int
    blocks_per_segment: int
    hashes: int
    capacity: int
    error: float
    slope: float

    @property
    def segments(self) -> int:
        """Keys that the layer has when all are made."""
        return -(-self.blocks // self.blocks_per_segment)

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        return self.segments * self.blocks_per_segment * BLOCK_BYTES

    def text(self) -> str:
        """As bitmap.lua reads it."""
        return (
            f"{self.blocks} {self.blocks_per_segment} {self.hashes} {self.capacity} "
            f"{self.error:.6g} {self.slope:.4g}"
        )


@functools.cache
def bitmap_layers(error_rate: float, capacity: int) -> tuple[Layer, ...]:
    """The shapes of all layers of a filter that begins with ``capacity`` fingerprints.

    Layer i may err at ``error_rate`` / (i (i + 1)), whose sum stays below ``error_rate`` however
    many there are: layers grow by a factor here, and so need less tightening than the halving
    of Almeida, Baquero, Preguiça and Hutchison, "Scalable Bloom Filters" (2007).
    """
    layers: list[Layer] = []
    total = total_bytes = 0
    for number in range(1, MAX_LAYERS + 1):
        error = error_rate / (number * (number + 1))
        load, hashes, slope = _best_shape(error)
        if number == 1:
            wanted = capacity * HEADROOM
        else:
            most = PEAK * layers[0].bytes / layers[0].capacity * total
            wanted = max(MIN_GROWTH * total, (most - total_bytes) / BLOCK_BYTES * load)
        blocks = math.ceil(wanted / load)
        per_segment = _segment_bytes(blocks * BLOCK_BYTES) // BLOCK_BYTES - 1
        segments = round(blocks / per_segment) if number > 1 else math.ceil(blocks / per_segment)
        # Whole segments: each is allocated whole.
        blocks = max(1, segments) * per_segment
        layer = Layer(blocks, per_segment, hashes, int(blocks * load), error, slope)
        layers.append(layer)
        total += layer.capacity
        total_bytes += layer.bytes
    return tuple(layers)


def _segment_bytes(layer_bytes: int) -> int:
    """A power of two, so that a segment with its header just fits a size class of the allocator."""
    size = MIN_SEGMENT_BYTES
    while size < MAX_SEGMENT_BYTES and size * 64 <= layer_bytes:
        size *= 2
    return size
