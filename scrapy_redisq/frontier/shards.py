"""Slots by name: as a part of keys, and the shard that keeps each; the numbers of shards."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import zlib

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

MAX_SLOT_LENGTH = 200
"""Bytes of a slot's name in Redis; longer ones are cut and end in a hash."""

_HASH = re.compile(r"~[0-9a-f]{40}\Z")
"""The end of a name that was cut."""


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


def shard_of(slot: str, shards: int) -> int:
    """Which one of the shards keeps ``slot``: CRC-32 of its name, modulo their number."""
    return zlib.crc32(slot.encode()) % shards if shards > 1 else 0


@functools.cache
def shard_numbers(name: str, shards: int, spread: bool) -> tuple[int, ...]:
    """How the shards of frontier ``name`` are numbered in its keys, ``redisq:{NAME:k}:``.

    From 0 on; with ``spread`` the numbers are chosen by the hash slots of Redis Cluster that they
    lead to, so that each of as many masters has one shard. Hash tags as they come would leave one
    of three masters empty for half of all names.
    """
    if not spread:
        return tuple(range(shards))
    part = REDIS_CLUSTER_HASH_SLOTS / shards
    first = int(_hash_slot(name, 0) / part)
    numbers = [0]
    for k in range(1, shards):
        middle = ((first + k) % shards + 0.5) * part
        numbers.append(
            next(
                number
                for number in itertools.count(1)
                if abs(_hash_slot(name, number) - middle) < part / 4
            )
        )
    return tuple(numbers)


def _hash_slot(name: str, number: int) -> int:
    return int(key_slot(f"{name}:{number}".encode()))


def numbers_of_any(name: str, most: int, spread: bool) -> tuple[int, ...]:
    """The numbers of all shards that runs of at most ``most`` shards may have had."""
    layouts = (shard_numbers(name, shards, spread) for shards in range(1, most + 1))
    return tuple(sorted(set(itertools.chain.from_iterable(layouts))))
