"""The methods of a spider that an entry may name as callbacks, and their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, TypeAlias

from scrapy import Spider
from scrapy.http.request import NO_CALLBACK

from scrapy_redisq.errors import Undecodable, Unserializable
from scrapy_redisq.serialization.entry_format import CallbackName
from scrapy_redisq.serialization.values import shown, type_name

_CALL_IT_SO = "call that parameter so, or give the arguments by name or in cb_kwargs"
_MAKE_A_METHOD = "make it a method of the spider's class, with no name of Scrapy's own methods"
_NAME_IT = "push a mapping instead, with the method's name: {'url': …, 'callback': 'parse'}"

OF_A_RESPONSE = {"response", "failure"}
"""Names of the parameter of a callback that Scrapy fills."""

Method: TypeAlias = "FunctionType | staticmethod[..., Any] | classmethod[Any, ..., Any]"
"""As it stands in the dictionary of a class."""

_NAMED_NOWHERE = {"closed", "start_requests"}
"""Methods that Scrapy calls, but that its newest `Spider` does not define."""


def function_of(method: Method) -> Callable[..., Any]:
    return method if isinstance(method, FunctionType) else method.__func__


def callbacks_of(cls: type) -> dict[str, Method]:
    """The methods of ``cls`` that may be callbacks, by name: plain functions (async and generators
    too), static and class methods.

    Methods of Scrapy's own classes are none (`start`, `closed`, `parse_with_rules`), even if the
    spider overrides them: Scrapy calls these, and with other arguments. Scrapy's own callbacks are
    allowed. Read from the classes' dictionaries, so that no property or other descriptor runs.
    """
    attributes: dict[str, Any] = {}
    hooks = set(_NAMED_NOWHERE)
    for base in reversed(cls.__mro__):
        attributes.update(vars(base))
        if _is_scrapys(base):
            hooks |= _hooks(base)
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("__") and name not in hooks and _is_method(value)
    }


def is_hook(name: str) -> bool:
    """Whether no spider has a callback of this name."""
    return name.startswith("__") or name in _NAMED_NOWHERE or name in _hooks(Spider)


@cache
def _hooks(scrapys: type) -> frozenset[str]:
    """Names that one of Scrapy's classes defines, without its callbacks."""
    return frozenset(name for name, value in vars(scrapys).items() if not _is_callback(value))


def _is_method(value: Any) -> bool:
    if type(value) not in (FunctionType, staticmethod, classmethod):
        return False
    function = function_of(value)
    if type(function) is not FunctionType:
        return False
    # `parse_any = CrawlSpider.parse_with_rules` is another name for the same.
    return not _is_scrapys(function) or _is_callback(value)


def _is_callback(scrapys: Any) -> bool:
    """Whether a method of Scrapy's takes a response or failure and, by name, whatever else; so do
    `_parse`, `_callback` (CrawlSpider), `_parse_sitemap`, and `parse_rows` in all releases."""
    if type(scrapys) is not FunctionType:
        return False
    takes = list(inspect.signature(scrapys).parameters.values())[1:]  # without self
    return bool(OF_A_RESPONSE.intersection(one.name for one in takes[:1])) and all(
        one.kind is one.VAR_KEYWORD for one in takes[1:]
    )


def _is_scrapys(defined: type | Callable[..., Any]) -> bool:
    return (defined.__module__ or "").partition(".")[0] == "scrapy"


class Callbacks:
    """The callbacks of one spider by their names, or of none."""

    def __init__(self, spider: Spider | None) -> None:
        self._spider = spider
        self._methods = {} if spider is None else callbacks_of(type(spider))
        # Where one function has several names, its own comes last and stays.
        by_own_name = sorted(
            self._methods.items(), key=lambda item: item[0] == function_of(item[1]).__name__
        )
        self._names = {(type(method), function_of(method)): name for name, method in by_own_name}

    def name(self, callback: Callable[..., Any], role: str) -> CallbackName:
        """The name of a callback for other workers. Raises `Unserializable`."""
        if callback is NO_CALLBACK:
            return False
        if type(callback) is partial:
            of = self.name(callback.func, role)
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
        what = f"{type_name(type(function))} object"
        if type(function) is FunctionType:
            if (name := self._names.get((kind, function))) is not None:
                return name
            what = function.__qualname__
        if self._spider is None:
            raise Unserializable(f"{role}: {what} has no spider here", _NAME_IT)
        raise Unserializable(f"{role}: {what} is no callback of {self._whose()}", _MAKE_A_METHOD)

    def method(self, name: CallbackName, role: str) -> Callable[..., Any]:
        """The callback that is named so. Raises `Undecodable`."""
        if isinstance(name, bool):
            return NO_CALLBACK
        if isinstance(name, list):
            name, arguments, keywords = name
            function = self.method(name, role)
            if fault := self._fault(name, len(arguments)):
                raise Undecodable(f"{role}: {fault}")
            return partial(function, *arguments, **keywords)
        method = self._methods.get(name)
        if method is None:
            raise Undecodable(f"{role} {shown(name)} is no callback of {self._whose()}")
        if type(method) is staticmethod:
            return function_of(method)
        owner = type(self._spider) if type(method) is classmethod else self._spider
        return MethodType(function_of(method), owner)

    def _fault(self, name: CallbackName, leading: int) -> str:
        """The fault of a partial of a method that has so many ``leading`` arguments, or "".

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

    def _whose(self) -> str:
        if self._spider is None:
            return "a spider (there is none here)"
        return f"spider {self._spider.name!r} ({type(self._spider).__name__})"


@cache
def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)
