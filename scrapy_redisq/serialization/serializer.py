"""Requests of a spider as entries of the frontier, and back.

No name in an entry is imported or looked up outside the spider. Request classes come from a
registry (Scrapy's own, and ``REDISQ_REQUEST_CLASSES``). Callbacks are methods of the spider's
class. Values have the plain types of `serialization.values`, or classes that
`serialization.value_classes` knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from scrapy import Spider
from scrapy.http import Headers, Request

from scrapy_redisq.errors import (
    SchemeRefused,
    SettingError,
    Undecodable,
    Unserializable,
    reason,
)
from scrapy_redisq.serialization.callbacks import Callbacks
from scrapy_redisq.serialization.entry_format import (
    REQUEST,
    SCRAPY_CLASSES,
    CallbackName,
    Entry,
    RequestClass,
    decode_entry,
    encode_request,
)
from scrapy_redisq.serialization.meta import check_safe
from scrapy_redisq.serialization.value_classes import NONE, ValueClasses
from scrapy_redisq.serialization.values import decoder, shown, type_name


class Serializer:
    """Turns the requests of one spider into entries and back.

    ``spider`` may be None, for requests without callbacks. ``max_bytes`` is
    ``REDISQ_MAX_ENTRY_BYTES``, ``schemes`` is ``REDISQ_SCHEMES`` (None: all that there are);
    ``request_classes`` is ``REDISQ_REQUEST_CLASSES``, classes or their import paths; objects of
    ``value_classes`` may be in requests, ``meta_keys`` (``REDISQ_META_KEYS``) in their meta though
    they are not safe. Raises `SettingError` for one that is no request class.
    """

    def __init__(
        self,
        spider: Spider | None,
        *,
        max_bytes: int,
        request_classes: Sequence[type | str] = (),
        schemes: Collection[str] | None = None,
        value_classes: ValueClasses = NONE,
        meta_keys: Collection[str] = (),
    ) -> None:
        self._meta_keys = frozenset(meta_keys)
        self._max_bytes = max_bytes
        self._schemes = None if schemes is None else frozenset(schemes)
        self._beginnings = tuple(f"{scheme}:" for scheme in schemes or ())
        self._by_class = {kind.cls: kind for kind in SCRAPY_CLASSES}
        self._by_code = {kind.code: kind for kind in SCRAPY_CLASSES}
        for given in request_classes:
            kind = RequestClass.listed(given)
            if self._by_code.setdefault(kind.code, kind).cls is not kind.cls:
                raise SettingError("REDISQ_REQUEST_CLASSES", kind.code, "each import path once")
            self._by_class.setdefault(kind.cls, kind)
        self._value_classes = value_classes
        self._decode = decoder(value_classes.build, Entry)
        self._callbacks = Callbacks(spider)

    def dumps(
        self,
        request: Request,
        identity: bytes | None = None,
        *,
        callback: str | None = None,
        errback: str | None = None,
    ) -> bytes:
        """Return the entry of ``request``, which is known by ``identity``, or by its fingerprint.

        ``callback`` and ``errback``: names for a request that has neither itself.

        Raises `Unserializable` with what is at fault and where (``meta['lock']: _thread.lock``),
        `EntryTooLarge` and `SchemeRefused`. The request is left as it was, to be handled in another
        way.
        """
        self.check_scheme(request.url)
        kind = self._by_class.get(type(request))
        if kind is None:
            raise Unserializable(
                f"class {type_name(type(request))} is not listed in REDISQ_REQUEST_CLASSES",
                "list it there",
            )
        named: CallbackName | None = callback
        if request.callback is not None:
            named = self._callbacks.name(request.callback, "callback")
        named_errback: CallbackName | None = errback
        if request.errback is not None:
            named_errback = self._callbacks.name(request.errback, "errback")
        return encode_request(
            request,
            kind,
            named,
            named_errback,
            self._max_bytes,
            identity,
            self._value_classes,
            self._meta_keys,
        )

    def loads(self, entry: bytes) -> Request:
        """Return the request of an entry; raises `Undecodable` with the reason, nothing else.

        Names in the entry are looked up in the spider's class and in the settings: nothing is
        imported, and no attribute of the spider is read.
        """
        stored = decode_entry(entry, self._decode)
        try:
            self.check_scheme(stored.url)
            check_safe(stored.meta or {}, self._meta_keys)
            return self._request(stored)
        except Undecodable:
            raise
        except SchemeRefused as error:
            raise Undecodable(str(error)) from None
        except Unserializable as error:
            raise Undecodable(f"{error}: {error.cure}") from None
        except Exception as error:
            # Constructors of request classes check their arguments, each in its own way.
            raise Undecodable(f"not a request: {reason(error)}") from error

    def check_scheme(self, url: str) -> None:
        """Raises `SchemeRefused` for a URL whose scheme is not listed."""
        # Nothing else than a scheme that is listed may come first, whatever parsers strip.
        if self._schemes is None or url.startswith(self._beginnings):
            return
        scheme = url.partition(":")[0]
        if scheme.lower() not in self._schemes:
            listed = ", ".join(sorted(self._schemes))
            raise SchemeRefused(
                f"the scheme {scheme[:40]!r} of the URL is not listed in REDISQ_SCHEMES ({listed})"
            )

    def _request(self, stored: Entry) -> Request:
        code, extra = stored.kind or ("", {})
        kind = self._by_code.get(code)
        if kind is None:
            raise Undecodable(f"class {shown(code)} is not listed in REDISQ_REQUEST_CLASSES")
        for name in extra:
            if name not in kind.extra:
                raise Undecodable(f"{type_name(kind.cls)} has no attribute {shown(name)}")
        callback = errback = None
        if stored.callback is not None:
            callback = self._callbacks.method(stored.callback, "callback")
        if stored.errback is not None:
            errback = self._callbacks.method(stored.errback, "errback")
        method = stored.method or "GET"
        # Every attribute: a subclass may have other defaults, and take no None.
        arguments: dict[str, Any] = {
            "url": stored.url,
            "callback": callback,
            "errback": errback,
            "method": method,
            "headers": {},
            "body": stored.body,
            "cookies": stored.cookies or {},
            "meta": stored.meta or {},
            "cb_kwargs": stored.cb_kwargs or {},
            "encoding": stored.encoding or "utf-8",
            "priority": stored.priority,
            "dont_filter": stored.dont_filter,
            "flags": stored.flags or [],
        }
        if kind is not REQUEST:
            arguments |= extra
            names = arguments.keys() & kind.cls.attributes
            arguments = {name: arguments[name] for name in names}
        request = kind.cls(**arguments)
        if stored.headers or kind is not REQUEST:
            # As they are, without what the constructors of subclasses add. They are in normal
            # form already, and normalising again may change them.
            request.headers = Headers(encoding=request.encoding)
            dict.update(request.headers, stored.headers or {})
        if request.method != method:
            request.method = method  # was set after construction, which makes it upper case
        if request.url != stored.url:
            # w3lib's safe_url_string is not idempotent for UTF-16 and for blanks in a host. A
            # private name, the same in Scrapy 2.14.2 to 2.19.
            request._url = stored.url
        return request
