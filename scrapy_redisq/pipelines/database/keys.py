"""Keys and defaults of a table, as it is described or as it is in the database, and what else
SQLAlchemy does not read of one."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import KEY_COLUMN, MYSQL
from scrapy_redisq.pipelines.database.options import Options, nearest, wrong

__all__ = [
    "chosen_key",
    "complete_domains",
    "fills_there",
    "has_default",
    "has_unique",
    "inexact",
    "is_generated",
    "obstacles",
]

KEY_LENGTH = 32
"""Characters of a key that is made of the request and the item's position, hexadecimal."""


def has_default(column: sqlalchemy.Column[Any]) -> bool:
    """Whether the table fills the column if a row has no value for it, other than by NULL."""
    return (
        column.default is not None
        or column.server_default is not None  # which computed columns and identities have too
        or column is column.table.autoincrement_column
    )


def fills_there(connection: sqlalchemy.Connection, column: sqlalchemy.Column[Any]) -> bool:
    """Whether a table in the database fills one of its columns, which `has_default` may not see."""
    if connection.dialect.name not in MYSQL:
        return False
    # Of an INVISIBLE column SQLAlchemy reads no default.
    query = sqlalchemy.text(
        "SELECT column_default IS NOT NULL FROM information_schema.columns WHERE table_name = :name"
        " AND table_schema = coalesce(:schema, database()) AND column_name = :column"
    )
    names = {"name": column.table.name, "schema": column.table.schema, "column": column.name}
    return bool(connection.execute(query, names).scalar())


def is_generated(column: sqlalchemy.Column[Any]) -> bool:
    """Whether the database refuses values for the column."""
    identity = column.identity
    return column.computed is not None or bool(identity is not None and identity.always)


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
                hint = nearest(name, available)
                takes = f"columns that fields fill: {', '.join(sorted(available))}{hint}"
                raise wrong(item_class, "key", name, takes)
        if frozenset(options.key) not in _unique(table):
            takes = f"columns with a primary key or unique constraint in table {table.fullname}"
            raise wrong(item_class, "key", options.key, takes)
        return options.key
    primary = tuple(column.name for column in table.primary_key.columns)
    is_given = bool(given_there.intersection(primary))
    if primary and available.issuperset(primary) and not is_given:
        return primary
    if KEY_COLUMN in available and frozenset([KEY_COLUMN]) in _unique(table):
        return (KEY_COLUMN,)
    others = {names for names in _unique(table) if names <= available - given_there}
    if is_given and len(others) == 1:
        return tuple(column.name for column in table.columns if column.name in next(iter(others)))
    if is_given:
        problems.append(f"the database gives {', '.join(primary)}, which is no key for items")
    problems.append(
        f"no key: name one, or have a column {KEY_COLUMN!r} of {KEY_LENGTH} characters as the "
        "primary key"
    )
    return ()


def _unique(table: sqlalchemy.Table) -> set[frozenset[str]]:
    """The names of columns that together are unique."""
    unique: list[Any] = [
        constraint
        for constraint in table.constraints
        if isinstance(constraint, (sqlalchemy.PrimaryKeyConstraint, sqlalchemy.UniqueConstraint))
    ]
    unique += [
        index
        for index in table.indexes
        if index.unique and len(index.expressions) == len(index.columns) and not _is_partial(index)
    ]
    return {frozenset(column.name for column in each.columns) for each in unique}


def _is_partial(index: sqlalchemy.Index) -> bool:
    """Whether the index leaves out some rows, or the ends of texts."""
    options = index.dialect_options
    return any(options[dialect].get("length") for dialect in MYSQL) or any(
        options[dialect].get("where") is not None for dialect in ("postgresql", "sqlite")
    )


def has_unique(
    connection: sqlalchemy.Connection, found: sqlalchemy.Table, names: Collection[str]
) -> bool:
    """Whether these columns of a table in the database together are unique."""
    unique = _unique(found)
    if connection.dialect.name == "sqlite":
        # SQLAlchemy looks for UNIQUE in the text of CREATE TABLE, and does not always see it.
        unique |= {frozenset(columns) for columns in _sqlite_indexes(connection, found)}
    if connection.dialect.name == "postgresql":  # not all of them are valid
        unique = {frozenset(columns) for _, _, columns in _postgres_indexes(connection, found)}
    return frozenset(names) in unique


def obstacles(
    connection: sqlalchemy.Connection, found: sqlalchemy.Table, key: Collection[str]
) -> list[tuple[str, str]]:
    """What PostgreSQL makes no upserts with in a table, and the cure of each."""
    if connection.dialect.name != "postgresql":
        return []
    rules = connection.execute(sqlalchemy.text(_RULES), _named(connection, found)).scalars()
    return [
        (f"its rule {name!r} is for INSERT or UPDATE", "Make triggers of such rules.")
        for name in rules
    ] + [
        (f"the index {name!r} of its key is DEFERRABLE", "Make the constraint without that.")
        for name, immediate, columns in _postgres_indexes(connection, found)
        if not immediate and set(columns) == set(key)
    ]


def inexact(
    connection: sqlalchemy.Connection, found: sqlalchemy.Table, key: Collection[str]
) -> list[str]:
    """Columns of the key for which the database takes different texts for the same."""
    dialect = connection.dialect.name
    if dialect == "sqlite":
        columns = [pair for index in _sqlite_indexes(connection, found) for pair in index.items()]
        return sorted({name for name, collation in columns if collation != "BINARY"} & set(key))
    if not key:
        return []
    asked = sqlalchemy.text(_COLLATIONS[dialect]).bindparams(
        sqlalchemy.bindparam("names", list(key), expanding=True), **_named(connection, found)
    )
    return [name for (name,) in connection.execute(asked)]


def _named(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> dict[str, str | None]:
    """The parameters by which the queries below find a table."""
    if connection.dialect.name == "postgresql":
        names = [name for name in (table.schema, table.name) if name is not None]
        return {"table": ".".join('"{}"'.format(name.replace('"', '""')) for name in names)}
    return {"schema": table.schema, "name": table.name}


_RULES = """
SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:table)
AND (ev_type = '2' OR ev_type = '3' AND ev_enabled <> 'D')
"""
_UNIQUE = """
SELECT i.indexrelid::regclass::text, i.indimmediate, array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(:table)
AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY 1, 2
"""
_DOMAINS = """
SELECT a.attname, format_type(t.typbasetype, t.typtypmod) FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = to_regclass(:table) AND t.typtype = 'd'
"""
_LIMITS = ("length", "precision", "scale")
_OF_MYSQL = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
AND column_name IN :names AND collation_name IS NOT NULL
AND collation_name NOT LIKE '%nopad_bin' AND collation_name NOT LIKE '%0900_bin'
AND collation_name <> 'binary'
"""
_COLLATIONS = {
    **dict.fromkeys(MYSQL, _OF_MYSQL),
    "postgresql": """
SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(:table)
AND a.attname IN :names AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))
""",
}


def _postgres_indexes(
    connection: sqlalchemy.Connection, table: sqlalchemy.Table
) -> list[tuple[str, bool, list[str]]]:
    """Name of each unique index of all rows, whether it is looked at at once, and its columns."""
    found = connection.execute(sqlalchemy.text(_UNIQUE), _named(connection, table))
    return [(name, immediate, columns) for name, immediate, columns in found]


def complete_domains(connection: sqlalchemy.Connection, found: sqlalchemy.Table) -> None:
    """Give types that are DOMAINs their digits or their length, which SQLAlchemy does not read."""
    if connection.dialect.name != "postgresql":
        return
    for name, words in connection.execute(sqlalchemy.text(_DOMAINS), _named(connection, found)):
        beneath = getattr(found.columns[name].type, "data_type", None)
        numbers = [int(number) for number in re.findall(r"-?\d+", words.partition("(")[2])]
        for attribute, number in zip(_LIMITS, numbers and [numbers[0], *numbers], strict=False):
            if hasattr(beneath, attribute):
                setattr(beneath, attribute, number)


def _sqlite_indexes(
    connection: sqlalchemy.Connection, table: sqlalchemy.Table
) -> list[dict[str, str]]:
    """The columns of each unique index of all rows, and the collation by which it compares them."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = f"{quote(table.schema)}." if table.schema else ""
    listed = connection.exec_driver_sql(f"PRAGMA {schema}index_list({quote(table.name)})").all()
    return [
        {
            name or "an expression": collation
            for _, _, name, _, collation, of_key in connection.exec_driver_sql(
                f"PRAGMA {schema}index_xinfo({quote(index)})"
            )
            if of_key
        }
        for _, index, unique, _, partial in listed
        if unique and not partial
    ]
