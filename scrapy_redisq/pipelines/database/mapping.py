"""Which field fills which column: tables of our own for classes, and tables that are given."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any

import sqlalchemy
from scrapy.item import Item

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.database.columns import (
    KEY_COLUMN,
    MYSQL,
    column_kind,
    column_type,
    key_bytes,
)
from scrapy_redisq.pipelines.database.conversion import Convert, converter
from scrapy_redisq.pipelines.database.fields import ANY, Field, class_path
from scrapy_redisq.pipelines.database.keys import chosen_key, has_default
from scrapy_redisq.pipelines.database.options import Options, nearest, wrong
from scrapy_redisq.pipelines.database.plans import Filled, Plan
from scrapy_redisq.pipelines.database.upsert import Target

_VERSION_KINDS = ("int", "float", "decimal", "date", "datetime")
_POSTGRES_NAME_BYTES = 63
_MYSQL_NAME_CHARACTERS = 64
# What either MySQL does not take in a name or its reflection or pymysql do not get right.
_NOWHERE = re.compile(r"[\0\ud800-\udfff]|%\(")
_RESERVED = re.compile("sqlite_|excluded$", re.IGNORECASE)  # an upsert calls the new row so
_NOT_FOR_MYSQL = re.compile(r"[`%\x00-\x1f\U00010000-\U0010ffff]|\s$")


def table_name(item_class: type) -> str:
    """The table of a class by default: ``BookReview`` is kept in ``book_review``."""
    name = item_class.__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def split_name(full_name: str) -> tuple[str, str | None]:
    """A table's name and its schema's, between which there is a dot."""
    schema, dot, name = full_name.partition(".")
    return (name, schema) if dot else (full_name, None)


def make_table(
    item_class: type,
    fields: Mapping[str, Field],
    options: Options,
    dialect: sqlalchemy.Dialect,
    metadata: sqlalchemy.MetaData,
) -> sqlalchemy.Table:
    """A table of our own for a class. Raises `SettingError`, `SinkMismatch`."""
    for name in options.key:
        if name not in fields:
            hint = nearest(name, fields)
            raise wrong(item_class, "key", name, f"fields: {', '.join(fields)}{hint}")
        if fields[name].kind == "json":
            raise wrong(item_class, "key", name, "fields that are no JSON")
    if options.extra in fields:
        raise wrong(item_class, "extra", options.extra, "a name that no field has")
    if not options.key and KEY_COLUMN in fields:
        raise wrong(item_class, "key", (), f"a key, as a field is called {KEY_COLUMN!r}")
    each = key_bytes(fields[name].kind for name in options.key)
    columns = []
    if not options.key:
        columns.append(_column(KEY_COLUMN, column_type("key", dialect), False))
    for name, declared in fields.items():
        type_ = column_type(declared.kind, dialect, each if name in options.key else 0)
        columns.append(_column(name, type_, declared.optional and name not in options.key))
    if options.extra:
        columns.append(_column(options.extra, column_type("json", dialect), True))
    name, schema = split_name(options.table or table_name(item_class))
    names = [each for each in (schema, name) if each is not None]
    _check_names(item_class, names, [column.name for column in columns], dialect)
    key = [columns[0]]
    if options.key:
        key = [next(c for c in columns if c.name == wanted) for wanted in options.key]
    return sqlalchemy.Table(
        name,
        metadata,
        *columns,
        sqlalchemy.PrimaryKeyConstraint(*key),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
    )


def _column(name: str, type_: Any, nullable: bool) -> sqlalchemy.Column[Any]:
    # Without autoincrement=False an integer in the key would be numbered by the database.
    return sqlalchemy.Column(name, type_, nullable=nullable, autoincrement=False)


def _check_names(
    item_class: type, table: list[str], columns: list[str], dialect: sqlalchemy.Dialect
) -> None:
    path = class_path(item_class)
    for name in (*table, *columns):
        problem = _name_problem(name, dialect.name, name not in columns)
        if problem:
            raise SinkMismatch(
                f"{path}: {dialect.name} takes no name such as {reprlib.repr(name)} ({problem}); "
                f"use another in REDISQ_TABLES[{path!r}] or for the field"
            )


def _name_problem(name: str, dialect: str, is_table: bool) -> str:
    """Why the database, its driver or SQLAlchemy would not take a name as it is; empty if so."""
    if not name or _NOWHERE.search(name):
        return "empty, with NUL, half of a surrogate pair, or what SQLAlchemy takes for a parameter"
    if dialect == "postgresql" and len(name.encode()) > _POSTGRES_NAME_BYTES:
        return f"more than {_POSTGRES_NAME_BYTES} bytes of UTF-8"
    if dialect in MYSQL and (_NOT_FOR_MYSQL.search(name) or len(name) > _MYSQL_NAME_CHARACTERS):
        return (
            f"more than {_MYSQL_NAME_CHARACTERS} characters, or a backtick, percent sign, control "
            "character, emoji or final space"
        )
    reserved = is_table and dialect not in MYSQL and _RESERVED.match(name)
    return "reserved for the database" if reserved else ""


def make_plan(
    item_class: type,
    fields: Mapping[str, Field],
    options: Options,
    table: sqlalchemy.Table,
    given: bool,
    dialect: sqlalchemy.Dialect,
) -> Plan:
    """What fills each column of ``table``. Raises `SettingError`, `SinkMismatch`."""
    path = class_path(item_class)
    columns = {column.name: column for column in table.columns}
    _check_names(item_class, [table.name], list(columns) if given else [], dialect)
    problems: list[str] = []
    taken: dict[str, tuple[Field, sqlalchemy.Column[Any], Convert]] = {}
    loose = []
    for name, declared in fields.items():
        column = columns.get(name)
        if column is None:
            loose.append(name)
            if declared.kind != ANY and options.extra is None:
                problems.append(f"no column takes the field {name!r}")
            continue
        convert = converter(declared.kind, column, dialect)
        if convert is None:
            problems.append(f"column {name!r} is {column.type!r} and the field {declared.kind}")
            continue
        taken[name] = (declared, column, convert)
    has_key_column = KEY_COLUMN in columns and KEY_COLUMN not in taken
    available = set(taken)
    if has_key_column:
        available.add(KEY_COLUMN)
    if options.extra is not None:
        available.add(options.extra)
    for column in table.columns:
        if not (column.name in available or column.nullable or has_default(column)):
            problems.append(f"column {column.name!r} is NOT NULL and no field fills it")
    # Fields of a Scrapy item need not be set, and those that are described are.
    may_lack = not issubclass(item_class, Item) and not options.columns
    given_there = {
        name
        for name, (declared, column, _) in taken.items()
        if may_lack and declared.optional and has_default(column)
    }
    key = chosen_key(item_class, options, table, available, given_there, problems)
    if problems:
        raise SinkMismatch(
            f"{path} does not fit table {table.fullname}: {'; '.join(problems)}. Change the class "
            f"or the table, or see to REDISQ_TABLES[{path!r}]: 'extra' names a JSON column for "
            "fields without a column, 'key' the columns of a unique key"
        )
    version = options.version
    if version is not None:
        fit = [name for name in taken if column_kind(taken[name][1].type) in _VERSION_KINDS]
        if version not in fit:
            takes = f"a field with a number or time: {', '.join(fit)}{nearest(version, fit)}"
            raise wrong(item_class, "version", version, takes)
    filled = []
    for name, (declared, column, convert) in taken.items():
        default, nullable = has_default(column), bool(column.nullable)
        required = _required(name, declared, key, version, default=default, nullable=nullable)
        filled.append(Filled(name, column.key, convert, required, default, nullable))
    key_column = columns[KEY_COLUMN].key if has_key_column else None
    return Plan(
        item_class=item_class,
        target=Target(
            table,
            tuple(columns[name].key for name in key),
            options.on_conflict,
            columns[version].key if version is not None else None,
        ),
        given=given,
        filled=tuple(filled),
        loose=tuple(loose),
        extra=_extra(item_class, options, columns, dialect),
        key_column=key_column,
    )


def _required(
    name: str,
    declared: Field,
    key: tuple[str, ...],
    version: str | None,
    *,
    default: bool,
    nullable: bool,
) -> str:
    """Why the field may not be None; empty if it may."""
    if name in key:
        instead = ", which the database gives: name another key in REDISQ_TABLES"
        return f"it is of the key{instead if default else ''}"
    if name == version:
        return "it is the version"
    return "" if nullable or default else f"takes {declared.kind} and not None"


def _extra(
    item_class: type,
    options: Options,
    columns: Mapping[str, sqlalchemy.Column[Any]],
    dialect: sqlalchemy.Dialect,
) -> Filled | None:
    if options.extra is None:
        return None
    column = columns.get(options.extra)
    convert = converter("json", column, dialect) if column is not None else None
    if column is None or convert is None:
        raise wrong(item_class, "extra", options.extra, "the name of a JSON or text column")
    return Filled(options.extra, column.key, convert, "")
