"""The tables in the database: made if missing, compared with the items if there.

Several workers may do so at the same moment. On PostgreSQL, where even ``IF NOT EXISTS`` fails
when two make the same table, an advisory lock lets one go first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import sqlalchemy
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchTableError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeDecorator, TypeEngine

from scrapy_redisq.errors import SinkMismatch, SinkUnavailable
from scrapy_redisq.pipelines.database.columns import KEY_COLUMN, MYSQL, OTHER, exact_collation, form
from scrapy_redisq.pipelines.database.fields import class_path
from scrapy_redisq.pipelines.database.plans import Plan

logger = logging.getLogger(__name__)

_CREATING = 0x7265646973710001
"""Number of PostgreSQL's advisory lock for creating tables, any that nobody else uses."""

_ATTEMPTS = 3

# Name too long, column twice, too many parts or bytes of a key, too many columns, too large a row.
_MYSQL_DEFINITION_ERRORS = {1059, 1060, 1070, 1071, 1117, 1118}
_MYSQL_CANNOT_CREATE = 1005
_MYSQL_DISK_FULL = "errno: 28 "
_SQLITE_ERROR = 1
_SQLSTATES = {"42", "54"}  # access rule violation or syntax error, and limit exceeded


def create(connection: sqlalchemy.Connection, tables: Iterable[sqlalchemy.Table]) -> None:
    """Make those of our own tables that are missing. Raises `SinkMismatch` if one cannot be."""
    for table in _missing(connection, tables):
        _one_at_a_time(connection)
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
        except IntegrityError as problem:  # of PostgreSQL's catalogue: someone without the lock
            raise SinkUnavailable(f"table {table.fullname} is being made elsewhere") from problem
        except DBAPIError as problem:
            if not _is_definite(problem, connection.dialect):
                raise  # away, locked or full: another time
            raise SinkMismatch(
                f"table {table.fullname} cannot be made: {problem.orig}. See to its name and "
                "columns in REDISQ_TABLES"
            ) from problem


def create_given(connection: sqlalchemy.Connection, metadata: sqlalchemy.MetaData) -> None:
    """Make those of the project's tables that are missing, with what belongs to them."""
    for attempt in range(_ATTEMPTS):
        missing = _missing(connection, metadata.tables.values())
        if not missing:
            return
        _one_at_a_time(connection)
        if attempt == 0 and len(missing) == len(metadata.tables):
            _make_exact(connection.dialect, missing)
        try:
            metadata.create_all(connection)
        except OperationalError:
            # Without a lock, as on MariaDB and SQLite, another worker may have made one meanwhile.
            if connection.invalidated or attempt == _ATTEMPTS - 1:
                raise


def _make_exact(dialect: sqlalchemy.Dialect, tables: Iterable[sqlalchemy.Table]) -> None:
    """Let texts be compared byte by byte, as elsewhere, where the project does not say how.

    All tables together, or none: a foreign key needs the same collation on both sides.
    """
    tables = list(tables)
    if dialect.name not in MYSQL or any(
        name.endswith(("collate", "charset")) for table in tables for name in table.dialect_kwargs
    ):
        return
    for table in tables:
        table.dialect_kwargs[f"{dialect.name}_charset"] = "utf8mb4"
        table.dialect_kwargs[f"{dialect.name}_collate"] = exact_collation(dialect)


def reflect(connection: sqlalchemy.Connection, full_name: str) -> sqlalchemy.Table | None:
    """The table as it is in the database."""
    schema, _, name = full_name.rpartition(".")
    _check_schema(sqlalchemy.inspect(connection), schema or None)
    try:
        return sqlalchemy.Table(
            name, sqlalchemy.MetaData(), schema=schema or None, autoload_with=connection
        )
    except NoSuchTableError:
        return None


def check(connection: sqlalchemy.Connection, plan: Plan) -> None:
    """Compare a table with what the items need.

    Raises `SinkMismatch` with all differences, `SinkUnavailable` if somebody has removed the table.
    """
    table = plan.target.table
    inspector = sqlalchemy.inspect(connection)
    try:
        columns = inspector.get_columns(table.name, schema=table.schema)
    except NoSuchTableError:
        raise SinkUnavailable(f"there is no table {table.fullname}") from None
    found = {column["name"]: column for column in columns}
    used = {filled.column for filled in plan.filled}
    used.update(column for column, _ in plan.foreign)
    used.update(name for name in (plan.key_column,) if name is not None)
    used.update(filled.column for filled in (plan.extra,) if filled is not None)
    optional = {table.columns[filled.column].name for filled in plan.filled if filled.optional}
    wanted = {table.columns[key].name: table.columns[key] for key in used}
    key = [table.columns[key].name for key in plan.target.key]
    alter = _Alter(connection, table)
    differences = []
    for name, column in wanted.items():
        if name not in found:
            differences.append((f"it has no column {name!r}", alter.add(column)))
        elif not fits(column.type, found[name]["type"], connection.dialect):
            there = found[name]["type"].compile(dialect=connection.dialect)
            differences.append(
                (f"column {name!r} is {there}, not {alter.type_of(column)}", alter.change(column))
            )
        elif _is_generated(found[name]) and name in optional:
            plan.leave_to_database(column.key)
        elif _is_generated(found[name]):
            differences.append(
                (f"column {name!r} is filled by the database alone", alter.drop_generated(name))
            )
        elif 0 <= (digits := form(column.type, connection.dialect).after) < 6 and isinstance(
            column.type, (sqlalchemy.DateTime, sqlalchemy.Time)
        ):
            logger.warning(
                "%s: column %r of table %s keeps %g digits after the point of seconds; values that "
                "have more are refused. Give it a type with six, such as DATETIME(6)",
                *(class_path(plan.item_class), name, table.fullname, digits),
            )
    for name, other in found.items():
        if name in wanted or plan.given or other["nullable"]:
            continue
        if not _has_default(other, inspector, table):
            what = f"column {name!r} is NOT NULL and no field fills it"
            differences.append((what, alter.let_be(name)))
    if set(key) <= set(found):
        if not _has_unique(inspector, table, set(key)):
            differences.append((f"no unique index for the key {', '.join(key)}", alter.index(key)))
        else:
            for name in _inexact(connection, table, [name for name in key if name != KEY_COLUMN]):
                what = f"the collation of {name!r} takes different keys for the same"
                if plan.given:
                    logger.warning(
                        'Table %s: %s, such as "/A" and "/a": they are one row. %s',
                        *(table.fullname, what, alter.exact(wanted[name])),
                    )
                else:
                    differences.append((what, alter.exact(wanted[name])))
    if differences:
        path = class_path(plan.item_class)
        raise SinkMismatch(
            f"table {table.fullname} does not fit {path}: "
            f"{'; '.join(what for what, _ in differences)}. Change the table "
            f"({' '.join(statement for _, statement in differences)}), or drop it, or give "
            f"{path} another one in REDISQ_TABLES; or describe it in REDISQ_METADATA, and values "
            "are fitted to its columns"
        )


def fits(wanted: TypeEngine[Any], found: TypeEngine[Any], dialect: sqlalchemy.Dialect) -> bool:
    """Whether a column of type ``found`` keeps what is meant for one of type ``wanted``.

    One that refuses too long a text or too large an integer fits: no value is changed by that.
    """
    if isinstance(wanted, TypeDecorator):
        wanted = wanted.impl_instance
    meant, there = form(wanted, dialect), form(found, dialect)
    if OTHER in (meant.kind, there.kind):
        return True
    if meant.kind == there.kind:
        return dialect.name == "sqlite" or there.holds(meant)
    pair = meant.kind, there.kind
    return pair in _ALSO_FIT or pair in _ALSO_FIT_ON.get(dialect.name, ())


_ALSO_FIT = {("enum", "str"), ("str", "enum"), ("int", "decimal")}
_NOT_ON_POSTGRES = {("bool", "int"), ("int", "bool"), ("json", "str")}
_ALSO_FIT_ON = {
    **dict.fromkeys(MYSQL, _NOT_ON_POSTGRES),
    "sqlite": {
        *_NOT_ON_POSTGRES,
        *((kind, "str") for kind in ("date", "datetime", "time")),
    },
}


def _is_definite(problem: DBAPIError, dialect: sqlalchemy.Dialect) -> bool:
    """Whether the error is in the statement, so that no repetition helps."""
    if not isinstance(problem, OperationalError):
        return isinstance(problem, (DataError, NotSupportedError, ProgrammingError))
    error: Any = problem.orig
    if dialect.name == "postgresql":
        return str(getattr(error, "sqlstate", None))[:2] in _SQLSTATES
    number = error.args[0] if error.args else None
    if number == _MYSQL_CANNOT_CREATE:
        return _MYSQL_DISK_FULL not in str(error)
    if dialect.name == "sqlite":
        # Python 3.10 does not have the code.
        code = getattr(error, "sqlite_errorcode", None)
        return code == _SQLITE_ERROR or (code is None and "too many" in str(error))
    return number in _MYSQL_DEFINITION_ERRORS


def _missing(
    connection: sqlalchemy.Connection, tables: Iterable[sqlalchemy.Table]
) -> list[sqlalchemy.Table]:
    inspector = sqlalchemy.inspect(connection)
    missing = []
    for table in tables:
        _check_schema(inspector, table.schema)
        if not inspector.has_table(table.name, schema=table.schema):
            missing.append(table)
    return missing


def _check_schema(inspector: sqlalchemy.Inspector, schema: str | None) -> None:
    if schema is not None and not inspector.has_schema(schema):
        raise SinkMismatch(
            f"there is no schema {schema!r} in the database; make it, or name a table without one "
            "in REDISQ_TABLES (a dot stands between schema and table)"
        )


def _one_at_a_time(connection: sqlalchemy.Connection) -> None:
    """Until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_CREATING)))


def _has_default(column: Any, inspector: sqlalchemy.Inspector, table: sqlalchemy.Table) -> bool:
    if column.get("default") is not None or column.get("autoincrement") is True:
        return True
    if column.get("computed") or column.get("identity"):
        return True
    # The only column of SQLite that numbers itself: INTEGER PRIMARY KEY.
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    return (
        inspector.dialect.name == "sqlite"
        and primary == [column["name"]]
        and isinstance(column["type"], sqlalchemy.INTEGER)
    )


def _has_unique(inspector: sqlalchemy.Inspector, table: sqlalchemy.Table, names: set[str]) -> bool:
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)
    unique: list[Any] = [primary["constrained_columns"]]
    for constraint in inspector.get_unique_constraints(table.name, schema=table.schema):
        unique.append(constraint["column_names"])
    partial = []
    # SQLAlchemy looks for UNIQUE in the text of SQLite's CREATE TABLE, and does not always see it.
    every = {"include_auto_indexes": True} if inspector.dialect.name == "sqlite" else {}
    for index in inspector.get_indexes(table.name, schema=table.schema, **every):
        columns = set(index["column_names"])
        options = index.get("dialect_options") or {}
        if any(name.endswith(("_where", "_length")) and options[name] for name in options):
            partial.append(columns)
        elif index["unique"]:
            unique.append(columns)
    # MariaDB's unique index on the beginnings of texts is listed as a constraint too.
    return any(set(columns) == names and names not in partial for columns in unique)


def _is_generated(column: Any) -> bool:
    """Whether the database refuses values for the column."""
    identity = column.get("identity") or {}
    return bool(column.get("computed") or identity.get("always"))


def _inexact(
    connection: sqlalchemy.Connection, table: sqlalchemy.Table, key: list[str]
) -> list[str]:
    """Columns of the key for which the database takes different texts for the same."""
    dialect = connection.dialect.name
    if dialect == "sqlite":
        return sorted(_with_collations(connection, table).intersection(key))
    if dialect not in _COLLATIONS or not key:
        return []
    asked = sqlalchemy.text(_COLLATIONS[dialect]).bindparams(
        sqlalchemy.bindparam("names", key, expanding=True), schema=table.schema, name=table.name
    )
    return [name for (name,) in connection.execute(asked)]


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
SELECT a.attname FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid
JOIN pg_namespace n ON n.oid = r.relnamespace JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE n.nspname = coalesce(:schema, current_schema()) AND r.relname = :name
AND a.attname IN :names AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true))
""",
}


def _with_collations(connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> set[str]:
    """SQLite's columns that are in a unique index by another collation than byte by byte."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = f"{quote(table.schema)}." if table.schema else ""
    found = set()
    for _, index, unique, *_ in connection.exec_driver_sql(
        f"PRAGMA {schema}index_list({quote(table.name)})"
    ):
        if unique:
            columns = connection.exec_driver_sql(f"PRAGMA {schema}index_xinfo({quote(index)})")
            found |= {name for _, _, name, _, how, of_key in columns if of_key and how != "BINARY"}
    return found - {None}


class _Alter:
    """The statements that would make a table fit, as text for people."""

    def __init__(self, connection: sqlalchemy.Connection, table: sqlalchemy.Table) -> None:
        self._dialect = connection.dialect
        self._preparer = self._dialect.identifier_preparer
        self._name = self._preparer.format_table(table)
        self._table = table

    def type_of(self, column: sqlalchemy.Column[Any]) -> str:
        return str(column.type.compile(dialect=self._dialect))

    def add(self, column: sqlalchemy.Column[Any]) -> str:
        name = self._preparer.format_column(column)
        return f"ALTER TABLE {self._name} ADD COLUMN {name} {self.type_of(column)};"

    def change(self, column: sqlalchemy.Column[Any]) -> str:
        name, type_ = self._preparer.format_column(column), self.type_of(column)
        if self._dialect.name in MYSQL:
            null = "" if column.nullable else " NOT NULL"
            return f"ALTER TABLE {self._name} MODIFY {name} {type_}{null};"
        if self._dialect.name == "sqlite":
            return f"SQLite cannot change the type of {name}."
        return f"ALTER TABLE {self._name} ALTER COLUMN {name} TYPE {type_} USING {name}::{type_};"

    def exact(self, column: sqlalchemy.Column[Any]) -> str:
        if self._dialect.name in MYSQL:
            name, type_ = self._preparer.format_column(column), self.type_of(column)
            if " COLLATE " not in type_:
                type_ += f" CHARACTER SET utf8mb4 COLLATE {exact_collation(self._dialect)}"
            return f"ALTER TABLE {self._name} MODIFY {name} {type_} NOT NULL;"
        if self._dialect.name == "sqlite":
            return f"SQLite cannot change the collation of {column.name!r}."
        name = self._preparer.format_column(column)
        return f'ALTER TABLE {self._name} ALTER COLUMN {name} TYPE TEXT COLLATE "C";'

    def drop_generated(self, name: str) -> str:
        return f"Leave the field {name!r} out of the class, or let the column take values."

    def let_be(self, name: str) -> str:
        if self._dialect.name == "postgresql":
            quoted = self._preparer.quote(name)
            return f"ALTER TABLE {self._name} ALTER COLUMN {quoted} DROP NOT NULL;"
        return f"Give column {name!r} a default."

    def index(self, names: list[str]) -> str:
        columns = ", ".join(map(self._preparer.quote, names))
        return f"CREATE UNIQUE INDEX {self._preparer.quote(self._table.name + '_key')} ON " + (
            f"{self._name} ({columns});"
        )
