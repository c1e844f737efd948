"""The project's own tables: their keys and types; columns that would change values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from sqlalchemy.dialects import postgresql

from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from tests.sinks.tables import (
    KEY,
    SQLITE,
    Book,
    Colour,
    rows,
    shop_column,
    store,
    table_of,
    url_column,
)


def test_the_projects_tables_are_used_as_they_are(engine: sqlalchemy.Engine) -> None:
    """Made if missing, with columns that are no fields left to their defaults."""
    metadata = table_of(
        sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
        sqlalchemy.Column("url", sqlalchemy.String(100), nullable=False, unique=True),
        sqlalchemy.Column("title", sqlalchemy.String(20)),
        sqlalchemy.Column("price", sqlalchemy.Numeric(8, 2)),
        sqlalchemy.Column("crawled_at", sqlalchemy.DateTime),
        sqlalchemy.Column("state", sqlalchemy.String(10), nullable=False, default="new"),
        name="book",
    )
    tables = Tables({Book: {"key": ["url"]}}, metadata, engine.dialect)

    record = store(engine, tables, Book("a", "t", Decimal("1.50")), Book("a", "u"))

    assert record.target.table is metadata.tables["book"]
    (row,) = rows(engine, record.target.table)
    assert (row["id"], row["url"], row["title"], row["state"]) == (1, "a", "u", "new")


@dataclass
class Other:
    url: str
    shop: str
    when: date | None = None


def other_columns() -> list[sqlalchemy.Column[Any]]:
    return [url_column(), shop_column(), sqlalchemy.Column("when", sqlalchemy.Date)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([url_column()], "no column takes the field 'shop'; no column takes the field 'when'"),
        (
            [url_column(), shop_column(), sqlalchemy.Column("when", sqlalchemy.Text)],
            r"column 'when' is Text\(\) and the field date",
        ),
        (
            [*other_columns(), sqlalchemy.Column("sum", sqlalchemy.Integer, nullable=False)],
            "column 'sum' is NOT NULL and no field fills it",
        ),
        ([sqlalchemy.Column("url", sqlalchemy.Text), *other_columns()[1:]], "no key: name one"),
    ],
)
def test_a_class_that_does_not_fit_the_projects_table_is_told(
    columns: list[sqlalchemy.Column[Any]], words: str
) -> None:
    """At start if REDISQ_TABLES names it, else at its first item."""
    metadata = table_of(*columns)
    with pytest.raises(SinkMismatch, match=words):
        Tables({Other: {}}, metadata, SQLITE)
    with pytest.raises(SinkMismatch, match=words):
        Tables({}, metadata, SQLITE).record(Other("a", "b"), KEY)


def test_the_key_of_the_projects_table_must_be_unique() -> None:
    """A key that no constraint or index backs; and one that an index backs."""
    metadata = table_of(*other_columns())
    with pytest.raises(SettingError, match=r"\['key'\] = \('shop',\).*unique constraint"):
        Tables({Other: {"key": "shop"}}, metadata, SQLITE)
    table = metadata.tables["other"]
    sqlalchemy.Index("shops", table.c.shop, unique=True)
    record = Tables({Other: {"key": "shop"}}, metadata, SQLITE).record(Other("a", "b"), KEY)
    assert record.target.key == ("shop",)
    table.append_constraint(sqlalchemy.UniqueConstraint("when", deferrable=True))
    with pytest.raises(SettingError, match=r"\['key'\] = \('when',\).*unique constraint"):
        Tables({Other: {"key": "when"}}, metadata, SQLITE)
    table.primary_key.deferrable = True
    with pytest.raises(SinkMismatch, match="no key: name one"):
        Tables({Other: {}}, metadata, SQLITE)


def test_types_of_the_projects_own(engine: sqlalchemy.Engine) -> None:
    """Enum, JSON, Uuid and decorated types take what they take."""

    class Upper(sqlalchemy.types.TypeDecorator[str]):
        impl = sqlalchemy.String(20)
        cache_ok = True

        def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
            return value.upper() if value else value

    metadata = table_of(
        url_column(),
        sqlalchemy.Column("colour", sqlalchemy.Enum(Colour)),
        sqlalchemy.Column("word", sqlalchemy.Enum("red", "blue", name="word")),
        sqlalchemy.Column("document", sqlalchemy.JSON),
        sqlalchemy.Column("uuid", sqlalchemy.Uuid),
        sqlalchemy.Column("upper", Upper),
        name="typed",
    )
    columns = dict.fromkeys(("url", "colour", "word"), "str") | {"document": "json"}
    options = {"table": "typed", "columns": {**columns, "uuid": UUID, "upper": "str"}}
    tables = Tables({"dict": options}, metadata, engine.dialect)
    item = {
        "url": "a",
        "colour": Colour.RED,
        "word": Colour.BLUE,
        "document": {"price": Decimal("1.0"), "all": [1, None]},
        "uuid": UUID(int=7),
        "upper": "up",
    }
    record = store(engine, tables, item)
    assert rows(engine, record.target.table) == [
        {
            "url": "a",
            "colour": Colour.RED,
            "word": "blue",
            "document": {"price": "1.0", "all": [1, None]},
            "uuid": UUID(int=7),
            "upper": "UP",
        }
    ]
    with pytest.raises(RowRefused, match="takes one of red, blue"):
        tables.record({"url": "a", "word": "green"}, KEY)


@dataclass
class Page:
    url: str
    at: datetime | None = None
    clock: time | None = None
    name: str | None = None
    data: bytes | None = None


def given_table(engine: sqlalchemy.Engine, *columns: sqlalchemy.Column[Any]) -> Tables:
    """Tables of a project that has one for `Page`, with a String as its key."""
    metadata = table_of(url_column(), *columns, name="page")
    return Tables({Page: {}}, metadata, engine.dialect)


def page_columns(**types: Any) -> list[sqlalchemy.Column[Any]]:
    usual: dict[str, Any] = {
        "at": sqlalchemy.DateTime,
        "clock": sqlalchemy.Time,
        "name": sqlalchemy.Text,
        "data": sqlalchemy.LargeBinary,
    }
    return [sqlalchemy.Column(name, type_) for name, type_ in {**usual, **types}.items()]


def test_keys_of_the_projects_tables_tell_all_texts_apart(engine: sqlalchemy.Engine) -> None:
    """Everybody's String as a primary key, in a table that is made here: /A is not /a."""
    urls = ["/A", "/a", "/a ", "/ä"]
    tables = given_table(engine, *page_columns())
    record = store(engine, tables, *map(Page, urls))
    assert sorted(row["url"] for row in rows(engine, record.target.table)) == sorted(urls)


def test_parts_of_seconds_are_not_cut_off(engine: sqlalchemy.Engine) -> None:
    """A column without them refuses what has some."""
    types: dict[str, Any] = {}
    if engine.dialect.name == "postgresql":
        types = {"at": postgresql.TIMESTAMP(precision=0), "clock": postgresql.TIME(precision=0)}
    tables = given_table(engine, *page_columns(**types))
    tables.prepare(engine.begin)
    whole = Page("whole", datetime(2024, 1, 1, 1, 1, 1), time(1, 1, 1))
    record = store(engine, tables, whole)
    (row,) = rows(engine, record.target.table)
    assert (row["at"], str(row["clock"]).zfill(8)) == (whole.at, "01:01:01")
    parts = Page("p", datetime(2024, 1, 1, 1, 1, 1, 600_000)), Page("p", None, time(1, 1, 1, 1))
    if engine.dialect.name == "sqlite":
        store(engine, tables, *parts)
        return
    for item in parts:
        with pytest.raises(RowRefused, match="takes 0 digits after the point of seconds"):
            tables.record(item, KEY)


@pytest.mark.parametrize("text", [sqlalchemy.CHAR(4), sqlalchemy.String(4)])
def test_what_the_database_would_cut_or_fill_up_is_refused(
    engine: sqlalchemy.Engine, text: Any
) -> None:
    """CHAR(n) loses or gains spaces, BINARY(n) gains zeros, VARCHAR(n) loses final spaces beyond
    its end."""
    types: dict[str, Any] = {"name": text}
    if engine.dialect.name == "mysql":
        types["data"] = sqlalchemy.BINARY(4)
    tables = given_table(engine, *page_columns(**types))
    written = []
    for item in (
        *(Page(text, name=text) for text in ("abcd", "ab", "ab  ", "    ", "abcd ", "abcde")),
        *(Page(data.hex(), data=data) for data in (b"abcd", b"ab", b"")),
    ):
        try:
            record = store(engine, tables, item)
        except RowRefused:
            continue
        written.append(item)
        found = {row["url"]: row for row in rows(engine, record.target.table)}[item.url]
        assert (found["name"], found["data"]) == (item.name, item.data)
    assert written[0].url == "abcd"
    assert len(written) >= {"sqlite": 9, "mysql": 3, "postgresql": 4}[engine.dialect.name]


def test_none_is_null_in_json(engine: sqlalchemy.Engine) -> None:
    """SQLAlchemy would write the JSON null, which is none of the database's."""
    name = sqlalchemy.Column("name", sqlalchemy.JSON)
    tables = given_table(engine, *page_columns()[:2], page_columns()[3], name)
    records = [tables.record(Page(url, name=text), KEY) for url, text in (("a", None), ("b", "x"))]
    tables.prepare(engine.begin)
    with engine.begin() as connection:
        write(connection, records)
        query = "SELECT url FROM page WHERE name IS NULL"
        assert connection.exec_driver_sql(query).scalars().all() == ["a"]
