"""Records into tables: each key once, whoever else writes it and however often.

SQLAlchemy executes each database's own statement, for many rows at once. Values are bound under
names of our own: those that it makes of the columns' can be the same for two ("a b" and "a_b").
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql, sqlite

from scrapy_redisq.errors import RowRefused, reason
from scrapy_redisq.pipelines.database.columns import MYSQL

_UNBINDABLE = (ArithmeticError, AttributeError, TypeError, ValueError)
"""Errors of drivers, beside their own, for values that they cannot bind."""

Values = dict[str, Any]


@dataclass(eq=False)
class Target:
    """A table and how rows get into it.

    ``key`` are the names of columns with a unique constraint; a row whose key is there already
    takes its place (``on_conflict`` "update"), unless its ``version`` column is older, or is left
    out ("ignore").
    """

    table: sqlalchemy.Table
    key: tuple[str, ...]
    on_conflict: str = "update"
    version: str | None = None
    also_unique: bool = False
    """Whether the table has other unique indexes."""


class Record(NamedTuple):
    """The row of an item: ``values`` has a value for each of the columns that it fills."""

    target: Target
    values: Values


def write(connection: sqlalchemy.Connection, records: Sequence[Record]) -> None:
    """Write the records in the transaction of ``connection``: those of a table in their order,
    parents before their children.

    A version that is NULL is older than all others. Raises `RowRefused` for values that cannot be
    bound, and the errors of SQLAlchemy and of the driver. Nothing is committed here.
    """
    targets: dict[Target, list[Values]] = {}
    for record in records:
        targets.setdefault(record.target, []).append(record.values)
    for target in _parents_first(tuple(targets)):
        for columns, rows in _groups(target, targets[target]):
            insert, binds = statement(target, columns, connection.dialect)
            bound = [{binds[name]: value for name, value in row.items()} for row in rows]
            try:
                connection.execute(insert, bound)
            except _UNBINDABLE as error:
                raise RowRefused(reason(error)) from error


def write_nothing(connection: sqlalchemy.Connection, record: Record) -> None:
    """Execute what `write` does for the record, but for no row."""
    target, columns = record.target, tuple(record.values)
    nothing = sqlalchemy.select(*(sqlalchemy.null() for _ in columns)).where(sqlalchemy.false())
    into = [target.table.columns[name] for name in columns]
    insert = _insert(target, connection.dialect).from_select(into, nothing)
    connection.execute(_UPSERTS[connection.dialect.name](insert, target, columns))


def _groups(target: Target, rows: list[Values]) -> Iterable[tuple[tuple[str, ...], list[Values]]]:
    """Rows that one statement writes: of the same columns, each key once.

    A row whose key has been there comes in a later statement. Rows are sorted by key, so that two
    writers lock them in the same order; not so if the table refers to itself, where a parent comes
    before its children.
    """

    def key(values: Values) -> tuple[Any, ...]:
        return tuple(values.get(name) for name in target.key)

    if target.table.fullname not in _parents(target.table):
        # Of several types, or NULL: the database will say what it thinks of them.
        with contextlib.suppress(TypeError):
            rows = sorted(rows, key=key)
    before: Counter[tuple[Any, ...]] = Counter()
    groups: dict[tuple[int, tuple[str, ...]], list[Values]] = {}
    for values in rows:
        try:
            number = before[key(values)]
        except TypeError:
            words = f"{', '.join(target.key)}: {key(values)!r} cannot be a key"
            raise RowRefused(words) from None
        before[key(values)] += 1
        groups.setdefault((number, tuple(values)), []).append(values)
    for number, columns in sorted(groups, key=lambda group: group[0]):
        yield columns, groups[number, columns]


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
    # Inline: nothing is to be returned, such as the keys that the database gives.
    insert = _insert(target, dialect).inline().values(values)
    return _UPSERTS[dialect.name](insert, target, columns), binds


def _insert(target: Target, dialect: sqlalchemy.Dialect) -> Any:
    module: Any = {"sqlite": sqlite, "postgresql": postgresql}.get(dialect.name, mysql)
    return module.insert(target.table)


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


def _bound(column: sqlalchemy.Column[Any]) -> Any:
    """The type of a column's values; None is NULL in JSON, too."""
    if not isinstance(column.type, sqlalchemy.JSON):
        return column.type
    type_ = column.type.adapt(type(column.type))
    type_.none_as_null = True
    return type_
