"""Every command of the protocol as a `Call`: what goes in and what comes out, without any network.

The shapes of inputs and replies are documented where they are used: in the header of each Lua file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scrapy_redisq.errors import ConfigurationMismatch, FrontierCorrupt, FrontierError, FrontierLost
from scrapy_redisq.frontier.config import FORMAT, SETTING_OF, FrontierConfig
from scrapy_redisq.frontier.scripts import Call, load, raw_string, unpack
from scrapy_redisq.frontier.seen import exact_member


def prefix(name: str, shard: int) -> str:
    """What all keys of one shard begin with; in braces the hash tag of Redis Cluster."""
    return f"redisq:{{{name}:{shard}}}:"


def meta_key(name: str, shard: int) -> str:
    """The key that every script is given; the others are derived in ``common.lua``."""
    return prefix(name, shard) + "meta"


def wake_channel(name: str, shard: int) -> str:
    """Where idle workers hear that there is something to do, or that the run is complete."""
    return prefix(name, shard) + "wake"


@dataclass(frozen=True)
class Joined:
    """The run that `join` began or found. ``trash``: dupefilters that wait to be deleted."""

    run: str
    began: bool
    config: FrontierConfig
    generation: int
    trash: int


class ResetInterrupted(FrontierError):
    """Raised by `join` when a reset was not carried through; `Frontier.reset` carries on."""


def join(
    name: str,
    shard: int,
    config: FrontierConfig,
    *,
    new_run: str,
    worker: str = "",
    info: Mapping[str, str | int] | None = None,
    ttl: float = 0.0,
    adopt: bool = False,
    keep: bool = False,
    follow: bool = False,
    again: bool = False,
    keep_seen: bool = False,
    limits: Mapping[str, str] | None = None,
    throttle: str = "",
) -> Call[Joined]:
    """Begin or resume a run, and register ``worker`` if there is one. ``ttl`` in seconds.

    ``adopt`` takes the configuration of an open run as it is, ``keep`` also that of a complete
    one for the run that is then begun. ``follow`` makes the shard part of the run ``new_run``
    that shard 0 has begun; ``again`` comes back into the run ``new_run``, though others may have
    completed it. ``limits`` of slots by pattern and the terms of AutoThrottle, as ``turns.lua`` has
    them, take the place of those that are there, unless ``limits`` is None. The
    decoder raises `ConfigurationMismatch`, `FrontierCorrupt`, `ResetInterrupted`, `FrontierLost`,
    or `FrontierError` for another format.
    """

    def decode(reply: Any) -> Joined:
        answer = unpack(reply)
        match answer["status"]:
            case "ok":
                joined_config = FrontierConfig.from_meta(answer["config"])
                return Joined(
                    answer["run"],
                    answer["began"],
                    joined_config,
                    answer["generation"],
                    answer["trash"],
                )
            case "differs":
                raise ConfigurationMismatch(
                    name,
                    {
                        SETTING_OF.get(field, field): (stored, given)
                        for field, (stored, given) in answer["differences"].items()
                    },
                )
            case "resetting":
                raise ResetInterrupted(f"frontier {name!r} was being reset")
            case "lost":
                raise FrontierLost(
                    f"frontier {name!r} was begun anew or deleted while this worker was away"
                )
            case "format":
                raise FrontierError(
                    f"frontier {name!r} has format {answer['format']}, this release of "
                    f"scrapy-redisq reads format {FORMAT}: use the release that began it, or "
                    f"another REDISQ_FRONTIER"
                )
            case _:
                raise FrontierCorrupt(
                    f"key {answer['key']} is a {answer['kind']}: something else than "
                    f"scrapy-redisq wrote it; delete it or use another REDISQ_FRONTIER"
                )

    data = {
        "format": FORMAT,
        "config": config.to_meta(),
        "adopt": adopt,
        "run": new_run,
        "keep": keep,
        "follow": follow,
        "again": again,
        "keep_seen": keep_seen,
        "limits": limits,
        "throttle": throttle,
        "worker": worker,
        "info": [text for pair in (info or {}).items() for text in pair],
        "ttl": int(ttl * 1e6),
        "starting": bool(worker),
    }
    return Call.of(load("join"), meta_key(name, shard), data, decode)


def leave(
    name: str, shard: int, run: str, worker: str, complete: bool, *, dead_max: int = 10_000
) -> Call[tuple[int, bool]]:
    """Give back what ``worker`` holds; -> (leases left, the run is now complete)."""
    data = {"run": run, "worker": worker, "complete": complete, "dead_max": dead_max}
    return Call.of(
        load("leave"), meta_key(name, shard), data, lambda reply: (reply[0], bool(reply[1]))
    )


def reap(
    name: str, shard: int, run: str, max_deliveries: int, dead_max: int
) -> Call[tuple[int, int, int]]:
    """Reclaim from workers past their deadline; -> (reclaimed, dead, leases left)."""
    data = {"run": run, "max_deliveries": max_deliveries, "dead_max": dead_max}
    return Call.of(load("reap"), meta_key(name, shard), data, tuple)


def recover(
    name: str, shard: int, queues: Sequence[tuple[str, str]], workers: Sequence[str]
) -> Call[int]:
    """-> how many of these queues (slot, priority) and workers had been cut off."""
    data = {"queues": queues, "workers": workers}
    return Call.of(load("recover"), meta_key(name, shard), data, int)


def parse_queue_key(rest: str) -> tuple[str, str] | None:
    """(slot, priority) of a queue's key without prefix; None if it is no queue's."""
    slot, _, priority = rest.removeprefix("queue:").rpartition(":")
    if rest.startswith("queue:") and re.fullmatch(r"-?[0-9]{1,16}", priority):
        return slot, priority
    return None


def totals(name: str, shard: int) -> Call[tuple[int, int, int]]:
    """-> (created, finished, workers that may still add start requests)."""
    return Call.of(load("totals"), meta_key(name, shard), {}, tuple)


def status(name: str, shard: int) -> Call[dict[str, Any]]:
    """-> ``status.lua``'s reply, {} if the shard is not there."""
    return Call.of(load("status"), meta_key(name, shard), {}, unpack)


STARTS, RECENT, KNOWN = 1, 2, 3
"""How a request is asked about that the dupefilter is not asked about: its identity is recorded
among those of all start requests of the run, or of what came lately; or the latter is only looked
at."""


def enqueue_item(
    queue: int,
    entry: bytes,
    fingerprint: bytes | str | None,
    delay: int = 0,
    *,
    asked: int = 0,
    identity: bytes | None = None,
    lease: str | None = None,
) -> tuple[Any, ...]:
    """One request as ``enqueue()`` of ``common.lua`` takes it; ``delay`` in ms.

    ``asked``: which of the exact sets is asked about its ``identity``, 0 for none. ``lease``: it
    counts only if the worker holds that.
    """
    item = queue, raw_string(entry), fingerprint_item(fingerprint), delay
    if not (asked or lease):
        return item
    member = exact_member(identity) if asked and identity is not None else ""
    return *item, asked, member, lease or ""


def fingerprint_item(fingerprint: bytes | str | None) -> msgspec.Raw | str | bool:
    """A fingerprint as scripts take it; False stands for none."""
    if isinstance(fingerprint, bytes):
        return raw_string(fingerprint)
    return fingerprint or False


def push(
    name: str,
    shard: int,
    run: str,
    backend: str,
    queues: Sequence[tuple[str, str]],
    enqueue: Sequence[tuple[Any, ...]],
    seen: Sequence[Any],
) -> Call[str]:
    """-> one character per request: "1" new, "0" duplicate; "" if another run has begun."""

    def decode(reply: Any) -> str:
        answer = unpack(reply)
        if answer["status"] == "corrupt":
            raise FrontierCorrupt(f"key {answer['key']} is not of the type it must be")
        return str(answer.get("outcome", ""))

    data = {"run": run, "queues": queues, "enqueue": enqueue, "seen": seen}
    return Call.of(load("push", backend), meta_key(name, shard), data, decode)


def requeue(
    name: str,
    shard: int,
    ids: Sequence[str],
    entries: Sequence[bytes | None] = (),
    *,
    reopen: bool = False,
) -> Call[int]:
    """-> how many of at most 100 dead letters became requests again, with these entries."""
    data = {
        "ids": ids,
        "entries": [False if entry is None else raw_string(entry) for entry in entries],
        "reopen": reopen,
    }
    return Call.of(load("requeue"), meta_key(name, shard), data, lambda reply: int(reply[0]))


def purge(name: str, shard: int, ids: Sequence[str]) -> Call[int]:
    """-> how many of at most 100 dead letters were deleted."""
    return Call.of(load("purge"), meta_key(name, shard), {"ids": ids}, int)


def letters(name: str, shard: int, first: int, last: int) -> Call[list[bytes]]:
    """-> dead letters of the given ranks, newest first: id, letter, id, letter…"""
    return Call.of(load("letters"), meta_key(name, shard), {"first": first, "last": last}, list)


def named_letters(name: str, shard: int, ids: Sequence[str]) -> Call[list[bytes]]:
    """-> those of the dead letters that are there: id, letter, id, letter…"""
    return Call.of(load("letters"), meta_key(name, shard), {"ids": ids}, list)


def clear(name: str, shard: int, force: bool, forget: bool = False) -> Call[tuple[str, int]]:
    """-> ("in_use", live workers), ("more", 0) or ("done", 0). ``forget``: also what people have
    said about slots."""
    return Call.of(
        load("clear"),
        meta_key(name, shard),
        {"force": force, "forget": forget},
        lambda reply: (reply[0].decode(), reply[1]),
    )


def slots(
    name: str,
    shard: int,
    *,
    names: Sequence[str] = (),
    cursors: Mapping[str, str] | None = None,
) -> Call[tuple[dict[str, str], list[list[Any]]]]:
    """-> (cursors for the next call, {} at the end; what is known of each slot, see
    ``slots.lua``)."""

    def decode(reply: Any) -> tuple[dict[str, str], list[list[Any]]]:
        answer = unpack(reply)
        # Lua cannot tell an empty map from an empty array.
        return answer["cursors"] or {}, answer["slots"] or []

    data = {"names": names, "cursors": cursors or {}}
    return Call.of(load("slots"), meta_key(name, shard), data, decode)


def pause(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return Call.of(load("pause"), meta_key(name, shard), {"slot": slot}, bool)


def resume(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return Call.of(load("resume"), meta_key(name, shard), {"slot": slot}, bool)


def limit(name: str, shard: int, slot: str, own: str) -> Call[bool]:
    """``own`` as `SlotLimit.to_text` has it, "" for none; -> whether there is a frontier."""
    return Call.of(load("limit"), meta_key(name, shard), {"slot": slot, "own": own}, bool)


def drop(name: str, shard: int, slot: str, cursor: str) -> Call[tuple[int, str]]:
    """-> (how many requests were dropped, cursor for the next call or "")."""
    return Call.of(
        load("drop"),
        meta_key(name, shard),
        {"slot": slot, "cursor": cursor},
        lambda reply: (reply[0], reply[1].decode()),
    )


def robots(
    name: str,
    shard: int,
    run: str,
    host: str,
    token: str,
    *,
    take: bool = False,
    text: bytes | None = None,
    ttl: float = 0.0,
    give_up: bool = False,
) -> Call[tuple[str, bytes, float]]:
    """Ask for a host's robots.txt, or keep its ``text`` for ``ttl`` seconds; see ``robots.lua``.

    -> ("known", text, seconds for which it is valid), or "fetch", "wait" or "lost" with nothing.
    """
    data = {
        "run": run,
        "host": host,
        "token": token,
        "take": take,
        "text": False if text is None else raw_string(text),
        "ttl": int(ttl * 1000),
        "give_up": give_up,
    }
    return Call.of(
        load("robots"),
        meta_key(name, shard),
        data,
        lambda reply: (reply[0].decode(), reply[1], reply[2] / 1000),
    )


def crawl_delay(
    name: str, shard: int, run: str, host: str, slot: str, delay: float, slot_ttl: float
) -> Call[bool]:
    """Set the delay in seconds that a host's robots.txt asks for; -> whether the slot's changed."""
    data = {
        "run": run,
        "host": host,
        "slot": slot,
        "delay": int(delay * 1e6),
        "slot_ttl": int(slot_ttl * 1000),
    }
    return Call.of(load("crawl_delay"), meta_key(name, shard), data, lambda reply: bool(reply == 1))


def sweep(name: str, shard: int, backend: str, everything: bool = False) -> Call[str | None]:
    """-> the backend of the next dupefilter to delete; None when nothing is left."""
    return Call.of(
        load("sweep", backend),
        meta_key(name, shard),
        {"backend": backend, "all": everything},
        lambda reply: reply.decode() if reply else None,
    )
