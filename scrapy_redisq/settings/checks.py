"""Checks of settings' values: each has its words, and gives the final type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.feed_lines import MOST_LINES
from scrapy_redisq.frontier.limits import (
    DELAY_TAKES,
    LIMIT_TAKES,
    MOST,
    RATE_TAKES,
    parse_limit,
    parse_rate,
)
from scrapy_redisq.serialization.recurrence import INTERVAL_TAKES, SHORTEST_SEEN_TTL, seconds_of

T = TypeVar("T")

DAY, YEAR = 86_400, 31_536_000
"""Seconds."""


class Explained(ValueError):
    """Raised with what a part of a setting takes, where that says more than the whole."""


@dataclass(frozen=True)
class Check(Generic[T]):
    """A check of a setting: what it ``takes``, in words, and a function that converts its value.

    ``convert`` raises ValueError for what is not taken, or what calls with it raise.
    """

    takes: str
    convert: Callable[[Any], T]

    def read(self, name: str, value: Any) -> T:
        """The value of the setting called ``name``, in its final type. Raises `SettingError`."""
        try:
            return self.convert(value)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            secret = name.endswith(("_URL", "_FEEDS", "_DATASET"))  # a password
            shown = "(not shown)" if secret else value
            takes = str(error) if isinstance(error, Explained) else self.takes
            raise SettingError(name, shown, takes) from None


def taking(takes: str) -> Callable[[Callable[[Any], T]], Check[T]]:
    """Makes the check of the function that follows."""
    return lambda convert: Check(takes, convert)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


# Truth, numbers and choices

_TRUTH = {"1", "true", "yes", "on"}


@taking("True or False")
def boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    _require(text in {*_TRUTH, "0", "false", "no", "off"})
    return text in _TRUTH


def number(low: float, high: float, what: str = "a number") -> Check[float]:
    @taking(f"{what} from {low:,} to {high:,}".replace("e-0", "e-"))
    def check(value: Any) -> float:
        number = float(value)
        _require(low <= number <= high and not isinstance(value, bool))
        return number

    return check


def seconds(low: float, high: float) -> Check[float]:
    return number(low, high, "seconds")


def whole(low: int, high: int, what: str = "a whole number") -> Check[int]:
    within = number(low, high, what)

    @taking(within.takes)
    def check(value: Any) -> int:
        number = within.convert(value)
        _require(number.is_integer())
        return int(number)

    return check


def whole_or_none(low: int, high: int) -> Check[int | None]:
    check = whole(low, high)

    @taking(f"{check.takes}, or None")
    def or_none(value: Any) -> int | None:
        return None if value in (None, "None") else check.convert(value)

    return or_none


@taking(f"{INTERVAL_TAKES}; a minute at least, or 0 for never")
def seen_ttl(value: Any) -> float:
    amount = seconds_of(value)
    _require(amount == 0 or amount >= SHORTEST_SEEN_TTL)
    return amount


@taking("a share from 0 to 1 such as 0.8, or whole bytes, up to 1e15")
def memory(value: Any) -> float:
    amount = number(0, 1e15).convert(value)
    _require(amount <= 1 or amount.is_integer())
    return amount


def one_of(*choices: str) -> Check[str]:
    @taking(" or ".join(map(repr, choices)))
    def check(value: Any) -> str:
        _require(value in choices)
        return str(value)

    return check


# Texts

URL_SCHEMES = tuple(
    f"{scheme}://"
    for scheme in (
        *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
        *("redis+sentinel", "rediss+sentinel", "embedded"),
    )
)

_SPIDER = {"spider": "spider"}
_SPIDER_TAKES = "%(spider)s is the spider's name"

LONGEST_NAME, LONGEST_RUN_NAME = 100, 200
"""Characters."""

_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
_FRONTIER_NAME = re.compile(rf"[^{{}}{_CONTROL}]{{1,{LONGEST_NAME}}}")
_RUN_NAME = re.compile(rf"[^{_CONTROL}]{{0,{LONGEST_RUN_NAME}}}")


def text(takes: str, holds: Callable[[str], object] = lambda value: True) -> Check[str]:
    """A text of which ``holds`` says whether it is taken; or raises."""

    @taking(takes)
    def check(value: Any) -> str:
        _require(isinstance(value, str) and bool(holds(value)))
        return str(value)

    return check


url = text(
    ", ".join(URL_SCHEMES[:-1]) + f" or {URL_SCHEMES[-1]}/path",
    lambda value: value.startswith(URL_SCHEMES),
)


def or_empty(check: Check[str]) -> Check[str]:
    return Check(f"{check.takes}, or ''", lambda value: check.convert(value) if value else "")


def pattern(takes: str, holds: Callable[[str], object] = lambda filled: True) -> Check[str]:
    """A text in which "%" is only in %(spider)s: anything else is a typing error that would surface
    at the first use."""
    return text(f"{takes}; {_SPIDER_TAKES}", lambda value: holds(value % _SPIDER))


frontier_name = text(
    f"1 to {LONGEST_NAME} characters without braces, control characters or surrogates",
    _FRONTIER_NAME.fullmatch,
)

ARGUMENTS = "%(arguments)s"
frontier_pattern = text(
    f"{frontier_name.takes}; {_SPIDER_TAKES}, {ARGUMENTS} its arguments (`-a`)",
    lambda value: frontier_name.convert(value % {**_SPIDER, "arguments": "arguments"}),
)

_run_name = pattern(f"text of at most {LONGEST_RUN_NAME} characters", _RUN_NAME.fullmatch)


@taking(f"{_run_name.takes}; ''")
def run_pattern(value: Any) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return _run_name.convert(str(value) if is_number else value)


# Lists. From the command line they come as texts.

EXPONENTIAL = "exponential"
_PAUSE = seconds(0, YEAR)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        # As a command line or the environment has it: a,b or [a, b] or ["a", "b"].
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
        value = [item.strip(" '\"") for item in value]
    items = [item.strip() if isinstance(item, str) else item for item in value]
    return [item for item in items if item != ""]


@taking(f"{EXPONENTIAL!r} or a list of {_PAUSE.takes} such as [1, 10, 60]")
def delays(value: Any) -> tuple[float, ...] | str:
    if value == EXPONENTIAL:
        return EXPONENTIAL
    items = [value] if isinstance(value, (int, float)) else _listed(value)
    _require(bool(items))
    return tuple(map(_PAUSE.convert, items))


def _list_of(takes: str, item: Callable[[Any], T]) -> Check[tuple[T, ...]]:
    return Check(takes, lambda value: tuple(map(item, _listed(value))))


statuses = _list_of("a list of HTTP statuses such as [429, 503]", whole(100, 599).convert)

meta_keys = _list_of("a list of keys of meta", text("a key").convert)


def _dataset(item: Any) -> str:
    _require((item % {**_SPIDER, "run": "run"}).endswith((".jsonl", ".csv")))
    return str(item)


@taking(
    "a path or fsspec URL that ends in .jsonl or .csv, or a list of them; %(spider)s is the "
    "spider's name, %(run)s is REDISQ_RUN"
)
def datasets(value: Any) -> tuple[str, ...]:
    names = tuple(map(_dataset, _listed(value)))
    _require(bool(names))
    return names


_scheme = text("a scheme", re.compile(r"[A-Za-z][A-Za-z0-9+.-]*").fullmatch)


@taking("a list of URL schemes, such as 'http' or 's3'")
def schemes(value: Any) -> tuple[str, ...]:
    names = tuple(_scheme.convert(item).lower() for item in _listed(value))
    _require(bool(names))
    return names


def _path(item: Any) -> Any:
    _require(isinstance(item, (str, type)))
    return item


def paths(of_what: str) -> Check[tuple[Any, ...]]:
    """Of classes, as they are or by their import paths."""
    return _list_of(f"a list of {of_what} or their import paths", _path)


# Dicts. From the command line they come as JSON.


def _dict(value: Any) -> dict[Any, Any]:
    return dict(json.loads(value or "{}") if isinstance(value, str) else value)


@taking(
    "a dict of item classes, each with a dict of 'table', 'key', 'on_conflict', 'version', "
    "'extra' and 'columns'"
)
def tables(value: Any) -> dict[Any, dict[str, Any]]:
    return {_path(name): dict(options) for name, options in _dict(value).items()}


# In a cluster the keys beside it must be on its node.
_KEY = re.compile(r"(?=.)[^{}]*(\{[^{}]+\}[^{}]*)?", re.DOTALL)

feed_key = text(
    "the name of a key, with at most one hash tag in braces; %(spider)s and %(name)s are the "
    "spider's name",
    lambda value: _KEY.fullmatch(value % {**_SPIDER, "name": "name"}),
)

feed_batch = whole(1, MOST_LINES, "a number of lines")


@taking("a dict of keys, each with a dict of 'url' (of another Redis server) and 'batch'")
def feeds(value: Any) -> dict[str, dict[str, Any]]:
    takes: dict[str, Check[Any]] = {"url": url, "batch": feed_batch}
    checked = {}
    for key, options in _dict(value).items():
        given = dict(options or {})
        try:
            checked[feed_key.convert(key)] = given
        except (ValueError, TypeError, KeyError):
            raise Explained(f"in the place of {key!r} {feed_key.takes}") from None
        if unknown := given.keys() - takes:
            raise Explained(f"for {key!r} 'url' and 'batch', not {min(map(str, unknown))!r}")
        for name, option in given.items():
            try:
                given[name] = takes[name].convert(option)
            except (ValueError, TypeError, KeyError):
                raise Explained(f"as {name!r} of {key!r} {takes[name].takes}") from None
    return checked


@taking(RATE_TAKES)
def rate(value: Any) -> str:
    parse_rate(value)
    return str(value or "")


# A URL is none: the limit would never hold, as slots are hosts.
_SLOT = re.compile(r"\*|(\*\.)?(?!.*://)[^*\x00-\x20]+")


def _by_slot(
    takes: str, limit_of: Callable[[Any], dict[str, Any]]
) -> Check[dict[str, dict[str, Any]]]:
    @taking(f"a dict of slots, each with a dict of {takes}")
    def check(value: Any) -> dict[str, dict[str, Any]]:
        limits = {}
        for slot, options in _dict(value).items():
            if not isinstance(slot, str) or not _SLOT.fullmatch(slot):
                raise Explained(f"a slot such as example.com or *.example.com, not {slot!r}")
            try:
                limits[slot] = limit_of(options)
                parse_limit(limits[slot])
            except (ValueError, TypeError) as error:
                raise Explained(f"for {slot!r} {takes}; not {options!r}") from error
        return limits

    return check


def _scrapys_limit(options: Any) -> dict[str, Any]:
    """How a delay varies is no limit."""
    given = dict(options)
    known = {"delay", "concurrency", "randomize_delay", "jitter"}
    if given.keys() - known or given.get("concurrency", 1) in (0, "0"):
        raise ValueError
    return {name: given[name] for name in ("delay", "concurrency") if name in given}


slot_limits = _by_slot(LIMIT_TAKES, dict)

download_slots = _by_slot(
    f"{DELAY_TAKES}, 'concurrency' (a whole number from 1 to {MOST:,}), "
    "'randomize_delay' and 'jitter'",
    _scrapys_limit,
)
"""Scrapy's ``DOWNLOAD_SLOTS``."""
