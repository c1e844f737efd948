"""Which shard keeps a slot, and which hash slots of a cluster the shards lie in."""

from __future__ import annotations

from collections import Counter

import pytest
from redis.crc import key_slot

from scrapy_redisq.frontier.config import MOST_SHARDS, FrontierConfig
from scrapy_redisq.frontier.names import meta_key, slot_name
from scrapy_redisq.frontier.shards import numbers_of_any, shard_numbers


@pytest.mark.parametrize("masters", [1, 2, 3, 6, 16, MOST_SHARDS])
def test_each_master_has_one_shard(masters: int) -> None:
    """Their ranges of slots are as redis-cli --cluster create makes them."""
    for name in (f"shop-{n}" for n in range(10)):
        numbers = FrontierConfig(any_shards=True).laid_out(masters).shard_numbers(name)
        slots = [key_slot(meta_key(name, number).encode()) for number in numbers]
        ranges = Counter(
            next(m for m in range(masters) if slot < round((m + 1) * 16_384 / masters))
            for slot in slots
        )
        assert numbers[0] == 0 and len(numbers) == masters
        assert set(ranges.values()) == {1} and len(ranges) == masters, (name, slots)


def test_more_shards_than_masters_are_spread_as_evenly() -> None:
    for name in (f"shop-{n}" for n in range(40)):
        numbers = shard_numbers(name, 12, spread=True)
        slots = [key_slot(meta_key(name, number).encode()) for number in numbers]
        for masters in (3, 6):
            load = Counter(slot * masters // 16_384 for slot in slots)
            assert set(load.values()) == {12 // masters}


def test_former_shards_are_known_by_their_numbers() -> None:
    before = set(shard_numbers("shop", 2, spread=True)) | set(shard_numbers("shop", 5, spread=True))
    assert before <= set(numbers_of_any("shop", 5, spread=True))


def test_priority_scheduling_has_one_shard() -> None:
    config = FrontierConfig(scheduling="priority", any_shards=True).laid_out(3)
    assert config.shards == 1 and config.spread


@pytest.mark.parametrize(
    "long",
    ["x" * 201, "ü" * 101, "x" + "漢" * 99, "\udcff" * 60, "a." * 500],
    ids=["just too long", "two bytes", "three bytes", "no text", "far too long"],
)
def test_a_name_that_was_cut_stays_as_it_is(long: str) -> None:
    """Whatever is listed can be given back; what only looks a little like it is cut."""
    stored = slot_name(long)
    assert 200 < len(stored.encode()) <= 241
    assert slot_name(stored) == stored
    for other in (f"{stored}x", f"x{'y' * 40}{stored}", stored[:-40] + "g" * 40, stored[:-1]):
        assert slot_name(other) != other
    assert slot_name(f"{long}2") != stored


@pytest.mark.parametrize("short", ["", "x" * 200, "ü" * 100, f"x~{'0' * 40}"], ids=len)
def test_a_short_name_stays_as_it_is(short: str) -> None:
    assert slot_name(short) == short
