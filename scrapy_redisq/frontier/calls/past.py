"""What the frontier keeps of its past, for people: ``lua/past/``."""

from __future__ import annotations

from collections.abc import Sequence
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


def note(name: str, by: str, what: str, on: str, number: int) -> Call[int]:
    """Note what somebody has done; -> 0 if it could not be noted."""
    data = {"by": by, "what": what, "on": on, "number": number}
    return Call.of(load("past/note"), meta_key(name, 0), data, int)


def actions(name: str) -> Call[list[list[Any]]]:
    """-> what was noted, as ``lua/past/note.lua`` has it, oldest first."""
    return Call.of(load("past/actions"), meta_key(name, 0), {}, _arrays)


def history(
    name: str, shard: int, *, ids: Sequence[str] | None = None, skip: int = 0, most: int = 0
) -> Call[list[tuple[str, float, bytes]]]:
    """-> (id, us since 1970 when it ended, record) of these requests, or of the newest ones."""
    data = {"ids": False if ids is None else ids, "skip": skip, "most": most}

    def decode(reply: list[bytes]) -> list[tuple[str, float, bytes]]:
        triples = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [(id.decode(errors="replace"), float(at), record) for id, at, record in triples]

    return Call.of(load("past/history"), meta_key(name, shard), data, decode)


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
