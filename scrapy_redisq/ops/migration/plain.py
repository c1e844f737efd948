"""A program that reads the pickles of scrapy-redis' queue and builds plain values alone.

A pickle names classes and functions, and whoever loads it calls them. Here `PlainUnpickler` looks
up the names of plain types alone. Any other name stands for an empty class that does nothing, and
is told. So the URL of such a request is known all the same.

It is a process of its own: a pickle may take any time and memory. Input: pickles. Output: for each
the msgpack of ``[fields, refused, fault]``. Both have their length in front, in 4 bytes. ``fields``
are all of the request's, or url, method and body alone if classes were ``refused``, or None.
"""

from __future__ import annotations

import io
import pickle
import resource
import signal
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from scrapy_redisq.errors import reason
from scrapy_redisq.serialization.values import encode, pack, type_name

MEMORY = 1 << 30
"""Bytes of address space. The largest pickle that is read at all takes a part of it."""

SECONDS = 10
"""Of a processor, for one pickle. It cannot wait for anything."""

MOST_VALUES, MOST_BYTES = 10_000_000, 1 << 26
"""Values in one request, and bytes: lists that share their parts may stand for any number."""

MOST_NAMES, NAME_LENGTH = 20, 200
"""Names of classes that are told of one pickle."""

PLAIN: dict[tuple[str, str], type] = {
    **{(kind.__module__, kind.__name__): kind for kind in (set, frozenset, bytearray)},
    **{
        (kind.__module__, kind.__name__): kind
        for kind in (date, datetime, time, timedelta, timezone, Decimal, UUID)
    },
    # The text of links, by LinkExtractor: each request of a CrawlSpider has it in its meta.
    ("lxml.etree", "_ElementUnicodeResult"): str,
}
"""Types that a pickle may name. All others of `serialization.values` have codes of their own."""

KNOWN_BY = {"url": str, "method": str, "body": bytes}


class _Nothing:
    """Stands for an object of a class that is refused: it takes all that a pickle does to it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def _take(self, *args: Any) -> Any:
        return self

    __init__ = __call__ = __setstate__ = __setitem__ = append = extend = add = _take


class PlainUnpickler(pickle.Unpickler):
    """Builds plain values. ``refused``: the names that it did not look up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.refused: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        if found := PLAIN.get((module, name)):
            return found
        if len(self.refused) < MOST_NAMES:
            self.refused.add(f"{module[:NAME_LENGTH]}.{name[:NAME_LENGTH]}")
        return type("Nothing", (_Nothing,), {})  # a pickle may change a class, too


def read(data: bytes) -> bytes:
    """What becomes of one pickle, as this program writes it. Raises nothing but MemoryError."""
    unpickler = PlainUnpickler(data)
    try:
        found = unpickler.load()
        if type(found) is not dict:
            raise TypeError(f"it holds a {type_name(type(found))}")
        if unpickler.refused:
            found = {
                name: found[name]
                for name, kind in KNOWN_BY.items()
                if type(found.get(name)) is kind
            }
        told = encode([pack(found, "", MOST_VALUES), sorted(unpickler.refused), ""])
        if len(told) > MOST_BYTES:
            raise ValueError(f"{len(told):,} bytes")
        return told
    except MemoryError:
        return encode([None, [], f"it takes more than {MEMORY >> 20} MiB to read"])
    except Exception as error:  # whatever a pickle's bytes lead to
        fault = "" if unpickler.refused else f"no request can be read: {reason(error)}"
        return encode([None, sorted(unpickler.refused), fault])


def main() -> None:
    """Read pickles until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it, and ends the input
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while head := sys.stdin.buffer.read(4):
        data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # which ends the process
        told = read(data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(len(told).to_bytes(4, "big"))
        sys.stdout.buffer.write(told)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
