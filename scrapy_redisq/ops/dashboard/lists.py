"""Hosts and dead letters as the pages list them: filtered, sorted, grouped, a page at a time.

Lists of all are kept of what they are chosen by (100,000 hosts in 30 MB). What is shown of those on
a page is asked for anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from scrapy_redisq.control import DeadLetter, SlotStatus

STATES = ("paused", "set_aside", "parked", "failing", "limited")
TROUBLE = frozenset(STATES) - {"limited"}


class Host(NamedTuple):
    """What a host is chosen and sorted by."""

    slot: str
    queued: int
    leased: int
    failures: int
    next_start: float
    states: tuple[str, ...]

    @classmethod
    def of(cls, slot: SlotStatus) -> Host:
        start = float("inf") if slot.next_start is None else slot.next_start
        return cls(slot.slot, slot.queued, slot.leased, slot.failures, start, states_of(slot))

    @property
    def in_trouble(self) -> bool:
        return not TROUBLE.isdisjoint(self.states)


def states_of(slot: SlotStatus) -> tuple[str, ...]:
    """What is special about a host."""
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


SORTS: dict[str, tuple[Callable[[Host], Any], bool]] = {
    "slot": (lambda host: host.slot, False),
    "queued": (lambda host: (host.queued, host.leased), True),
    "leased": (lambda host: (host.leased, host.queued), True),
    "failures": (lambda host: (host.failures, host.queued), True),
    "next_start": (lambda host: host.next_start, False),
}
"""By what hosts can be sorted, and whether the largest come first unless somebody says."""


class HostMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts are meant: ``q``, part of the name, and a state ("trouble": any but limited)."""

    q: str = ""
    state: Literal["", "trouble", "paused", "set_aside", "parked", "failing", "limited"] = ""

    def __call__(self, host: Host) -> bool:
        if self.q.strip().lower() not in host.slot:
            return False
        if self.state == "trouble":
            return host.in_trouble
        return not self.state or self.state in host.states

    def __str__(self) -> str:
        """As the action log has it."""
        words = [f"with {self.q!r} in their name"] * bool(self.q)
        words += [f"that are {self.state}"] * bool(self.state)
        return " ".join(["hosts", *words]) if words else "all hosts"


def page_of(
    hosts: Iterable[Host], sort: str, descending: bool, offset: int, limit: int
) -> list[Host]:
    """Those of one page."""
    return sorted(hosts, key=SORTS[sort][0], reverse=descending)[offset : offset + limit]


def counts(hosts: Sequence[Host]) -> dict[str, int]:
    """How many there are of each state, and in trouble."""
    found = Counter(state for host in hosts for state in host.states)
    trouble = sum(host.in_trouble for host in hosts if host.states)
    return {"trouble": trouble, **{state: found[state] for state in STATES}}


GROUPS = ("reason", "error", "status", "slot")
"""What dead letters are grouped by; ``error`` is the type of the exception, ``slot`` the host."""

MOST_GROUPS = 8


class Letter(NamedTuple):
    """What a dead letter is chosen and grouped by."""

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
