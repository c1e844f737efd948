"""The scripts by which people look into a frontier and give orders, as `Call`s: see
`scrapy_redisq.frontier.calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from scrapy_redisq.frontier.calls import call_of, filter_call, fingerprint_item
from scrapy_redisq.frontier.scripts import Call, raw_string, unpack
from scrapy_redisq.frontier.seen import SeenFilter, SeenStatus, exact_member

T = TypeVar("T")


# Dead letters


def requeue(name: str, shard: int, letters: Sequence[tuple[bytes, str, bytes | None]]) -> Call[int]:
    """-> how many of at most 100 dead letters (id, SHA-1, entry in the place of its own) became
    requests again; -1 if the shard must be opened first."""
    data = [
        (raw_string(letter_id), digest, False if entry is None else raw_string(entry))
        for letter_id, digest, entry in letters
    ]
    return call_of("dead/take", name, shard, sum, letters=data, requeue=True)


def purge(name: str, shard: int, letters: Sequence[tuple[bytes, str]]) -> Call[list[int]]:
    """-> for each of at most 100 dead letters (id, SHA-1) whether it was deleted."""
    data = [(raw_string(letter_id), digest) for letter_id, digest in letters]
    return call_of("dead/take", name, shard, list, letters=data, requeue=False)


NamedLetters = list[tuple[bytes, bytes | None]]
"""Ids and what is stored; None: nothing."""


class LettersPage(NamedTuple):
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
    data = {} if after is None else {"id": raw_string(after[0]), "number": raw_string(after[1])}
    return call_of("dead/letters", name, shard, _letters_page, most=most, **data)


def named_letters(name: str, shard: int, ids: Sequence[bytes]) -> Call[NamedLetters]:
    """-> the first of these dead letters, one at least."""
    return call_of(
        "dead/letters",
        name,
        shard,
        lambda reply: _letters_page(reply).letters,
        ids=list(map(raw_string, ids)),
    )


# Why a shard waits, and where a request is

MOST_LOOKED_AT = 100
"""Slots that a look at what a shard waits for takes in, 20 a call."""


class Waits(msgspec.Struct):
    """The reply of ``run/waits.lua`` for a shard. Times in us, -1: there is none."""

    shard: int
    slots: int
    due: int
    busy: int
    next: float
    delayed: tuple[int, float, float]
    """How many; until the first and until the last is due."""
    aside: tuple[int, int, int]
    """Slots that are set aside; of these looked at; of these with requests."""
    paused: tuple[int, int, int]
    stuck: float
    keep_alive: bool
    waiting: float
    starting: float
    parts: int
    looked: int
    kinds: Mapping[str, tuple[int, Any]]
    starts: float
    oldest: float = -1
    room: tuple[float, float] = (0, 0)
    """Downloads that the slots looked at have requests for and may have at a time; their leases."""


def waits(name: str, shard: int, part: int = 0) -> Call[Waits]:
    """-> what the slots of a shard wait for, in as many parts as the first one says."""

    def decode(reply: Any) -> Waits:
        told = unpack(reply)
        told["kinds"] = told["kinds"] or {}  # Lua cannot tell an empty map from an empty array
        return msgspec.convert({**told, "shard": shard}, Waits, strict=False)

    return call_of("run/waits", name, shard, decode, most=MOST_LOOKED_AT, part=part)


PLACES = ("leases", "delayed", "letters", "queues")
"""Where a request of a slot may be."""


class Portion(NamedTuple):
    """The reply of `find`. ``cursor`` is "" at the end, "refused" if the list cannot be read;
    ``found``: who or which priority, which one, and what is stored: see ``slots/find.lua``."""

    cursor: str
    looked: int
    found: Sequence[tuple[str, str, bytes]]


def find(name: str, shard: int, place: str, slot: str, text: str, cursor: str) -> Call[Portion]:
    """Look for requests of a slot ("": of all, where the place is no queue) with ``text`` in them,
    at about 300 of one place."""

    def decode(reply: Any) -> Portion:
        cursor, looked, *flat = reply
        texts = [item.decode("utf-8", "surrogateescape") for item in (cursor, *flat[::3])]
        ids = [item.decode("utf-8", "surrogateescape") for item in flat[1::3]]
        return Portion(texts[0], int(looked), list(zip(texts[1:], ids, flat[2::3], strict=True)))

    what = {"slot": slot, "text": text}
    return call_of("slots/find", name, shard, decode, place=place, cursor=cursor, **what)


# What was seen


class SeenTraces(NamedTuple):
    """Traces of a fingerprint. ``seen`` is None if the dupefilter was not asked; ``start``:
    it is a start request of the run."""

    seen: bool | None
    start: bool


def ask_seen(
    name: str,
    shard: int,
    run: str,
    fingerprint: bytes,
    seen: SeenFilter,
    *,
    filtered: bool = True,
) -> Call[SeenTraces]:
    """-> whether a fingerprint is known. ``filtered``: the dupefilter decides about links."""
    data = {
        "run": run,
        "fingerprints": [fingerprint_item(seen.encode(fingerprint))] if filtered else [],
        "start": exact_member(fingerprint),
    }

    def decode(reply: Any) -> SeenTraces:
        *known, start = map(bool, reply)
        return SeenTraces(known[0] if known else None, start)

    return filter_call(name, shard, seen, "has", decode, **data)


def forget_seen(name: str, shard: int, run: str, members: Sequence[str]) -> Call[list[bool]]:
    """Take fingerprints, at most a hundred, out of an exact dupefilter, whose ``members`` they are;
    -> whether each was there."""

    def decode(reply: Any) -> list[bool]:
        return list(map(bool, reply))

    exact = SeenFilter("exact")
    return filter_call(name, shard, exact, "forget", decode, run=run, members=members)


def seen_status(name: str, shard: int, seen: SeenFilter) -> Call[SeenStatus]:
    """A dupefilter's size, and how much it errs."""
    return filter_call(name, shard, seen, "status", SeenStatus.from_reply)


# Slots


class SlotRecord(NamedTuple):
    """The reply of ``slots/list.lua`` for one slot. Times in us, ``set_aside``, ``paused`` and
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
        return answer["cursors"] or {}, [
            SlotRecord._make(value if isinstance(value, str) else int(value) for value in slot)
            for slot in answer["slots"] or []
        ]

    return call_of("slots/list", name, shard, decode, names=names, cursors=cursors or {})


def slot_queues(name: str, shard: int, slot: str) -> Call[list[tuple[int, int]]]:
    """-> (priority, how many wait) of at most 100 queues, the most urgent first."""

    def decode(reply: Any) -> list[tuple[int, int]]:
        return [(int(one), queued) for one, queued in unpack(reply)["priorities"] or []]

    of_one = {"names": [slot], "cursors": {}}
    return call_of("slots/list", name, shard, decode, **of_one, priorities=True)


def rule(name: str, shard: int, slot: str, **what: bool | str) -> Call[bool]:
    """``paused`` or not; or ``own``, a limit as `SlotLimit.to_text` has it, with "-" for what stays
    as it is, "" for none. -> whether there is a frontier."""
    return call_of("slots/rule", name, shard, bool, slot=slot, **what)


def drop(
    name: str, shard: int, slot: str, cursor: str, record: bytes | None = None
) -> Call[tuple[int, str]]:
    """-> (how many requests were dropped, cursor for the next call or ""). With ``record``: the
    delayed request of that record alone."""

    def decode(reply: Any) -> tuple[int, str]:
        return reply[0], reply[1].decode()

    which = {} if record is None else {"record": raw_string(record)}
    return call_of("slots/drop", name, shard, decode, slot=slot, cursor=cursor, **which)


# Orders to workers, and to the run


def tell(name: str, what: str, workers: Sequence[str] | None) -> Call[int]:
    """Tell workers, None: all, "quiet", "work" or "stop"; -> how many were told."""
    to = False if workers is None else workers
    return call_of("orders", name, 0, int, what=what, workers=to)


def pause_run(name: str, *, paused: bool) -> Call[bool]:
    """Have no worker begin anything, or let them; -> whether there is a frontier."""
    return call_of("orders", name, 0, bool, what="pause" if paused else "resume")


def mend(name: str, shard: int) -> Call[str]:
    """Take away the mark of a key that was damaged; -> that key, "" if there is none."""
    return call_of("orders", name, shard, lambda key: key.decode(errors="replace"), what="mend")


# The past

COUNTED = (
    "created", "finished", "dead", "dropped", "duplicates", "retried", "released", "reclaimed",
    "pages", "items", "errors", "delayed", "leased",
)  # fmt: skip
"""Numbers of a sample that add up over shards, in the order of ``lua/shared/past.lua``."""


class Sample(NamedTuple):
    """One of one shard. ``at``: s since 1970. ``counted``: of each of `COUNTED`. ``memory``: bytes
    of its server, 0: not known."""

    at: int
    run: str
    counted: tuple[int, ...]
    workers: int
    memory: int

    @classmethod
    def read(cls, packed: bytes) -> Sample:
        """A sample as it is stored. Raises what msgspec does, or ValueError."""
        at, run, *numbers = unpack(packed)
        counted, (workers, *memory) = numbers[: len(COUNTED)], numbers[len(COUNTED) :]
        return msgspec.convert((at, run, counted, workers, *(memory or [0])), cls)


class Mark(NamedTuple):
    """An event of the fleet, as ``lua/shared/past.lua`` keeps it. ``at``: us since 1970."""

    at: int
    kind: str
    worker: str
    what: str


class Action(NamedTuple):
    """An action of a person, as ``lua/past.lua`` keeps it. ``at``: us since 1970."""

    at: int
    by: str
    what: str
    on: str
    number: int


def series(name: str, shard: int, *, seconds: int, most: int) -> Call[list[Sample]]:
    """-> the newest samples of a list, oldest first."""
    return call_of("past", name, shard, _reading(Sample.read), list=f"series:{seconds}", most=most)


def marks(name: str) -> Call[list[Mark]]:
    """-> marks, oldest first."""
    read = _reading(msgspec.msgpack.Decoder(Mark).decode)
    return call_of("past", name, 0, read, list="marks", most=1_000)


def actions(name: str) -> Call[list[Action]]:
    """-> what was noted, oldest first."""
    read = _reading(msgspec.msgpack.Decoder(Action).decode)
    return call_of("past", name, 0, read, list="actions", most=1_000)


def note(name: str, by: str, what: str, on: str, number: int) -> Call[int]:
    """Note what somebody has done; -> 0 if it could not be noted."""
    return call_of("past", name, 0, int, note=(by, what, on, number))


def history(
    name: str, shard: int, *, ids: Sequence[str] | None = None, skip: int = 0, most: int = 0
) -> Call[list[tuple[str, float, bytes]]]:
    """-> (id, us since 1970 when it ended, record) of these requests, or of the newest ones."""

    def decode(reply: list[bytes]) -> list[tuple[str, float, bytes]]:
        triples = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [(id.decode(errors="replace"), float(at), record) for id, at, record in triples]

    which = {"ids": False if ids is None else ids, "skip": skip, "most": most}
    return call_of("past", name, shard, decode, history=True, **which)


def _reading(read: Callable[[bytes], T]) -> Callable[[list[bytes]], list[T]]:
    """Reads what is stored, item by item. Nothing rests on it: what cannot be read is left out."""

    def decode(reply: list[bytes]) -> list[T]:
        found = []
        for packed in reply:
            try:
                found.append(read(packed))
            except (ValueError, TypeError, msgspec.MsgspecError):
                continue
        return found

    return decode
