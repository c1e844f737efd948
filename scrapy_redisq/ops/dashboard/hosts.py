"""Hosts as the pages list them: sorted, filtered, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from scrapy_redisq.control import SlotStatus


class Host(NamedTuple):
    """What a host is chosen and sorted by: 100,000 of them are kept in 30 MB. What is shown of
    those on a page is asked for anew."""

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


def states_of(slot: SlotStatus) -> tuple[str, ...]:
    """What is special about a host."""
    found = []
    if slot.paused:
        found.append("paused")
    if slot.set_aside:
        found.append("set_aside")
    elif slot.parked:
        found.append("parked")
    elif slot.failures:
        found.append("failing")
    if slot.limit_from == "person":
        found.append("limited")
    return tuple(found)


STATES = ("paused", "set_aside", "parked", "failing", "limited")
TROUBLE = frozenset(STATES) - {"limited"}

SORTS: dict[str, tuple[Callable[[Host], Any], bool]] = {
    "slot": (lambda host: host.slot, False),
    "queued": (lambda host: (host.queued, host.leased), True),
    "leased": (lambda host: (host.leased, host.queued), True),
    "failures": (lambda host: (host.failures, host.queued), True),
    "next_start": (lambda host: host.next_start, False),
}
"""By what hosts can be sorted, and whether the largest come first unless somebody says."""


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts are meant: ``q``, part of the name, and a state; nothing given: all."""

    q: str = ""
    state: Literal["", "trouble", "paused", "set_aside", "parked", "failing", "limited"] = ""
    """"trouble": any but limited."""

    def __call__(self, host: Host) -> bool:
        if self.q.strip().lower() not in host.slot:
            return False
        if self.state == "trouble":
            return not TROUBLE.isdisjoint(host.states)
        return not self.state or self.state in host.states


def page_of(
    hosts: Sequence[Host], sort: str, descending: bool, offset: int, limit: int
) -> list[Host]:
    """Those of one page."""
    key, _ = SORTS[sort]
    return sorted(hosts, key=key, reverse=descending)[offset : offset + limit]


def counts(hosts: Iterable[Host]) -> dict[str, int]:
    """How many there are of each state, and in trouble."""
    found = dict.fromkeys(("trouble", *STATES), 0)
    for host in hosts:
        if host.states:
            for state in host.states:
                found[state] += 1
            found["trouble"] += not TROUBLE.isdisjoint(host.states)
    return found
