"""Python values in msgpack, each restored with exactly the type that it had.

msgspec turns tuples and sets into arrays and dates into text; here they become msgpack extension
types, tagged before msgspec sees them. Objects of classes are taken apart and put together by
`serialization.value_classes`, if it knows the class; other objects are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any
from uuid import UUID

# What LinkExtractor and XPath give as text: a str that also keeps its whole page alive.
from lxml.etree import _ElementUnicodeResult as SmartString  # type: ignore[import-untyped]
from msgspec.msgpack import Decoder, Encoder, Ext

from scrapy_redisq.errors import EntryTooLarge, Unserializable, reason
from scrapy_redisq.serialization.value_classes import (
    NONE,
    SETTING,
    NotStorable,
    Stored,
    ValueClasses,
)

MAX_DEPTH = 100
"""Containers within containers; far below Python's recursion limit."""

# Extension codes, part of the format: never give one a new meaning.
(
    TUPLE,
    SET,
    FROZENSET,
    DICT,
    INT,
    TEXT,
    BYTEARRAY,
    DATETIME,
    DATE,
    TIME,
    TIMEDELTA,
    DECIMAL,
    UUID_,
    OBJECT,
) = range(1, 15)

# What msgpack holds by itself, given that the integers fit in 64 bits and the text in UTF-8.
ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
_STR = frozenset({str})

encode = Encoder().encode
"""Bytes of a packed value; OverflowError and UnicodeEncodeError if it had to be packed."""


def is_plain(mapping: dict[Any, Any]) -> bool:
    """Tell whether `encode` takes ``mapping`` as it is: text keys, atoms and lists of atoms.

    Integers over 64 bits and lone surrogates pass here, and make `encode` raise.
    """
    if not mapping:
        return True
    if not _STR.issuperset(map(type, mapping)):
        return False
    for value in mapping.values():
        kind = type(value)
        if kind not in ATOMS and not (kind is list and ATOMS.issuperset(map(type, value))):
            return False
    return True


def type_name(kind: type) -> str:
    """``int``, ``_thread.lock``: how messages name a type."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def pack(value: Any, name: str, max_bytes: int, classes: ValueClasses = NONE) -> Any:
    """Return ``value`` in the form that `encode` takes; containers are copied.

    ``classes``: whose objects are taken apart. Raises `Unserializable` with the place
    (``meta['lock']: _thread.lock``), ``name`` first, and what helps, and `EntryTooLarge` for a
    value of more than ``max_bytes`` parts, each of which takes a byte.
    """
    try:
        return _Packer(max_bytes, classes).pack(value, MAX_DEPTH)
    except _RefusedError as error:
        place = "".join(reversed(error.path))
        raise Unserializable(f"{name}{place}: {error}", error.cure) from None


class _RefusedError(Exception):
    """A value that cannot be packed; ``path`` is filled on the way out, innermost first."""

    def __init__(self, reason: str, cure: str = "") -> None:
        super().__init__(reason)
        self.cure = cure
        self.path: list[str] = []


class _Packer:
    def __init__(self, max_bytes: int, classes: ValueClasses) -> None:
        self.max_bytes = max_bytes
        self.classes = classes
        # Lists that share their parts can stand for far more than they take in memory.
        self.left = max_bytes

    def pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            if _is_utf8(value):
                return value
        elif kind is int:
            if -(1 << 63) <= value < 1 << 64:
                return value
        elif kind in ATOMS:
            return value
        elif kind is SmartString:
            return self.pack(str(value), depth)
        if kind in _LEAVES:
            code, to_bytes, _ = _LEAVES[kind]
            return Ext(code, to_bytes(value))
        if not depth:
            raise _RefusedError(f"nested more than {MAX_DEPTH} levels deep, or within itself")
        if kind not in _CONTAINERS:
            return self._pack_object(value, depth - 1)
        self.left -= len(value)
        if self.left < 0:
            raise EntryTooLarge(
                f"more than {self.max_bytes:,} values, and REDISQ_MAX_ENTRY_BYTES = "
                f"{self.max_bytes}"
            )
        if kind is dict:
            keys = self._pack_each(zip(value, value, strict=True), depth - 1, " (key {})")
            values = self._pack_each(value.items(), depth - 1)
            if ATOMS.issuperset(map(type, keys)):
                return dict(zip(keys, values, strict=True))
            items = list(chain.from_iterable(zip(keys, values, strict=True)))
        else:
            items = self._pack_each(enumerate(value), depth - 1)
        return items if kind is list else Ext(_CONTAINERS[kind], encode(items))

    def _pack_each(
        self, items: Iterable[tuple[Any, Any]], depth: int, place: str = "[{}]"
    ) -> list[Any]:
        """The packed values of pairs, whose first half says where a value is."""
        packed = []
        for at, item in items:
            try:
                packed.append(self.pack(item, depth))
            except _RefusedError as error:
                error.path.append(place.format(shown(at)))
                raise
        return packed

    def _pack_object(self, value: Any, depth: int) -> Ext:
        name = type_name(type(value))
        try:
            # What was decoded without its class goes on as it is.
            stored = value if type(value) is Stored else self.classes.take_apart(value)
        except Exception as error:  # of the project's own code
            why = str(error) if isinstance(error, NotStorable) else reason(error)
            raise _RefusedError(f"{name}: {why}") from None
        if stored is None:
            of_class = type_name(value) if isinstance(value, type) else name
            raise _RefusedError(
                f"class {of_class}" if isinstance(value, type) else name,
                f"give plain values in its place, or list {of_class} in {SETTING} if it holds "
                "nothing but such values",
            )
        self.left -= 1
        return Ext(OBJECT, encode([stored.name, self.pack(stored.parts, depth)]))


def shown(value: object) -> str:
    """``value`` for a message: short, and without running any class's own ``__repr__``."""
    kind = type(value)
    return f"{value!r:.80}" if kind in ATOMS else type_name(kind)


def _is_utf8(value: str) -> bool:
    """Whether msgpack has the text itself: it has no lone surrogates."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _iso(value: datetime | time) -> bytes:
    """A moment with its offset. The rules of a time zone are no text."""
    if type(value.tzinfo) not in (NoneType, timezone):
        zone = type_name(type(value.tzinfo))
        cure = "give it in UTC, by .astimezone(timezone.utc)"
        raise _RefusedError(f"time zone of type {zone}", cure)
    return value.isoformat().encode()


def _timedelta(data: memoryview) -> timedelta:
    return timedelta(*_checked_items(decode(data)))


_Leaf = tuple[int, Callable[[Any], bytes], Callable[[memoryview], Any]]

_CONTAINERS: dict[type, int] = {list: 0, dict: DICT, tuple: TUPLE, set: SET, frozenset: FROZENSET}

_LEAVES: dict[type, _Leaf] = {
    int: (
        INT,
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
        lambda data: int.from_bytes(data, "big", signed=True),
    ),
    str: (
        TEXT,
        lambda value: value.encode("utf-8", "surrogatepass"),
        lambda data: str(data, "utf-8", "surrogatepass"),
    ),
    bytearray: (BYTEARRAY, bytes, bytearray),
    Decimal: (
        DECIMAL,
        lambda value: str(value).encode(),
        lambda data: Decimal(str(data, "ascii")),
    ),
    UUID: (UUID_, lambda value: value.bytes, lambda data: UUID(bytes=bytes(data))),
    datetime: (DATETIME, _iso, lambda data: datetime.fromisoformat(str(data, "ascii"))),
    date: (
        DATE,
        lambda value: value.isoformat().encode(),
        lambda data: date.fromisoformat(str(data, "ascii")),
    ),
    time: (TIME, _iso, lambda data: time.fromisoformat(str(data, "ascii"))),
    timedelta: (
        TIMEDELTA,
        lambda value: encode([value.days, value.seconds, value.microseconds]),
        _timedelta,
    ),
}

_UNPACK = {code: of_bytes for code, _, of_bytes in _LEAVES.values()}

_MADE_OF_ITEMS: dict[int, Callable[[list[Any]], Any]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    DICT: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
}


def _checked_items(items: Any) -> list[Any]:
    if type(items) is not list:
        raise TypeError(f"array expected, got {type_name(type(items))}")
    return items


def decoder(build: Callable[[str, Any], Any], of: Any = Any) -> Callable[[bytes | memoryview], Any]:
    """A function that returns the value of some bytes, which is of the type ``of``.

    ``build(name, parts)`` makes objects. Any exception may come out of foreign bytes; none imports
    anything, and memory stays in proportion to the bytes, whatever lengths they claim.
    """

    def unpack(code: int, data: memoryview) -> Any:
        if code in _UNPACK:
            return _UNPACK[code](data)
        items = _checked_items(decode_any(data))
        if code == OBJECT:
            return build(*items)
        if code not in _MADE_OF_ITEMS:
            raise ValueError(f"unknown extension type {code}")
        return _MADE_OF_ITEMS[code](items)

    decode_any = Decoder(ext_hook=unpack).decode
    return decode_any if of is Any else Decoder(of, ext_hook=unpack).decode


decode = decoder(Stored)
"""The value of some bytes, with each object as a `Stored`."""


def check_depth(values: Iterable[Any]) -> None:
    """Raise ValueError if one of these is what `pack` would have refused as nested too deeply."""
    for _ in range(MAX_DEPTH + 1):
        containers = [value for value in values if type(value) in _CONTAINERS]
        if not containers:
            return
        values = [
            inner
            for value in containers
            for inner in (chain(value, value.values()) if type(value) is dict else value)
        ]
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
