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

from scrapy_redisq.pipelines.database.columns import MYSQL, JsonText
from scrapy_redisq.pipelines.database.records import Record, Target
from scrapy_redisq.pipelines.database.upsert import upsert_of_rows, utc

__all__ = ["copy_under", "rolls_back", "takes_its_rows", "variations"]


def copy_under(connection: sqlalchemy.Connection, record: Record) -> bool:
    """Write the values of a row that is there under the key of ``record``; to be rolled back.

    -> whether there was one, and it was taken. Raises what `upsert.write` does.
    """
    return _copy(connection, record, under_its_key=True)


def takes_its_rows(connection: sqlalchemy.Connection, record: Record) -> bool:
    """Write a row that is there once more as it is, if there is one; to be rolled back.

    What its database does not take even so is not the fault of ``record``. Raises what
    `upsert.write` does.
    """
    _copy(connection, record, under_its_key=False)
    return True


def _copy(connection: sqlalchemy.Connection, record: Record, *, under_its_key: bool) -> bool:
    target = _overwriting(record.target)
    # Python's defaults are not computed here.
    defaults = [c.key for c in target.table.columns if c.default is not None]
    columns = tuple(dict.fromkeys([*target.key, *record.values, *defaults]))
    own = {
        name: sqlalchemy.literal(utc(record.values.get(name)), target.table.columns[name].type)
        for name in target.key
    }
    is_own = sqlalchemy.and_(*(target.table.columns[name] == key for name, key in own.items()))
    given = own if under_its_key else {}
    copied = [given.get(name, target.table.columns[name]) for name in columns]
    source = sqlalchemy.select(*copied).where(sqlalchemy.not_(is_own)).limit(1)
    if connection.execute(source).first() is None:
        return False
    connection.execute(upsert_of_rows(target, columns, source, connection.dialect))
    return True


def variations(records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records of a row without their values, then without one of them, each in turn.

    What may not be NULL is a zero instead, or an empty text, also in a key.
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


def rolls_back(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> bool:
    """Whether a rollback takes back what was written into a table: not so with MyISAM."""
    if connection.dialect.name not in MYSQL:
        return True
    query = (
        "SELECT engine FROM information_schema.tables"
        " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
    )
    names = {"schema": table.schema, "name": table.name}
    return connection.execute(sqlalchemy.text(query), names).scalar() == "InnoDB"


@functools.lru_cache(maxsize=64)
def _overwriting(target: Target) -> Target:
    """The same one, for rows that are written whatever is there."""
    return dataclasses.replace(target, on_conflict="update", version=None)


_EMPTY: dict[type, Any] = {
    **{str: "", int: 0, float: 0.0, bool: False, bytes: b"", Decimal: Decimal(0)},
    **{date: date(2000, 1, 1), datetime: datetime(2000, 1, 1), time: time()},
}


def _emptied(record: Record) -> Iterator[tuple[str, Any]]:
    """What each value of a record can be replaced by."""
    for name, value in record.values.items():
        column = record.target.table.columns[name]
        empty: Any = None
        if not column.nullable or name in record.target.key:
            empty = _EMPTY.get(type(value), value)
            if isinstance(column.type, JsonText):
                empty = "null"
            if isinstance(value, datetime):
                empty = empty.replace(tzinfo=value.tzinfo)
        if empty != value:
            yield name, empty


def _ties(target: Target) -> set[str]:
    """Columns that stay as they are where all others are emptied."""
    return {*target.key, *(column.key for column in target.table.columns if column.foreign_keys)}
