"""Requests of a spider as entries of the frontier, and back.

An entry never names anything that is imported or looked up outside the spider: request classes
come from a registry (Scrapy's own, and ``REDISQ_REQUEST_CLASSES``), callbacks are names of methods
of the spider's class, and values have the plain types of `serialization.values` or classes that
`serialization.value_classes` knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

from scrapy import Spider
from scrapy.http import Headers, Request
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.misc import load_object

from scrapy_redisq.errors import (
    SchemeRefused,
    SettingError,
    Undecodable,
    Unserializable,
    reason,
)
from scrapy_redisq.serialization.callbacks import OF_A_RESPONSE, callbacks_of, function_of
from scrapy_redisq.serialization.entries import (
    CallbackName,
    RequestClass,
    decode_fields,
    encode_request,
    shown,
)
from scrapy_redisq.serialization.fields import scheme_refused
from scrapy_redisq.serialization.meta import check_safe, is_safe_and_plain
from scrapy_redisq.serialization.request_classes import SCRAPY_CLASSES
from scrapy_redisq.serialization.value_classes import NONE, ValueClasses
from scrapy_redisq.serialization.values import decoder, is_plain, type_name

_CALL_IT_SO = "call that parameter so, or give the arguments by name or in cb_kwargs"
_MAKE_A_METHOD = "make it a method of the spider's class, with no name of Scrapy's own methods"
_NAME_IT = "push a mapping instead, with the method's name: {'url': …, 'callback': 'parse'}"


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
        self._spider = spider
        self._meta_keys = frozenset(meta_keys)
        self._max_bytes = max_bytes
        self._schemes = None if schemes is None else frozenset(schemes)
        self._by_class = {kind.cls: kind for kind in SCRAPY_CLASSES}
        self._by_code = {kind.code: kind for kind in SCRAPY_CLASSES}
        for given in request_classes:
            self._register(_request_class(given))
        self._value_classes = value_classes
        self._decode = decoder(value_classes.build)
        self._methods = {} if spider is None else callbacks_of(type(spider))
        # Where one function has several names, its own comes last and stays.
        by_own_name = sorted(
            self._methods.items(), key=lambda item: item[0] == function_of(item[1]).__name__
        )
        self._names = {(type(method), function_of(method)): name for name, method in by_own_name}

    def _register(self, cls: type[Request]) -> None:
        if cls in self._by_class:
            return
        kind = RequestClass.of(cls, type_name(cls))
        if kind.code in self._by_code:
            raise SettingError("REDISQ_REQUEST_CLASSES", kind.code, "each import path once")
        self._by_class[cls] = kind
        self._by_code[kind.code] = kind

    def dumps(self, request: Request, identity: bytes | None = None) -> bytes:
        """Return the entry of ``request``, which is known by ``identity``, or by its fingerprint.

        Raises `Unserializable` with what is at fault and where (``meta['lock']: _thread.lock``),
        `EntryTooLarge` and `SchemeRefused`. The request is left as it was, to be handled in another
        way.
        """
        self._check_scheme(request.url)
        kind = self._by_class.get(type(request))
        if kind is None:
            raise Unserializable(
                f"class {type_name(type(request))} is not listed in REDISQ_REQUEST_CLASSES",
                "list it there",
            )
        callback = request.callback
        errback = request.errback
        return encode_request(
            request,
            kind,
            None if callback is None else self._name(callback, "callback"),
            None if errback is None else self._name(errback, "errback"),
            self._max_bytes,
            identity,
            self._value_classes,
            self._meta_keys,
        )

    def is_simple(self, request: Request) -> bool:
        """Whether it is plain to see that the request can be stored."""
        callback, errback = request.callback, request.errback
        return (
            (callback is None or self._is_own_method(callback))
            and (errback is None or self._is_own_method(errback))
            and type(request) in self._by_class
            and is_safe_and_plain(request.meta, self._meta_keys)
            and is_plain(request.cb_kwargs)
        )

    def _is_own_method(self, callback: object) -> bool:
        return type(callback) is MethodType and callback.__self__ is self._spider

    def loads(self, entry: bytes) -> Request:
        """Return the request of an entry; raises `Undecodable` with the reason, nothing else.

        What the entry names is compared with what the spider's class and the settings offer:
        nothing is imported, and no attribute of the spider is read.
        """
        fields = decode_fields(entry, self._decode)
        try:
            self._check_scheme(fields["url"])
            check_safe(fields.get("meta", {}), self._meta_keys)
            return self._request(fields)
        except Undecodable:
            raise
        except SchemeRefused as error:
            raise Undecodable(str(error)) from None
        except Unserializable as error:
            raise Undecodable(f"{error}: {error.cure}") from None
        except Exception as error:
            # Constructors of request classes check their arguments, each in its own way.
            raise Undecodable(f"not a request: {reason(error)}") from error

    def _check_scheme(self, url: str) -> None:
        if self._schemes is None:
            return
        # Nothing else than a scheme that is listed may come first, whatever parsers strip.
        scheme = url.partition(":")[0]
        if scheme not in self._schemes and scheme.lower() not in self._schemes:
            raise SchemeRefused(scheme_refused(url, self._schemes))

    def _name(self, callback: Callable[..., Any], role: str) -> CallbackName:
        """What tells other workers which callback of the spider's class it is."""
        if callback is NO_CALLBACK:
            return False
        if type(callback) is partial:
            of = self._name(callback.func, role)
            if fault := self._fault(of, len(callback.args)):
                raise Unserializable(f"{role}: {fault}", _CALL_IT_SO)
            return [of, list(callback.args), dict(callback.keywords)]
        function = callback
        kind: type = staticmethod
        if type(callback) is MethodType:
            function = callback.__func__
            if callback.__self__ is self._spider:
                kind = FunctionType
            else:
                kind = classmethod if callback.__self__ is type(self._spider) else MethodType
        if type(function) is FunctionType:
            name = self._names.get((kind, function))
            if name is not None:
                return name
            what = function.__qualname__
        else:
            what = f"{type_name(type(function))} object"
        if self._spider is None:
            raise Unserializable(f"{role}: {what} has no spider here", _NAME_IT)
        raise Unserializable(
            f"{role}: {what} is no callback of {self._spider_name()}", _MAKE_A_METHOD
        )

    def _method(self, name: CallbackName, role: str) -> Callable[..., Any]:
        if isinstance(name, bool):
            return NO_CALLBACK
        if isinstance(name, list):
            name, arguments, keywords = name
            function = self._method(name, role)
            if fault := self._fault(name, len(arguments)):
                raise Undecodable(f"{role}: {fault}")
            return partial(function, *arguments, **keywords)
        method = self._methods.get(name)
        if method is None:
            raise Undecodable(f"{role} {shown(name)} is no callback of {self._spider_name()}")
        if type(method) is staticmethod:
            return function_of(method)
        owner = type(self._spider) if type(method) is classmethod else self._spider
        return MethodType(function_of(method), owner)

    def _fault(self, name: CallbackName, leading: int) -> str:
        """What is wrong with a partial of a method that has so many ``leading`` arguments, or "".

        With arguments before the response any method could be called in any way: with the path of a
        file, for example. So it must be a callback, by the name of the parameter behind them.
        """
        if not leading or not isinstance(name, str):
            return ""
        method = self._methods[name]
        at = leading + (type(method) is not staticmethod)
        if OF_A_RESPONSE.intersection(_parameters(function_of(method))[at : at + 1]):
            return ""
        return (
            f"{name!r} has no parameter 'response' or 'failure' behind the {leading} that the "
            f"partial gives it"
        )

    def _spider_name(self) -> str:
        if self._spider is None:
            return "a spider (there is none here)"
        return f"spider {self._spider.name!r} ({type(self._spider).__name__})"

    def _request(self, fields: dict[str, Any]) -> Request:
        fields.pop("identity", None)
        code = fields.pop("class", "")
        kind = self._by_code.get(code)
        if kind is None:
            raise Undecodable(f"class {shown(code)} is not listed in REDISQ_REQUEST_CLASSES")
        for role in ("callback", "errback"):
            if role in fields:
                fields[role] = self._method(fields[role], role)
        stored_headers = fields.pop("headers", None)
        if kind.cls is Request and not kind.extra and "extra" not in fields:
            request = Request(**fields)
        else:
            request = self._of_subclass(kind, fields, stored_headers)
        if stored_headers or kind.cls is not Request:
            # As they are, without what the constructors of subclasses add. They are in normal
            # form already, and normalising again may change them.
            headers = Headers(encoding=request.encoding)
            dict.update(headers, stored_headers or {})
            request.headers = headers
        method = fields.get("method", "GET")
        if request.method != method:
            request.method = method  # was set after construction, which makes it upper case
        url = fields["url"]
        if request.url != url:
            # w3lib's safe_url_string is not idempotent for UTF-16 and for blanks in a host. A
            # private name, the same in Scrapy 2.14.2 to 2.19.
            request._url = url
        return request

    def _of_subclass(
        self, kind: RequestClass, fields: dict[str, Any], headers: dict[bytes, Any] | None
    ) -> Request:
        """Call the constructor with every attribute: a subclass may have other defaults."""
        extra = fields.pop("extra", {})
        for name in extra:
            if name not in kind.extra:
                raise Undecodable(f"{type_name(kind.cls)} has no attribute {shown(name)}")
        arguments: dict[str, Any] = {
            "callback": None,
            "errback": None,
            "method": "GET",
            "headers": headers or {},
            "body": b"",
            "cookies": {},
            "meta": {},
            "cb_kwargs": {},
            "encoding": "utf-8",
            "priority": 0,
            "dont_filter": False,
            "flags": [],
            **fields,
            **extra,
        }
        return kind.cls(
            **{name: arguments[name] for name in kind.cls.attributes if name in arguments}
        )


def _request_class(given: type | str) -> type[Request]:
    takes = "subclasses of scrapy.Request or their import paths"
    try:
        loaded = load_object(given) if isinstance(given, str) else given
    except Exception as error:
        raise SettingError("REDISQ_REQUEST_CLASSES", given, f"{takes} ({reason(error)})") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Request)):
        raise SettingError("REDISQ_REQUEST_CLASSES", given, takes)
    return loaded


@cache
def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)
