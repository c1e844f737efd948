"""The tables in the database: made if missing, compared with the items if there.

Several workers may do so at the same moment. On PostgreSQL, where even ``IF NOT EXISTS`` fails
when two make the same table, an advisory lock lets one go first. On MySQL and MariaDB, where other
workers see a table before its indexes, a named one does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import sqlalchemy
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    NoSuchTableError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.schema import CreateTable

from scrapy_redisq.errors import SinkMismatch, SinkUnavailable
from scrapy_redisq.pipelines.database.catalogue import (
    collation,
    complete_domains,
    fills_there,
    rules,
    unique_indexes,
)
from scrapy_redisq.pipelines.database.columns import (
    KEY_COLUMN,
    MYSQL,
    REWRITTEN,
    exact_collation,
    fits,
    form,
)
from scrapy_redisq.pipelines.database.engine import LOCK_SECONDS
from scrapy_redisq.pipelines.database.errors import ErrorClasses
from scrapy_redisq.pipelines.database.fields import class_path
from scrapy_redisq.pipelines.database.keys import has_default, is_generated
from scrapy_redisq.pipelines.database.plans import Plan

logger = logging.getLogger(__name__)

_CREATING = 0x7265646973710001
"""Number of PostgreSQL's advisory lock for creating tables, any that nobody else uses."""

_LOCK = "concat('redisq_', left(coalesce(database(), ''), 57))"
"""Name of MySQL's lock for the same, which may have 64 characters; it is the whole server's."""

_ATTEMPTS = 3


def create(connection: sqlalchemy.Connection, tables: Iterable[sqlalchemy.Table]) -> None:
    """Make those of our own tables that are missing. Raises `SinkMismatch` if one cannot be."""
    for table in _missing(connection, tables):
        _one_at_a_time(connection)
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
        except IntegrityError as problem:  # of PostgreSQL's catalogue: someone without the lock
            raise SinkUnavailable(f"table {table.fullname} is being made elsewhere") from problem
        except DBAPIError as problem:
            if not ErrorClasses(connection.dialect).of_statement(problem):
                raise  # away, locked or full: another time
            raise SinkMismatch(
                f"table {table.fullname} cannot be made: {problem.orig}. See to its name and "
                "columns in REDISQ_TABLES"
            ) from problem


def create_given(connection: sqlalchemy.Connection, metadata: sqlalchemy.MetaData) -> None:
    """Make those of the project's tables that are missing, with what belongs to them.

    Raises `SinkUnavailable` if another worker does so for too long.
    """
    # Fleets do so side by side. Whoever makes one may not have ended, so the lock is waited for.
    is_there = not _missing(connection, metadata.tables.values())
    with _whole_tables(connection):
        if is_there:
            return
        for attempt in range(_ATTEMPTS):
            missing = _missing(connection, metadata.tables.values())
            if not missing:
                return
            _one_at_a_time(connection)
            _make_exact(connection, metadata.tables.values(), missing)
            try:
                metadata.create_all(connection)
            except OperationalError:
                # Without a lock, as on SQLite, another worker may have made one meanwhile.
                if connection.invalidated or attempt == _ATTEMPTS - 1:
                    raise


@contextlib.contextmanager
def _whole_tables(connection: sqlalchemy.Connection) -> Iterator[None]:
    """Let no other worker make tables meanwhile, and none see a table that lacks its indexes.

    MySQL commits each statement by itself: a table, then each of its indexes.
    """
    if connection.dialect.name not in MYSQL:
        yield
        return
    try:
        is_ours = connection.scalar(sqlalchemy.text(f"SELECT GET_LOCK({_LOCK}, {LOCK_SECONDS})"))
    except DBAPIError as problem:
        if connection.invalidated:
            raise
        is_ours = True
        logger.warning(
            "The database has no GET_LOCK, as in some clusters: let one worker make the tables of "
            "REDISQ_METADATA before others start (%s)",
            problem.orig,
        )
    if not is_ours:
        raise SinkUnavailable(
            "another worker has been making the tables of REDISQ_METADATA for more than "
            f"{LOCK_SECONDS} s"
        )
    try:
        yield
    finally:
        with contextlib.suppress(SQLAlchemyError):  # a connection that is lost has no lock
            connection.execute(sqlalchemy.text(f"DO RELEASE_LOCK({_LOCK})"))


def _make_exact(
    connection: sqlalchemy.Connection,
    tables: Iterable[sqlalchemy.Table],
    missing: Collection[sqlalchemy.Table],
) -> None:
    """Let texts be compared byte by byte, as elsewhere, where the project does not say how.

    All tables together, with those that are there, or none: a foreign key needs the same collation
    on both sides.
    """
    tables, dialect = list(tables), connection.dialect
    if dialect.name not in MYSQL or any(
        name.endswith(("collate", "charset")) for table in tables for name in table.dialect_kwargs
    ):
        return
    exact = exact_collation(dialect)
    if any(collation(connection, table) != exact for table in tables if table not in missing):
        return
    for table in tables:
        table.dialect_kwargs[f"{dialect.name}_charset"] = "utf8mb4"
        table.dialect_kwargs[f"{dialect.name}_collate"] = exact


def reflect(
    connection: sqlalchemy.Connection, name: str, schema: str | None, *, alone: bool = False
) -> sqlalchemy.Table | None:
    """The table as it is in the database, and if it is not wanted ``alone`` those it refers to."""
    _check_schema(sqlalchemy.inspect(connection), schema)
    metadata = sqlalchemy.MetaData()
    try:
        table = sqlalchemy.Table(
            name, metadata, schema=schema, autoload_with=connection, resolve_fks=not alone
        )
    except NoSuchTableError:
        return None
    complete_domains(connection, table)
    return table


def check(connection: sqlalchemy.Connection, plan: Plan) -> None:
    """Compare a table with what the items need.

    Raises `SinkMismatch` with all differences, `SinkUnavailable` if somebody has removed the table.
    """
    table, dialect = plan.target.table, connection.dialect
    found = reflect(connection, table.name, table.schema, alone=True)
    if found is None:
        raise SinkUnavailable(f"there is no table {table.fullname}")
    wanted = {table.columns[key].name: table.columns[key] for key in plan.columns()}
    differences = _Differences(dialect, table)
    for name, column in wanted.items():
        if name not in found.columns:
            differences.missing(column)
            continue
        if not fits(column.type, found.columns[name].type, dialect):
            differences.other_type(column, found.columns[name])
            continue
        there = form(found.columns[name].type, dialect)
        if there.has_limits and there != form(column.type, dialect):
            plan.target.found[column.key] = there
        if is_generated(found.columns[name]):
            if not plan.leave_to_database(column.key):
                what = f"column {name!r} is filled by the database alone"
                cure = f"Leave the field {name!r} out of the class, or let the column take values."
                differences.add(what, cure)
        elif 0 <= (digits := form(column.type, dialect).after) < 6 and isinstance(
            column.type, (sqlalchemy.DateTime, sqlalchemy.Time)
        ):
            logger.warning(
                "%s: column %r of table %s keeps %g digits after the point of seconds; values that "
                "have more are refused. Give it a type with six, such as DATETIME(6)",
                *(class_path(plan.item_class), name, table.fullname, digits),
            )
        if isinstance(column.type, REWRITTEN):
            logger.warning(
                "%s: column %r of table %s is of type %s, which the database may give back in "
                "other words than it was given",
                *(class_path(plan.item_class), name, table.fullname, type(column.type).__name__),
            )
    for column in found.columns:
        is_ours = column.name in wanted or plan.given
        needed = not is_ours and not column.nullable and not has_default(column)
        if needed and not fills_there(connection, column):
            what = f"column {column.name!r} is NOT NULL and no field fills it"
            differences.add(what, f"Give column {column.name!r} a default.")
    key = [table.columns[name].name for name in plan.target.key]
    for rule in rules(connection, found):
        what = f"its rule {rule!r} is for INSERT or UPDATE"
        differences.add(what, "Make triggers of such rules.")
    indexes = unique_indexes(connection, found)
    of_key = [index for index in indexes if index.columns == set(key)]
    plan.target.also_unique[:] = [index.name for index in indexes if index not in of_key]
    for index in of_key:
        if not index.immediate:
            what = f"the index {index.name!r} of its key is DEFERRABLE"
            differences.add(what, "Make the constraint without that.")
    if not of_key and set(key) <= set(found.columns.keys()):
        differences.no_index(key)
    inexact = frozenset().union(*(index.inexact for index in indexes)) if of_key else ()
    for name in key:
        if name in inexact and name != KEY_COLUMN:
            differences.inexact(wanted[name], only_told=plan.given)
    differences.raise_if_any(class_path(plan.item_class))


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


class _Differences:
    """How a table differs from what is needed, and the statements that would mend it, as text."""

    def __init__(self, dialect: sqlalchemy.Dialect, table: sqlalchemy.Table) -> None:
        self._dialect = dialect
        self._quote = dialect.identifier_preparer.quote
        self._name = dialect.identifier_preparer.format_table(table)
        self._table = table
        self._found: list[tuple[str, str]] = []

    def add(self, what: str, cure: str) -> None:
        self._found.append((what, cure))

    def missing(self, column: sqlalchemy.Column[Any]) -> None:
        cure = f"ADD COLUMN {self._quote(column.name)} {self._type(column)}"
        self.add(f"it has no column {column.name!r}", self._alter(cure))

    def other_type(self, column: sqlalchemy.Column[Any], found: sqlalchemy.Column[Any]) -> None:
        what = f"column {column.name!r} is {self._type(found)}, not {self._type(column)}"
        self.add(what, self._change(column, self._type(column), null=bool(column.nullable)))

    def no_index(self, names: list[str]) -> None:
        index, columns = self._quote(f"{self._table.name}_key"), ", ".join(map(self._quote, names))
        cure = f"CREATE UNIQUE INDEX {index} ON {self._name} ({columns});"
        self.add(f"no unique index for the key {', '.join(names)}", cure)

    def inexact(self, column: sqlalchemy.Column[Any], *, only_told: bool) -> None:
        """The column of a key is one for several texts; a table of the project's may be so."""
        what = f"the collation of {column.name!r} takes different keys for the same"
        type_ = self._type(column)
        if self._dialect.name == "postgresql":
            type_ = 'TEXT COLLATE "C"'
        elif self._dialect.name in MYSQL and " COLLATE " not in type_:
            type_ += f" CHARACTER SET utf8mb4 COLLATE {exact_collation(self._dialect)}"
        cure = self._change(column, type_, null=False)
        if not only_told:
            self.add(what, cure)
            return
        logger.warning(
            'Table %s: %s, such as "/A" and "/a": they are one row. %s',
            *(self._table.fullname, what, cure),
        )

    def raise_if_any(self, path: str) -> None:
        """Raise `SinkMismatch` for the class at ``path`` if the table differs."""
        if self._found:
            raise SinkMismatch(
                f"table {self._table.fullname} does not fit {path}: "
                f"{'; '.join(what for what, _ in self._found)}. Change the table "
                f"({' '.join(cure for _, cure in self._found)}), or drop it, or give "
                f"{path} another one in REDISQ_TABLES; or describe it in REDISQ_METADATA, and "
                "values are fitted to its columns"
            )

    def _type(self, column: sqlalchemy.Column[Any]) -> str:
        if isinstance(column.type, sqlalchemy.types.NullType):
            return "of a type that SQLAlchemy does not know"
        return str(column.type.compile(dialect=self._dialect))

    def _change(self, column: sqlalchemy.Column[Any], type_: str, *, null: bool) -> str:
        name = self._quote(column.name)
        if self._dialect.name in MYSQL:
            return self._alter(f"MODIFY {name} {type_}{'' if null else ' NOT NULL'}")
        if self._dialect.name == "sqlite":
            return f"SQLite cannot change the type or the collation of {name}."
        return self._alter(f"ALTER COLUMN {name} TYPE {type_} USING {name}::{type_}")

    def _alter(self, action: str) -> str:
        return f"ALTER TABLE {self._name} {action};"
