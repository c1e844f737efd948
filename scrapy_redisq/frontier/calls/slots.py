"""What people see and say of slots, and what robots.txt says of them: ``lua/slots/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, unpack


class SlotRecord(NamedTuple):
    """What ``slots/list.lua`` says of one slot. Times in us, those of ``set_aside``, ``paused`` and
    ``ruled`` since 1970, 0: it is not."""

    slot: str
    queued: int
    leased: int
    next_start: int
    limit_delay: int
    robots_delay: int
    throttle_delay: int
    interval: int
    burst: int
    concurrency: int
    own: str
    """The limit that a person gave it, "" for none."""
    parked: int
    failures: int
    status: int
    set_aside: int
    paused: int
    ruled: int
    due_for: int
    """-1: it is not due."""


def _record(values: list[Any]) -> SlotRecord:
    """Somebody else may have written any numbers: inf counts as none."""
    return SlotRecord._make(value if isinstance(value, str) else _whole(value) for value in values)


def _whole(value: Any) -> int:
    if not isinstance(value, (int, float)) or not abs(value) <= 2**53:
        return 0
    return int(value)


def list_slots(
    name: str,
    shard: int,
    *,
    names: Sequence[str] = (),
    cursors: Mapping[str, str] | None = None,
) -> Call[tuple[dict[str, str], list[SlotRecord]]]:
    """-> (cursors for the next call, {} at the end; what is known of each slot)."""

    def decode(reply: Any) -> tuple[dict[str, str], list[SlotRecord]]:
        answer = unpack(reply)
        # Lua cannot tell an empty map from an empty array.
        return answer["cursors"] or {}, [_record(slot) for slot in answer["slots"] or []]

    data = {"names": names, "cursors": cursors or {}}
    return Call.of(load("slots/list"), meta_key(name, shard), data, decode)


def slot_queues(name: str, shard: int, slot: str) -> Call[list[tuple[int, int]]]:
    """-> (priority, how many wait) of at most 100 queues, the most urgent first."""

    def decode(reply: Any) -> list[tuple[int, int]]:
        return [(int(one), queued) for one, queued in unpack(reply)["priorities"] or []]

    data = {"names": [slot], "cursors": {}, "priorities": True}
    return Call.of(load("slots/list"), meta_key(name, shard), data, decode)


def pause(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return _rule(name, shard, {"slot": slot, "paused": True})


def resume(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return _rule(name, shard, {"slot": slot, "paused": False})


def limit(name: str, shard: int, slot: str, own: str) -> Call[bool]:
    """``own`` as `SlotLimit.to_text` has it, with "-" for what stays as it is, "" for none;
    -> whether there is a frontier."""
    return _rule(name, shard, {"slot": slot, "own": own})


def _rule(name: str, shard: int, data: dict[str, Any]) -> Call[bool]:
    return Call.of(load("slots/rule"), meta_key(name, shard), data, bool)


def drop(name: str, shard: int, slot: str, cursor: str) -> Call[tuple[int, str]]:
    """-> (how many requests were dropped, cursor for the next call or "")."""
    return Call.of(
        load("slots/drop"),
        meta_key(name, shard),
        {"slot": slot, "cursor": cursor},
        lambda reply: (reply[0], reply[1].decode()),
    )


def crawl_delay(name: str, shard: int, run: str, host: str, slot: str, delay: float) -> Call[bool]:
    """Set the delay in seconds that a host's robots.txt asks for; -> whether the slot's changed."""
    data = {
        "run": run,
        "host": host,
        "slot": slot,
        "delay": int(delay * 1e6),
    }
    return Call.of(
        load("slots/crawl_delay"), meta_key(name, shard), data, lambda reply: bool(reply == 1)
    )
