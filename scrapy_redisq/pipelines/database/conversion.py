"""The conversion of values to what their column takes.

Nothing is changed silently: a value either comes back equal from the column or is refused. What
is stored in another form, and which:

- a datetime in UTC (one without a time zone is taken as UTC);
- an enum's member as its value if all values of the enum are text or all are integers, else by
  name; UUIDs, paths and pydantic's URLs as text;
- on SQLite, which has no exact decimals, a decimal as text;
- what a field without a type holds: text, dates and numbers as text, anything else as its JSON;
- in JSON: a decimal as text (a JSON number would lose digits in most readers), dates and times in
  ISO format, bytes as base64, sets as lists, items as objects, keys of mappings as text.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from datetime import datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy

from scrapy_redisq.pipelines.annotations import ANY
from scrapy_redisq.pipelines.database.columns import (
    MYSQL,
    OTHER,
    Form,
    JsonText,
    form,
    takes,
)
from scrapy_redisq.pipelines.encoding import free_text, json_text
from scrapy_redisq.pipelines.values import (
    WrongValue,
    aware_utc,
    binary,
    boolean,
    check_digits,
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
    convert = _converter(kind, there, column, dialect) if takes(kind, there) else None
    is_text = there.kind == "str" and dialect.name == "postgresql"
    if convert is None or not (is_text or there.has_limits):
        return convert
    return lambda value: _held(convert(value), there, dialect)


def _converter(
    kind: str, there: Form, column: sqlalchemy.Column[Any], dialect: sqlalchemy.Dialect
) -> Convert | None:
    """The same, but that values may still be too long or too fine for the column."""
    target = there.kind
    type_: Any = column.type
    if target == "json":
        if isinstance(type_, JsonText):
            return json_text
        return _json_of_64_bits if dialect.name == "sqlite" else _plain_json
    if target == "str":
        decimal_text = _canonical_decimal_text if column.primary_key else _decimal_text
        texts: dict[str, Convert] = {"json": json_text, "decimal": decimal_text, ANY: free_text}
        chosen: Convert = texts.get(kind, exact_text)
        return chosen
    if target == "float":
        # What a page says in decimal digits has no place in 24 bits.
        return None if there.after < 53 else _float_converter(dialect)
    if target == "decimal":
        return _decimal_of_float if kind == "float" else finite_decimal
    if target == "datetime":
        return aware_utc if dialect.name == "postgresql" and there.aware else naive_utc
    if target == "time":  # one with a zone would give it to what has none
        return None if there.aware else time_of_day
    if target == "enum":
        return _enum_converter(type_)
    if target == OTHER:
        if isinstance(type_, sqlalchemy.Uuid):
            return lambda value: _uuid(value, type_)
        return copy.deepcopy  # the item may be changed before it is written
    return _CONVERTERS[target]


def _held(value: Any, there: Form, dialect: sqlalchemy.Dialect) -> Any:
    """A value that the column neither cuts off, nor rounds, nor fills up; raises `WrongValue`.

    Only some of these are errors for a database: final spaces that are too many are none.
    """
    if isinstance(value, str) and there.kind == "str":
        _hold_text(value, there, dialect)
    elif isinstance(value, bytes) and there.fixed:
        _of_length(value, there, "bytes")
    elif isinstance(value, Decimal) and there.kind == "decimal":
        _hold_number(value, there, dialect)
    elif isinstance(value, (datetime, time)) and there.after < 6:
        parts = value.microsecond % 10 ** (6 - int(there.after))
        if parts:
            raise WrongValue(f"takes {there.after:g} digits after the point of seconds")
    return value


def _hold_text(text: str, there: Form, dialect: sqlalchemy.Dialect) -> None:
    if len(text) > there.whole:
        raise WrongValue(f"takes at most {there.whole:,} characters, and these are {len(text):,}")
    if there.fixed and text.endswith(" "):
        raise WrongValue("final spaces would be cut off")
    if dialect.name == "postgresql":
        if there.fixed:
            _of_length(text, there, "characters")
        if "\0" in text:
            raise WrongValue("PostgreSQL stores no text with the character NUL")


def _hold_number(number: Decimal, there: Form, dialect: sqlalchemy.Dialect) -> None:
    check_digits(number, there.whole, there.after)
    if dialect.name == "sqlite" and Decimal(repr(float(number))) != number:
        raise WrongValue("SQLite cannot hold that many digits in a number")


def _of_length(value: Any, there: Form, units: str) -> None:
    if len(value) != there.whole:
        raise WrongValue(f"takes {there.whole:g} {units}, neither more nor fewer")


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


def _decimal_of_float(value: Any) -> Decimal:
    return finite_decimal(Decimal(repr(float(value))) if isinstance(value, float) else value)


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


def _uuid(value: Any, type_: sqlalchemy.Uuid[Any]) -> UUID | str:
    try:
        uuid = value if isinstance(value, UUID) else UUID(exact_text(value))
    except ValueError:
        raise WrongValue("takes UUID") from None
    return uuid if type_.as_uuid else str(uuid)


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
