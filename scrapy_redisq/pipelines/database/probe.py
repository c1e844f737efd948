"""Whether a table would take rows at this moment, found without keeping any of them.

A row that fails in an unknown way is at fault if the table takes another one in its place: a copy
of one that is there; or where there is none, or that row can be written under its own key only, the
row itself without one of its values. The caller rolls all of it back.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import column_kind
from scrapy_redisq.pipelines.database.keys import has_default
from scrapy_redisq.pipelines.database.records import Record, Target
from scrapy_redisq.pipelines.database.upsert import upsert_of_rows, utc

__all__ = [
    "copy_under",
    "lacks_values",
    "takes_another",
    "takes_its_rows",
    "variations",
]


def lacks_values(record: Record) -> bool:
    """Whether its table, as it is described, needs more than it has: a child without a parent."""
    return any(
        record.values.get(column.key) is None and not column.nullable and not has_default(column)
        for column in record.target.table.columns
    )


def copy_under(connection: sqlalchemy.Connection, record: Record) -> bool:
    """Write the values of a row that is there under the key of ``record``; to be rolled back.

    -> whether there was one, and it was taken. Raises what `upsert.write` does.
    """
    return _copy(connection, record, _key_of(record))


def takes_another(connection: sqlalchemy.Connection, record: Record) -> bool:
    """Write a row that is there under a key of its kind that is new; to be rolled back.

    So a table is known that takes rows, but not with this key: it has no partition for it, or a
    trigger looks at it. -> whether there was one with a text or an integer in its key, and it was
    taken.
    """
    name = record.target.key[0]
    column = record.target.table.columns[name]
    one_more = _ONE_MORE.get(column_kind(column.type))
    if one_more is None:
        return False
    new = sqlalchemy.select(sqlalchemy.func.max(column) + one_more).scalar_subquery()
    return _copy(connection, record, {name: new})


def takes_its_rows(connection: sqlalchemy.Connection, record: Record) -> bool:
    """Write a row that is there once more as it is, if there is one; to be rolled back.

    What its database does not take even so is not the fault of ``record``. Raises what
    `upsert.write` does.
    """
    _copy(connection, record, {})
    return True


_ONE_MORE: dict[str, Any] = {"str": sqlalchemy.literal("~"), "int": 1}
"""What makes a new key of the greatest one that is there."""

_LOOKED_AT = 1_000
"""Rows among which the one is chosen that is written again."""


def _key_of(record: Record) -> dict[str, Any]:
    columns = record.target.table.columns
    return {
        name: sqlalchemy.literal(utc(record.values.get(name)), columns[name].type)
        for name in record.target.key
    }


def _copy(connection: sqlalchemy.Connection, record: Record, given: dict[str, Any]) -> bool:
    """Write a row that is there with these values in the place of its own."""
    target = _overwriting(record.target)
    row = _fullest(connection, record)
    if row is None:
        return False
    table = target.table
    # Python's defaults are not computed here.
    defaults = [c.key for c in table.columns if c.default is not None]
    columns = tuple(dict.fromkeys([*target.key, *record.values, *defaults]))
    there = table.alias("redisq_there").columns  # MySQL's update would mean either
    copied = [given.get(name, there[name]) for name in columns]
    source = sqlalchemy.select(*copied).where(
        *(there[name] == value for name, value in zip(target.key, row, strict=True))
    )
    connection.execute(upsert_of_rows(target, columns, source.limit(1), connection.dialect))
    return True


def _fullest(connection: sqlalchemy.Connection, record: Record) -> Sequence[Any] | None:
    """The key of another row, one with most of the values that ``record`` has: an outage may be of
    rows with one of them alone."""
    table = record.target.table
    has = [table.columns[name] for name, value in record.values.items() if value is not None]
    full = sum(
        (sqlalchemy.case((column.is_not(None), 1), else_=0) for column in has),
        start=sqlalchemy.literal(0),
    )
    keys = [
        table.columns[name].label(f"redisq_{number}")
        for number, name in enumerate(record.target.key)
    ]
    is_own = sqlalchemy.and_(*(table.columns[name] == key for name, key in _key_of(record).items()))
    some = (
        sqlalchemy.select(*keys, full.label("redisq_full"))
        .where(sqlalchemy.not_(is_own))
        .limit(_LOOKED_AT)
        .subquery()
    )
    *of_key, values = some.c
    return connection.execute(sqlalchemy.select(*of_key).order_by(values.desc()).limit(1)).first()


def variations(records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records of a row without their values, then without one of them, each in turn.

    What may not be NULL, or is it, is a zero instead, or an empty text, also in a key.
    """
    plain = [Record(_overwriting(record.target), record.values) for record in records]
    bare = []
    for record in plain:
        stays = _ties(record.target)
        emptied = {name: value for name, value in _emptied(record) if name not in stays}
        bare.append(Record(record.target, {**record.values, **emptied}))
    if bare != plain:  # the row itself would prove nothing
        yield bare
    for number, record in enumerate(plain):
        for name, value in _emptied(record):
            varied = Record(record.target, {**record.values, name: value})
            yield [*plain[:number], varied, *plain[number + 1 :]]


@functools.lru_cache(maxsize=64)
def _overwriting(target: Target) -> Target:
    """The same one, for rows that are written whatever is there."""
    return dataclasses.replace(target, on_conflict="update", version=None)


_EMPTY: dict[str, Any] = {
    **{"str": "", "int": 0, "float": 0.0, "bool": False, "bytes": b"", "decimal": Decimal(0)},
    **{"date": date(2000, 1, 1), "datetime": datetime(2000, 1, 1), "time": time()},
    "json": "null",
}


def _emptied(record: Record) -> Iterator[tuple[str, Any]]:
    """What each value of a record can be replaced by."""
    for name, value in record.values.items():
        column = record.target.table.columns[name]
        empty: Any = None
        if value is None or not column.nullable or name in record.target.key:
            empty = _EMPTY.get(column_kind(column.type), value)
            if isinstance(value, datetime) and isinstance(empty, datetime):
                empty = empty.replace(tzinfo=value.tzinfo)
        if empty != value:
            yield name, empty


def _ties(target: Target) -> set[str]:
    """Columns that stay as they are where all others are emptied."""
    return {*target.key, *(column.key for column in target.table.columns if column.foreign_keys)}
