"""Keys and defaults of a table as SQLAlchemy has it."""

from __future__ import annotations

from typing import Any

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import KEY_COLUMN, MYSQL
from scrapy_redisq.pipelines.database.options import Options, wrong

KEY_LENGTH = 32
"""Characters of a key that is made of the request and the item's position, hexadecimal."""


def has_default(column: sqlalchemy.Column[Any]) -> bool:
    """Whether the table fills the column if a row has no value for it, other than by NULL."""
    return (
        column.default is not None
        or column.server_default is not None  # which computed columns and identities have too
        or column is column.table.autoincrement_column
    )


def chosen_key(
    item_class: type,
    options: Options,
    table: sqlalchemy.Table,
    available: set[str],
    given_there: set[str],
    problems: list[str],
) -> tuple[str, ...]:
    """The names of the key's columns: those that are named, else the primary key, else ours.

    ``available`` are columns that items fill, ``given_there`` those of them that the database gives
    where an item has no value. A primary key of these, as most tables of SQLModel have, is none for
    a sink: then it is the only other unique index. ``problems`` gets what is wrong with the table.
    Raises `SettingError`.
    """
    if options.key:
        for name in options.key:
            if name not in available:
                takes = f"columns that fields fill: {', '.join(sorted(available))}"
                raise wrong(item_class, "key", name, takes)
        if frozenset(options.key) not in unique_columns(table):
            takes = f"columns with a primary key or unique constraint in table {table.fullname}"
            raise wrong(item_class, "key", options.key, takes)
        return options.key
    primary = tuple(column.name for column in table.primary_key.columns)
    is_given = bool(given_there.intersection(primary))
    unique = unique_columns(table)
    if frozenset(primary) in unique and available.issuperset(primary) and not is_given:
        return primary
    if KEY_COLUMN in available and frozenset([KEY_COLUMN]) in unique:
        return (KEY_COLUMN,)
    others = {names for names in unique if names <= available - given_there}
    if is_given and len(others) == 1:
        return tuple(column.name for column in table.columns if column.name in next(iter(others)))
    if is_given:
        problems.append(f"the database gives {', '.join(primary)}, which is no key for items")
    problems.append(
        f"no key: name one, or have a column {KEY_COLUMN!r} of {KEY_LENGTH} characters as the "
        "primary key"
    )
    return ()


def unique_columns(table: sqlalchemy.Table, *, whole: bool = True) -> set[frozenset[str]]:
    """The names of columns that together are unique; if ``whole``, in all rows to their ends."""
    unique: list[Any] = [
        constraint
        for constraint in table.constraints
        if isinstance(constraint, (sqlalchemy.PrimaryKeyConstraint, sqlalchemy.UniqueConstraint))
        and len(constraint.columns)
        and not (whole and constraint.deferrable)  # by which no row is upserted
    ]
    unique += [
        index
        for index in table.indexes
        if index.unique
        and not (whole and (len(index.expressions) != len(index.columns) or _is_partial(index)))
    ]
    return {frozenset(column.name for column in each.columns) for each in unique}


def _is_partial(index: sqlalchemy.Index) -> bool:
    """Whether the index leaves out some rows, or the ends of texts."""
    options = index.dialect_options
    return any(options[dialect].get("length") for dialect in MYSQL) or any(
        options[dialect].get("where") is not None for dialect in ("postgresql", "sqlite")
    )
