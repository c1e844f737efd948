"""The types of the fields of item classes, of whatever kind the classes are."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from scrapy.item import Field as ScrapyField
from scrapy.item import Item

__all__ = ["bare", "field_types"]


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
    """What a NewType, ``Annotated``, ``type`` alias or TypeVar stands for; else the annotation."""
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
