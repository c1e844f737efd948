"""The fields of item classes and the kinds of values that they are declared to hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from itemadapter import ItemAdapter

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.annotations import (
    ANY,
    KINDS,
    NoKind,
    field_types,
    kind_and_optional,
)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field: the kind of its values, and whether it may be None."""

    name: str
    kind: str = ANY
    optional: bool = True


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
            kind, optional = kind_and_optional(annotation)
        except NoKind as problem:
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
        return kind_and_optional(given)[0]
    except NoKind:
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
