"""The conversion of values to what their column takes.

Nothing is changed silently: a value either comes back equal from the column or is refused. What
is stored in another form, and which:

- a datetime in UTC (one without a time zone is taken as UTC);
- an enum's member as its value if all values of the enum are text or all are integers, else by
  name; UUIDs, paths and pydantic's URLs as text;
- on SQLite, which has no exact decimals, a decimal as text;
- what a field without a type holds: text as it is, anything else as its JSON;
- in JSON: a decimal as text (a JSON number would lose digits in most readers), dates and times in
  ISO format, bytes as base64, sets as sorted lists, items as objects, keys of mappings as text.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeDecorator

from scrapy_redisq.pipelines.database.columns import (
    MYSQL,
    OTHER,
    Form,
    JsonText,
    column_kind,
    form,
    takes,
)
from scrapy_redisq.pipelines.database.fields import ANY
from scrapy_redisq.pipelines.exact_json import json_text
from scrapy_redisq.pipelines.values import (
    WrongValue,
    aware_utc,
    binary,
    boolean,
    day,
    exact_text,
    finite_decimal,
    integer,
    naive_utc,
    plain,
    real,
    time_of_day,
)

Convert = Callable[[Any], Any]


def converter(
    kind: str, column: sqlalchemy.Column[Any], dialect: sqlalchemy.Dialect
) -> Convert | None:
    """How values of a field of ``kind`` become values for ``column``; None if they never do.

    The function that is returned raises `WrongValue`. None is for its caller.
    """
    there = form(column.type, dialect)
    target = there.kind
    if not takes(kind, there):
        return None
    if target == "json":
        if isinstance(column.type, JsonText):
            return json_text
        return _json_of_64_bits if dialect.name == "sqlite" else _plain_json
    if target == "str":
        return _text_converter(kind, column, there, dialect)
    if target == "float":
        # What a page says in decimal digits has no place in 24 bits.
        return None if there.after < 53 else _float_converter(dialect)
    if target == "decimal":
        return _decimal_converter(kind, there, dialect)
    if target == "datetime":
        aware = dialect.name == "postgresql" and there.aware
        return _cut_seconds(aware_utc if aware else naive_utc, there)
    if target == "time" and there.aware:
        return None  # it would give a zone to what has none
    if target == "time":
        return _cut_seconds(time_of_day, there)
    if target == "enum":
        return _enum_converter(column.type)
    if target == OTHER:
        return _other_converter(column.type, dialect)
    if isinstance(column.type, mysql.YEAR):
        return _year
    if target == "bytes" and there.fixed:
        return lambda value: _of_length(binary(value), there, "bytes")
    return _CONVERTERS[target]


def _cut_seconds(convert: Convert, there: Form) -> Convert:
    """Refuse what the column would cut off or round."""
    if there.after >= 6:
        return convert
    step = 10 ** (6 - int(there.after))

    def exact(value: Any) -> Any:
        moment = convert(value)
        if moment.microsecond % step:
            raise WrongValue(f"takes {there.after:g} digits after the point of seconds")
        return moment

    return exact


def held(value: Any, there: Form, dialect: sqlalchemy.Dialect) -> Any:
    """A text, or bytes, that the column neither cuts off nor fills up; other values as they are.

    Final spaces that are too many are no error for a database.
    """
    if isinstance(value, bytes):
        return _of_length(value, there, "bytes") if there.fixed else value
    if not isinstance(value, str):
        return value
    if (4 if there.in_bytes else 1) * len(value) > there.whole:
        size = len(value.encode() if there.in_bytes else value)
        if size > there.whole:
            units = "bytes" if there.in_bytes else "characters"
            raise WrongValue(f"takes at most {there.whole:,} {units}, and these are {size:,}")
    if there.fixed and value.endswith(" "):
        raise WrongValue("final spaces would be cut off")
    if there.fixed and dialect.name == "postgresql":
        _of_length(value, there, "characters")
    return value


def _of_length(value: Any, there: Form, units: str) -> Any:
    if len(value) != there.whole:
        raise WrongValue(f"takes {there.whole:g} {units}, neither more nor fewer")
    return value


def _text_converter(
    kind: str, column: sqlalchemy.Column[Any], there: Form, dialect: sqlalchemy.Dialect
) -> Convert:
    plain: Convert = {
        "json": json_text,
        "decimal": _canonical_decimal_text if column.primary_key else _decimal_text,
        ANY: _any_text,
    }.get(kind, exact_text)
    nul_stored = dialect.name != "postgresql"
    if there.whole == math.inf and nul_stored:
        return plain

    def convert(value: Any) -> str:
        text: str = held(plain(value), there, dialect)
        if not nul_stored and "\0" in text:
            raise WrongValue("PostgreSQL stores no text with the character NUL")
        return text

    return convert


def _any_text(value: Any) -> str:
    stored = plain(value)
    return exact_text(stored) if isinstance(stored, str) else json_text(stored)


def _float_converter(dialect: sqlalchemy.Dialect) -> Convert:
    nan_stored = dialect.name == "postgresql"
    infinity_stored = dialect.name not in MYSQL

    def convert(value: Any) -> float:
        number = real(value)
        if not math.isfinite(number) and not (
            nan_stored if math.isnan(number) else infinity_stored
        ):
            raise WrongValue(f"{dialect.name} stores no such number")
        return number

    return convert


def _decimal_text(value: Any) -> str:
    return str(finite_decimal(value))


def _canonical_decimal_text(value: Any) -> str:
    # 1.0 and 1.00 are one key.
    text = format(finite_decimal(value), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _decimal_converter(kind: str, there: Form, dialect: sqlalchemy.Dialect) -> Convert:
    whole, scale = int(there.whole), int(there.after)
    through_float = dialect.name == "sqlite"

    def convert(value: Any) -> Decimal:
        if kind == "float" and isinstance(value, float):
            value = Decimal(repr(float(value)))
        number = finite_decimal(value)
        _, digits, exponent = number.as_tuple()
        excess = -int(exponent) - scale
        if number and (number.adjusted() >= whole or (excess > 0 and any(digits[-excess:]))):
            raise WrongValue(f"takes {whole} digits before the point and {scale} after it")
        if through_float and Decimal(repr(float(number))) != number:
            raise WrongValue("SQLite cannot hold that many digits in a number")
        return number

    return convert


def _enum_converter(type_: Any) -> Convert:
    def convert(value: Any) -> Any:
        member = type_.enum_class is not None and isinstance(value, type_.enum_class)
        value = value if member else plain(value)
        if member or value in type_.enums:
            return value
        try:
            return type_.enum_class(value)
        except (TypeError, ValueError):
            raise WrongValue(f"takes one of {', '.join(type_.enums)}") from None

    return convert


def _other_converter(type_: Any, dialect: sqlalchemy.Dialect) -> Convert | None:
    """For a type that only SQLAlchemy or the project knows: what it is in Python, if it says so."""
    if isinstance(type_, sqlalchemy.Uuid):
        return lambda value: _uuid(value, type_)
    if isinstance(type_, postgresql.MONEY):  # rounds, and gives texts back
        return None
    if isinstance(type_, mysql.SET):
        return partial(_subset, frozenset(type_.values))
    if isinstance(type_, sqlalchemy.ARRAY):
        element = sqlalchemy.Column("element", type_.item_type)
        convert_one = converter(column_kind(type_.item_type), element, dialect)
        return None if convert_one is None else partial(_elements, convert_one)
    try:
        known = type_.python_type
    except NotImplementedError:
        known = object
    check = _check_of_stored(type_, dialect)

    def convert(value: Any) -> Any:
        if not isinstance(value, (list, tuple) if known is list else known):
            raise WrongValue(f"takes {known.__name__}")
        check(value)
        return copy.deepcopy(value)  # the item may be changed before it is written

    return convert


def _elements(convert: Convert, value: Any) -> list[Any]:
    """The elements of an array, which may be arrays; what the column's cast would cut off or round
    is refused."""

    def element(one: Any) -> Any:
        if isinstance(one, (list, tuple)):
            return _elements(convert, one)
        return None if one is None else convert(one)

    if not isinstance(value, (list, tuple)):
        raise WrongValue("takes list")
    return [element(one) for one in value]


def _subset(members: frozenset[str], value: Any) -> set[str]:
    """Of these exactly: MySQL takes "A" for "a"."""
    if not isinstance(value, (set, frozenset)) or not members.issuperset(value):
        raise WrongValue(f"takes a set of {', '.join(sorted(members))}")
    return set(value)


def _check_of_stored(type_: Any, dialect: sqlalchemy.Dialect) -> Callable[[Any], object]:
    """What raises WrongValue for values of an interval, or of a type that is made of another one,
    if the column would round or cut off what becomes of them."""
    made_of = type_.dialect_impl(dialect)
    made_of = getattr(made_of, "impl_instance", made_of)
    is_interval = isinstance(made_of, postgresql.INTERVAL)
    if not is_interval and not isinstance(type_, TypeDecorator):
        return lambda value: None
    there = form(made_of, dialect)
    exact: Callable[[Any], object]
    judged: tuple[type, ...]
    if is_interval:
        exact, judged = partial(_whole_steps, made_of.precision), (timedelta,)
    elif there.kind == "decimal":
        exact = partial(_exact_number, _decimal_converter("float", there, dialect))
        judged = (Decimal, float, str)
    elif there.kind in ("datetime", "time"):
        exact, judged = _cut_seconds(lambda moment: moment, there), (datetime, time)
    else:
        return lambda value: None

    def check(value: Any) -> None:
        try:
            stored: Any
            if is_interval and not isinstance(type_, TypeDecorator):
                stored = value
            elif isinstance(type_, sqlalchemy.Interval):
                stored = value if is_interval else type_.epoch + value
            else:
                stored = type_.process_bind_param(value, dialect)
        except NotImplementedError:
            stored = value
        except Exception as error:  # of the types of any project
            raise WrongValue(f"{type(error).__name__}: {error}") from error
        if isinstance(stored, judged):
            exact(stored)

    return check


def _exact_number(convert: Convert, stored: Any) -> None:
    """Raise WrongValue for a number, which may be a text, that its column would round."""
    if isinstance(stored, str):
        try:
            stored = Decimal(stored)
        except ArithmeticError:  # the database will say what it thinks of it
            return
    convert(stored)


def _whole_steps(digits: int | None, stored: Any) -> None:
    """Raise WrongValue for an interval that its column would round."""
    if digits is not None and digits < 6 and stored.microseconds % 10 ** (6 - digits):
        raise WrongValue(f"takes {digits} digits after the point of seconds")


def _uuid(value: Any, type_: sqlalchemy.Uuid[Any]) -> UUID | str:
    try:
        uuid = value if isinstance(value, UUID) else UUID(exact_text(value))
    except ValueError:
        raise WrongValue("takes UUID") from None
    return uuid if type_.as_uuid else str(uuid)


def _year(value: Any) -> int:
    year = integer(value)
    if 0 < year < 100:  # MySQL makes years of this century and of the last one of them
        raise WrongValue("takes years of four digits")
    return year


def _plain_json(value: Any) -> Any:
    return json.loads(json_text(value))


def _json_of_64_bits(value: Any) -> Any:
    # A column of type JSON makes a number of a text that is one, and a float of a long one.
    made = _plain_json(value)
    return integer(made) if type(made) is int else made


_CONVERTERS: dict[str, Convert] = {
    "int": integer,
    "bool": boolean,
    "date": day,
    "bytes": binary,
}
