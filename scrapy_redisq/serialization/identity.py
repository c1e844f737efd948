"""Identities: an unfiltered request is the same one when it is asked for again.

Two requests with one fingerprint may be two (other cookies, other ``cb_kwargs``), and a page that
is fetched again asks for its requests again. A filtered request is known by its fingerprint. Each
other one has an identity of 16 bytes: of its page, of its marks, and of how many equal requests
came before it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import NoneType
from typing import Any
from uuid import UUID

from scrapy.http import Headers, Request

from scrapy_redisq.serialization.meta import DELAY_KEY, WANTED_KEY
from scrapy_redisq.serialization.value_classes import attributes_of, is_data_class
from scrapy_redisq.serialization.values import type_name

ID_KEY = "redisq_id"
"""In a request's meta: the spider's own identity, in the place of marks and order."""

NO_MARKS = b""

UNMARKED_META = frozenset(
    {
        # Of this package, of proxies (those of scrapy-rotating-proxies, too), what Scrapy itself
        # writes, and the numbers that Scrapinghub's entry point counts up in each process.
        DELAY_KEY,
        "redisq_every",
        "redisq_seen_ttl",
        WANTED_KEY,
        "proxy",
        "proxy_retry_times",
        "_auth_proxy",
        "_ban",
        "_rotating_proxy",
        "_scheme_proxy",
        "_dont_cache",
        "_hsid",
        "_hsparent",
        "cache_timestamp",
        "is_start_request",
        "depth",
        "download_latency",
        "download_slot",
        "download_timeout",
        "link_text",
        "max_retry_times",
        "redirect_reasons",
        "redirect_times",
        "redirect_ttl",
        "redirect_urls",
        "retry_times",
    }
)
"""Keys of meta that make no request another one."""

_UNMARKED_HEADERS = (b"User-Agent", b"Referer", b"Accept")
"""Drawn at random, or following from where a link was found. Accept-… are not marks either."""

_STABLE = (NoneType, int, float, Decimal, UUID, date, time, timedelta)
"""Types whose repr() is the same in every process."""

_MOST_PARTS = 100_000
"""Values in one request that are looked at."""

Repeats = Counter[int]
"""Counts how many alike came before; of each that is another one some 100 bytes are kept."""


def of_nowhere(fingerprint: bytes, request: Request) -> bytes:
    """The identity of an unfiltered request of neither a page nor ``start()``, such as one of a
    handler of ``spider_idle``, or one that is pushed. Each is its own, unless it has an `ID_KEY`.
    """
    if ID_KEY in request.meta:
        return _digest(b"nowhere", fingerprint, _canonical(request.meta[ID_KEY]))
    return secrets.token_bytes(16)


def marks(request: Request, of_page: Headers | None = None) -> bytes:
    """A digest of the marks by which people tell requests apart: callback, ``cb_kwargs``, cookies,
    headers and meta. Random values, Scrapy's own keys, and headers that its page has too do not
    count: a copy of the page's request has the cookies that a middleware has given to that.

    `NO_MARKS` if there are none.
    """
    name = _name_of(request.callback)
    headers = {
        key: values
        for key, values in dict.items(request.headers or {})
        if not key.startswith(_UNMARKED_HEADERS) and values != dict.get(of_page or {}, key)
    }
    meta = {key: value for key, value in request.meta.items() if key not in UNMARKED_META}
    if name in (None, "parse") and not (request.cb_kwargs or request.cookies or headers or meta):
        return NO_MARKS
    parts: list[bytes] = []
    # What was looked at until then says enough, or it cannot be stored at all.
    with contextlib.suppress(RecursionError, _TooManyError):
        for value in (name, request.cb_kwargs, request.cookies, headers, meta):
            _add_canonical(value, parts)
    return blake2b(b"".join(parts), digest_size=16).digest()


def _name_of(callback: Callable[..., Any] | None) -> Any:
    if callback is None:
        return None
    if isinstance(callback, partial):
        return [_name_of(callback.func), callback.args, callback.keywords]
    return getattr(callback, "__name__", type_name(type(callback)))


class _TooManyError(Exception):
    """More than `_MOST_PARTS`."""


def _add_canonical(value: Any, parts: list[bytes]) -> None:
    """Append bytes that are the same for equal values, in whatever order dicts and sets are."""
    if len(parts) > _MOST_PARTS:
        raise _TooManyError
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        parts.append(b"s%d:" % len(text) + text)
    elif isinstance(value, (bytes, bytearray)):
        parts.append(b"b%d:" % len(value) + bytes(value))
    elif isinstance(value, Mapping):
        pairs = sorted(_canonical(item) for item in value.items())
        parts.append(b"d%d:" % len(pairs))
        parts.extend(pairs)
    elif isinstance(value, (set, frozenset)):
        parts.append(b"e%d:" % len(value))
        parts.extend(sorted(map(_canonical, value)))
    elif isinstance(value, (list, tuple)):
        parts.append(b"l%d:" % len(value))
        for item in value:
            _add_canonical(item, parts)
    elif isinstance(value, _STABLE):
        parts.append(b"v" + repr(value).encode("utf-8", "backslashreplace") + b";")
    else:
        # repr() of other values may hold the address, and what they hold may be drawn at random.
        parts.append(b"t" + type_name(type(value)).encode() + b";")
        if isinstance(value, type):
            _add_canonical(type_name(value), parts)
        elif isinstance(value, Enum):
            _add_canonical(value.name, parts)
        elif is_data_class(type(value)):
            _add_canonical(attributes_of(value), parts)


def _canonical(value: Any) -> bytes:
    parts: list[bytes] = []
    _add_canonical(value, parts)
    return b"".join(parts)


def of_start(fingerprint: bytes, request: Request, repeats: Repeats, *, own: bytes = b"") -> bytes:
    """The identity of an unfiltered start request: the fingerprint itself for the first one
    without marks. ``own``: of a worker whose start requests are its own."""
    marked, number = _marks_and_number(fingerprint, request, repeats)
    if not (marked or number or own):
        return fingerprint
    return _digest(b"start", own, fingerprint, marked, b"%d" % number)


def of_child(
    page: bytes,
    fingerprint: bytes,
    request: Request,
    repeats: Repeats,
    *,
    headers: Headers | None = None,
    retries: int = 0,
) -> bytes:
    """The identity of an unfiltered request of the page whose identity is ``page``, and which was
    asked for with ``headers``.

    ``retries`` of the page, as its callback wanted: what it asks for is new each time. Those of
    middlewares do not count, or a page that is fetched again and fails once would ask anew.
    """
    marked, number = _marks_and_number(fingerprint, request, repeats, headers)
    return _digest(b"child", page, b"%d" % retries, fingerprint, marked, b"%d" % number)


def of_next_time(before: bytes) -> bytes:
    """The identity of a request that comes again, by that of the time before: what its page asks
    for is new each time."""
    return _digest(b"again", before)


def of_recurring(fingerprint: bytes) -> bytes:
    """The identity by which a filtered request that comes again is known for the whole run,
    however soon its fingerprint is forgotten."""
    return _digest(b"every", fingerprint)


def of_refused(request: Request) -> bytes:
    """The identity of a request that cannot be kept, for its dead letter."""
    url = request.url.encode("utf-8", "surrogatepass")
    method = str(request.method).encode("utf-8", "surrogatepass")
    marked = NO_MARKS
    with contextlib.suppress(Exception):  # the exception may be why it was refused
        marked = marks(request)
    return _digest(b"refused", url, method, request.body or b"", marked)


def _marks_and_number(
    fingerprint: bytes, request: Request, repeats: Repeats, of_page: Headers | None = None
) -> tuple[bytes, int]:
    if ID_KEY in request.meta:
        return _digest(b"id", _canonical(request.meta[ID_KEY])), 0
    marked = marks(request, of_page)
    alike = int.from_bytes(blake2b(fingerprint + marked, digest_size=8).digest(), "little")
    repeats[alike] += 1
    return marked, repeats[alike] - 1


def _digest(*parts: bytes) -> bytes:
    lengths = b",".join(b"%d" % len(part) for part in parts)
    return blake2b(b"".join((lengths, *parts)), digest_size=16).digest()
