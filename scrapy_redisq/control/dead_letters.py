"""Dead letters: requests that failed for good, as people see them and say what becomes of them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scrapy_redisq.control.stored import StoredFrontier
from scrapy_redisq.control.words import utc
from scrapy_redisq.errors import Undecodable
from scrapy_redisq.frontier import admin, runs
from scrapy_redisq.serialization.entry_format import forget_retries
from scrapy_redisq.serialization.request_fields import loads_fields

READ_BATCH = 200
"""Dead letters that one script reads; fewer if they are large, see ``dead/letters.lua``."""

CHANGE_BATCH = 100
CHANGE_BYTES = 4_000_000
"""Dead letters that one script changes, and bytes of them but for the last."""


@dataclass(frozen=True)
class DeadLetter:
    """A request that failed for good.

    ``claimed_at`` is when it was handed out last, to ``worker``, ``at`` when it was given up
    (seconds since 1970). ``error`` is the type of the exception or "", ``status`` that of the
    response or 0. ``digest`` tells it from whatever is stored under its id later.
    """

    id: str
    reason: str
    detail: str
    entry: bytes = field(repr=False)
    digest: str = field(repr=False)
    slot: str = ""
    priority: int = 0
    worker: str = ""
    deliveries: int = 0
    at: float = 0.0
    claimed_at: float = 0.0
    error: str = ""
    status: int = 0

    @classmethod
    def of(cls, letter_id: str, value: bytes) -> DeadLetter:
        """From 4 bytes length of its header, its header and its entry; a foreign one from anything
        else."""
        digest = hashlib.sha1(value).hexdigest()
        try:
            (length,) = struct.unpack_from(">I", value)
            header = msgspec.structs.asdict(_header(value[4 : 4 + length]))
        except (struct.error, msgspec.DecodeError):
            return cls(letter_id, "foreign", "not written by scrapy-redisq", value, digest)
        header["at"] /= 1e6
        claimed_at = header.pop("claimed") / 1e6
        entry = value[4 + length + 1 :]
        return cls(letter_id, **header, entry=entry, digest=digest, claimed_at=claimed_at)

    @property
    def has_request(self) -> bool:
        """Whether there is something to requeue. Of what could not be kept at all there is not,
        nor of what scrapy-redisq has not written."""
        return bool(self.entry and self.at)

    def summary(self) -> str:
        """The request on one line: what it fetches, and by which callback if it names one."""
        try:
            fields = loads_fields(self.entry)
        except Undecodable as error:
            return f"({error})"
        callback = f" → {fields['callback']}" if "callback" in fields else ""
        method = "" if fields["method"] == "GET" else f"{fields['method']} "
        return f"{method}{fields['url']}{callback}"

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's types. ``request`` is None if it cannot be decoded."""
        request = error = None
        try:
            request = _plain(loads_fields(self.entry))
        except Undecodable as undecodable:
            error = str(undecodable)
        names = ("slot", "priority", "worker", "deliveries")
        return {
            "id": self.id,
            "reason": self.reason,
            "error": self.error or None,
            "status": self.status or None,
            "detail": self.detail,
            "claimed": utc(self.claimed_at) if self.claimed_at else None,
            "at": utc(self.at),
            **{name: getattr(self, name) for name in names},
            "request": request,
            "undecodable": error,
        }

    def exported(self, frontier: str) -> dict[str, Any]:
        """All that is known of it; ``entry`` is what is stored of its request. A letter is the same
        as long as it has this ``digest``."""
        entry = base64.b64encode(self.entry).decode()
        return {"frontier": frontier, **self.to_json(), "entry": entry, "digest": self.digest}


def _plain(value: Any) -> Any:
    """``value`` in JSON's types: bytes as text, other sequences as lists, the rest as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):  # in an order that is the same in each process
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, int) and value.bit_length() > 64:  # few programs read such
        return hex(value)
    is_plain = value is None or isinstance(value, (bool, str, int))
    return value if is_plain or (isinstance(value, float) and math.isfinite(value)) else str(value)


class _Header(msgspec.Struct):
    """The header of an entry that ``bury()`` in ``lua/shared/dead.lua`` writes. Times in us."""

    reason: str
    detail: str
    slot: str
    worker: str
    error: str
    priority: int
    deliveries: int
    status: int
    at: int
    claimed: int


# Numbers are text where they may be larger than what Lua can count exactly.
_header = msgspec.msgpack.Decoder(_Header, strict=False).decode


def place_of(letter_id: str) -> tuple[int, bytes]:
    """The shard of a dead letter, and its id there. Raises ValueError for what is no id."""
    if not re.fullmatch("[0-9]{1,9}-[0-9]+", letter_id):
        raise ValueError(f"{letter_id!r} is not the id of a dead letter, such as 0-17")
    shard, _, number = letter_id.partition("-")
    return int(shard), number.encode()


def _letters(shard: int, found: Iterable[tuple[bytes, bytes | None]]) -> Iterator[DeadLetter]:
    for number, value in found:
        if value is not None:
            yield DeadLetter.of(f"{shard}-{number.decode()}", value)


class LetterMethods(StoredFrontier):
    """The part of `Frontier` that is about dead letters."""

    def dead(
        self, limit: int | None = None, *, reason: str | None = None, slot: str | None = None
    ) -> Iterator[DeadLetter]:
        """Dead letters, newest first within each shard, at most ``limit``: those with ``reason``
        and of ``slot``, if given. Read as they are asked for. Of those that are there all the while
        each comes once, whatever is requeued, purged or added meanwhile."""
        found = (
            letter
            for shard in self._shards()
            for letter in self._dead_of(shard)
            if reason in (None, letter.reason) and slot in (None, letter.slot)
        )
        return itertools.islice(found, limit)

    def _dead_of(self, shard: int) -> Iterator[DeadLetter]:
        page = self._run(admin.letters(self.name, shard, most=READ_BATCH))
        while page.letters:
            yield from _letters(shard, page.letters)
            after = page.letters[-1][0], page.number
            page = self._run(admin.letters(self.name, shard, after=after, most=READ_BATCH))

    def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """The dead letter of this id; None if there is none. Raises ValueError for no id."""
        return next(self.dead_letters([letter_id]), None)

    def dead_letters(self, ids: Iterable[str]) -> Iterator[DeadLetter]:
        """The dead letters of these ids that are there, newest first within each shard. Raises
        ValueError for what is no id."""
        by_shard: dict[int, set[bytes]] = {}
        for shard, number in map(place_of, ids):
            by_shard.setdefault(shard, set()).add(number)
        for shard, numbers in by_shard.items():
            left = sorted(numbers, key=int, reverse=True)
            while left:
                found = self._run(admin.named_letters(self.name, shard, left[:READ_BATCH]))
                yield from _letters(shard, found)
                left = left[len(found) :]

    def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        slot: str | None = None,
    ) -> int:
        """Put dead letters back to the front of their queues, past the dupefilter, with deliveries
        and retries counted from zero; -> how many. Without ``ids`` all of them, or those with
        ``reason`` and of ``slot``; those without a request stay. Raises `FrontierLost` if a new run
        is just beginning."""
        return self.requeue_same(self._chosen(ids, reason, slot))

    def requeue_same(self, letters: Iterable[DeadLetter]) -> int:
        """`requeue` these dead letters, newest first, as far as they are still there and the
        same; -> how many."""
        # The oldest come last: each goes to the front, so the oldest is claimed first.
        requeued = 0
        try:
            for shard, part in _batches(letters):
                requeued += self._requeue(shard, part)
        finally:
            self.note("requeue", "dead letters", requeued)
        return requeued

    def _requeue(self, shard: int, letters: list[DeadLetter]) -> int:
        same = [(place_of(x.id)[1], x.digest, forget_retries(x.entry)) for x in letters]
        # One with a log of its own may have lost its seal, and with it that the run is over: what
        # is requeued into that would go when the next one begins. So shard 0 is asked first.
        requeued = -1 if shard else self._run(admin.requeue(self.name, shard, same))
        while requeued < 0:
            run = self._meta(self._status(0)).get("run", "")
            self._drive(runs.open_shard(self.name, shard, run))
            requeued = self._run(admin.requeue(self.name, shard, same))
        return int(requeued)

    def purge(
        self,
        ids: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        slot: str | None = None,
    ) -> int:
        """Delete dead letters, chosen as by `requeue`; -> how many. They remain counted."""
        return len(self.purge_same(self._chosen(ids, reason, slot)))

    def _chosen(
        self, ids: Iterable[str] | None, reason: str | None, slot: str | None
    ) -> Iterator[DeadLetter]:
        return self.dead(reason=reason, slot=slot) if ids is None else self.dead_letters(ids)

    def purge_same(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Delete these dead letters, as far as they are still there and the same; -> their ids."""
        purged: list[str] = []
        try:
            for shard, part in _batches(letters):
                digests = [(place_of(letter.id)[1], letter.digest) for letter in part]
                gone = self._run(admin.purge(self.name, shard, digests))
                purged += [letter.id for letter, was in zip(part, gone, strict=True) if was]
        finally:
            self.note("purge", "dead letters", len(purged))
        return purged


def _batches(letters: Iterable[DeadLetter]) -> Iterator[tuple[int, list[DeadLetter]]]:
    """Dead letters for one script each: of one shard, in their order, no more than it can take."""
    for shard, group in itertools.groupby(letters, key=lambda letter: place_of(letter.id)[0]):
        part: list[DeadLetter] = []
        size = 0
        for letter in group:
            part.append(letter)
            size += len(letter.entry)
            if len(part) == CHANGE_BATCH or size > CHANGE_BYTES:
                yield shard, part
                part, size = [], 0
        if part:
            yield shard, part
