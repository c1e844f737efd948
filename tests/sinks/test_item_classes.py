"""Item classes of all kinds, and their fields that no column takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import pydantic
import pytest
import scrapy
import sqlalchemy

from scrapy_redisq.errors import RowRefused, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from tests.sinks.tables import (
    DICT,
    KEY,
    SQLITE,
    Colour,
    as_json,
    rows,
    store,
    utc,
)


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


def test_attrs_pydantic_and_scrapy_items_have_tables(engine: sqlalchemy.Engine) -> None:
    """Each class that itemadapter knows gives its fields, with types where it has them."""
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


def test_a_type_that_cannot_be_resolved_says_what_to_do() -> None:
    """An annotation that names what its module does not have; "columns" helps."""
    with pytest.raises(SinkMismatch, match=r"Unresolvable\.other.*'Nowhere'.*\['columns'\]"):
        Tables({}, None, SQLITE).record(Unresolvable("a", 1), KEY)
    tables = Tables({Unresolvable: {"columns": {"other": "int"}}}, None, SQLITE)
    assert tables.record(Unresolvable("a", 1), KEY).values["other"] == 1


def test_a_type_without_a_column_says_what_to_do() -> None:
    """No column is made for complex numbers."""
    with pytest.raises(SinkMismatch, match=r"Uncolumned\.z: no column is made for complex"):
        Tables({}, None, SQLITE).record(Uncolumned(1j), KEY)


def test_plain_dicts_need_a_description() -> None:
    """The error shows the setting."""
    with pytest.raises(SinkMismatch, match=r"REDISQ_TABLES = \{'dict'"):
        Tables({}, None, SQLITE).record({"url": "a"}, KEY)


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


def test_dicts_of_a_class_of_their_own_are_written_like_plain_ones() -> None:
    """Subclasses of dict that nothing is said about."""

    class Special(dict[str, Any]):
        pass

    record = Tables(DICT, None, SQLITE).record(Special(url="a"), KEY)
    assert record.values["url"] == "a"
