"""The types of the fields of item classes, and the kinds of values that they stand for.

A kind is what a column can be made for: one of `KINDS`, by the name that ``REDISQ_TABLES`` uses
too, or `ANY` for a field without a type.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import types
import typing
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from itemadapter import ItemAdapter
from scrapy.item import Field as ScrapyField
from scrapy.item import Item

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


class NoKind(Exception):
    """A type that no column is made for."""


def field_types(item_class: type, names: list[str]) -> dict[str, Any]:
    """The type of each field, or the error that resolving it gave."""
    found: dict[str, Any]
    if hasattr(item_class, "model_fields"):
        return {name: item_class.model_fields[name].annotation for name in names}
    try:
        found = typing.get_type_hints(item_class)
    except Exception:  # one name that is not known makes it fail for all of them
        found = {name: _annotation(item_class, name) for name in names}
    if issubclass(item_class, Item):
        return {name: _scrapy_type(item_class, name, found.get(name)) for name in names}
    old_style = {
        attribute.name: attribute.type for attribute in getattr(item_class, "__attrs_attrs__", ())
    }
    return {name: found.get(name, old_style.get(name) or Any) for name in names}


def _annotation(item_class: type, name: str) -> Any:
    for base in item_class.__mro__:
        raw = inspect.get_annotations(base).get(name)
        if raw is not None:
            holder = type(name, (), {"__annotations__": {name: raw}, "__module__": base.__module__})
            try:
                return typing.get_type_hints(holder, localns=dict(vars(base)))[name]
            except Exception as error:
                return error
    return None


def _scrapy_type(item_class: type[Item], name: str, annotation: Any) -> Any:
    """``scrapy.Field(type=int)``, else ``name: int = scrapy.Field()``, else no type."""
    given = item_class.fields[name].get("type")
    if given is not None:
        return given
    return Any if annotation in (None, ScrapyField) else annotation


def bare(annotation: Any) -> Any:
    """The type behind a NewType, ``Annotated``, ``type`` alias or TypeVar; else the annotation."""
    while True:
        if hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif type(annotation).__name__ == "TypeAliasType":  # type Price = Decimal
            annotation = annotation.__value__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        else:
            return annotation


def kind_and_optional(annotation: Any) -> tuple[str, bool]:
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
        raise NoKind(repr(annotation))
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
    raise NoKind(cls.__qualname__)


def _mixture(arguments: tuple[Any, ...]) -> tuple[str, bool]:
    real = [kind_and_optional(part) for part in arguments if part not in (None, type(None))]
    optional = len(real) < len(arguments) or any(may_be_none for _, may_be_none in real)
    kinds = frozenset(kind for kind, _ in real)
    if len(kinds) == 1:
        return next(iter(kinds)), optional
    return _MIXTURES.get(kinds, ANY), optional
