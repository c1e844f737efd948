"""Columns for the kinds of values: how tables are made, and what a column takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine, UserDefinedType

from scrapy_redisq.pipelines.annotations import ANY

MYSQL = ("mysql", "mariadb")
"""Names of the dialects for MySQL and MariaDB."""

KEY_COLUMN = "redisq_key"
"""Column of the key that a row gets when its fields have none."""

OTHER = "other"
"""Kind of the columns whose type only their own SQLAlchemy type knows."""

# What InnoDB lets an index have; a character of utf8mb4; the largest number, DECIMAL(65, 30).
_MYSQL_INDEX_BYTES = 3072
_MYSQL_CHARACTER_BYTES = 4
_MYSQL_NUMBER_BYTES = 32


def exact_collation(dialect: Any) -> str:
    """MySQL's or MariaDB's that compares byte by byte.

    By default they take "A" for "a" and "a " for "a", so that two keys would be one.
    """
    maria = dialect.name == "mariadb" or dialect.is_mariadb
    return "utf8mb4_nopad_bin" if maria else "utf8mb4_0900_bin"


class JsonText(UserDefinedType[str]):
    """JSON that arrives as text: it was written, and checked, when the item came."""

    cache_ok = True
    render_bind_cast = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_options: Any) -> str:
        return self.name


def column_type(kind: str, dialect: sqlalchemy.Dialect, key_bytes: int = 0) -> TypeEngine[Any]:
    """The type of a column for ``kind``.

    ``key_bytes``: what a column of the key may take of MySQL's index, see `key_bytes`; 0 for a
    column that is not of the key.
    """
    special = _SPECIAL.get(dialect.name, {})
    if key_bytes and dialect.name in MYSQL:
        if kind in ("str", ANY):
            return sqlalchemy.String(key_bytes // _MYSQL_CHARACTER_BYTES)
        if kind == "bytes":
            return mysql.VARBINARY(key_bytes)
    return special.get(kind) or GENERAL[kind]


def key_bytes(kinds: Iterable[str]) -> int:
    """Bytes for each column of text or bytes in a key of these kinds, at most 3,072 together."""
    long = [kind in ("str", ANY, "bytes") for kind in kinds]
    return (_MYSQL_INDEX_BYTES - _MYSQL_NUMBER_BYTES * long.count(False)) // max(1, sum(long))


GENERAL: dict[str, TypeEngine[Any]] = {
    "str": sqlalchemy.Text(),
    ANY: sqlalchemy.Text(),
    "key": sqlalchemy.CHAR(32),
    "int": sqlalchemy.BigInteger(),
    "float": sqlalchemy.Double(),
    "decimal": sqlalchemy.Numeric(),
    "bool": sqlalchemy.Boolean(),
    "date": sqlalchemy.Date(),
    "datetime": sqlalchemy.DateTime(),
    "time": sqlalchemy.Time(),
    "bytes": sqlalchemy.LargeBinary(),
    # SQLite would make a number of what looks like one in a column of type JSON.
    "json": JsonText("TEXT"),
}
_OF_MYSQL: dict[str, TypeEngine[Any]] = {
    "str": mysql.LONGTEXT(),
    ANY: mysql.LONGTEXT(),
    "key": mysql.CHAR(32, charset="ascii", collation="ascii_bin"),
    "bytes": mysql.LONGBLOB(),
    "decimal": mysql.DECIMAL(65, 30),
    "datetime": mysql.DATETIME(fsp=6),
    "time": mysql.TIME(fsp=6),
    "json": JsonText("JSON"),
}
_SPECIAL: dict[str, dict[str, TypeEngine[Any]]] = {
    "postgresql": {
        "datetime": postgresql.TIMESTAMP(timezone=True),
        "json": JsonText("JSONB"),
    },
    "sqlite": {"decimal": sqlalchemy.Text()},
    **dict.fromkeys(MYSQL, _OF_MYSQL),
}


def column_kind(type_: TypeEngine[Any]) -> str:
    """The kind of values that a column of this type takes, ``enum`` or ``OTHER`` among them."""
    if isinstance(type_, JsonText):
        return "json"
    for known, kind in _KIND_OF_COLUMN:
        if isinstance(type_, known):
            return kind
    return OTHER


# The first that fits: an Enum is a String for SQLAlchemy, and in some releases a Float a Numeric.
_KIND_OF_COLUMN: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (mysql.SET, OTHER),
    (sqlalchemy.Enum, "enum"),
    (sqlalchemy.Boolean, "bool"),
    (sqlalchemy.String, "str"),
    (sqlalchemy.Integer, "int"),
    (sqlalchemy.Float, "float"),
    (sqlalchemy.Numeric, "decimal"),
    (sqlalchemy.DateTime, "datetime"),
    (sqlalchemy.Date, "date"),
    (sqlalchemy.Time, "time"),
    (sqlalchemy.types.LargeBinary, "bytes"),
    (sqlalchemy.BINARY, "bytes"),
    (sqlalchemy.VARBINARY, "bytes"),
    (mysql.TINYBLOB, "bytes"),
    (mysql.MEDIUMBLOB, "bytes"),
    (mysql.LONGBLOB, "bytes"),
    (sqlalchemy.JSON, "json"),
)


CONVERTED = {
    *(("json", "str"), ("decimal", "str"), ("bool", "int"), ("int", "float")),
    *(("int", "decimal"), ("float", "decimal"), ("str", "enum"), ("int", "enum")),
}
"""Kinds of fields whose values are converted for a column of another kind."""

_NOT_POSTGRES = ("sqlite", *MYSQL)
_ALIKE: dict[tuple[str, str], tuple[str, ...]] = {
    ("json", "str"): _NOT_POSTGRES,
    ("enum", "str"): ("postgresql", *_NOT_POSTGRES),
    **dict.fromkeys((("date", "str"), ("datetime", "str"), ("time", "str")), ("sqlite",)),
    **dict.fromkeys((("bool", "int"), ("int", "bool")), _NOT_POSTGRES),
}
"""Columns of another kind that keep what is written as of the first, and in which databases."""


class Form(NamedTuple):
    """The values that a column can hold."""

    kind: str
    whole: float = math.inf
    """Most digits before the point, characters or bytes."""
    after: float = math.inf
    """Digits after the point of a number or of seconds; bits of a float."""
    aware: bool = False
    """Whether points in time have a zone there."""
    fixed: bool = False
    """Whether the database fills up what is shorter, or takes it for filled up."""

    @property
    def has_limits(self) -> bool:
        """Whether it may cut off, round or fill up a value of its kind."""
        return self.fixed or self.whole < math.inf or self.after < 6

    def holds(self, other: Form) -> bool:
        """Whether all that is in a column of the other form can be in one of this, of its kind."""
        if (self.fixed, self.aware) != (other.fixed, other.aware):
            return False
        return self.whole >= other.whole and self.after >= other.after


def form(type_: TypeEngine[Any], dialect: sqlalchemy.Dialect) -> Form:
    """The form of a column in the database, by the words that make it."""
    kind = column_kind(type_)
    if kind in ("int", "bool", "date", "json", "enum", OTHER):
        return Form(kind)
    try:
        text = str(type_.compile(dialect=dialect)).upper()
    except sqlalchemy.exc.CompileError:  # such as a length that MySQL asks for
        return Form(kind)
    found = re.search(r"\(([-\d, ]+)\)", text)
    numbers = [int(number) for number in found[1].split(",")] if found else []
    if kind == "decimal":
        if numbers:
            scale = numbers[1] if len(numbers) > 1 else 0
            return Form(kind, numbers[0] - scale, scale)
        return Form(kind, *_DIGITS.get(dialect.name, (1_000, 1_000)))
    if dialect.name == "sqlite":
        return Form(kind)  # its types are names
    size = numbers[0] if numbers else None
    if kind == "float":
        if len(numbers) > 1:  # MySQL's DOUBLE(30, 2) rounds
            return Form(kind, after=0)
        single = "FLOAT" if dialect.name in MYSQL else "REAL"
        is_single = size <= _SINGLE_BITS if size is not None else text.split()[0] == single
        return Form(kind, after=_SINGLE_BITS if is_single else 53)
    if kind in ("datetime", "time"):
        aware = "TIMESTAMP" in text if dialect.name in MYSQL else "WITH TIME ZONE" in text
        return Form(
            kind, after=_SECOND_DIGITS.get(dialect.name, 6) if size is None else size, aware=aware
        )
    fixed = text.startswith(("CHAR", "NCHAR", "NATIONAL CHAR", "BINARY"))
    if fixed and size is None:
        size = 1
    return Form(kind, math.inf if size is None else size, fixed=fixed)


def takes(kind: str, there: Form) -> bool:
    """Whether a column takes, converted, what a field of ``kind`` holds."""
    free = kind == ANY or there.kind in ("json", OTHER)
    return free or kind == there.kind or (kind, there.kind) in CONVERTED


def fits(meant: TypeEngine[Any], found: TypeEngine[Any], dialect: sqlalchemy.Dialect) -> bool:
    """Whether a column of type ``found`` keeps what is meant for one of type ``meant``."""
    ours, there = form(meant, dialect), form(found, dialect)
    if ours.kind == OTHER:
        return True
    if ours.kind == there.kind:
        return dialect.name == "sqlite" or there.holds(ours)
    return dialect.name in _ALIKE.get((ours.kind, there.kind), ())


_SINGLE_BITS = 24
# Where the type does not say: before and after the point; of seconds.
_DIGITS = {"postgresql": (131_072, 16_383), **dict.fromkeys(MYSQL, (10, 0))}
_SECOND_DIGITS = dict.fromkeys(MYSQL, 0)
