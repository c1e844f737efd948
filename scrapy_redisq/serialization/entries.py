"""The format of an entry: a version byte, then one msgpack map, defaults left out.

Here a request's attributes become bytes and bytes become checked attributes. Which classes and
callbacks an entry may name is the business of `scrapy_redisq.serialization.serializer`.
"""

from __future__ import annotations

import encodings
from collections.abc import Callable, Collection
from encodings.aliases import aliases
from types import NoneType
from typing import Any, NamedTuple

from scrapy.http import Headers, JsonRequest, Request

from scrapy_redisq.errors import (
    EntryTooLarge,
    ForeignEntry,
    Undecodable,
    Unserializable,
    reason,
)
from scrapy_redisq.serialization.meta import check_safe, is_safe_and_plain
from scrapy_redisq.serialization.value_classes import NONE, ValueClasses
from scrapy_redisq.serialization.values import (
    check_depth,
    decode,
    encode,
    is_plain,
    pack,
    type_name,
)

FORMAT = 1
"""First byte of each entry, in its lower half. A release reads its own format; later ones count up
to 15. The upper half counts how often the request was sent back because its slot was in trouble."""

MAX_PRIORITY = 2**53
"""Priorities are scores of a Redis sorted set, which are exact up to here."""

IDENTITY_BYTES = 16
"""See `scrapy_redisq.serialization.identity`."""

_PREFIX = bytes([FORMAT])

# The keys of the map: one letter, as a small integer, which msgpack stores in one byte.
_CLASS = ord("k")
_URL = ord("u")
_CALLBACK = ord("c")
_ERRBACK = ord("e")
_METHOD = ord("v")
_HEADERS = ord("h")
_BODY = ord("b")
_COOKIES = ord("o")
_META = ord("m")
_CB_KWARGS = ord("a")
_ENCODING = ord("n")
_PRIORITY = ord("p")
_DONT_FILTER = ord("d")
_FLAGS = ord("f")
_EXTRA = ord("x")
_IDENTITY = ord("i")

# Attribute and types of each key. False as a callback stands for NO_CALLBACK, a list for a partial:
# name, positional arguments, keyword arguments.
_FIELDS: dict[int, tuple[str, tuple[type, ...]]] = {
    _CLASS: ("class", (str,)),
    _URL: ("url", (str,)),
    _CALLBACK: ("callback", (str, bool, list)),
    _ERRBACK: ("errback", (str, bool, list)),
    _METHOD: ("method", (str,)),
    _HEADERS: ("headers", (dict,)),
    _BODY: ("body", (bytes,)),
    _COOKIES: ("cookies", (dict, list)),
    _META: ("meta", (dict,)),
    _CB_KWARGS: ("cb_kwargs", (dict,)),
    _ENCODING: ("encoding", (str,)),
    _PRIORITY: ("priority", (int,)),
    _DONT_FILTER: ("dont_filter", (bool,)),
    _FLAGS: ("flags", (list,)),
    _EXTRA: ("extra", (dict,)),
    _IDENTITY: ("identity", (bytes,)),
}

_BASE_ATTRIBUTES = frozenset(name for name, _ in _FIELDS.values()) - {"class", "extra", "identity"}
CallbackName = str | bool | list[Any]
"""What stands for a callback, see `_FIELDS`."""

_DICTS = frozenset({dict})
_BYTES = frozenset({bytes})

# Python's text encodings; the last two rows have no alias. Looking up any other name would import
# the module of that name from the standard library's ``encodings``.
_ENCODINGS = frozenset(aliases) | frozenset(aliases.values())
_ENCODINGS |= {"cp1006", "cp720", "cp737", "cp856", "cp874", "cp875", "koi8_t", "koi8_u"}
_ENCODINGS |= {"mac_arabic", "mac_croatian", "mac_farsi", "mac_romanian", "utf_8_sig"}


class RequestClass(NamedTuple):
    """A request class that may be stored, the code that entries hold for it ('': Request), and
    its constructor's attributes beside those of Request."""

    cls: type[Request]
    code: str
    extra: tuple[str, ...]

    @classmethod
    def of(cls, request_class: type[Request], code: str) -> RequestClass:
        extra = [name for name in request_class.attributes if name not in _BASE_ATTRIBUTES]
        return cls(request_class, code, tuple(extra))


def encode_request(
    request: Request,
    kind: RequestClass,
    callback: CallbackName | None,
    errback: CallbackName | None,
    max_bytes: int,
    identity: bytes | None = None,
    classes: ValueClasses = NONE,
    meta_keys: Collection[str] = (),
) -> bytes:
    """Return the entry of ``request``, with these names instead of its own callbacks.

    ``identity`` is there if the request is known by something else than its fingerprint,
    ``classes`` are those whose objects it may hold, ``meta_keys`` those that pass though they are
    not safe.
    msgspec encodes the usual request as it is. What it does not take, or would change, is found
    by a look at the types of the values; only then everything is copied and tagged. Raises
    `Unserializable` and `EntryTooLarge`.
    """
    url = request.url
    plain = type(url) is str
    fields: dict[int, Any] = {_URL: url}
    if kind.code:
        fields[_CLASS] = kind.code
    if callback is not None:
        fields[_CALLBACK] = callback
        plain = plain and type(callback) is not list
    if errback is not None:
        fields[_ERRBACK] = errback
        plain = plain and type(errback) is not list
    if (method := request.method) != "GET":
        fields[_METHOD] = method
        plain = plain and type(method) is str
    if headers := request.headers:
        fields[_HEADERS] = _checked_headers(headers)
    if body := request.body:
        fields[_BODY] = _checked_body(body, max_bytes)
    if cookies := request.cookies:
        fields[_COOKIES] = cookies
        plain = plain and type(cookies) is dict and is_plain(cookies)
    if meta := request.meta:
        fields[_META] = meta
        if not is_safe_and_plain(meta, meta_keys):
            check_safe(meta, meta_keys)
            plain = False
    if cb_kwargs := request.cb_kwargs:
        fields[_CB_KWARGS] = cb_kwargs
        plain = plain and is_plain(cb_kwargs)
    if (encoding := request.encoding) != "utf-8":
        fields[_ENCODING] = _checked_encoding(encoding)
    if priority := request.priority:
        fields[_PRIORITY] = _checked_priority(priority)
    if request.dont_filter:
        fields[_DONT_FILTER] = True
    if flags := request.flags:
        fields[_FLAGS] = flags
        plain = False
    if kind.extra and (extra := _extra_attributes(request, kind)):
        fields[_EXTRA] = extra
        plain = False
    if identity is not None:
        fields[_IDENTITY] = identity
    entry = _encode_plain(fields) if plain else None
    if entry is None:
        entry = _PREFIX + encode(_packed(fields, max_bytes, classes))
    if len(entry) > max_bytes:
        raise EntryTooLarge(_too_large(len(entry), max_bytes))
    return entry


def _encode_plain(fields: dict[int, Any]) -> bytes | None:
    try:
        return _PREFIX + encode(fields)
    except (OverflowError, UnicodeEncodeError):
        return None  # an integer over 64 bits, a lone surrogate


def _packed(fields: dict[int, Any], max_bytes: int, classes: ValueClasses = NONE) -> dict[int, Any]:
    packed = {}
    for key, value in fields.items():
        name, types = _FIELDS[key]
        if key == _HEADERS:
            packed[key] = value
        elif key == _EXTRA:
            packed[key] = {
                attribute: pack(item, attribute, max_bytes, classes)
                for attribute, item in value.items()
            }
        else:
            packed[key] = pack(value, name, max_bytes, classes)
            if not isinstance(value, types):
                raise Unserializable(f"{name}: {type_name(type(value))}")
            if key == _COOKIES and not _are_cookies(value):
                raise Unserializable("cookies: a list of other things than dicts")
    return packed


def _too_large(size: int, max_bytes: int) -> str:
    return f"{size:,} bytes, more than REDISQ_MAX_ENTRY_BYTES = {max_bytes}"


def _checked_headers(headers: Headers) -> Headers:
    if not isinstance(headers, Headers):
        raise Unserializable(f"headers: {type_name(type(headers))}")
    if not _are_headers(headers):
        raise Unserializable("headers: not bytes with lists of bytes")
    return headers


def _are_headers(headers: dict[Any, Any]) -> bool:
    for name, values in dict.items(headers):
        if not (
            type(name) is bytes and type(values) is list and _BYTES.issuperset(map(type, values))
        ):
            return False
    return True


def _are_cookies(cookies: Any) -> bool:
    return type(cookies) is dict or _DICTS.issuperset(map(type, cookies))


def _checked_body(body: bytes, max_bytes: int) -> bytes:
    if type(body) is not bytes:
        raise Unserializable(f"body: {type_name(type(body))}")
    if len(body) > max_bytes:  # before a copy is made of it
        raise EntryTooLarge(f"body: {_too_large(len(body), max_bytes)}")
    return body


def _checked_encoding(encoding: str) -> str:
    if type(encoding) is not str or not _is_encoding(encoding):
        raise Unserializable(f"encoding: {shown(encoding)} is no text encoding that Python brings")
    return encoding


def _is_encoding(name: str) -> bool:
    return name.isascii() and encodings.normalize_encoding(name.lower()) in _ENCODINGS


def _checked_priority(priority: int) -> int:
    if not isinstance(priority, int) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise Unserializable("priority: not a whole number from -2**53 to 2**53")
    return int(priority)  # an IntEnum orders like its number


def _extra_attributes(request: Request, kind: RequestClass) -> dict[str, Any]:
    try:
        extra = {name: getattr(request, name) for name in kind.extra}
    except Exception as error:
        # A property of the project's own class; the request can still be run locally.
        raise Unserializable(f"{type_name(kind.cls)}: {reason(error)}") from error
    if kind.cls is JsonRequest and extra["dumps_kwargs"] == {"sort_keys": True}:
        del extra["dumps_kwargs"]  # the constructor fills that in
    return extra


def decode_fields(entry: bytes, decode: Callable[[memoryview], Any] = decode) -> dict[str, Any]:
    """Return what an entry holds, by attribute, types checked: ``url``, and what is no default.

    ``class`` is a code, ``callback`` and ``errback`` are names, False or a list, ``extra`` is a
    dict. ``decode`` makes objects of known classes. Raises `ForeignEntry` with the reason for
    whatever bytes, `Undecodable` if there is an object that ``decode`` does not know, and nothing
    else.
    """
    if not isinstance(entry, bytes):
        raise ForeignEntry(f"not bytes but {type_name(type(entry))}")
    if not _is_ours(entry):
        raise ForeignEntry(_foreign(entry))
    try:
        return _named_fields(decode(memoryview(entry)[1:]))
    except Undecodable:
        raise
    except Exception as error:
        # msgspec's, RecursionError, MemoryError, and whatever the restored types raise.
        raise ForeignEntry(f"damaged entry: {reason(error)}") from error


def _is_ours(entry: bytes) -> bool:
    return entry[:1] != b"" and entry[0] & 15 == FORMAT


def identity_in(entry: bytes) -> bytes | None:
    """What the request is known by, if it is not its fingerprint; None too for a damaged entry."""
    try:
        identity = decode(memoryview(entry)[1:]).get(_IDENTITY)
    except Exception:  # whatever the restored types raise, as in `decode_fields`
        return None
    return identity if type(identity) is bytes else None


MOST_BACK_OFFS = 15
"""As far as an entry counts."""


def back_offs(entry: bytes) -> int:
    """How often the request was sent back because its slot was in trouble."""
    return entry[0] >> 4


def with_back_offs(entry: bytes, number: int) -> bytes:
    """The same request, as if it had been sent back so often."""
    return bytes([FORMAT | min(MOST_BACK_OFFS, number) << 4]) + entry[1:]


def forget_retries(entry: bytes) -> bytes | None:
    """Return the entry of the same request, as if it had never been retried or sent back.

    None if there is nothing to change, or if it cannot be read: then nobody has retried it.
    """
    if not _is_ours(entry):
        return None
    try:
        fields = decode_fields(entry)
        meta = fields.get("meta", {})
        if "retry_times" not in meta:
            return _PREFIX + entry[1:] if back_offs(entry) else None
        fields = decode(memoryview(entry)[1:])
        meta = {key: value for key, value in meta.items() if key != "retry_times"}
        return _PREFIX + encode(_packed({**fields, _META: meta}, len(entry)))
    except (Undecodable, Unserializable, EntryTooLarge):
        return None  # the worker will say what is wrong with it


def _named_fields(fields: Any) -> dict[str, Any]:
    if type(fields) is not dict:
        raise TypeError(f"{type_name(type(fields))} instead of a map")
    if _URL not in fields:
        raise ValueError("no url")
    named = {}
    for key, value in fields.items():
        if type(key) is not int or key not in _FIELDS:
            raise ValueError(f"unknown field {shown(key)}")
        name, types = _FIELDS[key]
        if type(value) not in types or (value is True and key != _DONT_FILTER):
            raise TypeError(f"{name} is {shown(value)}")
        check = _CHECKS.get(key)
        if check is not None and not check(value):
            raise ValueError(f"{name} has the wrong content")
        named[name] = value
    return named


def _are_extra(extra: dict[Any, Any]) -> bool:
    for name, value in extra.items():
        if type(name) is not str:
            return False
        check_depth(value)
    return True


def _is_callback(value: Any) -> bool:
    if type(value) is not list:
        return True
    types = [type(part) for part in value]
    return types == [str, list, dict] and check_depth(value) and _are_extra(value[2])


_CHECKS: dict[int, Callable[[Any], bool]] = {
    _HEADERS: _are_headers,
    _COOKIES: lambda value: check_depth(value) and _are_cookies(value),
    _META: check_depth,
    _CB_KWARGS: check_depth,
    _FLAGS: check_depth,
    _EXTRA: _are_extra,
    _ENCODING: _is_encoding,
    _IDENTITY: lambda value: len(value) == IDENTITY_BYTES,
    _PRIORITY: lambda value: -MAX_PRIORITY <= value <= MAX_PRIORITY,
    _CALLBACK: _is_callback,
    _ERRBACK: _is_callback,
}


def _foreign(entry: bytes) -> str:
    """What bytes seem to be that do not begin with this release's format."""
    if not entry:
        return "empty"
    first = entry[0]
    if 0 < first < 16:
        return f"format {first}, this release reads {FORMAT}"
    binary_pickle = first == 0x80 and len(entry) > 1 and entry[1] in range(2, 6)
    if binary_pickle or (first in b"(}]c" and entry.endswith(b".")):
        return "a pickle; pickles are never loaded"
    if first in b"{[":
        return "JSON; 'scrapy redisq push' takes that"
    if entry[:4].lower() == b"http":
        return "a plain URL; 'scrapy redisq push' takes that"
    return f"not an entry of scrapy-redisq, begins with {entry[:8]!r}"


def shown(value: object) -> str:
    """``value`` for a message: one short line, whatever it is."""
    if isinstance(value, (bool, NoneType, str, bytes)):
        text = repr(value[:80] if isinstance(value, (str, bytes)) else value)
        return text if len(text) <= 80 else text[:80] + "…"
    return f"of type {type_name(type(value))}"
