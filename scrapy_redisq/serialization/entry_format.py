"""The format of an entry: a version byte, then one msgpack map with one-letter keys.

`Entry` is that map, in which defaults are left out. msgspec checks the type of each field when an
entry is read, and so says what may be written. A `RequestClass` is one of the classes of requests
that may be stored: Scrapy's own, and those that a setting lists.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, NamedTuple, cast

from msgspec import Meta, MsgspecError, Struct, ValidationError
from scrapy.http import FormRequest, JsonRequest, Request, XmlRpcRequest
from scrapy.utils.misc import load_object

from scrapy_redisq.errors import (
    EntryTooLarge,
    ForeignEntry,
    SettingError,
    Undecodable,
    Unserializable,
    reason,
)
from scrapy_redisq.serialization.meta import WANTED_KEY, check_safe, unsafe_key
from scrapy_redisq.serialization.value_classes import NONE, Stored, ValueClasses
from scrapy_redisq.serialization.values import (
    check_depth,
    decoder,
    encode,
    is_plain,
    pack,
    shown,
    type_name,
)

FORMAT = 2
"""First byte of each entry, in its lower half. A release reads its own format; later ones count up
to 15. The upper half counts how often the request was sent back because its slot was in trouble."""

MOST_BACK_OFFS = 15
"""As far as an entry counts."""

MAX_PRIORITY = 2**53
"""Priorities are scores of a Redis sorted set, which are exact up to here."""

_PREFIX = bytes([FORMAT])

CallbackName = str | bool | list[Any]
"""A stored callback: its name, False for NO_CALLBACK, or a list for a partial (name,
positional arguments, keyword arguments)."""

_LETTERS = {
    "kind": "k",
    "url": "u",
    "callback": "c",
    "errback": "e",
    "method": "v",
    "headers": "h",
    "body": "b",
    "cookies": "o",
    "meta": "m",
    "cb_kwargs": "a",
    "encoding": "n",
    "priority": "p",
    "dont_filter": "d",
    "flags": "f",
    "identity": "i",
}


class Entry(Struct, rename=_LETTERS, omit_defaults=True, forbid_unknown_fields=True):
    """A request as it is stored: its attributes, with names in the place of callbacks.

    ``kind``, if it is no plain `Request`: the code of its class, and the attributes that only this
    class has. ``identity``: of an unfiltered request, see
    `scrapy_redisq.serialization.identity`. ``meta`` and ``cb_kwargs`` are dictionaries, which
    msgspec cannot say of those whose keys are no text.
    """

    url: str
    method: str | None = None
    headers: dict[bytes, list[bytes]] | None = None
    body: bytes = b""
    cookies: dict[Any, Any] | list[dict[Any, Any]] | None = None
    encoding: str | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    flags: list[Any] | None = None
    callback: CallbackName | None = None
    errback: CallbackName | None = None
    meta: Any = None
    cb_kwargs: Any = None
    dont_filter: bool = False
    kind: tuple[str, dict[str, Any]] | None = None
    identity: Annotated[bytes, Meta(min_length=16, max_length=16)] | None = None


_NAMES = {letter: name for name, letter in _LETTERS.items()}

_PACKED = ("callback", "errback", "cookies", "meta", "cb_kwargs", "flags")
"""Fields whose values msgpack may not hold as they are."""


class _Identity(Struct, rename=_LETTERS):
    """All that is read of an entry of which nothing else is asked."""

    identity: bytes | None = None


_decode_stored = decoder(Stored, Entry)
_decode_identity = decoder(Stored, _Identity)


class RequestClass(NamedTuple):
    """A request class that may be stored, the code that entries hold for it ('': Request), and
    its constructor's attributes beside those of Request."""

    cls: type[Request]
    code: str
    extra: tuple[str, ...]

    @classmethod
    def of(cls, request_class: type[Request], code: str) -> RequestClass:
        extra = [name for name in request_class.attributes if name not in Request.attributes]
        return cls(request_class, code, tuple(extra))

    @classmethod
    def listed(cls, given: type | str) -> RequestClass:
        """One of ``REDISQ_REQUEST_CLASSES``. Raises `SettingError` for what is none."""
        try:
            loaded = load_object(given) if isinstance(given, str) else given
            if not issubclass(loaded, Request):
                raise TypeError("it is none")
        except Exception as error:
            takes = f"subclasses of scrapy.Request or their import paths ({reason(error)})"
            raise SettingError("REDISQ_REQUEST_CLASSES", given, takes) from error
        return cls.of(loaded, type_name(loaded))

    def extra_of(self, request: Request) -> dict[str, Any]:
        """Attributes of the request beside those of Request."""
        extra = {name: getattr(request, name) for name in self.extra}
        if self.cls is JsonRequest and extra["dumps_kwargs"] == {"sort_keys": True}:
            del extra["dumps_kwargs"]  # the constructor fills that in
        return extra


REQUEST = RequestClass.of(Request, "")

SCRAPY_CLASSES = (
    REQUEST,
    RequestClass.of(FormRequest, "F"),
    RequestClass.of(JsonRequest, "J"),
    RequestClass.of(XmlRpcRequest, "X"),
)

CODES = {kind.code: kind.cls.__name__ for kind in SCRAPY_CLASSES}


def encode_request(
    request: Request,
    kind: RequestClass,
    callback: CallbackName | None,
    errback: CallbackName | None,
    max_bytes: int,
    identity: bytes | None,
    classes: ValueClasses,
    meta_keys: Collection[str],
) -> bytes:
    """Return the entry of ``request``, with these names instead of its own callbacks.

    ``identity`` is that of an unfiltered request. Objects may be of ``classes``, and ``meta_keys``
    pass though they are not safe. msgspec encodes the usual request as it is. If the types of the
    values show that msgspec would refuse or change one, everything is copied and tagged. Raises
    `Unserializable` and `EntryTooLarge`.
    """
    meta, cb_kwargs, cookies = request.meta, request.cb_kwargs, cast(Any, request.cookies)
    headers, body, method = request.headers, request.body, request.method
    encoding, priority, flags = request.encoding, request.priority, request.flags
    if type(priority) is not int and isinstance(priority, int):
        priority = int(priority)  # a bool or a member of an enum orders like its number
    if body and len(body) > max_bytes:  # before a copy is made of it
        raise EntryTooLarge(f"body: {_too_large(len(body), max_bytes)}")
    entry = Entry(
        request.url,
        None if method == "GET" else method,
        headers or None,
        body,
        cookies or None,
        None if encoding == "utf-8" else encoding,
        priority,
        flags or None,
        callback,
        errback,
        meta or None,
        cb_kwargs or None,
        bool(request.dont_filter),
        (kind.code, kind.extra_of(request)) if kind.code else None,
        identity,
    )
    stored = None
    if (
        unsafe_key(meta, meta_keys) is None
        and is_plain(meta)
        and is_plain(cb_kwargs)
        and (not cookies or (type(cookies) is dict and is_plain(cookies)))
        and type(callback) is not list
        and type(errback) is not list
        and not flags
        and (entry.kind is None or not entry.kind[1])
    ):
        try:
            stored = _PREFIX + encode(entry)
        except (OverflowError, TypeError, UnicodeEncodeError):
            stored = None  # an integer over 64 bits, a URL of another class, a lone surrogate
    if stored is None:
        check_safe(meta, meta_keys)
        stored = _PREFIX + _encode_packed(entry, max_bytes, classes)
    if len(stored) > max_bytes:
        raise EntryTooLarge(_too_large(len(stored), max_bytes))
    if (
        method != "GET"
        or headers
        or body
        or type(cookies) is not dict
        or flags
        or type(priority) is not int
        or not -MAX_PRIORITY <= priority <= MAX_PRIORITY
    ):
        try:
            _check(_decode_stored(memoryview(stored)[1:]))
        except (ValueError, ValidationError) as error:
            raise Unserializable(_told(error)) from error
    return stored


def _encode_packed(entry: Entry, max_bytes: int, classes: ValueClasses = NONE) -> bytes:
    """The bytes of an entry that holds what msgpack has not; these values are replaced in it."""
    for name in _PACKED:
        if (value := getattr(entry, name)) is not None:
            setattr(entry, name, pack(value, name, max_bytes, classes))
    if entry.kind is not None:
        code, extra = entry.kind
        entry.kind = code, {name: pack(extra[name], name, max_bytes, classes) for name in extra}
    try:
        return encode(entry)
    except (TypeError, UnicodeEncodeError) as error:
        raise Unserializable(reason(error)) from error


def _too_large(size: int, max_bytes: int) -> str:
    return f"{size:,} bytes, more than REDISQ_MAX_ENTRY_BYTES = {max_bytes}"


def decode_entry(entry: bytes, decode: Callable[[memoryview], Entry] = _decode_stored) -> Entry:
    """Return what an entry holds, checked.

    Raises `ForeignEntry` with the reason for whatever bytes, `Undecodable` if there is an object
    that ``decode`` does not know, and nothing else.
    """
    if not isinstance(entry, bytes):
        raise ForeignEntry(f"not bytes but {type_name(type(entry))}")
    first = entry[0] if entry else 0
    if first & 15 != FORMAT:
        why = f"not an entry of scrapy-redisq, begins with {entry[:8]!r}" if entry else "no request"
        if 0 < first < 16:
            why = f"format {first}, this release reads {FORMAT}"
        raise ForeignEntry(why)
    try:
        found = decode(memoryview(entry)[1:])
        _check(found)
    except Undecodable:
        raise
    except Exception as error:
        # msgspec's, RecursionError, MemoryError, and whatever the restored types raise.
        raise ForeignEntry(f"damaged entry: {_told(error)}") from error
    return found


def _told(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return reason(error)
    return re.sub(r"\$\.(\w)", lambda letter: _NAMES.get(letter[1], letter[0]), str(error))


def _check(entry: Entry) -> None:
    """Raise ValueError for what the types of the fields do not say."""
    values = [entry.cookies, entry.meta, entry.cb_kwargs, entry.flags]
    for value in values[1:3]:
        if value is not None and type(value) is not dict:
            raise ValueError(f"meta or cb_kwargs is {shown(value)}")
    for value in (entry.callback, entry.errback):
        if type(value) is list:
            if [type(part) for part in value] != [str, list, dict]:
                raise ValueError("callback or errback is no partial")
            values += value[1:]
        elif value is True:
            raise ValueError("callback or errback is True")
    if entry.kind is not None:
        values += entry.kind[1].values()
    check_depth(values)
    if entry.encoding is not None:
        codecs.lookup(entry.encoding)  # looks at modules of Python's package `encodings` alone


def identity_in(entry: bytes) -> bytes | None:
    """The identity of an unfiltered request; None for another one, and for a damaged entry."""
    try:
        found: _Identity = _decode_identity(memoryview(entry)[1:])
        return found.identity
    except (MsgspecError, RecursionError):
        return None


def back_offs(entry: bytes) -> int:
    """How often the request was sent back because its slot was in trouble."""
    return entry[0] >> 4


def with_back_offs(entry: bytes, number: int) -> bytes:
    """The same request, as if it had been sent back so often."""
    return bytes([FORMAT | min(MOST_BACK_OFFS, number) << 4]) + entry[1:]


def _without_retries(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v for k, v in (meta or {}).items() if k not in ("retry_times", WANTED_KEY)}


def next_time(
    entry: bytes, identity: bytes, meta: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> bytes:
    """Return the entry of the same request when it comes again, as if it had never been retried or
    sent back. ``meta`` and ``headers`` go over its own; a header that is b"" is left out.

    Raises `Undecodable` for an entry that cannot be read.
    """
    found = decode_entry(entry)
    found.identity = identity
    found.meta = _without_retries(found.meta) | dict(meta)
    kept = {k: v for k, v in (found.headers or {}).items() if k not in headers}
    found.headers = (kept | {k: [v] for k, v in headers.items() if v}) or None
    return _PREFIX + _encode_packed(found, len(entry) + 1_000)


def forget_retries(entry: bytes) -> bytes | None:
    """Return the entry of the same request, as if it had never been retried or sent back.

    None if there is nothing to change, or if it cannot be read: then nobody has retried it.
    """
    try:
        found = decode_entry(entry)
        meta, found.meta = found.meta, _without_retries(found.meta)
        if len(found.meta) == len(meta or {}):
            return _PREFIX + entry[1:] if back_offs(entry) else None
        return _PREFIX + _encode_packed(found, len(entry))
    except (Undecodable, Unserializable, EntryTooLarge):
        return None  # the worker will say what is wrong with it
