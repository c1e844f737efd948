"""The columns of an item class in Parquet files: the same in each file, whatever the values are.

::

    annotation                          column
    str, UUID, path, Enum               string
    int, Enum of int                    int64
    float                               double
    bool                                bool
    Decimal                             decimal128(38, 9)
    bytes                               binary
    date                                date32
    datetime                            timestamp(us, UTC); without a time zone it is taken for UTC
    list, tuple, set of one type        list
    dataclass, attrs, pydantic, Item    struct
    anything else, or none              string: a text as it is, other values as JSON

Values are checked here rather than by pyarrow, which would cut off decimals and times of day.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
from itemadapter import ItemAdapter

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.annotations import NoKind, bare, field_types, kind_and_optional
from scrapy_redisq.pipelines.encoding import free_text, unwritable
from scrapy_redisq.pipelines.row_key import Row
from scrapy_redisq.pipelines.values import (
    aware_utc,
    binary,
    boolean,
    check_digits,
    day,
    exact_text,
    finite_decimal,
    integer,
    real,
)

__all__ = ["KEY", "WRITTEN", "Columns"]

logger = logging.getLogger(__name__)

KEY, WRITTEN = "redisq_key", "redisq_written"
"""Columns that each file has besides the fields of its items."""

DECIMAL_DIGITS, DECIMAL_PLACES = 38, 9

_ARRAYS = (list, tuple, set, frozenset, Sequence, AbstractSet)


@dataclass(frozen=True)
class ArrowType:
    """A column's type. ``convert`` makes of a value that is not None what pyarrow takes without
    loss; it raises `TypeError`, `ValueError` or `OverflowError`."""

    arrow: Any
    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return None if value is None else self.convert(value)


class Columns:
    """The fields of one item class as columns of Parquet."""

    def __init__(self, fields: Mapping[str, ArrowType]) -> None:
        self._fields = dict(fields)
        ours = [(KEY, pa.string()), (WRITTEN, pa.timestamp("us", "UTC"))]
        self._schema = pa.schema([*((name, kind.arrow) for name, kind in fields.items()), *ours])

    @classmethod
    def of(cls, item_class: type) -> Columns | None:
        """The columns of a class; None if its items may have any fields, as dicts.

        Raises `SinkMismatch` if a field has the name of a column that files have anyway.
        """
        fields = _fields(item_class, ())
        if fields is None:
            return None
        if taken := sorted({KEY, WRITTEN} & fields.keys()):
            raise SinkMismatch(
                f"{item_class.__qualname__}.{taken[0]}: ParquetPipeline adds a column of this "
                "name to each file; call the field something else"
            )
        return cls(fields)

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Columns:
        """Columns of text."""
        return cls(dict.fromkeys(names, TEXT))

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A row's values as pyarrow takes them; raises `RowRefused` that names the field."""
        converted = {}
        for name, value in values.items():
            kind = self._fields.get(name)
            if kind is None:
                raise unwritable(name, "the item's class has no such field")
            try:
                converted[name] = kind(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise unwritable(name, f"{kind.arrow} does not take {value!r:.100}: {error}") from (
                    error
                )
        return converted

    def file(self, rows: Sequence[Row]) -> Any:
        """The bytes of a file with these rows, as a buffer."""
        written = datetime.now(timezone.utc)
        values = [{**row, KEY: row.key, WRITTEN: written} for row in rows]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(values, self._schema), sink, compression="zstd")
        return sink.getvalue()


def convert_free(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of an item that may have any fields, for columns of text.

    Raises `RowRefused` that names the field.
    """
    converted = {}
    for name, value in values.items():
        try:
            converted[exact_text(name)] = TEXT(value)
        except (TypeError, ValueError) as error:
            raise unwritable(name, error) from error
        if name in (KEY, WRITTEN):
            raise unwritable(name, "ParquetPipeline adds a column of this name")
    return converted


def _decimal(value: Any) -> Decimal:
    number = finite_decimal(value)
    check_digits(number, DECIMAL_DIGITS - DECIMAL_PLACES, DECIMAL_PLACES)
    return number


TEXT = ArrowType(pa.string(), free_text)

_OF_KIND = {
    "str": ArrowType(pa.string(), exact_text),
    "int": ArrowType(pa.int64(), integer),
    "float": ArrowType(pa.float64(), real),
    "bool": ArrowType(pa.bool_(), boolean),
    "decimal": ArrowType(pa.decimal128(DECIMAL_DIGITS, DECIMAL_PLACES), _decimal),
    "bytes": ArrowType(pa.binary(), binary),
    "date": ArrowType(pa.date32(), day),
    "datetime": ArrowType(pa.timestamp("us", "UTC"), aware_utc),
}


def _fields(item_class: type, inside: tuple[type, ...]) -> dict[str, ArrowType] | None:
    """The columns of a class by field; None if it does not say which fields it has."""
    try:
        names = ItemAdapter.get_field_names_from_class(item_class)
    except TypeError:  # the adapter of a class of the project's own
        names = None
    if names is None:
        return None
    hints = field_types(item_class, list(names))
    for name, hint in hints.items():
        if isinstance(hint, Exception):  # an annotation is any expression
            logger.warning(
                "%s.%s: its annotation cannot be read, so the column is text: %s: %s",
                *(item_class.__qualname__, name, type(hint).__name__, hint),
            )
            hints[name] = Any
    inside = (*inside, item_class)
    return {name: _arrow_type(hints[name], inside) for name in names}


def _arrow_type(hint: Any, inside: tuple[type, ...]) -> ArrowType:
    """The column for an annotation. ``inside`` are the classes around it: a tree is text."""
    hint = bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _arrow_type(next(kind for kind in arguments if kind is not type(None)), inside)
    if origin in _ARRAYS and (origin is not tuple or arguments[1:] == (...,)):
        return _list(_arrow_type(arguments[0], inside))
    if isinstance(hint, type) and hint not in inside and ItemAdapter.is_item_class(hint):
        fields = _fields(hint, inside)
        return _struct(fields) if fields else TEXT
    try:
        return _OF_KIND.get(kind_and_optional(hint)[0], TEXT)
    except NoKind:
        return TEXT


def _list(element: ArrowType) -> ArrowType:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise TypeError(f"it is {type(value).__name__}")
        return [element(each) for each in value]

    return ArrowType(pa.list_(element.arrow), convert)


def _struct(fields: Mapping[str, ArrowType]) -> ArrowType:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"it is {type(value).__name__}")
        if more := sorted(map(str, value.keys() - fields.keys())):
            raise TypeError(f"it has a field {more[0]!r}")
        return {name: kind(value.get(name)) for name, kind in fields.items()}

    arrow = pa.struct([(name, kind.arrow) for name, kind in fields.items()])
    return ArrowType(arrow, convert)
