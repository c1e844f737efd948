"""Items in tables that are made for their classes: a value comes back equal, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import pydantic
import pytest
import scrapy
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_redisq.errors import RowRefused, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from tests.harness.texts import CHARACTERS
from tests.sinks.tables import (
    DICT,
    EVERYTHING,
    KEY,
    SQLITE,
    Colour,
    Everything,
    Size,
    Values,
    as_json,
    rows,
    store,
    utc,
)


def test_each_type_comes_back_from_its_column(engine: sqlalchemy.Engine) -> None:
    """Every type that an annotation can name has a column that gives equal values back."""
    tables = Tables({}, None, engine.dialect)

    record = store(engine, tables, EVERYTHING)

    (row,) = rows(engine, record.target.table)
    assert record.target.table.name == "everything"
    assert row["redisq_key"] == KEY
    for name in ("text", "whole", "number", "flag", "day", "clock", "data", "isbn", "kind"):
        assert row[name] == getattr(EVERYTHING, name), name
    assert Decimal(row["price"]) == EVERYTHING.price
    assert utc(row["moment"]) == datetime(2024, 3, 1, 4, 59, 59, 999_999)
    assert (row["colour"], row["size"], row["mixed"]) == ("blue", 2, "PAIR")
    assert (row["uuid"], row["path"], row["pages"]) == (str(UUID(int=5)), "/a/b", 3)
    assert (row["none"], row["default"]) == (None, None)
    assert (row["anything"], row["either"]) == ('[1,"x"]', "7")
    document = {name: as_json(row[name]) for name in ("tags", "details", "reviews")}
    assert document == {
        "tags": ["a", "ü"],
        "details": {"deep": {"price": "1.10", "when": "2024-01-02"}, "none": None},
        "reviews": [{"author": "Ann", "stars": 5}],
    }


ANY_VALUES = st.builds(
    Values,
    text=st.text(CHARACTERS),
    whole=st.integers(-(1 << 70), 1 << 70),
    number=st.floats() | st.integers(-(1 << 70), 1 << 70),
    price=st.decimals() | st.integers(),
    moment=st.datetimes(timezones=st.none() | st.timezones()),
    clock=st.times(),
    data=st.binary(),
    anything=st.text(CHARACTERS) | st.integers(),
)


def test_a_value_comes_back_equal_or_is_refused(engine: sqlalchemy.Engine) -> None:
    """Nothing is changed silently, whatever the value: it reads the same, or was refused."""
    tables = Tables({}, None, engine.dialect)

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(ANY_VALUES)
    def check(item: Values) -> None:
        try:
            record = store(engine, tables, item)
        except RowRefused as refusal:
            assert "Values." in str(refusal)
            return
        (row,) = rows(engine, record.target.table)
        for name in ("text", "whole", "data", "clock"):
            assert row[name] == getattr(item, name)
        assert repr(row["number"]) == repr(float(item.number))
        assert Decimal(row["price"]) == item.price
        assert utc(row["moment"]) == utc(item.moment)
        assert row["anything"] == str(item.anything)

    check()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("text", 12, "takes str"),
        ("text", b"bytes", "takes str"),
        ("text", None, "takes str and not None"),
        ("text", "half a pair: \ud800", "surrogate"),
        ("whole", "12", "takes int"),
        ("whole", 1.0, "takes int"),
        ("whole", 1 << 63, "64 bits"),
        ("number", "0.5", "takes float"),
        ("number", (1 << 53) + 1, "cannot hold that many digits"),
        ("number", 10**400, "cannot hold that many digits"),
        ("price", 0.5, "takes Decimal or int"),
        ("price", "12 €", "takes Decimal or int"),
        ("price", Decimal("NaN"), "finite"),
        ("flag", 1, "takes bool"),
        ("flag", "yes", "takes bool"),
        ("day", datetime(2024, 1, 1), "takes date"),
        ("day", "2024-01-01", "takes date"),
        ("moment", date(2024, 1, 1), "takes datetime"),
        ("moment", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "calendar"),
        ("clock", time(1, tzinfo=timezone.utc), "without a time zone"),
        ("data", "text", "takes bytes"),
        ("size", "2", "takes int"),
        ("tags", [float("nan")], "no JSON"),
        ("tags", [float("inf")], "no JSON"),
        ("tags", [object()], "object is no plain value"),
        ("tags", [{(1, 2): 3}], "a key that is no text"),
        ("tags", ["\udc00"], "surrogate"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: Any, words: str) -> None:
    """The refusal names class, field, value and type, and what the column takes."""
    item = Everything(**{**vars(EVERYTHING), name: value})
    with pytest.raises(RowRefused, match=words) as refusal:
        Tables({}, None, SQLITE).record(item, KEY)
    assert f"{Everything.__module__}.Everything.{name} = " in str(refusal.value)
    assert type(value).__qualname__ in str(refusal.value)
    assert len(str(refusal.value)) < 300


class Node(str):
    """A text as parsers return it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<Node>"


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("whole", True, 1),
        ("whole", Size.SMALL, 1),
        ("number", 3, 3.0),
        ("price", 3, "3"),
        ("text", Colour.RED, "red"),
        ("colour", "red", "red"),
        ("data", bytearray(b"x"), b"x"),
        ("tags", {3, 1, 2}, "[1,2,3]"),
        ("tags", [b"\xff", Colour.RED, Size.LARGE, {1: time(1, 2)}], None),
        ("text", Node("words"), "words"),
    ],
)
def test_what_is_lossless_and_obvious_is_converted(name: str, value: Any, stored: Any) -> None:
    """An int for a float, a bool for an int, an enum's value, other forms in JSON; and plain text,
    where an object that is text holds its whole document."""
    item = Everything(**{**vars(EVERYTHING), name: value})
    record = Tables({}, None, SQLITE).record(item, KEY)
    if stored is None:
        stored = '["/w==","red",2,{"1":"01:02:00"}]'
    assert record.values[name] == stored
    assert type(record.values[name]) is type(stored)


def test_postgres_refuses_nul_with_words_and_others_keep_it(engine: sqlalchemy.Engine) -> None:
    """PostgreSQL has no character NUL in texts; SQLite and MariaDB give it back."""
    tables = Tables({}, None, engine.dialect)
    item = Everything(**{**vars(EVERYTHING), "text": "a\0b"})
    if engine.dialect.name == "postgresql":
        with pytest.raises(RowRefused, match="NUL"):
            tables.record(item, KEY)
        return
    record = store(engine, tables, item)
    assert [row["text"] for row in rows(engine, record.target.table)] == ["a\0b"]


@attrs.define
class AttrsBook:
    url: str
    price: Decimal | None = None


class PydanticBook(pydantic.BaseModel):
    url: pydantic.HttpUrl
    price: pydantic.condecimal(max_digits=6) | None = None  # type: ignore[valid-type]
    seen: pydantic.AwareDatetime


class OpenBook(pydantic.BaseModel, extra="allow"):
    url: str


class ScrapyBook(scrapy.Item):
    url = scrapy.Field()
    price = scrapy.Field(type=Decimal)
    pages: int = scrapy.Field()
    tags = scrapy.Field(type=list)


def test_attrs_pydantic_and_scrapy_items_have_tables(sqlite_engine: sqlalchemy.Engine) -> None:
    """Each class that itemadapter knows gives its fields, with types where it has them."""
    engine = sqlite_engine
    tables = Tables({}, None, engine.dialect)
    seen = datetime(2024, 1, 1, tzinfo=timezone.utc)
    url: Any = "https://example.org/a"

    one = store(engine, tables, AttrsBook(url, Decimal("1.5")))
    two = store(engine, tables, PydanticBook(url=url, seen=seen))
    three = store(engine, tables, ScrapyBook(url=url, pages=3, tags=["a"]))

    (row,) = rows(engine, one.target.table)
    assert (row["url"], Decimal(row["price"])) == (url, Decimal("1.5"))
    (row,) = rows(engine, two.target.table)
    assert (row["url"], row["price"], utc(row["seen"])) == (url, None, utc(seen))
    (row,) = rows(engine, three.target.table)
    assert (row["url"], row["price"], row["pages"], as_json(row["tags"])) == (url, None, 3, ["a"])


def test_scrapy_fields_without_a_type_take_text_as_it_is_and_the_rest_as_json() -> None:
    """A number in a field without a type is its JSON, and unset is NULL."""
    tables = Tables({}, None, SQLITE)
    stored = [
        tables.record(ScrapyBook(url=value), KEY).values["url"]
        for value in ("text", 1, 1.5, True, ["ü", Decimal("1.0")], UUID(int=1), Colour.RED)
    ]
    expected = ["text", "1", "1.5", "true", '["ü","1.0"]', str(UUID(int=1)), "red"]
    assert stored == expected
    assert tables.record(ScrapyBook(), KEY).values["url"] is None


@dataclass
class Unresolvable:
    url: str
    other: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Uncolumned:
    z: complex


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Unresolvable("a", 1), r"Unresolvable\.other.*'Nowhere'.*\['columns'\]"),
        (Uncolumned(1j), r"Uncolumned\.z: no column is made for complex"),
        ({"url": "a"}, r"REDISQ_TABLES = \{'dict'"),
    ],
)
def test_an_item_that_gets_no_table_says_what_to_do(item: Any, words: str) -> None:
    """An annotation that names what its module does not have, a type without a column, a plain
    dict; "columns" helps."""
    with pytest.raises(SinkMismatch, match=words):
        Tables({}, None, SQLITE).record(item, KEY)
    if isinstance(item, Unresolvable):
        tables = Tables({Unresolvable: {"columns": {"other": "int"}}}, None, SQLITE)
        assert tables.record(item, KEY).values["other"] == 1


# Fields without a column


def test_a_field_without_a_column_is_refused_by_name() -> None:
    """With what to do; one that is None holds nothing."""
    tables = Tables(DICT, None, SQLITE)
    with pytest.raises(RowRefused, match=r"dict: no column .* items takes 'colour', 2.*'extra'"):
        tables.record({"url": "a", "colour": "red", 2: 3, "none": None}, KEY)
    record = tables.record({"url": "a", "none": None}, KEY)
    assert record.values == {"url": "a", "price": None}


def test_fields_without_a_column_go_into_the_extra_column(engine: sqlalchemy.Engine) -> None:
    """As one JSON object; NULL if there are none."""
    tables = Tables({"dict": {**DICT["dict"], "extra": "extra"}}, None, engine.dialect)
    one = {"url": "a", "price": Decimal("1.5"), "colour": "red", "tags": [], "extra": 1}

    record = store(engine, tables, one, {"url": "b"})

    extras = [as_json(row["extra"]) for row in rows(engine, record.target.table)]
    assert extras == [{"colour": "red", "tags": [], "extra": 1}, None]
    with pytest.raises(RowRefused, match=r"dict\.extra = .*no JSON"):
        tables.record({"url": "a", "x": float("nan")}, KEY)


def test_fields_that_a_pydantic_model_allows_beyond_its_own_are_not_lost() -> None:
    """itemadapter does not show them."""
    with pytest.raises(RowRefused, match="'colour'"):
        Tables({}, None, SQLITE).record(OpenBook(url="a", colour="red"), KEY)  # type: ignore[call-arg]
