"""Values that stay exact in whichever sink: each function returns its value, or refuses it.

Only what is the same in Python is taken for another: members of enums for what is stored of them,
whole numbers for integers, texts of subclasses, such as those that hold their whole document.
"""

from __future__ import annotations

import enum
import functools
import numbers
from collections.abc import Mapping
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

_MODULES_WITH_URLS = ("pydantic.networks", "pydantic_core._pydantic_core")


class WrongValue(ValueError):
    """Raised when a value cannot stand in its column; says what the column takes."""


def is_url_class(cls: type) -> bool:
    """Whether it is one of pydantic's URL types, whose text is the URL."""
    return cls.__module__ in _MODULES_WITH_URLS and cls.__name__.endswith(("Url", "Dsn"))


@functools.cache
def enum_values(cls: type[enum.Enum]) -> Mapping[str, str | int]:
    """The stored value of each member's name: its value, if all are text or all are integers.

    The name itself otherwise.
    """
    values = {member.name: member.value for member in cls}
    for kind in (str, int):
        if all(
            isinstance(value, kind) and not isinstance(value, bool) for value in values.values()
        ):
            return {name: kind(value) for name, value in values.items()}
    return {name: name for name in values}


def exact_text(value: Any) -> str:
    """A text, or what is one in `plain` form."""
    text: str = value
    if type(value) is not str:
        text = plain(value)
        if type(text) is not str:
            raise WrongValue("takes str")
    if not text.isascii():
        encodable(text)
    return text


def plain(value: Any) -> Any:
    """The stored form of an enum's member; the text of what is a kind of text; else the value."""
    if isinstance(value, enum.Enum):
        try:
            return enum_values(type(value))[value.name]
        except KeyError:  # a combination of flags
            raise WrongValue("no member of its enum") from None
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass, such as one that holds its whole document
    if isinstance(value, (UUID, PurePath)) or is_url_class(type(value)):
        return str(value)
    return value


def encodable(text: str) -> None:
    """Refuse halves of surrogate pairs, which UTF-8 does not have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WrongValue("half of a surrogate pair cannot be stored") from None


def integer(value: Any) -> int:
    """An integer of at most 64 bits."""
    number: int = value
    if type(value) is not int:
        value = plain(value)
        if not isinstance(value, numbers.Integral):
            raise WrongValue("takes int")
        number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise WrongValue("takes integers of 64 bits")
    return number


def real(value: Any) -> float:
    """A float, or an integer that a float can hold."""
    if isinstance(value, float):
        return float(value)
    if not isinstance(value, numbers.Integral):
        raise WrongValue("takes float")
    try:
        number = float(int(value))
    except OverflowError:
        number = float("inf")
    if number != value:
        raise WrongValue("a float cannot hold that many digits")
    return number


def finite_decimal(value: Any) -> Decimal:
    """A finite Decimal, or an integer as one."""
    if not isinstance(value, Decimal):
        if not isinstance(value, numbers.Integral):
            raise WrongValue("takes Decimal or int")
        return Decimal(int(value))
    if not value.is_finite():
        raise WrongValue("takes finite numbers")
    return value


def check_digits(number: Decimal, whole: float, places: float) -> None:
    """Refuse a finite Decimal with more digits before the point, or after it, than these."""
    _, digits, exponent = number.as_tuple()
    excess = -int(exponent) - places
    if number and (number.adjusted() >= whole or (excess > 0 and any(digits[-int(excess) :]))):
        raise WrongValue(f"takes {whole:g} digits before the point and {places:g} after it")


def boolean(value: Any) -> bool:
    """True or False, and no number."""
    if isinstance(value, bool):
        return value
    raise WrongValue("takes bool")


def day(value: Any) -> date:
    """A date without a time."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise WrongValue("takes date")


def aware_utc(value: Any) -> datetime:
    """A point in time in UTC; one without a zone counts as UTC."""
    if not isinstance(value, datetime):
        raise WrongValue("takes datetime")
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        raise WrongValue("its time in UTC is out of the calendar") from None


def naive_utc(value: Any) -> datetime:
    """The same as `aware_utc`, without a zone."""
    return aware_utc(value).replace(tzinfo=None)


def time_of_day(value: Any) -> time:
    """A time without a zone."""
    if isinstance(value, time) and value.tzinfo is None:
        return value
    raise WrongValue("takes time without a time zone")


def binary(value: Any) -> bytes:
    """A copy of bytes, a bytearray or a memoryview."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise WrongValue("takes bytes")
