"""Notices objects that several requests of one page hold: in Redis each of them gets a copy."""

from __future__ import annotations

from enum import Enum
from typing import Any

from scrapy import Item
from scrapy.http import Request

from scrapy_redisq.serialization.identity import UNMARKED_META

MOST = 1_000
"""Objects of one page that are remembered."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes, tuple, frozenset})
_NOT_OF_THE_SPIDER = UNMARKED_META | {"handle_httpstatus_list"}


class SharedValues:
    """What the requests of one page, or of ``start()``, hold that can be changed."""

    def __init__(self) -> None:
        # The objects themselves, so that no other comes to have the same id.
        self._known: dict[int, Any] = {}

    def find(self, request: Request) -> str | None:
        """Where the request holds an object that an earlier one held, such as ``meta['rows']``."""
        found = None
        for name, values in (("meta", request.meta), ("cb_kwargs", request.cb_kwargs)):
            for key, value in values.items():
                if type(value) in _PLAIN or key in _NOT_OF_THE_SPIDER or not _can_change(value):
                    continue
                if id(value) in self._known:
                    found = f"{name}[{key!r:.50}]"
                elif len(self._known) < MOST:
                    self._known[id(value)] = value
        return found


def _can_change(value: object) -> bool:
    if isinstance(value, (list, dict, set, bytearray, Item)):
        return True
    # Frozen dataclasses have a __setattr__ of their own.
    frozen = type(value).__setattr__ is not object.__setattr__
    return hasattr(value, "__dict__") and not (isinstance(value, (type, Enum)) or frozen)
