"""Every command of the protocol as a `Call`: what goes in and what comes out, without any network.

The shapes of inputs and replies are documented where they are used: in the header of each Lua file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scrapy_redisq.errors import (
    ConfigurationMismatch,
    FrontierCorrupt,
    FrontierError,
    FrontierLost,
    RunMismatch,
    RunOver,
)
from scrapy_redisq.frontier.config import FORMAT, SETTING_OF, FrontierConfig
from scrapy_redisq.frontier.scripts import Call, load, raw_string, unpack
from scrapy_redisq.frontier.seen import exact_member


def prefix(name: str, shard: int) -> str:
    """What all keys of one shard begin with; in braces the hash tag of Redis Cluster."""
    return f"redisq:{{{name}:{shard}}}:"


def meta_key(name: str, shard: int) -> str:
    """The key that every script is given; the others are derived in ``lua/shared/keys.lua``."""
    return prefix(name, shard) + "meta"


def wake_channel(name: str, shard: int) -> str:
    """Where idle workers hear that there is something to do, or that the run is complete."""
    return prefix(name, shard) + "wake"


@dataclass(frozen=True)
class Joined:
    """The run that a shard is in. ``began``: when, in us by shard 0's clock.

    ``new``: it was begun by this very call. ``inherits``: what it has of the run before, see
    ``run/join.lua``. ``name``: its REDISQ_RUN, or "". ``trash``: dupefilters that wait to be
    deleted. ``shards``: how many have keys of this run or of former ones.
    """

    run: str
    began: int
    new: bool
    inherits: str
    name: str
    config: FrontierConfig
    generation: str
    trash: int
    shards: int


@dataclass(frozen=True)
class RunTerms:
    """Which run a worker wants to be in: REDISQ_RUN, REDISQ_RESUME, REDISQ_KEEP_SEEN and
    REDISQ_KEEP_ALIVE."""

    name: str = ""
    resume: bool = True
    keep_seen: bool = False
    keep_alive: bool = False


ANY_RUN = RunTerms()


class MayComeBack(FrontierError):
    """Raised by `join` when a run is to be forgotten (REDISQ_RESUME = False) whose workers may only
    have been cut off: join again a little later."""


class ClearFirst(FrontierError):
    """Raised by `join` when something is left of a former run: `clear` it, then join again."""


def join(
    name: str,
    shard: int,
    config: FrontierConfig,
    *,
    intent: str = "crawl",
    run: str,
    worker: str = "",
    info: Mapping[str, str | int] | None = None,
    ttl: float = 0.0,
    terms: RunTerms = ANY_RUN,
    age: float = 0.0,
    keep_config: bool = False,
    follow: Joined | None = None,
    limits: Mapping[str, str] | None = None,
    throttle: str = "",
) -> Call[Joined]:
    """Begin or resume a run, and register ``worker`` if there is one. ``ttl`` in seconds.

    ``intent`` as in ``run/join.lua``; ``follow``: what shard 0 said. ``age``: seconds since the
    worker was started. ``keep_config``: also a new run takes the stored configuration. ``limits``
    of slots by pattern and the terms of AutoThrottle, as ``lua/shared/slots/state.lua`` has them,
    take the place of those that are there, unless ``limits`` is None. The decoder raises
    `ConfigurationMismatch`, `RunMismatch`, `RunOver`, `FrontierCorrupt`, `ClearFirst`,
    `MayComeBack`, `FrontierLost`, or `FrontierError` for another format.
    """

    def decode(reply: Any) -> Joined:
        answer = unpack(reply)
        match answer.pop("status"):
            case "ok":
                answer["config"] = FrontierConfig.from_meta(answer["config"])
                return Joined(**answer)
            case "over":
                ago = None if answer["ago"] < 0 else answer["ago"] / 1e6
                raise RunOver(name, answer["run"], answer["name"], ago)
            case "named":
                raise RunMismatch(name, answer["name"], terms.name)
            case "differs":
                raise ConfigurationMismatch(
                    name,
                    {
                        SETTING_OF.get(field, field): (stored, given)
                        for field, (stored, given) in answer["differences"].items()
                    },
                )
            case "wait":
                raise MayComeBack(
                    f"frontier {name!r} has workers that gave no sign of life in time: it is "
                    f"forgotten (REDISQ_RESUME) if none of them comes back"
                )
            case "clear":
                raise ClearFirst(f"frontier {name!r} has to be emptied before a run begins")
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
        "intent": intent,
        "format": FORMAT,
        "config": config.to_meta(),
        "keep_config": keep_config,
        "run": run,
        "name": terms.name,
        "age": int(age * 1e6),
        "resume": terms.resume,
        "keep_alive": terms.keep_alive,
        "keep_seen": terms.keep_seen,
        "limits": limits,
        "throttle": throttle,
        "worker": worker,
        "info": [text for pair in (info or {}).items() for text in pair],
        "ttl": int(ttl * 1e6),
    }
    if follow is not None:
        data |= {"run": follow.run, "began": follow.began, "inherits": follow.inherits}
    return Call.of(load("run/join"), meta_key(name, shard), data, decode)


def leave(name: str, shard: int, run: str, worker: str, *, dead_max: int = 10_000) -> Call[int]:
    """Give back what ``worker`` holds; -> leases left."""
    data = {"run": run, "worker": worker, "dead_max": dead_max}
    return Call.of(load("run/leave"), meta_key(name, shard), data, int)


@dataclass(frozen=True)
class Conclusion:
    """What `conclude` found: "complete", "sealed" with the ``number`` of the seal, or
    "unfinished"; of the run ``run``, which has ``shards``."""

    what: str
    run: str
    number: int
    shards: int


def conclude(
    name: str, shard: int, *, run: str = "", seal: int = 0, producer: bool = False
) -> Call[Conclusion]:
    """Complete the run if nothing is left of it; with several shards, one step of that."""
    data = {"run": run, "shard": shard, "seal": seal, "producer": producer}

    def decode(reply: Any) -> Conclusion:
        what, of_run, number, shards = reply
        return Conclusion(what.decode(), of_run.decode(), int(number), int(shards))

    return Call.of(load("run/conclude"), meta_key(name, shard), data, decode)


def open_run(name: str, shard: int, run: str, visited: int = 0) -> Call[int]:
    """Open a run for what is to be added; ``visited``: what this said of shard 0, see
    ``run/open.lua``.

    -> shard 0: the number of this visit, others: 1; 0 if the run is gone.
    """
    data = {"run": run, "shard": shard, "visited": visited}
    return Call.of(load("run/open"), meta_key(name, shard), data, int)


def look(name: str, shard: int) -> Call[tuple[bool, int]]:
    """-> (nothing is left and nobody may add to it, how much there has been to do)."""
    return Call.of(
        load("run/look"), meta_key(name, shard), {}, lambda reply: (bool(reply[0]), reply[1])
    )


def reap(
    name: str, shard: int, run: str, max_deliveries: int, dead_max: int, *, ttl: float = 0.0
) -> Call[tuple[int, int, int]]:
    """Reclaim from workers past their deadline; -> (reclaimed, dead, leases left).

    ``ttl``: seconds for which a worker lives without a sign of life.
    """
    data = {
        "run": run,
        "ttl": int(ttl * 1e6),
        "max_deliveries": max_deliveries,
        "dead_max": dead_max,
    }
    return Call.of(load("run/reap"), meta_key(name, shard), data, tuple)


def recover(
    name: str, shard: int, queues: Sequence[tuple[str, str]], workers: Sequence[str]
) -> Call[int]:
    """-> how many of these queues (slot, priority) and workers had been cut off."""
    data = {"queues": queues, "workers": workers}
    return Call.of(load("run/recover"), meta_key(name, shard), data, int)


def parse_queue_key(rest: str) -> tuple[str, str] | None:
    """(slot, priority) of a queue's key without prefix; None if it is no queue's."""
    slot, _, priority = rest.removeprefix("queue:").rpartition(":")
    if rest.startswith("queue:") and re.fullmatch(r"-?[0-9]{1,16}", priority):
        return slot, priority
    return None


def status(name: str, shard: int) -> Call[dict[str, Any]]:
    """-> ``run/status.lua``'s reply, {} if the shard is not there."""
    return Call.of(load("run/status"), meta_key(name, shard), {}, unpack)


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
    claim: int = 0,
) -> tuple[Any, ...]:
    """One request as ``lua/shared/enqueue.lua`` takes it; ``delay`` in ms.

    ``asked``: which of the exact sets is asked about its ``identity``, 0 for none. ``lease``: it
    counts only if the worker holds that. ``claim``: the number of its claim, for what stays with
    the worker.
    """
    item = queue, raw_string(entry), fingerprint_item(fingerprint), delay
    if not (asked or lease or claim):
        return item
    member = exact_member(identity) if asked and identity is not None else ""
    known_by = *item, asked, member, lease or ""
    return (*known_by, claim) if claim else known_by


def claimed_field(fingerprint: bytes | str | None, identity: bytes | None) -> msgspec.Raw:
    """Where ``kept`` has a request that is known by one or the other."""
    if identity is not None:
        return raw_string(b"i" + exact_member(identity).encode())
    known_by = fingerprint if isinstance(fingerprint, bytes) else str(fingerprint).encode()
    return raw_string(b"f" + known_by)


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
    """-> one character per request: "1" new, "0" duplicate; "" if another run has begun, "sealed"
    if the shard must be opened first."""

    def decode(reply: Any) -> str:
        answer = unpack(reply)
        if answer["status"] == "corrupt":
            raise FrontierCorrupt(f"key {answer['key']} is not of the type it must be")
        if answer["status"] == "sealed":
            return "sealed"
        return str(answer.get("outcome", ""))

    data = {"run": run, "queues": queues, "enqueue": enqueue, "seen": seen}
    return Call.of(load("push", backend), meta_key(name, shard), data, decode)


def requeue(
    name: str,
    shard: int,
    ids: Sequence[bytes],
    entries: Sequence[bytes | None] = (),
) -> Call[int]:
    """-> how many of at most 100 dead letters became requests again, with these entries; -1 if the
    shard must be opened first."""
    data = {
        "ids": [raw_string(letter_id) for letter_id in ids],
        "entries": [False if entry is None else raw_string(entry) for entry in entries],
    }
    return Call.of(load("dead/requeue"), meta_key(name, shard), data, lambda reply: int(reply[0]))


def purge(name: str, shard: int, letters: Sequence[tuple[bytes, str]]) -> Call[list[int]]:
    """-> for each of at most 100 dead letters (id, SHA-1) whether it was deleted."""
    data = {"letters": [(raw_string(letter_id), digest) for letter_id, digest in letters]}
    return Call.of(load("dead/purge"), meta_key(name, shard), data, list)


NamedLetters = list[tuple[bytes, bytes | None]]
"""Ids and what is stored; None: nothing."""


@dataclass(frozen=True)
class LettersPage:
    """Dead letters, newest first, and the number of the last of them."""

    letters: NamedLetters
    number: bytes


def _letters_page(reply: list[Any]) -> LettersPage:
    number, *flat = reply
    return LettersPage(list(zip(flat[::2], flat[1::2], strict=True)), number or b"-inf")


def letters(
    name: str, shard: int, *, after: tuple[bytes, bytes] | None = None, most: int
) -> Call[LettersPage]:
    """-> at most so many dead letters, newest first; ``after``: id and number of the last one of
    the page before. None: there are no more."""
    data: dict[str, Any] = {"most": most}
    if after is not None:
        data["id"], data["number"] = map(raw_string, after)
    return Call.of(load("dead/letters"), meta_key(name, shard), data, _letters_page)


def named_letters(name: str, shard: int, ids: Sequence[bytes]) -> Call[NamedLetters]:
    """-> the first of these dead letters, one at least."""
    data = {"ids": [raw_string(letter_id) for letter_id in ids]}
    return Call.of(
        load("dead/letters"),
        meta_key(name, shard),
        data,
        lambda reply: _letters_page(reply).letters,
    )


def clear(
    name: str,
    shard: int,
    *,
    everything: bool = False,
    mark: bool = False,
    force: bool = False,
    before: int = 0,
) -> Call[tuple[str, int]]:
    """Delete what is left of a run; -> status and number as in ``run/clear.lua``."""
    data = {"all": everything, "mark": mark, "force": force, "before": before}
    return Call.of(
        load("run/clear"),
        meta_key(name, shard),
        data,
        lambda reply: (reply[0].decode(), int(reply[1])),
    )


def slots(
    name: str,
    shard: int,
    *,
    names: Sequence[str] = (),
    cursors: Mapping[str, str] | None = None,
) -> Call[tuple[dict[str, str], list[list[Any]]]]:
    """-> (cursors for the next call, {} at the end; what is known of each slot, see
    ``slots/list.lua``)."""

    def decode(reply: Any) -> tuple[dict[str, str], list[list[Any]]]:
        answer = unpack(reply)
        # Lua cannot tell an empty map from an empty array.
        return answer["cursors"] or {}, answer["slots"] or []

    data = {"names": names, "cursors": cursors or {}}
    return Call.of(load("slots/list"), meta_key(name, shard), data, decode)


def pause(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return Call.of(load("slots/pause"), meta_key(name, shard), {"slot": slot}, bool)


def resume(name: str, shard: int, slot: str) -> Call[bool]:
    """-> whether there is a frontier."""
    return Call.of(load("slots/resume"), meta_key(name, shard), {"slot": slot}, bool)


def limit(name: str, shard: int, slot: str, own: str) -> Call[bool]:
    """``own`` as `SlotLimit.to_text` has it, "" for none; -> whether there is a frontier."""
    return Call.of(load("slots/limit"), meta_key(name, shard), {"slot": slot, "own": own}, bool)


def drop(name: str, shard: int, slot: str, cursor: str) -> Call[tuple[int, str]]:
    """-> (how many requests were dropped, cursor for the next call or "")."""
    return Call.of(
        load("slots/drop"),
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
    return Call.of(
        load("slots/crawl_delay"), meta_key(name, shard), data, lambda reply: bool(reply == 1)
    )


def sweep(
    name: str, shard: int, backend: str, everything: bool = False, *, forget_shards: str = ""
) -> Call[str | None]:
    """-> the backend of the next dupefilter to delete; None when nothing is left.

    ``forget_shards``: the run that has no shards of former ones left.
    """
    data = {"backend": backend, "all": everything, "forget_shards": forget_shards or False}
    return Call.of(
        load("seen/sweep", backend),
        meta_key(name, shard),
        data,
        lambda reply: reply.decode() if reply else None,
    )


def pairs(flat: Iterable[Any]) -> dict[str, str]:
    """A Redis hash from its flat reply."""
    items = iter(flat)
    return dict(zip(items, items, strict=True))


def number(text: Any) -> int:
    """What a script counts, 0 where something else stands."""
    try:
        return int(text)
    except ValueError:
        return 0
