"""What a setting's value must be: each check returns it in its final type, or raises ValueError."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from scrapy_redisq.frontier.limits import (
    DELAY_TAKES,
    LIMIT_TAKES,
    MOST,
    parse_limit,
    parse_rate,
)

URL_SCHEMES = ("redis://", "rediss://", "unix://", "embedded://")

EXPONENTIAL = "exponential"

FRONTIER_NAME = re.compile(r"[^{}\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100}")
"""Names that a frontier can have."""


RUN_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,200}")
"""Names that a run can have."""


class Explained(ValueError):
    """Raised with what a part of a setting takes, where that says more than what the whole does."""


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    raise ValueError


def integer(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if number != int(number) or not low <= number <= high:
            raise ValueError
        return int(number)

    return check


def number(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return check


def one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return check


def url(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(URL_SCHEMES):
        raise ValueError
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def name_pattern(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    # "%" only as %(spider)s: anything else is a typing error that would surface at the first use.
    filled = value % {"spider": "spider"}
    if not FRONTIER_NAME.fullmatch(filled):
        raise ValueError
    return value


def run_pattern(value: Any) -> str:
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if text is None or not RUN_NAME.fullmatch(text % {"spider": "spider"}):
        raise ValueError
    return text


def delays(value: Any) -> tuple[float, ...] | str:
    if value == EXPONENTIAL:
        return EXPONENTIAL
    if isinstance(value, str):
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
    elif isinstance(value, (int, float)):
        value = [value]
    pause = number(0, 31_536_000)
    delays = tuple(pause(item) for item in value)
    if not delays:
        raise ValueError
    return delays


def statuses(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):  # from the command line
        value = [
            item for item in value.strip().removeprefix("[").removesuffix("]").split(",") if item
        ]
    status = integer(100, 599)
    return tuple(status(item) for item in value)


def tables(value: Any) -> dict[Any, dict[str, Any]]:
    if isinstance(value, str):  # from the command line
        value = json.loads(value or "{}")
    tables = {name: dict(options) for name, options in dict(value).items()}
    if not all(isinstance(name, (str, type)) for name in tables):
        raise ValueError
    return tables


def rate(value: Any) -> str:
    parse_rate(value)
    return str(value or "")


_SLOT = re.compile(r"\*|(\*\.)?[^*\x00-\x20]+")


def _by_slot(
    value: Any, limit_of: Callable[[Any], dict[str, Any]], takes: str
) -> dict[str, dict[str, Any]]:
    if isinstance(value, str):  # from the command line
        value = json.loads(value or "{}")
    limits = {}
    for slot, options in dict(value).items():
        if not isinstance(slot, str) or not _SLOT.fullmatch(slot):
            raise Explained(f"a slot such as example.com or *.example.com, not {slot!r}")
        try:
            limits[slot] = limit_of(options)
            parse_limit(limits[slot])
        except (ValueError, TypeError) as error:
            raise Explained(f"for {slot!r} {takes}; not {options!r}") from error
    return limits


def slot_limits(value: Any) -> dict[str, dict[str, Any]]:
    return _by_slot(value, dict, LIMIT_TAKES)


_IN_SCRAPY = frozenset({"delay", "concurrency", "randomize_delay", "jitter"})
_IN_SCRAPY_TAKES = (
    f"{DELAY_TAKES}, 'concurrency' (a whole number from 1 to {MOST:,}), "
    f"'randomize_delay' and 'jitter'"
)

DOWNLOAD_SLOTS_TAKES = f"a dict of slots, each with a dict of {_IN_SCRAPY_TAKES}"


def download_slots(value: Any) -> dict[str, dict[str, Any]]:
    """Limits by slot of Scrapy's ``DOWNLOAD_SLOTS``. How a delay varies is no limit."""

    def limit_of(options: Any) -> dict[str, Any]:
        given = dict(options)
        if given.keys() - _IN_SCRAPY or given.get("concurrency", 1) in (0, "0"):
            raise ValueError
        return {name: given[name] for name in ("delay", "concurrency") if name in given}

    return _by_slot(value, limit_of, _IN_SCRAPY_TAKES)


def path_pattern(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value % {"spider": "spider"}
    return value


def schemes(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else list(value)
    names = tuple(item.strip().lower() for item in items)
    if not names or not all(re.fullmatch(r"[a-z][a-z0-9+.-]*", name) for name in names):
        raise ValueError
    return names


def paths(value: Any) -> tuple[Any, ...]:
    items = value.split(",") if isinstance(value, str) else list(value)
    cleaned = [item.strip() if isinstance(item, str) else item for item in items]
    if not all(isinstance(item, (str, type)) for item in cleaned):
        raise ValueError
    return tuple(item for item in cleaned if item)
