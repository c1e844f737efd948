"""Records into tables: each key once, whoever else writes it and however often.

Each database has its statement for that, which SQLAlchemy compiles once for each table and set of
columns and executes for all rows together. Only for PostgreSQL there is a faster way for many rows:
see `Staging`.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql, sqlite

from scrapy_redisq.errors import RowRefused
from scrapy_redisq.pipelines.records import Record, Target
from scrapy_redisq.pipelines.staging import Staging

__all__ = ["write"]

STAGED_ROWS = 100
"""From this many rows on, `Staging` is faster than one statement a row (measured)."""

_UNBINDABLE = (ArithmeticError, AttributeError, TypeError, ValueError)
"""What drivers raise, beside their own errors, for values that they cannot bind."""

Values = dict[str, Any]


def write(connection: sqlalchemy.Connection, records: Sequence[Record]) -> None:
    """Write the records in the transaction of ``connection``; those of the same key are merged.

    A row whose key is in the table takes the new values of the columns that the record has
    (``on_conflict`` "update"), unless the row's version is newer than the record's, or stays as it
    is ("ignore"). A version that is NULL is older than all others. Parents are written before their
    children.

    With MySQL and MariaDB the conflict may be about any unique index of the table, not only about
    the key: a row that shares the value of another one is updated where other databases refuse it.

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
            how = statement(target, columns, connection.dialect)
            try:
                how.execute(connection, rows)
            except _UNBINDABLE as error:
                raise RowRefused(f"{type(error).__name__}: {error}") from error


def merged(target: Target, rows: Iterable[Values]) -> list[Values]:
    """One row for each key, with its columns in the table's order, sorted by key.

    Sorted, so that two writers lock rows in the same order; not so if the table refers to itself,
    where a parent comes before its children. The last row of a key wins, or the highest version;
    fields that it does not have are taken from those before. The first wins with "ignore". Keys
    with a NULL are all different, as in SQL.
    """
    order = [column.key for column in target.table.columns]
    kept: dict[tuple[Any, ...], Values] = {}
    without_key = []
    for values in rows:
        row = {name: _utc(values[name]) for name in order if name in values}
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
    if target.table not in _parents(target.table):
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


def _parents(table: sqlalchemy.Table) -> set[sqlalchemy.Table]:
    parents = set()
    for key in table.foreign_keys:
        try:
            parents.add(key.column.table)
        except sqlalchemy.exc.NoReferenceError:  # a table that is not in the MetaData
            continue
    return parents


@functools.lru_cache(maxsize=64)
def _parents_first(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """The targets, each after those of the tables that it refers to, otherwise in their order."""
    result: dict[Target, None] = {}
    entered = set()

    def visit(target: Target) -> None:
        if target in entered:
            return
        entered.add(target)
        parents = _parents(target.table)
        for other in targets:
            if other.table in parents:
                visit(other)
        result[target] = None

    for target in targets:
        visit(target)
    return tuple(result)


@functools.lru_cache(maxsize=256)
def statement(
    target: Target, columns: tuple[str, ...], dialect: sqlalchemy.Dialect
) -> _Upsert | _Portable:
    """How rows of these columns are written, in the database's own words where they are known."""
    build = {"sqlite": _on_conflict, "postgresql": _on_conflict}
    build |= {"mysql": _on_duplicate_key, "mariadb": _on_duplicate_key}
    if dialect.name not in build or not _nameable(target, columns, dialect):
        return _Portable(target, columns)
    insert = build[dialect.name](_insert(target, dialect), target, columns)
    compiled = insert.compile(dialect=dialect, column_keys=list(columns))
    staging = None
    # Not with defaults that Python computes for each row.
    if dialect.driver == "psycopg" and not compiled.insert_prefetch:
        staging = Staging.of(
            [target.table.columns[name] for name in columns],
            dialect,
            lambda rows: _on_conflict(
                _insert(target, dialect).from_select(columns, rows, include_defaults=False),
                target,
                columns,
            ),
        )
    return _Upsert(insert, staging)


def _nameable(target: Target, columns: tuple[str, ...], dialect: sqlalchemy.Dialect) -> bool:
    """Whether an upsert can speak of these names."""
    if dialect.name not in {"mysql", "mariadb"}:
        # There it would mean the old row: an error in PostgreSQL, and no change in SQLite.
        return target.table.name.lower() != "excluded"
    # SQLAlchemy doubles the "%" of VALUES(`%`) once too often for MySQL.
    return not any("%" in target.table.columns[name].name for name in columns)


def _insert(target: Target, dialect: sqlalchemy.Dialect) -> Any:
    module: Any = {"sqlite": sqlite, "postgresql": postgresql}.get(dialect.name, mysql)
    # Inline: nothing is to be returned, such as the keys that the database gives.
    return module.insert(target.table).inline()


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
    table = target.table
    if not (names := _updated(target, columns)):
        return insert.on_duplicate_key_update({target.key[0]: table.columns[target.key[0]]})
    if target.version is None:
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in names})
    stored = table.columns[target.version]
    guard = stored.is_(None) | (stored <= insert.inserted[target.version])
    # Assigned from left to right, each seeing those before: the version comes last.
    return insert.on_duplicate_key_update(
        [
            (name, sqlalchemy.case((guard, insert.inserted[name]), else_=table.columns[name]))
            for name in names
        ]
    )


def _utc(value: Any) -> Any:
    """Points in time in UTC: some drivers drop the offset, and with it hours."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value


@dataclass(frozen=True)
class _Upsert:
    """A statement of the database's own for one set of columns."""

    insert: Any
    staging: Staging | None

    def execute(self, connection: sqlalchemy.Connection, rows: list[Values]) -> None:
        if self.staging is not None and len(rows) >= STAGED_ROWS:
            columns = self.staging.converted(rows)
            if self.staging.takes(connection, columns):
                self.staging.write(connection, columns)
                return
        connection.execute(self.insert, rows)


@dataclass(frozen=True)
class _Portable:
    """UPDATE, and INSERT if there was nothing to update: for databases without a known upsert."""

    target: Target
    columns: tuple[str, ...]

    def execute(self, connection: sqlalchemy.Connection, rows: list[Values]) -> None:
        for row in rows:
            if self._is_there(connection, row):
                self._update(connection, row)
                continue
            try:
                with connection.begin_nested():
                    connection.execute(sqlalchemy.insert(self.target.table), row)
            except sqlalchemy.exc.IntegrityError:
                # Someone else's row of the same key came in between, or the row is refused.
                if not self._is_there(connection, row):
                    raise
                self._update(connection, row)

    def _key(self, values: Values) -> list[sqlalchemy.ColumnElement[bool]]:
        return [self.target.table.columns[name] == values.get(name) for name in self.target.key]

    def _is_there(self, connection: sqlalchemy.Connection, values: Values) -> bool:
        query = sqlalchemy.select(sqlalchemy.literal(1)).select_from(self.target.table)
        return connection.execute(query.where(*self._key(values))).first() is not None

    def _update(self, connection: sqlalchemy.Connection, values: Values) -> None:
        target = self.target
        if not (names := _updated(target, self.columns)):
            return
        update = sqlalchemy.update(target.table).where(*self._key(values))
        if target.version is not None:
            stored = target.table.columns[target.version]
            update = update.where(stored.is_(None) | (stored <= values.get(target.version)))
        connection.execute(update.values({name: values[name] for name in names}))
