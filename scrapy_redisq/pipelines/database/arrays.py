"""Many rows into PostgreSQL by one statement: an array for each column.

It takes the server a third of the time of a statement a row (16 µs, not 50), as prepared statements
and COPY into a temporary table do. Both are state of the session, which a pooler hands to other
clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy
from sqlalchemy.dialects.postgresql import ARRAY

from scrapy_redisq.pipelines.database.columns import GENERAL, column_kind, made_of

__all__ = ["rows_of_arrays", "take"]


def rows_of_arrays(
    columns: Sequence[sqlalchemy.Column[Any]], dialect: sqlalchemy.Dialect
) -> sqlalchemy.Select[Any] | None:
    """A SELECT of the rows whose values come in arrays, one for each column.

    None: there is a column of a type that an array might not hold as it is.
    """
    elements = [_element(column.type, dialect) for column in columns]
    if None in elements:
        return None
    arrays = []
    for element in elements:
        value: Any = sqlalchemy.bindparam(None, type_=sqlalchemy.types.NullType())
        arrays.append(sqlalchemy.cast(value, ARRAY(element)))
    names: Any = (sqlalchemy.column(f"c{number}") for number in range(len(arrays)))
    rows = sqlalchemy.func.unnest(*arrays).table_valued(*names).render_derived()
    return sqlalchemy.select(*rows.c)


def _element(type_: Any, dialect: sqlalchemy.Dialect) -> Any:
    """The type of the array's values: without the column's length and digits, as a cast would cut
    off what is too long, where the column refuses it."""
    implementation = made_of(type_, dialect)
    kind = column_kind(implementation)
    if kind == "enum" and implementation.native_enum:
        return implementation
    if kind == "json" or isinstance(implementation, sqlalchemy.Uuid):
        return implementation
    if kind in ("datetime", "time"):
        clock: Any = type(GENERAL[kind])
        return clock(timezone=implementation.timezone)
    return GENERAL.get("str" if kind == "enum" else kind)


def take(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether the driver makes arrays of the values of each column: they are of one type."""
    return all(len(set(map(type, values)) - {type(None)}) <= 1 for values in columns)
