"""Records into tables: each key once, whoever else writes it and however often.

SQLAlchemy executes each database's own statement, for many rows at once. Values are bound under
names of our own: those that it makes of the columns' can be the same for two ("a b" and "a_b").
"""

from __future__ import annotations

import datetime
import functools
import graphlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql, sqlite

from scrapy_redisq.errors import RowRefused, reason
from scrapy_redisq.pipelines.database.columns import MYSQL
from scrapy_redisq.pipelines.database.records import Record, Target

__all__ = ["write"]

_UNBINDABLE = (ArithmeticError, AttributeError, TypeError, ValueError)
"""What drivers raise, beside their own errors, for values that they cannot bind."""

Values = dict[str, Any]


def write(connection: sqlalchemy.Connection, records: Sequence[Record]) -> None:
    """Write the records in the transaction of ``connection``; those of the same key are merged.

    A row whose key is in the table takes the new values of the columns that the record has
    (``on_conflict`` "update"), unless the row's version is newer than the record's, or stays as it
    is ("ignore"). A version that is NULL is older than all others. Parents are written before their
    children.

    Raises `RowRefused` for values that cannot be bound, and the errors of SQLAlchemy and of the
    driver: see `DatabaseServer.transaction`. Nothing is committed here.
    """
    targets: dict[Target, list[Values]] = {}
    for record in records:
        targets.setdefault(record.target, []).append(record.values)
    for target in _parents_first(tuple(targets)):
        groups: dict[tuple[str, ...], list[Values]] = {}
        for values in merged(target, targets[target]):
            groups.setdefault(tuple(values), []).append(values)
        for columns, rows in groups.items():
            insert, binds = statement(target, columns, connection.dialect)
            bound = [{binds[name]: _utc(value) for name, value in row.items()} for row in rows]
            try:
                connection.execute(insert, bound)
            except _UNBINDABLE as error:
                raise RowRefused(reason(error)) from error


def merged(target: Target, rows: Iterable[Values]) -> list[Values]:
    """One row for each key, with its columns in the table's order, sorted by key.

    Sorted, so that two writers lock rows in the same order; not so if the table refers to itself,
    where a parent comes before its children. The last row of a key wins, or the highest version;
    fields that it does not have are taken from those before. The first wins with "ignore". Keys
    with a NULL are all different, as in SQL.
    """
    order = tuple(target.table.columns.keys())
    kept: dict[tuple[Any, ...], Values] = {}
    without_key = []
    for values in rows:
        row = values
        if tuple(row) != order:
            row = {name: row[name] for name in order if name in row}
        key = tuple(row.get(name) for name in target.key)
        if None in key:
            without_key.append(row)
            continue
        try:
            before = kept.get(key)
        except TypeError:
            raise RowRefused(f"{', '.join(target.key)}: {key!r} cannot be a key") from None
        if before is None:
            kept[key] = row
        elif target.on_conflict != "ignore":
            newer = target.version is None or not _newer(
                before.get(target.version), row.get(target.version)
            )
            both = {**before, **row} if newer else {**row, **before}
            kept[key] = {name: both[name] for name in order if name in both}
    keys: Iterable[tuple[Any, ...]] = kept
    if target.table.fullname not in _parents(target.table):
        try:
            keys = sorted(kept)
        except TypeError:  # of several types: the database will say what it thinks of them
            keys = kept
    return [kept[key] for key in keys] + without_key


def _newer(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is not None
    try:
        return bool(one > other)
    except TypeError:
        return False


@functools.lru_cache(maxsize=64)
def _parents_first(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """The targets, each after those of the tables that it refers to, if these do not refer back."""
    graph = {
        target: [
            one
            for one in targets
            if one.table is not target.table and one.table.fullname in _parents(target.table)
        ]
        for target in targets
    }
    try:
        return tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:
        return targets


def _parents(table: sqlalchemy.Table) -> set[str]:
    """The names of the tables that it refers to."""
    return {key.target_fullname.rpartition(".")[0] for key in table.foreign_keys}


@functools.lru_cache(maxsize=256)
def statement(
    target: Target, columns: tuple[str, ...], dialect: sqlalchemy.Dialect
) -> tuple[Any, dict[str, str]]:
    """How rows of these columns are written, in the database's own words; under which name it takes
    the value of each column."""
    prefix = "redisq_"
    while any(name.startswith(prefix) for name in tuple(target.table.columns.keys())):
        prefix += "_"
    binds = {name: f"{prefix}{number}" for number, name in enumerate(columns)}
    values = {
        name: sqlalchemy.bindparam(binds[name], type_=_bound(target.table.columns[name]))
        for name in columns
    }
    module: Any = {"sqlite": sqlite, "postgresql": postgresql}.get(dialect.name, mysql)
    # Inline: nothing is to be returned, such as the keys that the database gives.
    insert = module.insert(target.table).inline().values(values)
    return _UPSERTS[dialect.name](insert, target, columns), binds


def _updated(target: Target, columns: tuple[str, ...]) -> list[str]:
    """The columns that an update sets, the version last."""
    if target.on_conflict == "ignore":
        return []
    names = [name for name in columns if name not in target.key]
    return sorted(names, key=lambda name: name == target.version)


def _on_conflict(insert: Any, target: Target, columns: tuple[str, ...]) -> Any:
    key = [target.table.columns[name] for name in target.key]
    if not (names := _updated(target, columns)):
        return insert.on_conflict_do_nothing(index_elements=key)
    guard = None
    if target.version is not None:
        stored = target.table.columns[target.version]
        guard = stored.is_(None) | (stored <= insert.excluded[target.version])
    return insert.on_conflict_do_update(
        index_elements=key, set_={name: insert.excluded[name] for name in names}, where=guard
    )


def _on_duplicate_key(insert: Any, target: Target, columns: tuple[str, ...]) -> Any:
    # Not INSERT IGNORE, which makes warnings of all errors. A column set to itself is no change.
    stored, new = target.table.columns, insert.inserted
    first = target.key[0]
    updates: dict[str, Any] = {name: new[name] for name in _updated(target, columns)}
    if target.version is not None:
        newer = stored[target.version].is_(None) | (stored[target.version] <= new[target.version])
        # Assigned from left to right, each seeing those before: the version comes last.
        updates = {
            name: sqlalchemy.case((newer, value), else_=stored[name])
            for name, value in updates.items()
        }
    if target.also_unique:
        # The row that is there may be another one, with which this one shares a unique value.
        is_it = sqlalchemy.and_(*(stored[name].op("<=>")(new[name]) for name in target.key))
        itself = sqlalchemy.case((is_it, stored[first]), else_=_AN_ERROR)
        updates = {first: itself, **updates}
    return insert.on_duplicate_key_update(list((updates or {first: stored[first]}).items()))


_AN_ERROR: Any = sqlalchemy.literal_column("(SELECT NULL UNION ALL SELECT NULL)")
"""1242, "Subquery returns more than 1 row", and only where it is evaluated."""


_UPSERTS: dict[str, Callable[[Any, Target, tuple[str, ...]], Any]] = {
    **dict.fromkeys(("sqlite", "postgresql"), _on_conflict),
    **dict.fromkeys(MYSQL, _on_duplicate_key),
}
"""How each database says that a row takes the place of another."""


def _utc(value: Any) -> Any:
    """Points in time in UTC: some drivers drop the offset, and with it hours."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value


def _bound(column: sqlalchemy.Column[Any]) -> Any:
    """The type of a column's values; None is NULL in JSON, too."""
    if not isinstance(column.type, sqlalchemy.JSON):
        return column.type
    type_ = column.type.adapt(type(column.type))
    type_.none_as_null = True
    return type_
