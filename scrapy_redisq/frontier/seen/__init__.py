"""Dupefilters: how "seen" is stored in Redis, and in what shape.

::

    RedisBloomSeen  redisbloom.lua  scalable Bloom filters of the module, where it is loaded
    BitmapSeen      bitmap.lua      a scalable blocked Bloom filter on plain strings
    ExactSeen       exact.lua       64-bit fingerprints in integer sets

``backends`` has these classes, ``bitmap_layout`` the shape of the second, ``probe`` asks a server
for the first; ``recent_urls`` saves asking again about links that were just met.
"""

from __future__ import annotations

from scrapy_redisq.frontier.seen.backends import (
    BitmapSeen,
    ExactSeen,
    RedisBloomSeen,
    SeenFilter,
    SeenStatus,
    exact_member,
    seen_filter,
)
from scrapy_redisq.frontier.seen.bitmap_layout import Layer, bitmap_layers, blocked_bloom_error
from scrapy_redisq.frontier.seen.probe import clock_and_probe, probe

__all__ = [
    "BitmapSeen",
    "ExactSeen",
    "Layer",
    "RedisBloomSeen",
    "SeenFilter",
    "SeenStatus",
    "bitmap_layers",
    "blocked_bloom_error",
    "clock_and_probe",
    "exact_member",
    "probe",
    "seen_filter",
]
