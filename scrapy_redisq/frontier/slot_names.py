"""Slots by name: as a part of keys, and the shard that keeps each."""

from __future__ import annotations

import hashlib
import zlib

MAX_SLOT_LENGTH = 200
"""Bytes of a slot's name in Redis; longer ones are cut and end in a hash."""


def slot_name(slot: str) -> str:
    """A slot as a part of key names: bounded, and text that can be encoded."""
    if len(slot) <= MAX_SLOT_LENGTH and slot.isascii():
        return slot
    encoded = slot.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_SLOT_LENGTH:
        return encoded.decode()
    head = encoded[:MAX_SLOT_LENGTH].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha1(encoded).hexdigest()}"


def shard_of(slot: str, shards: int) -> int:
    """The shard that keeps ``slot``: CRC-32 of its name, modulo the number of shards."""
    return zlib.crc32(slot.encode()) % shards if shards > 1 else 0
