"""The fields of item classes and the kinds of values that they are declared to hold.

A kind is what a column can be made for: one of `KINDS`, by the name that ``REDISQ_TABLES`` uses
too, or `ANY` for a field without a type.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from itemadapter import ItemAdapter

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.annotations import bare, field_types
from scrapy_redisq.pipelines.values import enum_values, is_url_class

KINDS = (
    "str",
    "int",
    "float",
    "decimal",
    "bool",
    "date",
    "datetime",
    "time",
    "bytes",
    "json",
)
ANY = "any"

# The first that fits: bool is an int, and datetime a date.
_KIND_OF_TYPE: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (Decimal, "decimal"),
    (datetime, "datetime"),
    (date, "date"),
    (time, "time"),
    (str, "str"),
    (bytes, "bytes"),
    (bytearray, "bytes"),
    (UUID, "str"),
    (PurePath, "str"),
)
_MIXTURES = {
    frozenset({"int", "float"}): "float",
    frozenset({"int", "decimal"}): "decimal",
    frozenset({"bool", "int"}): "int",
}
# Classes that only stand for a constraint: no value is an instance of one.
_PYDANTIC = {
    "AwareDatetime": "datetime",
    "NaiveDatetime": "datetime",
    "PastDatetime": "datetime",
    "FutureDatetime": "datetime",
    "PastDate": "date",
    "FutureDate": "date",
    "EmailStr": "str",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field: the kind of its values, and whether it may be None."""

    name: str
    kind: str = ANY
    optional: bool = True


class _NoColumn(Exception):
    """A type that no column is made for."""


def class_path(item_class: type) -> str:
    """The import path by which ``REDISQ_TABLES`` knows the class; ``dict`` for plain dicts."""
    if item_class is dict:
        return "dict"
    return f"{item_class.__module__}.{item_class.__qualname__}"


def item_fields(item_class: type, kinds: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a class, in their order; ``kinds`` names kinds or types that go before its own.

    A plain dict has the fields that ``kinds`` names. Raises `SinkMismatch` for a type that cannot
    be resolved or that no column is made for.
    """
    names = ItemAdapter.get_field_names_from_class(item_class)
    if names is None:
        return {name: _declared(name, kind) for name, kind in kinds.items()}
    found = field_types(item_class, [name for name in names if name not in kinds])
    fields = {}
    for name in names:
        if name in kinds:
            fields[name] = _declared(name, kinds[name])
            continue
        where = f"{class_path(item_class)}.{name}"
        instead = f"REDISQ_TABLES[{class_path(item_class)!r}]['columns'][{name!r}]"
        annotation = found[name]
        if isinstance(annotation, Exception):
            raise SinkMismatch(
                f"{where}: its type cannot be resolved ({annotation}); import what it names where "
                f"the class is defined, or give its type as {instead}"
            )
        try:
            kind, optional = _read(annotation)
        except _NoColumn as problem:
            raise SinkMismatch(
                f"{where}: no column is made for {problem}; give one of {', '.join(KINDS)} as "
                f"{instead}"
            ) from None
        if _may_be_missing(item_class, name):
            optional = True
        fields[name] = Field(name, kind, optional)
    return fields


def kind_of(given: Any) -> str:
    """The kind that an entry of "columns" means: its name or a type; ValueError if it is none."""
    if isinstance(given, str):
        if given not in KINDS:
            raise ValueError
        return given
    try:
        return _read(given)[0]
    except _NoColumn:
        raise ValueError from None


def _declared(name: str, kind: Any) -> Field:
    return Field(name, kind_of(kind))


def _may_be_missing(item_class: type, name: str) -> bool:
    """Whether the field can be unset, or is None by default whatever its annotation says."""
    if dataclasses.is_dataclass(item_class):
        return any(f.name == name and f.default is None for f in dataclasses.fields(item_class))
    for attribute in getattr(item_class, "__attrs_attrs__", ()):
        if attribute.name == name:
            return attribute.default is None
    if hasattr(item_class, "model_fields"):
        return item_class.model_fields[name].default is None
    return True


def _read(annotation: Any) -> tuple[str, bool]:
    """Kind, and whether None may stand there."""
    annotation = bare(annotation)
    origin = typing.get_origin(annotation)
    if annotation in (Any, object, None, type(None)):
        return ANY, True
    if isinstance(annotation, str) and annotation in KINDS:
        return annotation, True
    if origin in (typing.Union, types.UnionType):
        return _mixture(typing.get_args(annotation))
    if origin is typing.Literal:
        return _mixture(tuple(type(value) for value in typing.get_args(annotation)))
    cls = origin or annotation
    if not isinstance(cls, type):
        raise _NoColumn(repr(annotation))
    return _kind_of_class(cls), False


def _kind_of_class(cls: type) -> str:
    if issubclass(cls, enum.Enum):
        whole = any(isinstance(value, int) for value in enum_values(cls).values())
        return "int" if whole else "str"
    for known, kind in _KIND_OF_TYPE:
        if issubclass(cls, known):
            return kind
    if is_url_class(cls):
        return "str"
    if cls.__module__.startswith("pydantic.") and cls.__name__ in _PYDANTIC:
        return _PYDANTIC[cls.__name__]
    nested = ItemAdapter.is_item_class(cls) or typing.is_typeddict(cls)
    if nested or issubclass(cls, collections.abc.Iterable):
        return "json"
    raise _NoColumn(cls.__qualname__)


def _mixture(arguments: tuple[Any, ...]) -> tuple[str, bool]:
    real = [_read(part) for part in arguments if part not in (None, type(None))]
    optional = len(real) < len(arguments) or any(may_be_none for _, may_be_none in real)
    kinds = frozenset(kind for kind, _ in real)
    if len(kinds) == 1:
        return next(iter(kinds)), optional
    return _MIXTURES.get(kinds, ANY), optional
