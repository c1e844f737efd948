"""Limits of slots: from the settings to what the frontier keeps; what their failures lead to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

RATE_TAKES = "a number of requests per s, m, h or d, such as '30/m'"
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*([smhd])\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

LONGEST = 86_400
"""Seconds: the longest delay."""

MOST = 10_000
"""The highest concurrency and the largest burst."""

MOST_BUDGET = 10**12

LONGEST_PAUSE = 60.0
"""Seconds: the longest pause of a slot after failures."""

GIVE_UP = 15
"""Failures in a row after which a slot is set aside; 0: never."""

OPTION_TAKES = {
    "delay": f"seconds from 0 to {LONGEST:,.0f}, such as 1.5",
    "concurrency": f"a whole number from 0 to {MOST:,}",
    "rate": RATE_TAKES,
    "burst": f"from 1 to {MOST:,}",
    "budget": "a whole number of requests in a run",
}
"""The values that each option of a limit takes."""

DELAY_TAKES = f"'delay' ({OPTION_TAKES['delay']})"
LIMIT_TAKES = ", ".join(f"{name!r} ({takes})" for name, takes in OPTION_TAKES.items())


class SlotLimit(Struct, frozen=True):
    """The limits of the whole fleet for one slot. 0: no limit.

    ``delay`` in seconds between two starts, ``concurrency`` downloads at a time, ``rate`` starts a
    second, of which ``burst`` may come at once, ``budget`` requests in a run, which is of the
    settings alone.
    """

    delay: float = 0.0
    concurrency: int = 0
    rate: float = 0.0
    burst: int = 1
    budget: int = 0

    def __bool__(self) -> bool:
        return bool(self.delay or self.concurrency or self.rate or self.budget)

    def to_text(self) -> str:
        """As ``lua/shared/slots/limits.lua`` keeps it, with times in microseconds."""
        interval = round(1e6 / self.rate) if self.rate else 0
        text = f"{round(self.delay * 1e6)} {interval} {self.burst} {self.concurrency}"
        return f"{text} {self.budget}" if self.budget else text

    @classmethod
    def from_text(cls, text: str) -> SlotLimit:
        delay, interval, burst, concurrency, *budget = map(int, text.split())
        return cls(delay / 1e6, concurrency, 1e6 / interval if interval else 0.0, burst, *budget)


def limit_of(limits: Mapping[str, str], slot: str) -> SlotLimit:
    """The limit of a slot, as ``lua/shared/slots/limits.lua`` finds it."""
    patterns, domain = [slot], slot
    while "." in domain:
        domain = domain.partition(".")[2]
        patterns.append(f"*.{domain}")
    found = (limits[pattern] for pattern in (*patterns, "*") if pattern in limits)
    return SlotLimit.from_text(next(found, "0 0 1 0"))


class Throttle(Struct, frozen=True):
    """Terms of AutoThrottle over the whole fleet.

    ``target`` downloads of a slot at a time on average; delays in seconds: of a slot that is not
    yet known, the shortest and the longest.
    """

    target: float
    start: float
    least: float
    most: float

    def to_text(self) -> str:
        """As ``lua/shared/slots/state.lua`` keeps it, with times in microseconds."""
        delays = (round(delay * 1e6) for delay in (self.start, self.least, self.most))
        return " ".join([repr(self.target), *map(str, delays)])


def parse_rate(value: Any) -> float:
    """Requests a second of "30/m", or 0 of "" and 0. Raises ValueError."""
    if value in ("", 0, None) or value is False:
        return 0.0
    if not isinstance(value, str) or not (match := _RATE.fullmatch(value)):
        raise ValueError(RATE_TAKES)
    rate = float(match[1]) / _SECONDS[match[2]]
    if not 1 / LONGEST <= rate <= 1e6:
        raise ValueError(RATE_TAKES)
    return rate


def parse_limit(options: Any, base: SlotLimit | None = None) -> SlotLimit:
    """A limit of its options; those that are left out are as in ``base``. Raises ValueError."""
    if not isinstance(options, Mapping) or options.keys() - OPTION_TAKES:
        raise ValueError(LIMIT_TAKES)
    given: dict[str, Any] = {}
    for name, value in options.items():
        try:
            given[name] = parse_rate(value) if name == "rate" else _number(name, value)
        except (ValueError, TypeError):
            raise ValueError(f"{name} {value!r:.100}: takes {OPTION_TAKES[name]}") from None
    return replace(base or SlotLimit(), **given)


def _number(name: str, value: Any) -> float:
    number = float(value)
    low, high = {
        "delay": (0, LONGEST),
        "concurrency": (0, MOST),
        "burst": (1, MOST),
        "budget": (0, MOST_BUDGET),
    }[name]
    whole = name == "delay" or number.is_integer()
    if isinstance(value, bool) or not (low <= number <= high and whole):
        raise ValueError(name)
    return number if name == "delay" else int(number)
