"""Dead letters as the pages list them: grouped, filtered, a page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from scrapy_redisq.control import DeadLetter

GROUPS = ("reason", "error", "status", "slot")
"""What they are grouped by; ``error`` is the type of the exception, ``slot`` the host."""

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
        return cls(
            letter.id, letter.reason, letter.error, letter.status, letter.slot, round(letter.at)
        )


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which are meant; None: any. ``error`` "" are those without an exception."""

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


def groups(letters: Iterable[Letter], match: Match) -> dict[str, list[dict[str, Any]]]:
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
