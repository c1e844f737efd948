"""Which field fills which column: tables of our own for classes, and tables that are given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy
from scrapy.item import Item

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.annotations import ANY
from scrapy_redisq.pipelines.database.columns import (
    KEY_COLUMN,
    MYSQL,
    column_kind,
    column_type,
    exact_collation,
    key_bytes,
)
from scrapy_redisq.pipelines.database.conversion import Convert, converter
from scrapy_redisq.pipelines.database.fields import Field, class_path
from scrapy_redisq.pipelines.database.options import Options, wrong
from scrapy_redisq.pipelines.database.plans import Filled, Plan
from scrapy_redisq.pipelines.database.unique import chosen_key, has_default
from scrapy_redisq.pipelines.database.upsert import Target

_VERSION_KINDS = ("int", "float", "decimal", "date", "datetime")


def table_name(item_class: type) -> str:
    """The table of a class by default: ``BookReview`` is kept in ``book_review``."""
    name = item_class.__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def make_table(
    item_class: type,
    full_name: str,
    fields: Mapping[str, Field],
    options: Options,
    dialect: sqlalchemy.Dialect,
) -> sqlalchemy.Table:
    """A table of our own for a class. Raises `SettingError`, `SinkMismatch`."""
    for name in options.key:
        if name not in fields:
            raise wrong(item_class, "key", name, f"fields: {', '.join(fields)}")
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
    schema, _, name = full_name.rpartition(".")
    of_mysql: dict[str, Any] = {}
    if dialect.name in MYSQL:
        words = {"engine": "InnoDB", "charset": "utf8mb4", "collate": exact_collation(dialect)}
        of_mysql = {f"{dialect.name}_{word}": value for word, value in words.items()}
    return sqlalchemy.Table(
        name,
        sqlalchemy.MetaData(),
        *columns,
        sqlalchemy.PrimaryKeyConstraint(*(options.key or (KEY_COLUMN,))),
        schema=schema or None,
        **of_mysql,
    )


def _column(name: str, type_: Any, nullable: bool) -> sqlalchemy.Column[Any]:
    # Without autoincrement=False an integer in the key would be numbered by the database.
    return sqlalchemy.Column(name, type_, nullable=nullable, autoincrement=False)


def make_plan(
    item_class: type,
    fields: Mapping[str, Field],
    options: Options,
    table: sqlalchemy.Table,
    given: bool,
    dialect: sqlalchemy.Dialect,
) -> Plan:
    """The field that fills each column of ``table``. Raises `SettingError`, `SinkMismatch`."""
    columns = {column.name: column for column in table.columns}
    problems: list[str] = []
    taken: dict[str, Convert] = {}
    loose = [name for name in fields if name not in columns]
    for name, declared in fields.items():
        if name in loose:
            if declared.kind != ANY and options.extra is None:
                problems.append(f"no column takes the field {name!r}")
        elif convert := converter(declared.kind, columns[name], dialect):
            taken[name] = convert
        else:
            kinds = f"{columns[name].type!r} and the field {declared.kind}"
            problems.append(f"column {name!r} is {kinds}")
    has_key_column = KEY_COLUMN in columns and KEY_COLUMN not in taken
    available = {*taken, *([KEY_COLUMN] if has_key_column else [])}
    if options.extra is not None:
        available.add(options.extra)
    for name, column in columns.items():
        if not (name in available or column.nullable or has_default(column)):
            problems.append(f"column {name!r} is NOT NULL and no field fills it")
    # Fields of a Scrapy item need not be set, and those that are described are.
    may_lack = not issubclass(item_class, Item) and not options.columns
    given_there = {
        name for name in taken if may_lack and fields[name].optional and has_default(columns[name])
    }
    key = chosen_key(item_class, options, table, available, given_there, problems)
    if problems:
        path = class_path(item_class)
        raise SinkMismatch(
            f"{path} does not fit table {table.fullname}: {'; '.join(problems)}. Change the class "
            f"or the table, or see to REDISQ_TABLES[{path!r}]: 'extra' names a JSON column for "
            "fields without a column, 'key' the columns of a unique key"
        )
    version = options.version
    if version is not None:
        fit = [name for name in taken if column_kind(columns[name].type) in _VERSION_KINDS]
        if version not in fit:
            takes = f"a field with a number or time: {', '.join(fit)}"
            raise wrong(item_class, "version", version, takes)
    return Plan(
        item_class=item_class,
        target=Target(
            table,
            tuple(columns[name].key for name in key),
            options.on_conflict,
            columns[version].key if version is not None else None,
        ),
        given=given,
        filled=tuple(
            _filled(fields[name], columns[name], convert, key, version)
            for name, convert in taken.items()
        ),
        loose=tuple(loose),
        extra=_extra(item_class, options, columns, dialect),
        key_column=columns[KEY_COLUMN].key if has_key_column else None,
    )


def _filled(
    field: Field,
    column: sqlalchemy.Column[Any],
    convert: Convert,
    key: tuple[str, ...],
    version: str | None,
) -> Filled:
    default, nullable = has_default(column), bool(column.nullable)
    required = "" if nullable or default else f"takes {field.kind} and not None"
    if field.name in key:
        instead = ", which the database gives: name another key in REDISQ_TABLES"
        required = f"it is of the key{instead if default else ''}"
    elif field.name == version:
        required = "it is the version"
    return Filled(field.name, column.key, convert, required, default, nullable)


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
