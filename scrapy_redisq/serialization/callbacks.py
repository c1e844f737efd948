"""Which methods of a spider an entry may name as a callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, TypeAlias

from scrapy import Spider

OF_A_RESPONSE = {"response", "failure"}
"""What the parameter of a callback is called that Scrapy calls it with."""

Method: TypeAlias = "FunctionType | staticmethod[..., Any] | classmethod[Any, ..., Any]"
"""As it stands in the dictionary of a class."""

_NAMED_NOWHERE = {"closed", "start_requests"}
"""Methods that Scrapy calls, but that its newest `Spider` does not define."""


def function_of(method: Method) -> Callable[..., Any]:
    return method if isinstance(method, FunctionType) else method.__func__


def callbacks_of(cls: type) -> dict[str, Method]:
    """The methods of ``cls`` that may be callbacks, by name: plain functions (async and generators
    too), static and class methods.

    Whatever Scrapy's own classes define is none, nor is what a spider puts in its place (`start`,
    `closed`, `parse_with_rules`): Scrapy calls these, and with other arguments. Those that Scrapy
    itself has for callbacks are. Read from the classes' dictionaries, so that no property or other
    descriptor runs.
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
    """What one of Scrapy's classes defines, but for its callbacks."""
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
