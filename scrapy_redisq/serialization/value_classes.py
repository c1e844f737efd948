"""Classes of a project whose objects can be stored in requests: items, dataclasses, enums.

Entries name a class by its import path, which is looked up among those that the settings list
(``REDISQ_VALUE_CLASSES``) and those found where the spider is. Nothing is imported because Redis
says so, and no constructor runs: an object gets back what it held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable
from enum import Enum
from functools import cache
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_redisq.errors import SettingError, Undecodable, reason

if TYPE_CHECKING:
    from scrapy import Spider

SETTING = "REDISQ_VALUE_CLASSES"
TAKES = "classes or their import paths: of items, dataclasses, enums, or of objects with attributes"


class NotStorable(Exception):
    """Raised with the reason why an object cannot be taken apart."""


class Stored(NamedTuple):
    """An object as it is stored, where its class is not known."""

    name: str
    parts: Any

    def __hash__(self) -> int:
        """It may be in a set, or a key, as the object is: each is one of its own there."""
        return id(self)


def class_name(cls: type) -> str:
    """By which entries name a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


class ValueClass:
    """A class whose objects are stored by what they hold: their attributes, in slots or not."""

    def __init__(self, cls: type) -> None:
        object.__new__(cls)  # TypeError for what Python does not make in this way
        self.cls = cls
        self._slots = _slots(cls)

    def take_apart(self, value: Any) -> Any:
        """The object's parts, in plain containers; raises `NotStorable`."""
        parts = attributes_of(value)
        if "_attrs_cached_hash" in parts:
            raise NotStorable("its hash is kept, which is another one in each process")
        for name in parts.keys() - self._slots.keys():
            _check_special(name)
        return parts

    def build(self, parts: Any) -> Any:
        """The object again. Any exception if the parts are not such an object's."""
        value: Any = object.__new__(self.cls)
        if type(parts) is not dict or not all(type(name) is str for name in parts):
            raise ValueError("not what such an object holds")
        for name, part in parts.items():
            slot = self._slots.get(name)
            if slot is not None:
                slot.__set__(value, part)
            else:
                _check_special(name)
                value.__dict__[name] = part
        return value


class _EnumClass(ValueClass):
    """Members of an enum, by name."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._members: dict[str, Any] = dict(cls.__members__)  # type: ignore[attr-defined]

    def take_apart(self, value: Any) -> Any:
        name = value.name
        if self._members.get(name) is not value:
            raise NotStorable("a combination without a name")
        return name

    def build(self, parts: Any) -> Any:
        return self._members[parts]


class _NamedTupleClass(ValueClass):
    """Named tuples, by their values."""

    def __init__(self, cls: type) -> None:
        self.cls: Any = cls

    def take_apart(self, value: Any) -> Any:
        if getattr(value, "__dict__", None):
            raise NotStorable("it holds more than its fields")
        return list(value)

    def build(self, parts: Any) -> Any:
        if type(parts) is not list or len(parts) != len(self.cls._fields):
            raise ValueError("other fields")
        return tuple.__new__(self.cls, parts)


def _value_class(cls: type) -> ValueClass:
    """Raises TypeError for a class whose objects cannot be stored."""
    if issubclass(cls, Enum):
        return _EnumClass(cls)
    return _NamedTupleClass(cls) if _is_named_tuple(cls) else ValueClass(cls)


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


class ValueClasses:
    """The classes whose objects are stored: those ``listed``, and those ``found``.

    Raises `SettingError` for one that is listed and whose objects cannot be stored.
    """

    def __init__(self, listed: Iterable[type | str] = (), found: Iterable[type] = ()) -> None:
        self._by_class: dict[type, ValueClass] = {}
        self._by_name: dict[str, ValueClass] = {}
        for given in listed:
            # Not above: who stores values of plain types alone need not import Scrapy.
            from scrapy.utils.misc import load_object  # noqa: PLC0415

            try:
                self._register(load_object(given) if isinstance(given, str) else given)
            except Exception as error:
                raise SettingError(SETTING, given, f"{TAKES} ({error})") from error
        # A class that is held itself may be called by what finds it there. So no class is one
        # that only happens to be found.
        self._themselves = frozenset(self._by_class)
        for cls in found:
            with contextlib.suppress(TypeError):  # abstract, for example: it has no objects
                self._register(cls)

    def _register(self, cls: type) -> None:
        known, name = _value_class(cls), class_name(cls)
        if name not in self._by_name:
            self._by_class[cls] = self._by_name[name] = known

    def take_apart(self, value: Any) -> Stored | None:
        """The stored form of an object, None if its class is not known; for a class that is listed
        itself, as scrapy-poet's ``meta["inject"]`` has them, its name alone. Raises `NotStorable`.
        """
        if isinstance(value, type):
            return Stored(class_name(value), None) if value in self._themselves else None
        known = self._by_class.get(type(value))
        return None if known is None else Stored(class_name(known.cls), known.take_apart(value))

    def build(self, name: str, parts: Any) -> Any:
        """The object or class again; raises `Undecodable` if the class is not known, or is another
        one."""
        known = self._by_name.get(name) if isinstance(name, str) else None
        if known is None:
            raise Undecodable(f"class {name!r:.100} is not known: list it in {SETTING}")
        if parts is None:
            if known.cls not in self._themselves:
                raise Undecodable(f"class {name} itself is not listed: list it in {SETTING}")
            return known.cls
        try:
            return known.build(parts)
        except Exception as error:
            raise Undecodable(f"no object of {name}: {reason(error)}") from error


NONE = ValueClasses()
"""No classes at all."""


@cache
def _slots(cls: Any) -> dict[str, MemberDescriptorType]:
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if type(value) is MemberDescriptorType
    }


def attributes_of(value: object) -> dict[str, Any]:
    """The parts of an object, in its dictionary and in slots; no code of its class runs."""
    parts = dict(getattr(value, "__dict__", ()))
    kind: Any = type(value)
    for name, slot in _slots(kind).items():
        try:
            parts[name] = slot.__get__(value)
        except AttributeError:
            continue  # nothing was assigned
    return parts


def _check_special(name: str) -> None:
    """Raise `NotStorable` for the name of a special method: `copy` and `pickle` call the ones that
    they find among an object's attributes. Slots with such a name are the class's own choice."""
    if name.startswith("__") and name.endswith("__"):
        raise NotStorable(f"attribute {name!r:.50} would be a special method")


def is_data_class(kind: type) -> bool:
    """Whether objects of the class are there to hold values, so that it needs no listing."""
    from scrapy import Item  # noqa: PLC0415

    return (
        issubclass(kind, (Item, Enum))
        or dataclasses.is_dataclass(kind)
        or "__attrs_attrs__" in vars(kind)
        or _is_named_tuple(kind)
    )


# Where the classes of a project are


def find(spider: Spider) -> list[type]:
    """Items, dataclasses, attrs classes, enums and named tuples in the modules of the spider's
    class, and in the modules that these classes come from. Nothing is imported."""
    own = {
        base.__module__
        for base in type(spider).__mro__
        if base.__module__.partition(".")[0] not in ("scrapy", "builtins")
    }
    named = _data_classes(own)
    return list(dict.fromkeys([*named, *_data_classes({cls.__module__ for cls in named} - own)]))


def _data_classes(modules: Iterable[str]) -> list[type]:
    return [
        value
        for name in sorted(modules)
        for value in list(vars(sys.modules.get(name, sys)).values())
        if isinstance(value, type) and is_data_class(value)
    ]
