"""What the frontier keeps of its past, for people: ``lua/past/``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, unpack

T = TypeVar("T")

COUNTED = (
    "created", "finished", "dead", "dropped", "duplicates", "retried", "released", "reclaimed",
    "pages", "items", "errors", "delayed", "leased",
)  # fmt: skip
"""Numbers of a sample that add up over shards, in the order of ``lua/shared/sample.lua``."""

MOST_COUNTED = 2**53
"""Larger numbers are of another hand."""


class Sample(NamedTuple):
    """One of one shard. ``at``: s since 1970. ``counted``: of each of `COUNTED`. ``memory``: bytes
    of its server, 0: not known."""

    at: int
    run: str
    counted: tuple[int, ...]
    workers: int
    memory: int

    @classmethod
    def read(cls, array: Sequence[Any]) -> Sample | None:
        """None if another hand has put it there; of later releases the part that is known here."""
        last = len(COUNTED) + 2
        if len(array) <= last:
            return None
        at, run, *numbers = [*array, 0][: last + 2]
        if not (isinstance(run, str) and all(map(_is_count, (at, *numbers)))):
            return None
        return cls(at, run, tuple(numbers[:-2]), *numbers[-2:])


class Mark(NamedTuple):
    """What happened to the fleet, as ``lua/shared/marks.lua`` has it. ``at``: us since 1970."""

    at: int
    kind: str
    worker: str
    what: str

    @classmethod
    def read(cls, array: Sequence[Any]) -> Mark | None:
        """As `Sample.read`."""
        if len(array) < len(cls._fields):
            return None
        mark = cls._make(array[: len(cls._fields)])
        texts = mark.kind, mark.worker, mark.what
        return mark if _is_count(mark.at) and all(map(_is_text, texts)) else None


class Action(NamedTuple):
    """What somebody has done, as ``lua/past/note.lua`` has it. ``at``: us since 1970."""

    at: int
    by: str
    what: str
    on: str
    number: int

    @classmethod
    def read(cls, array: Sequence[Any]) -> Action | None:
        """As `Sample.read`."""
        if len(array) < len(cls._fields):
            return None
        action = cls._make(array[: len(cls._fields)])
        counts, texts = (action.at, action.number), (action.by, action.what, action.on)
        return action if all(map(_is_count, counts)) and all(map(_is_text, texts)) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def series(name: str, shard: int, *, seconds: int, most: int) -> Call[list[Sample]]:
    """-> the newest samples of a list, oldest first."""
    data = {"seconds": seconds, "most": most}
    return Call.of(load("past/series"), meta_key(name, shard), data, _reading(Sample.read))


def marks(name: str) -> Call[list[Mark]]:
    """-> marks, oldest first."""
    return Call.of(load("past/marks"), meta_key(name, 0), {}, _reading(Mark.read))


def note(name: str, by: str, what: str, on: str, number: int) -> Call[int]:
    """Note what somebody has done; -> 0 if it could not be noted."""
    data = {"by": by, "what": what, "on": on, "number": number}
    return Call.of(load("past/note"), meta_key(name, 0), data, int)


def actions(name: str) -> Call[list[Action]]:
    """-> what was noted, oldest first."""
    return Call.of(load("past/actions"), meta_key(name, 0), {}, _reading(Action.read))


def history(
    name: str, shard: int, *, ids: Sequence[str] | None = None, skip: int = 0, most: int = 0
) -> Call[list[tuple[str, float, bytes]]]:
    """-> (id, us since 1970 when it ended, record) of these requests, or of the newest ones."""
    data = {"ids": False if ids is None else ids, "skip": skip, "most": most}

    def decode(reply: list[bytes]) -> list[tuple[str, float, bytes]]:
        triples = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [(id.decode(errors="replace"), float(at), record) for id, at, record in triples]

    return Call.of(load("past/history"), meta_key(name, shard), data, decode)


def _reading(read: Callable[[Sequence[Any]], T | None]) -> Callable[[list[bytes]], list[T]]:
    """Reads a list of msgpack arrays: what other hands have put there is passed over."""

    def decode(reply: list[bytes]) -> list[T]:
        found = []
        for packed in reply:
            try:
                array = unpack(packed)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(array, list) and (one := read(array)) is not None:
                found.append(one)
        return found

    return decode
