"""Requests as plain fields, without a spider: as producers push them, and as people are shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from scrapy.http import Request

from scrapy_redisq.errors import Unserializable, reason
from scrapy_redisq.serialization.callbacks import is_hook
from scrapy_redisq.serialization.entry_format import CODES, Entry, decode_entry
from scrapy_redisq.serialization.values import shown


def parse_line(line: bytes) -> str | dict[str, Any]:
    """The contents of one line: a URL, the fields of a JSON object, or "" if it is empty.

    Raises ValueError with what is wrong.
    """
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1})") from None
    if not text.startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deep") from None
    except msgspec.MsgspecError as error:
        raise ValueError(f"not JSON: {error}") from None


def request_from_fields(fields: Mapping[str, Any]) -> tuple[Request, str | None, str | None]:
    """Return the request that plain fields say, such as a line of JSON, and the names of its
    callback and errback, which only a worker can check.

    ``fields`` may have ``url`` (the only one required), ``method``, ``headers`` (names with a text
    or a list of texts), ``body`` (text as UTF-8, or bytes), ``cookies``, ``meta``, ``cb_kwargs``,
    ``callback`` and ``errback``, ``priority`` and ``dont_filter``; None is as good as left out.
    Raises `Unserializable` with the name of the field.
    """
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in _INPUTS:
            nearest = difflib.get_close_matches(str(name), _INPUTS, n=1)
            hint = f", did you mean {nearest[0]!r}?" if nearest else "; the spider's go into 'meta'"
            raise Unserializable(f"unknown field {shown(name)}{hint}")
        takes, check = _INPUTS[name]
        if value is None:
            continue
        if not check(value):
            raise Unserializable(f"field {name!r}: takes {takes}, not {shown(value)}")
        given[name] = value
    if "url" not in given:
        raise Unserializable("field 'url' is missing")
    given["url"] = given["url"].strip()
    callback, errback = given.pop("callback", None), given.pop("errback", None)
    try:
        return Request(**given), callback, errback
    except Exception as error:
        raise Unserializable(f"not a request: {reason(error)}") from error


def loads_fields(entry: bytes) -> dict[str, Any]:
    """Return what an entry holds as plain fields, to be shown without the spider.

    ``class``, ``url`` and ``method`` are always there, other fields only where they are not the
    default; ``callback`` and ``errback`` are names. Values have the types that the request had, so
    not all of them are JSON's. Raises `Undecodable` with the reason.
    """
    stored = decode_entry(entry)
    code, extra = stored.kind or ("", {})
    fields = {"class": CODES.get(code, code), "method": "GET", **extra}
    defaults = Entry(stored.url)
    for name in Request.attributes:
        if (value := getattr(stored, name)) != getattr(defaults, name) or name == "url":
            is_role = name in ("callback", "errback")
            fields[name] = "NO_CALLBACK" if is_role and value is False else value
    return fields


_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,50}")  # RFC 9110, 5.6.2


def _is_url(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value.strip())
    except ValueError:
        return False
    return bool(parts.hostname) if parts.scheme in {"http", "https"} else bool(parts.scheme)


def is_callback_name(value: Any) -> bool:
    """Whether a spider may have a callback of this name."""
    return isinstance(value, str) and value.isidentifier() and not is_hook(value)


def _is_text_dict(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


_Check = Callable[[Any], bool]


def _of(*kinds: type) -> _Check:
    """Whether a value is of one of these types; True is no number."""
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


_INPUTS: dict[str, tuple[str, _Check]] = {
    "url": ("an http or https URL", _is_url),
    "method": ("an HTTP method", lambda one: isinstance(one, str) and bool(_METHOD.fullmatch(one))),
    "headers": ("names with a text or a list of texts", _of(dict)),
    "body": ("a text", _of(str, bytes)),
    "cookies": ("names with values, or a list of dicts with name and value", _of(dict, list)),
    "meta": ("a dict with text keys", _is_text_dict),
    "cb_kwargs": ("a dict with text keys", _is_text_dict),
    "callback": ("the name of a callback of the spider", is_callback_name),
    "errback": ("the name of a callback of the spider", is_callback_name),
    "priority": ("a whole number", _of(int)),
    "dont_filter": ("true or false", _of(bool)),
}
"""The types of each field. `Request` and the serializer look into headers and cookies."""
