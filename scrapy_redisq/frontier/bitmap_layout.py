"""The shape of the bitmap filter: how large each of its layers is, and how much it errs.

Which bits a fingerprint sets is in ``lua/shared/seen/bitmap.lua``.
"""

from __future__ import annotations

import functools
import math

from msgspec import Struct

BLOCK_BYTES = 128

HASHES = 16
"""Bits per fingerprint, as many as 20 bytes give when four of them have chosen the block."""

HEADROOM = 1.05
"""Size of the first layer over the designed size: at 1e-6 it then takes just under 5 bytes a URL,
and two layers reach to about twice the designed size. Each layer costs a lookup."""

PEAK = 1.95
"""Most bytes a URL just after a new layer was made, over those of the full first layer: 8.9 bytes
at 1e-6. Larger makes fewer layers, smaller less memory that waits to be filled."""

MIN_GROWTH = 0.3
"""Least size of a new layer as a share of all before it, where PEAK leaves less."""

MAX_LAYERS = 40
MAX_SEGMENT_BYTES = 32 * 1024 * 1024
MIN_SEGMENT_BYTES = 4 * 1024


def _load(error: float) -> float:
    """Fingerprints a block, on average, with which a layer errs at most so often: from 1e-12 on,
    and never more than once in 100. 1 to 2 % less than the exact number, which
    `tests/protocol/test_seen.py` works out."""
    x = math.log10(min(error, 0.01))
    return 0.994 * 10 ** (2.208493 + x * (0.153542 + x * (0.007001 + x * 0.000281)))


class Layer(Struct, frozen=True):
    """The shape of one layer of the bitmap filter."""

    blocks: int
    blocks_per_segment: int
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
        shape = self.blocks, self.blocks_per_segment, HASHES, self.capacity
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
        load = _load(error)
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
        layer = Layer(blocks, per_segment, int(blocks * load), error)
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
