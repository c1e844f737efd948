"""How the items of one class become rows of one table."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from itemadapter import ItemAdapter
from itemadapter.adapter import AttrsAdapter, DataclassAdapter, PydanticAdapter
from scrapy.item import Item

from scrapy_redisq.errors import RowRefused
from scrapy_redisq.pipelines.database.conversion import Convert
from scrapy_redisq.pipelines.database.fields import class_path
from scrapy_redisq.pipelines.database.records import Target
from scrapy_redisq.pipelines.values import WrongValue

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


class Filled(NamedTuple):
    """A column that a field fills."""

    field: str
    column: str
    convert: Convert
    required: str
    """Why None cannot stand there; empty if it can."""
    default: bool = False
    """Whether the database has a value for it where the item has none."""
    nullable: bool = True
    """Whether NULL may stand there, so that a None that was given is not left to the database."""


@dataclass(eq=False)
class Plan:
    """A class of items, its table, and what fills each column."""

    item_class: type
    target: Target
    given: bool
    """Whether the table is the project's, which is used as it is."""
    filled: tuple[Filled, ...]
    loose: tuple[str, ...]
    """Fields that no column takes."""
    extra: Filled | None
    key_column: str | None
    """The column that takes the key of the request and position, if the table has one."""
    flat: bool = field(init=False)
    """Whether an item is one row with nothing left over."""

    def __post_init__(self) -> None:
        self.known = frozenset(filled.field for filled in self.filled)
        self._get, self._open = _access(self.item_class)
        self._is_set = _is_set(self.item_class)
        self._extended = hasattr(self.item_class, "model_fields")
        open_ended = issubclass(self.item_class, dict) or self._extended
        self.flat = not (self.loose or self.extra or open_ended)

    def values(self, item: Any, key: str) -> dict[str, Any]:
        """The row's values, by keys of columns; raises `RowRefused`."""
        get = self._get
        opened = self._open(item) if self._open else item
        # First, as in a table of our own: what is in the table's order need not be put in order.
        values: dict[str, Any] = {} if self.key_column is None else {self.key_column: key}
        name, value = "", None
        try:
            for name, column, convert, required, default, nullable in self.filled:
                value = get(opened, name, None)
                if value is not None:
                    values[column] = convert(value)
                elif required:
                    raise WrongValue(required)
                elif not default or (nullable and self._is_set(opened, name)):
                    values[column] = None
            if not self.flat:
                left = self._leftovers(item, opened)
                if self.extra is not None:
                    name, value = self.extra.field, left
                    values[self.extra.column] = self.extra.convert(left) if left else None
                elif left:
                    raise self._without_column(left)
        except WrongValue as problem:
            raise RowRefused(
                f"{class_path(self.item_class)}.{name} = {_short.repr(value)} "
                f"({type(value).__qualname__}): {problem}"
            ) from None
        return values

    def columns(self) -> list[str]:
        """The keys of all columns that rows of these items may have a value for."""
        columns = [filled.column for filled in (*self.filled, self.extra) if filled is not None]
        return columns if self.key_column is None else [*columns, self.key_column]

    def _leftovers(self, item: Any, opened: Any) -> dict[Any, Any]:
        """The values of an item that no column takes."""
        if isinstance(item, dict):
            left = {} if self.known.issuperset(item) else dict(item)
        else:
            left = {name: self._get(opened, name, None) for name in self.loose}
            if self._extended:
                left.update(getattr(item, "model_extra", None) or {})
        return {
            name: value
            for name, value in left.items()
            if value is not None and name not in self.known
        }

    def _without_column(self, left: dict[Any, Any]) -> RowRefused:
        names, path = ", ".join(repr(name) for name in left), class_path(self.item_class)
        return RowRefused(
            f"{path}: no column of table {self.target.table.fullname} takes {names}; add one, "
            f"or keep such fields as JSON with REDISQ_TABLES[{path!r}]['extra'] = 'extra'"
        )


def _is_set(item_class: type) -> Callable[[Any, str], bool]:
    """Whether a field that is None was given as that; where nobody knows it was not."""
    if issubclass(item_class, (dict, Item)):
        return lambda item, name: name in item
    if hasattr(item_class, "model_fields"):
        return lambda item, name: name in item.model_fields_set
    return lambda item, name: False


def _access(
    item_class: type,
) -> tuple[Callable[[Any, str, None], Any], Callable[[Any], Any] | None]:
    """How a field of such an item is read, and what to wrap the item in before."""
    if issubclass(item_class, dict):
        return dict.get, None
    if issubclass(item_class, Item):
        return item_class.get, None
    for adapter in ItemAdapter.ADAPTER_CLASSES:
        if adapter.is_item_class(item_class):
            if adapter in (AttrsAdapter, DataclassAdapter, PydanticAdapter):
                return getattr, None
            break
    return ItemAdapter.get, ItemAdapter
