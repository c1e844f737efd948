"""What the frontier keeps of its past, for people: ``lua/past/``."""

from __future__ import annotations

from typing import Any

import msgspec

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, unpack


def series(name: str, shard: int, *, seconds: int, most: int) -> Call[list[list[Any]]]:
    """-> the newest samples of a list, as ``lua/shared/sample.lua`` has them, oldest first."""
    data = {"seconds": seconds, "most": most}
    return Call.of(load("past/series"), meta_key(name, shard), data, _arrays)


def marks(name: str) -> Call[list[list[Any]]]:
    """-> marks, as ``lua/shared/marks.lua`` has them, oldest first."""
    return Call.of(load("past/marks"), meta_key(name, 0), {}, _arrays)


def _arrays(reply: list[bytes]) -> list[list[Any]]:
    """Those that are arrays: what other hands have put there is passed over."""
    arrays = []
    for packed in reply:
        try:
            array = unpack(packed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(array, list):
            arrays.append(array)
    return arrays
