"""Records into tables: each key once, whoever else writes it and however often.

SQLAlchemy compiles each database's statement once for each table and set of columns. Values are
bound under names of our own: those that SQLAlchemy makes of the columns' can be the same for two
of them ("a b" and "a_b"). And they are handed to the driver without it, by their places, which
takes 30 % off the time of a row; only statements with defaults computed in Python, and those of
drivers that bind by names alone, are executed by SQLAlchemy.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql, sqlite

from scrapy_redisq.errors import RowRefused, reason
from scrapy_redisq.pipelines.database import arrays
from scrapy_redisq.pipelines.database.columns import MYSQL, Form
from scrapy_redisq.pipelines.database.conversion import held
from scrapy_redisq.pipelines.database.records import Record, Target, references

__all__ = ["upsert_of_rows", "utc", "write"]

_UNBINDABLE = (ArithmeticError, AttributeError, TypeError, ValueError)
"""What drivers raise, beside their own errors, for values that they cannot bind."""

Values = dict[str, Any]
Column = list[Any]
"""The values of one column."""


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
        for name in record.target.left:
            # From before anybody had looked at the table; away for good, as it is written again.
            if record.values.get(name, ...) is None:
                del record.values[name]
    for target in _parents_first(tuple(targets)):
        groups: dict[tuple[str, ...], list[Values]] = {}
        for values in merged(target, targets[target]):
            groups.setdefault(tuple(values), []).append(values)
        for columns, rows in groups.items():
            how = statement(target, columns, connection.dialect)
            try:
                how.execute(connection, rows)
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
    if target.table not in references(target.table).values():
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
    """The targets, each after those of the tables that it refers to, otherwise in their order."""
    result: dict[Target, None] = {}
    entered = set()

    def visit(target: Target) -> None:
        if target in entered:
            return
        entered.add(target)
        parents = references(target.table).values()
        for other in targets:
            if other.table in parents:
                visit(other)
        result[target] = None

    for target in targets:
        visit(target)
    return tuple(result)


@functools.lru_cache(maxsize=256)
def statement(target: Target, columns: tuple[str, ...], dialect: sqlalchemy.Dialect) -> _Upsert:
    """How rows of these columns are written, in the database's own words."""
    upsert = _UPSERTS[dialect.name]
    fills = {name: target.table.columns[name] for name in columns}
    prefix = "redisq_"
    while any(name.startswith(prefix) for name in tuple(target.table.columns.keys())):
        prefix += "_"
    binds = {name: f"{prefix}{number}" for number, name in enumerate(columns)}
    values = {
        name: sqlalchemy.bindparam(binds[name], type_=_bound(column))
        for name, column in fills.items()
    }
    insert = upsert(_insert(target, dialect).values(values), target, columns)
    converters = tuple(
        _converter(column, target.found.get(name), dialect) for name, column in fills.items()
    )
    compiled: Any = insert.compile(dialect=dialect)
    if compiled.positiontup != list(binds.values()):
        return _Upsert(insert, None, binds, converters, None)
    by_arrays = None
    if dialect.driver == "psycopg":
        rows = arrays.rows_of_arrays(list(fills.values()), dialect)
        if rows is not None:
            insert_all = upsert_of_rows(target, columns, rows, dialect)
            by_arrays = str(insert_all.compile(dialect=dialect))
    return _Upsert(insert, str(compiled), binds, converters, by_arrays)


def upsert_of_rows(
    target: Target, columns: tuple[str, ...], rows: Any, dialect: sqlalchemy.Dialect
) -> Any:
    """The statement for the rows that a SELECT gives."""
    insert = _insert(target, dialect).from_select(columns, rows, include_defaults=False)
    return _UPSERTS[dialect.name](insert, target, columns)


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


def utc(value: Any) -> Any:
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


def _converter(
    column: sqlalchemy.Column[Any], there: Form | None, dialect: sqlalchemy.Dialect
) -> Callable[[Any], Any] | None:
    """What has to be done to the values of a column before the driver gets them; None: nothing.

    ``there``: what the column can hold, if that is not what its type says.
    """
    bind = _bound(column).dialect_impl(dialect).bind_processor(dialect)
    steps: list[Callable[[Any], Any]] = [bind] if bind else []
    if isinstance(column.type, (sqlalchemy.DateTime, sqlalchemy.types.TypeDecorator)):
        steps.insert(0, utc)
    if there is not None:
        steps.append(functools.partial(held, there=there, dialect=dialect))
    if len(steps) > 1:
        return lambda value: functools.reduce(lambda made, step: step(made), steps, value)
    return steps[0] if steps else None


@dataclass(frozen=True)
class _Upsert:
    """A statement of the database's own for one set of columns."""

    insert: Any
    sql: str | None
    """None: SQLAlchemy has to execute ``insert``."""
    binds: dict[str, str]
    """The name of each column's value, in the order in which ``sql`` takes them."""
    converters: tuple[Callable[[Any], Any] | None, ...]
    by_arrays: str | None
    """The same for many rows, whose values are arrays."""

    def execute(self, connection: sqlalchemy.Connection, rows: list[Values]) -> None:
        columns = self._converted(rows)
        if self.sql is None:  # SQLAlchemy converts them, too
            connection.execute(
                self.insert,
                [{self.binds[name]: utc(value) for name, value in row.items()} for row in rows],
            )
            return
        if self.by_arrays is not None and len(rows) > 1 and arrays.take(columns):
            connection.exec_driver_sql(self.by_arrays, tuple(columns))
            return
        values = list(zip(*columns, strict=True))
        # Several at once are a pipeline for psycopg, whose troubles it also logs by itself.
        connection.exec_driver_sql(self.sql, values[0] if len(values) == 1 else values)

    def _converted(self, rows: list[Values]) -> list[Column]:
        """The values of each column, as the driver takes them."""
        columns = []
        for name, convert in zip(self.binds, self.converters, strict=True):
            values = [row[name] for row in rows]
            if convert is not None:
                try:
                    values = [convert(value) for value in values]
                except Exception as error:  # of the types of any project
                    raise RowRefused(f"{name}: {reason(error)}") from error
            columns.append(values)
        return columns
