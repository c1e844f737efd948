"""What SQLAlchemy does not read of a table: asked of the database's own catalogue."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import MYSQL

__all__ = [
    "Index",
    "collation",
    "complete_domains",
    "fills_there",
    "rolls_back",
    "rules",
    "unique_indexes",
]


class Index(NamedTuple):
    """A unique index."""

    name: str
    columns: frozenset[str | None]
    """None: an expression, or the beginning of a text."""
    inexact: frozenset[str | None]
    """Those of its columns for which different texts are the same."""
    immediate: bool
    """Whether it is looked at at once, not at the end of the transaction."""


def unique_indexes(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> list[Index]:
    """The unique indexes of all rows of a table, as it was read from the database."""
    if connection.dialect.name == "sqlite":
        # An integer as the primary key is none of its indexes.
        primary = frozenset(column.name for column in table.primary_key.columns)
        return [Index("", primary, frozenset(), True), *_sqlite_indexes(connection, table)]
    found: dict[str, list[Any]] = {}
    for row in _ask(connection, table, _INDEXES[connection.dialect.name]):
        found.setdefault(row.index_name, []).append(row)
    return [
        Index(
            name,
            frozenset(row.column_name for row in rows),
            frozenset(row.column_name for row in rows if not row.exact),
            all(row.immediate for row in rows),
        )
        for name, rows in found.items()
    ]


def rules(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> list[str]:
    """The rules for INSERT and UPDATE of a table, with which PostgreSQL makes no upserts."""
    if connection.dialect.name != "postgresql":
        return []
    return [row.rulename for row in _ask(connection, table, _RULES)]


def fills_there(connection: sqlalchemy.Connection, column: sqlalchemy.Column[Any]) -> bool:
    """Whether a column is filled that says nothing of it: SQLAlchemy reads none of the default of
    an INVISIBLE one."""
    if connection.dialect.name not in MYSQL:
        return False
    rows = _ask(connection, column.table, _DEFAULTS)
    return any(row.column_name == column.name for row in rows)


def rolls_back(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> bool:
    """Whether a rollback takes back what was written into a table: not so with MyISAM."""
    if connection.dialect.name not in MYSQL:
        return True
    return any(row.engine == "InnoDB" for row in _ask(connection, table, _ENGINE))


def collation(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> str | None:
    """The collation that new columns of a table of MySQL get; None if the table is not there."""
    return next((row.collation for row in _ask(connection, table, _COLLATION)), None)


def complete_domains(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> None:
    """Give types that are DOMAINs their digits or their length, which SQLAlchemy does not read."""
    if connection.dialect.name != "postgresql":
        return
    for name, words in _ask(connection, table, _DOMAINS):
        beneath = getattr(table.columns[name].type, "data_type", None)
        numbers = [int(number) for number in re.findall(r"-?\d+", words.partition("(")[2])]
        for attribute, number in zip(_LIMITS, numbers and [numbers[0], *numbers], strict=False):
            if hasattr(beneath, attribute):
                setattr(beneath, attribute, number)


def _ask(connection: sqlalchemy.Connection, table: sqlalchemy.Table, query: str) -> list[Any]:
    parameters = {"schema": table.schema, "name": table.name}
    if connection.dialect.name == "postgresql":
        names = [name for name in (table.schema, table.name) if name is not None]
        parameters = {"table": ".".join('"{}"'.format(name.replace('"', '""')) for name in names)}
    return list(connection.execute(sqlalchemy.text(query), parameters))


def _sqlite_indexes(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> list[Index]:
    # SQLAlchemy looks for UNIQUE in the text of CREATE TABLE, and does not always see it.
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = f"{quote(table.schema)}." if table.schema else ""
    indexes = []
    for _, index, unique, _, partial in connection.exec_driver_sql(
        f"PRAGMA {schema}index_list({quote(table.name)})"
    ).all():
        asked = connection.exec_driver_sql(f"PRAGMA {schema}index_xinfo({quote(index)})")
        collations = {name: collation for _, _, name, _, collation, of_key in asked if of_key}
        if unique and not partial:
            inexact = {name for name, collation in collations.items() if collation != "BINARY"}
            indexes.append(Index(index, frozenset(collations), frozenset(inexact), True))
    return indexes


_OF_POSTGRES = """
SELECT i.indexrelid::regclass::text AS index_name, a.attname::text AS column_name,
i.indimmediate AS immediate,
t.typname <> 'citext' AND coalesce(c.collisdeterministic, true) AS exact
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE i.indrelid = to_regclass(:table)
AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_OF_MYSQL = """
SELECT s.index_name AS index_name, IF(s.sub_part IS NULL, s.column_name, NULL) AS column_name,
1 AS immediate, c.collation_name IS NULL OR c.collation_name = 'binary'
OR c.collation_name LIKE '%nopad_bin' OR c.collation_name LIKE '%0900_bin' AS exact
FROM information_schema.statistics s
LEFT JOIN information_schema.columns c USING (table_schema, table_name, column_name)
WHERE s.table_schema = coalesce(:schema, database()) AND s.table_name = :name AND s.non_unique = 0
"""
_INDEXES = {"postgresql": _OF_POSTGRES, **dict.fromkeys(MYSQL, _OF_MYSQL)}
_RULES = """
SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:table)
AND (ev_type = '2' OR ev_type = '3' AND ev_enabled <> 'D')
"""
_DOMAINS = """
SELECT a.attname, format_type(t.typbasetype, t.typtypmod) FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = to_regclass(:table) AND t.typtype = 'd'
"""
_LIMITS = ("length", "precision", "scale")
_DEFAULTS = """
SELECT column_name AS column_name FROM information_schema.columns
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
AND column_default IS NOT NULL
"""
_ENGINE = """
SELECT engine AS engine FROM information_schema.tables
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""
_COLLATION = """
SELECT table_collation AS collation FROM information_schema.tables
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""
