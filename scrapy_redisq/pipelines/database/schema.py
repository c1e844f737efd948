"""The tables in the database: made if missing, compared with what items need if there.

Several workers may do so at the same moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import sqlalchemy
from sqlalchemy.exc import IntegrityError, NoSuchTableError
from sqlalchemy.schema import CreateTable

from scrapy_redisq.errors import SinkMismatch, SinkUnavailable
from scrapy_redisq.pipelines.database.columns import (
    KEY_COLUMN,
    MYSQL,
    exact_collation,
    fits,
)
from scrapy_redisq.pipelines.database.fields import class_path
from scrapy_redisq.pipelines.database.plans import Plan
from scrapy_redisq.pipelines.database.unique import has_default, unique_columns

logger = logging.getLogger(__name__)

_CREATING = 0x7265646973710001
"""Number of PostgreSQL's advisory lock for creating tables, any that nobody else uses."""


def create(connection: sqlalchemy.Connection, tables: Iterable[sqlalchemy.Table]) -> None:
    """Make those of our own tables that are missing."""
    for table in _missing(connection, tables):
        _one_at_a_time(connection)
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
        except IntegrityError as problem:  # of PostgreSQL's catalogue: someone without the lock
            raise SinkUnavailable(f"table {table.fullname} is being made elsewhere") from problem


def create_given(connection: sqlalchemy.Connection, metadata: sqlalchemy.MetaData) -> None:
    """Make those of the project's tables that are missing, with what belongs to them."""
    if missing := _missing(connection, metadata.tables.values()):
        _one_at_a_time(connection)
        if connection.dialect.name in MYSQL:
            _make_exact(connection, metadata, missing)
        metadata.create_all(connection)


def _make_exact(
    connection: sqlalchemy.Connection,
    metadata: sqlalchemy.MetaData,
    missing: list[sqlalchemy.Table],
) -> None:
    """Let MySQL compare texts byte by byte, as elsewhere, where the project does not say how.

    All tables, with those that are there, or none: a foreign key needs the same collation on both
    sides.
    """
    name, exact = connection.dialect.name, exact_collation(connection.dialect)
    inspector = sqlalchemy.inspect(connection)
    for table in metadata.tables.values():
        if any(option.endswith(("collate", "charset")) for option in table.dialect_kwargs):
            return
        if table not in missing:
            there = inspector.get_table_options(table.name, schema=table.schema)
            if there.get(f"{name}_collate") != exact:
                return
    for table in missing:
        table.dialect_kwargs.update({f"{name}_charset": "utf8mb4", f"{name}_collate": exact})


def check(connection: sqlalchemy.Connection, plan: Plan) -> None:
    """Compare a table with what the items need.

    Raises `SinkMismatch` with all differences, `SinkUnavailable` if somebody has removed the table.
    """
    table, dialect = plan.target.table, connection.dialect
    found = _reflect(connection, table)
    wanted = {table.columns[key].name: table.columns[key] for key in plan.columns()}
    differences = []
    for name, column in wanted.items():
        if name not in found.columns:
            differences.append(f"it has no column {name!r} ({_type(column, dialect)})")
        elif not fits(column.type, found.columns[name].type, dialect):
            there = _type(found.columns[name], dialect)
            differences.append(f"column {name!r} is {there}, not {_type(column, dialect)}")
    for column in found.columns:
        is_ours = column.name in wanted or plan.given
        if not is_ours and not column.nullable and not has_default(column):
            differences.append(f"column {column.name!r} is NOT NULL and no field fills it")
    key = frozenset(table.columns[name].name for name in plan.target.key)
    if key not in _unique_there(connection, found):
        if plan.given and dialect.name in MYSQL and not differences:
            # Another worker may be about to: it makes the table first, then each of its indexes.
            raise SinkUnavailable(f"table {table.fullname} has no unique index for the key yet")
        differences.append(f"no unique index for the key {', '.join(sorted(key))}")
    plan.target.also_unique = any(
        names != key for each in (table, found) for names in unique_columns(each, whole=False)
    )
    for name in sorted(key & set(found.columns.keys()) - {KEY_COLUMN}):
        if not _is_exact(found.columns[name], dialect):
            what = f"the collation of {name!r} takes different keys for the same"
            if not plan.given:
                differences.append(f"{what} (use {exact_collation(dialect)})")
                continue
            logger.warning(
                'Table %s: %s, such as "/A" and "/a": they are one row', table.fullname, what
            )
    if differences:
        path = class_path(plan.item_class)
        raise SinkMismatch(
            f"table {table.fullname} does not fit {path}: {'; '.join(differences)}. Change the "
            f"table, or drop it, or give {path} another one in REDISQ_TABLES; or describe it in "
            "REDISQ_METADATA, and values are fitted to its columns"
        )


def _unique_there(
    connection: sqlalchemy.Connection, found: sqlalchemy.Table
) -> set[frozenset[str]]:
    """The names of columns of a table in the database that together are unique."""
    unique = unique_columns(found)
    if connection.dialect.name == "sqlite":  # whose UNIQUE SQLAlchemy does not always see
        inspector, name = sqlalchemy.inspect(connection), found.name
        for index in inspector.get_indexes(name, found.schema, include_auto_indexes=True):
            if index["unique"] and not index.get("dialect_options"):
                unique.add(frozenset(map(str, index["column_names"])))
    return unique


def _is_exact(column: sqlalchemy.Column[Any], dialect: sqlalchemy.Dialect) -> bool:
    """Whether a column of a key tells all texts apart; MySQL's defaults do not."""
    if dialect.name not in MYSQL or not isinstance(column.type, sqlalchemy.String):
        return True
    of_table = column.table.dialect_kwargs.get(f"{dialect.name}_collate", "")
    return str(column.type.collation or of_table).endswith(("nopad_bin", "0900_bin"))


def _type(column: sqlalchemy.Column[Any], dialect: sqlalchemy.Dialect) -> str:
    if isinstance(column.type, sqlalchemy.types.NullType):
        return "of a type that SQLAlchemy does not know"
    return str(column.type.compile(dialect=dialect))


def _reflect(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> sqlalchemy.Table:
    """The table as it is in the database."""
    try:
        return sqlalchemy.Table(
            table.name,
            sqlalchemy.MetaData(),
            schema=table.schema,
            autoload_with=connection,
            resolve_fks=False,
        )
    except NoSuchTableError:
        raise SinkUnavailable(f"there is no table {table.fullname}") from None


def _missing(
    connection: sqlalchemy.Connection, tables: Iterable[sqlalchemy.Table]
) -> list[sqlalchemy.Table]:
    inspector = sqlalchemy.inspect(connection)
    missing = []
    for table in tables:
        if table.schema is not None and not inspector.has_schema(table.schema):
            raise SinkMismatch(
                f"there is no schema {table.schema!r} in the database; make it, or name a table "
                "without one in REDISQ_TABLES (a dot stands between schema and table)"
            )
        if not inspector.has_table(table.name, schema=table.schema):
            missing.append(table)
    return missing


def _one_at_a_time(connection: sqlalchemy.Connection) -> None:
    """Until the transaction ends. On PostgreSQL even IF NOT EXISTS fails when two make a table."""
    if connection.dialect.name == "postgresql":
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_CREATING)))
