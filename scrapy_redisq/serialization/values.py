"""Python values in msgpack, each restored with exactly the type that it had.

msgspec turns tuples and sets into arrays and dates into text; here they become msgpack extension
types, tagged before msgspec sees them. Objects of classes are taken apart and put together by
`serialization.value_classes`, if it knows the class; other objects are refused: what would be
restored is not what was given, and restoring it would mean importing a class that the data names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

# What LinkExtractor and XPath give as text: a str that also keeps its whole page alive.
from lxml.etree import _ElementUnicodeResult as SmartString  # type: ignore[import-untyped]
from msgspec.msgpack import Decoder, Encoder, Ext

from scrapy_redisq.errors import EntryTooLarge, Unserializable, reason
from scrapy_redisq.serialization.value_classes import (
    NONE,
    PLAIN,
    SETTING,
    AnyClasses,
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
_KEY_ATOMS = frozenset({NoneType, bool, float, bytes})
_STR = frozenset({str})
_MICROSECOND = timedelta(microseconds=1)
# Names without dots: such a name stays within the time zone folder and the tzdata package.
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")

encode = Encoder().encode
"""Bytes of a packed value; OverflowError and UnicodeEncodeError if it had to be packed."""


def is_plain(mapping: dict[Any, Any]) -> bool:
    """Tell whether `encode` takes ``mapping`` as it is: text keys, atoms and lists of atoms.

    Integers over 64 bits and lone surrogates pass here, and make `encode` raise.
    """
    return not mapping or (_STR.issuperset(map(type, mapping)) and are_plain(mapping.values()))


def are_plain(values: Iterable[Any]) -> bool:
    """The same of the values of a mapping with text keys."""
    if ATOMS.issuperset(map(type, values)):
        return True
    for value in values:
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
    except _UnknownClassError as error:
        raise _UnknownClass(value, name, error, classes) from None
    except _RefusedError as error:
        raise error.told(name) from None
    except RecursionError:
        raise Unserializable(f"{name}: nested too deeply") from None


_MOST_TRIED = 1_000
"""Values; an object that holds more of them, with all that these hold, is none to be stored."""


class _UnknownClass(Unserializable):
    """Raised for an object whose class is not known. Each link of a page may hold one, so what
    helps is looked for when it is to be told."""

    def __init__(
        self, value: Any, name: str, error: _UnknownClassError, classes: ValueClasses
    ) -> None:
        super().__init__(str(error.told(name)), error.cure)
        self._given = (value, name, error, classes)

    def explained(self) -> Unserializable:
        return _with_cure(*self._given)


def _with_cure(
    value: Any, name: str, error: _UnknownClassError, classes: ValueClasses
) -> Unserializable:
    """What is said of an object whose class is not known: all classes that are to be listed; or,
    where that would only lead to what cannot be stored, that."""
    tried = AnyClasses(classes)
    try:
        _Packer(_MOST_TRIED, tried).pack(value, MAX_DEPTH)
    except _RefusedError as worse:
        if worse.path[-len(error.path) :] != error.path:
            return worse.told(name)
        if isinstance(worse, _UnknownClassError) and len(worse.path) > len(error.path):
            error.reason += f", which holds {worse.reason}"
    except (EntryTooLarge, RecursionError):
        pass
    else:
        error.cure = f"list {', '.join(tried.more)} in {SETTING}"
    return error.told(name)


class _RefusedError(Exception):
    """A value that cannot be packed; ``path`` is filled on the way out, innermost first."""

    def __init__(self, reason: str, cure: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.cure = cure
        self.path: list[str] = []

    def told(self, name: str) -> Unserializable:
        return Unserializable(f"{name}{''.join(reversed(self.path))}: {self.reason}", self.cure)


class _UnknownClassError(_RefusedError):
    """An object of a class that is not known."""


class _Packer:
    def __init__(self, max_bytes: int, classes: ValueClasses) -> None:
        self.max_bytes = max_bytes
        self.classes = classes
        # Lists that share their parts can stand for far more than they take in memory.
        self.left = max_bytes

    def pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return _pack_text(value)
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 64 else Ext(INT, _int_bytes(value))
        if kind in ATOMS:
            return value
        leaf = _LEAVES.get(kind)
        if leaf is not None:
            return leaf(value)
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
            return self._pack_dict(value, depth - 1)
        items = self._pack_items(value, depth - 1)
        return items if kind is list else Ext(_CONTAINERS[kind], encode(items))

    def _pack_object(self, value: Any, depth: int) -> Ext:
        kind = type(value)
        try:
            # What was decoded without its class goes on as it is.
            stored = value if kind is Stored else self.classes.take_apart(value)
        except NotStorable as error:
            raise _RefusedError(f"{type_name(kind)}: {error}") from None
        except Exception as error:  # of the project's own code
            raise _RefusedError(f"{type_name(kind)}: {reason(error)}") from None
        if stored is None:
            raise _UnknownClassError(_what(value), PLAIN)
        self.left -= 1
        return Ext(OBJECT, encode([stored.name, self.pack(stored.parts, depth)]))

    def _pack_items(self, items: Iterable[Any], depth: int) -> list[Any]:
        packed = []
        for index, item in enumerate(items):
            try:
                packed.append(self.pack(item, depth))
            except _RefusedError as error:
                error.path.append(f"[{index}]")
                raise
        return packed

    def _pack_dict(self, mapping: dict[Any, Any], depth: int) -> Any:
        keys = []
        for key in mapping:
            try:
                keys.append(self.pack(key, depth))
            except _RefusedError as error:
                error.path.append(f" (key {_shown(key)})")
                raise
        values = []
        for key, value in mapping.items():
            try:
                values.append(self.pack(value, depth))
            except _RefusedError as error:
                error.path.append(f"[{_shown(key)}]")
                raise
        if all(type(key) is str or type(key) is int or type(key) in _KEY_ATOMS for key in keys):
            return dict(zip(keys, values, strict=True))
        pairs = [part for pair in zip(keys, values, strict=True) for part in pair]
        return Ext(DICT, encode(pairs))


def _what(value: Any) -> str:
    if isinstance(value, type):
        return f"class {type_name(value)}"
    return type_name(type(value))


def _shown(key: Any) -> str:
    """A key for a message: short, and without running any class's own ``__repr__``."""
    if type(key) is str:
        return repr(key if len(key) <= 50 else key[:50] + "…")
    return repr(key) if type(key) in _KEY_ATOMS or type(key) is int else type_name(type(key))


def _pack_text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _pack_zone(zone: tzinfo | None) -> Any:
    """A time zone as None, its name, or its offset in µs with the name that was given to it."""
    kind = type(zone)
    if kind is NoneType:
        return None
    if isinstance(zone, ZoneInfo) and kind is ZoneInfo and zone.key:
        return zone.key
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None) // _MICROSECOND
        name = zone.tzname(None)
        # A name equal to the generated one need not be kept.
        named = name != timezone(zone.utcoffset(None)).tzname(None)
        return [offset, _pack_text(name)] if named else [offset]
    raise _RefusedError(f"time zone of type {type_name(kind)}")


def _unpack_zone(packed: Any) -> tzinfo | None:
    if packed is None:
        return None
    if isinstance(packed, str):
        if not _ZONE_NAME.fullmatch(packed):
            raise ValueError(f"time zone {packed[:50]!r}")
        return ZoneInfo(packed)
    offset, *name = packed
    return timezone(timedelta(microseconds=offset), *name)


def _pack_datetime(value: datetime) -> Ext:
    parts = [value.year, value.month, value.day, value.hour, value.minute, value.second]
    zone = _pack_zone(value.tzinfo)
    return Ext(DATETIME, encode([*parts, value.microsecond, value.fold, zone]))


def _unpack_datetime(data: memoryview) -> datetime:
    year, month, day, hour, minute, second, microsecond, fold, zone = _items(data)
    tz = _unpack_zone(zone)
    return datetime(year, month, day, hour, minute, second, microsecond, tz, fold=fold)


def _pack_time(value: time) -> Ext:
    parts = [value.hour, value.minute, value.second, value.microsecond]
    return Ext(TIME, encode([*parts, value.fold, _pack_zone(value.tzinfo)]))


def _unpack_time(data: memoryview) -> time:
    hour, minute, second, microsecond, fold, zone = _items(data)
    return time(hour, minute, second, microsecond, _unpack_zone(zone), fold=fold)


def _dict_of(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _items(data: memoryview) -> list[Any]:
    return _checked_items(decode(data))


def _checked_items(items: Any) -> list[Any]:
    if type(items) is not list:
        raise TypeError(f"array expected, got {type_name(type(items))}")
    return items


_CONTAINERS: dict[type, int] = {list: 0, dict: DICT, tuple: TUPLE, set: SET, frozenset: FROZENSET}

_LEAVES: dict[type, Callable[[Any], Any]] = {
    bytearray: lambda value: Ext(BYTEARRAY, bytes(value)),
    datetime: _pack_datetime,
    date: lambda value: Ext(DATE, encode([value.year, value.month, value.day])),
    time: _pack_time,
    timedelta: lambda value: Ext(
        TIMEDELTA, encode([value.days, value.seconds, value.microseconds])
    ),
    Decimal: lambda value: Ext(DECIMAL, str(value).encode()),
    UUID: lambda value: Ext(UUID_, value.bytes),
    SmartString: lambda value: _pack_text(str(value)),
}

_MADE_OF_ITEMS: dict[int, Callable[[list[Any]], Any]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    DICT: _dict_of,
}

_UNPACK: dict[int, Callable[[memoryview], Any]] = {
    INT: lambda data: int.from_bytes(data, "big", signed=True),
    TEXT: lambda data: str(data, "utf-8", "surrogatepass"),
    BYTEARRAY: bytearray,
    DATETIME: _unpack_datetime,
    DATE: lambda data: date(*_items(data)),
    TIME: _unpack_time,
    TIMEDELTA: lambda data: timedelta(*_items(data)),
    DECIMAL: lambda data: Decimal(str(data, "ascii")),
    UUID_: lambda data: UUID(bytes=bytes(data)),
}


def decoder(build: Callable[[str, Any], Any]) -> Callable[[bytes | memoryview], Any]:
    """A function that returns the value of some bytes; ``build(name, parts)`` makes objects.

    Any exception may come out of foreign bytes; none imports anything, and memory stays in
    proportion to the bytes, whatever lengths they claim.
    """

    def unpack(code: int, data: memoryview) -> Any:
        if code in _MADE_OF_ITEMS:
            return _MADE_OF_ITEMS[code](_checked_items(decode(data)))
        if code == OBJECT:
            name, parts = _checked_items(decode(data))
            return build(name, parts)
        if code not in _UNPACK:
            raise ValueError(f"unknown extension type {code}")
        return _UNPACK[code](data)

    decode = Decoder(ext_hook=unpack).decode
    return decode


decode = decoder(Stored)
"""The value of some bytes, with each object as a `Stored`."""


def check_depth(value: Any) -> bool:
    """True, or ValueError for what `pack` would have refused as nested too deeply."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        if not level:
            return True
        inner: list[Any] = []
        for container in level:
            inner += [item for item in container if type(item) in _CONTAINERS]
            if type(container) is dict:
                inner += [item for item in container.values() if type(item) in _CONTAINERS]
        level = inner
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    return True
