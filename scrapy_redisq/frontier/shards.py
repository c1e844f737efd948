"""Which shard keeps a slot, and how the shards are numbered."""

from __future__ import annotations

import functools
import itertools
import zlib

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot


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
