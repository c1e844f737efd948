"""Values of items as JSON, beyond the types that msgspec knows by itself."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from datetime import datetime, time, timedelta
from typing import Any

import msgspec
from itemadapter import ItemAdapter

from scrapy_redisq.errors import RowRefused, reason
from scrapy_redisq.pipelines.row_key import Row
from scrapy_redisq.pipelines.values import WrongValue, exact_text, plain


def encode(values: Any) -> bytes:
    """The JSON of an item's values.

    Dates are ISO 8601, with offsets of whole minutes; Decimals and UUIDs are text, sets arrays,
    nested items objects, bytes base64. NaN is refused, and so is a mapping two of whose keys are
    one text. Raises `TypeError`, `ValueError`, `OverflowError` and `RecursionError`.
    """
    _check(values)
    return _encode(values)


def _check(value: Any) -> None:
    """Raise ValueError for what JSON would change."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no number {value}")
    elif isinstance(value, (datetime, time)):
        if (offset := value.utcoffset()) is not None and offset % _MINUTE:
            raise ValueError("offsets from UTC are whole minutes there")
    elif isinstance(value, dict):
        if any(type(key) is not str for key in value):
            _check(tuple(value))
            if len({_encode({key: None}) for key in value}) < len(value):
                raise ValueError("keys in JSON are text, and two of these are the same")
        for one in value.values():
            _check(one)
    elif isinstance(value, _LOOKED_INTO):
        for one in value:
            _check(one)


_MINUTE = timedelta(minutes=1)

_LOOKED_INTO: tuple[type[Any], ...] = (dict, list, tuple, set, frozenset, float)
"""Types that a check of the values knows, also subclasses, which msgspec does not know."""


def _plain(value: Any) -> Any:
    """A value of a type that msgspec does not know as one that it does; raises `TypeError`."""
    # msgspec takes no subclasses, and what comes out of HTML often is one.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if ItemAdapter.is_item(value):
        return ItemAdapter(value).asdict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return list(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "unicode_string"):  # pydantic's URLs, which are no str since 2.10
        return value.unicode_string()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain value")


def _checked(value: Any) -> Any:
    made = _plain(value)
    if not isinstance(value, _LOOKED_INTO):
        _check(made)
    return made


_encode = msgspec.json.Encoder(enc_hook=_checked).encode


def encode_row(row: Row) -> bytes:
    """The JSON of a row. Raises `RowRefused` that names the field."""
    try:
        return encode(row)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        for name, value in row.items():
            try:
                encode({name: value})
            except (TypeError, ValueError, OverflowError, RecursionError) as why:
                raise unwritable(name, why) from why
        raise RowRefused(reason(error)) from error


def json_text(value: Any) -> str:
    """The value as JSON that loses nothing, for columns of JSON and of text; or `WrongValue`."""
    try:
        return encode(value).decode()
    except (TypeError, ValueError, OverflowError) as problem:
        raise WrongValue(f"no JSON: {reason(problem)}") from None
    except RecursionError:
        raise WrongValue("too deep for JSON, or a key that is no text") from None


def free_text(value: Any) -> str:
    """A text, a date or a number as one would write it, anything else as JSON; or `WrongValue`."""
    stored = plain(value)
    if isinstance(stored, str):
        return exact_text(stored)
    written = json_text(stored)
    return str(msgspec.json.decode(written)) if written[:1] == '"' else written


def unwritable(name: object, why: str | BaseException) -> RowRefused:
    """The error for a field that cannot be written, in one line."""
    words = f"{why:.300}" if isinstance(why, str) else reason(why)
    # Surrogates, which may be why, would be refused where this is written to.
    words = f"field {name!r:.100}: {words}"
    return RowRefused(words.encode("utf-8", "backslashreplace").decode())
