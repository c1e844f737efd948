"""The shape of the bitmap filter: how large each of its layers is, and how much it errs.

Which bits a fingerprint sets is in ``lua/shared/seen/bitmap.lua``.
"""

from __future__ import annotations

import functools
import math

from msgspec import Struct

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
def _best_shape(error: float) -> tuple[float, int]:
    """The load of a block and the number of hashes that reach ``error`` in least space."""
    best = (0.0, HASHES[-1])
    for hashes in reversed(HASHES):
        if blocked_bloom_error(best[0], hashes) > error:
            continue  # the error grows with the load
        low, high = 0.01, 400.0
        for _ in range(30):
            middle = (low + high) / 2
            if blocked_bloom_error(middle, hashes) <= error:
                low = middle
            else:
                high = middle
        best = max(best, (low, hashes))
    return best


class Layer(Struct, frozen=True):
    """The shape of one layer of the bitmap filter."""

    blocks: int
    blocks_per_segment: int
    hashes: int
    capacity: int
    error: float

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
        shape = self.blocks, self.blocks_per_segment, self.hashes, self.capacity
        return " ".join([*map(str, shape), f"{self.error:.6g}"])


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
        load, hashes = _best_shape(error)
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
        layer = Layer(blocks, per_segment, hashes, int(blocks * load), error)
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
