"""Hosts and dead letters as the pages list them: filtered, sorted, grouped, a page at a time.

Lists of all are kept: of hosts whole, of letters what they are chosen by. What is shown of letters
is asked for anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from scrapy_redisq.control import DeadLetter, SlotStatus

STATES = ("paused", "set_aside", "parked", "failing", "limited")


def states_of(slot: SlotStatus) -> tuple[str, ...]:
    """Traits of a host."""
    found = ["paused"] if slot.paused else []
    if slot.set_aside:
        found.append("set_aside")
    elif slot.parked:
        found.append("parked")
    elif slot.failures:
        found.append("failing")
    if slot.limit_from == "person":
        found.append("limited")
    return tuple(found)


def _next_start(slot: SlotStatus) -> float:
    return math.inf if slot.next_start is None else slot.next_start


SORTS: dict[str, tuple[Callable[[SlotStatus], Any], bool]] = {
    "slot": (lambda slot: slot.slot, False),
    "queued": (lambda slot: (slot.queued, slot.leased), True),
    "leased": (lambda slot: (slot.leased, slot.queued), True),
    "failures": (lambda slot: (slot.failures, slot.queued), True),
    "next_start": (_next_start, False),
}
"""By what hosts can be sorted, and whether the largest come first unless somebody says."""


class HostMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts are meant: ``q``, part of the name, and a state ("trouble": any but limited)."""

    q: str = ""
    state: Literal["", "trouble", "paused", "set_aside", "parked", "failing", "limited"] = ""

    def __call__(self, slot: SlotStatus) -> bool:
        if self.q.strip().lower() not in slot.slot.lower():
            return False
        if self.state == "trouble":
            return slot.in_trouble
        return not self.state or self.state in states_of(slot)

    def __str__(self) -> str:
        """As the action log has it."""
        words = [f"with {self.q!r} in their name"] * bool(self.q)
        words += [f"that are {self.state}"] * bool(self.state)
        return " ".join(["hosts", *words]) if words else "all hosts"


def counts(slots: Sequence[SlotStatus]) -> dict[str, int]:
    """How many there are of each state, and in trouble."""
    found = Counter(state for slot in slots for state in states_of(slot))
    trouble = sum(slot.in_trouble for slot in slots)
    return {"trouble": trouble, **{state: found[state] for state in STATES}}


GROUPS = ("reason", "error", "status", "slot")
"""Groups of dead letters; ``error`` is the type of the exception, ``slot`` the host."""

MOST_GROUPS = 8


class Letter(NamedTuple):
    """Fields by which a dead letter is chosen and grouped."""

    id: str
    reason: str
    error: str
    status: int
    slot: str
    at: float

    @classmethod
    def of(cls, letter: DeadLetter) -> Letter:
        return cls(*(getattr(letter, name) for name in cls._fields))


class LetterMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters are meant; None: any. ``error`` "" are those without an exception."""

    reason: str | None = None
    error: str | None = None
    status: int | None = None
    slot: str | None = None

    def __call__(self, letter: Letter | DeadLetter) -> bool:
        return (
            self.reason in (None, letter.reason)
            and self.error in (None, letter.error)
            and self.status in (None, letter.status)
            and self.slot in (None, letter.slot)
        )


def groups(letters: Iterable[Letter], match: LetterMatch) -> dict[str, list[dict[str, Any]]]:
    """For each of `GROUPS` its commonest values among the letters that match all else, with how
    many there are."""
    counters: dict[str, Counter[Any]] = {name: Counter() for name in GROUPS}
    others = {name: msgspec.structs.replace(match, **{name: None}) for name in GROUPS}
    for letter in letters:
        for name in GROUPS:
            if others[name](letter):
                counters[name][getattr(letter, name)] += 1
    return {
        name: [{"value": value, "count": count} for value, count in found.most_common(MOST_GROUPS)]
        for name, found in counters.items()
    }
