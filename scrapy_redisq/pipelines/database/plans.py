"""How the items of one class become rows of one table."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from itemadapter import ItemAdapter
from scrapy.item import Item

from scrapy_redisq.errors import RowRefused
from scrapy_redisq.pipelines.database.conversion import Convert
from scrapy_redisq.pipelines.database.fields import class_path
from scrapy_redisq.pipelines.database.upsert import Target
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

    def __post_init__(self) -> None:
        self.known = frozenset(filled.field for filled in self.filled)

    def values(self, item: Any, key: str) -> dict[str, Any]:
        """The row's values, by keys of columns; raises `RowRefused`."""
        adapter = ItemAdapter(item)
        values: dict[str, Any] = {} if self.key_column is None else {self.key_column: key}
        name, value = "", None
        try:
            for name, column, convert, required, default, nullable in self.filled:
                value = adapter.get(name)
                if value is not None:
                    values[column] = convert(value)
                elif required:
                    raise WrongValue(required)
                elif not default or (nullable and _is_set(item, name)):
                    values[column] = None
            left = self._leftovers(item, adapter)
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

    def _leftovers(self, item: Any, adapter: ItemAdapter) -> dict[Any, Any]:
        """The values of an item that no column takes."""
        if isinstance(item, dict):
            left: dict[Any, Any] = item
        else:
            left = {name: adapter.get(name) for name in self.loose}
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


def _is_set(item: Any, name: str) -> bool:
    """Whether a field that is None was given as that; where nobody knows it was not."""
    if isinstance(item, (dict, Item)):
        return name in item
    return name in getattr(item, "model_fields_set", ())
