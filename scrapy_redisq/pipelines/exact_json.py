"""JSON that loses nothing, or is refused, for columns of JSON and of text.

A decimal is a text there (a number would lose digits in most readers), dates and times are in ISO
format, bytes base64, sets sorted lists, items objects, keys of mappings text.
"""

from __future__ import annotations

import base64
import json
import numbers
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

from itemadapter import ItemAdapter

from scrapy_redisq.pipelines.values import WrongValue, encodable, plain

__all__ = ["json_text"]


def _json_form(value: Any) -> Any:
    """What stands in JSON for a value that it has no form for."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=json_text)
    stored = plain(value)
    if stored is not value:
        return stored
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, Mapping) or ItemAdapter.is_item(value):
        fields = dict(value if isinstance(value, Mapping) else ItemAdapter(value))
        _distinct_keys(fields)
        return fields
    raise WrongValue(f"{type(value).__qualname__} has no form in JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_json_form).encode


def json_text(value: Any) -> str:
    """The value as JSON; raises `WrongValue`."""
    try:
        _distinct_keys(value)
        text = _encode(value)
    except WrongValue:
        raise
    except ValueError as problem:  # NaN, infinity, something that holds itself
        raise WrongValue(f"no JSON: {problem}") from None
    except TypeError:
        raise WrongValue("keys in JSON are text") from None
    except RecursionError:
        raise WrongValue("too deep for JSON") from None
    if not text.isascii():
        encodable(text)
    return text


def _distinct_keys(value: Any) -> None:
    """Refuse mappings of which JSON would lose an entry: one with the keys 1 and "1"."""
    if isinstance(value, (list, tuple)):
        for one in value:
            _distinct_keys(one)
    elif isinstance(value, dict):
        if any(type(key) is not str for key in value):
            keys = [key if isinstance(key, str) else _encode(key) for key in value]
            if len(set(keys)) < len(keys):
                raise WrongValue("keys in JSON are text, and two of these are the same")
        for one in value.values():
            _distinct_keys(one)
