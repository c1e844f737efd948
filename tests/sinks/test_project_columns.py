"""Columns of the project's tables that would change values: fitted to, warned of, refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

import attrs
import pytest
import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql

from scrapy_redisq.errors import RowRefused, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from tests.sinks.tables import (
    KEY,
    execute,
    rows,
    store,
)


@dataclass
class Page:
    url: str
    at: datetime | None = None
    clock: time | None = None
    name: str | None = None
    data: bytes | None = None


def given_table(engine: sqlalchemy.Engine, *columns: sqlalchemy.Column[Any]) -> Tables:
    """Tables of a project that has one for `Page`, with a String as its key."""
    metadata = sqlalchemy.MetaData()
    key = sqlalchemy.Column("url", sqlalchemy.String(200), primary_key=True)
    sqlalchemy.Table("page", metadata, key, *columns)
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


@dataclass
class Shop:
    name: str


def with_shops(engine: sqlalchemy.Engine, *columns: sqlalchemy.Column[Any]) -> Tables:
    """The same project's tables in a later release: its pages are of shops."""
    metadata = sqlalchemy.MetaData()
    name = sqlalchemy.Column("name", sqlalchemy.String(200), primary_key=True)
    sqlalchemy.Table("shop", metadata, name)
    if columns:
        sqlalchemy.Table("page", metadata, *columns)
    return Tables({Shop: {}}, metadata, engine.dialect)


def of_shops() -> list[sqlalchemy.Column[Any]]:
    key = sqlalchemy.Column("url", sqlalchemy.ForeignKey("shop.name"), primary_key=True)
    return [key, *page_columns()]


def test_tables_that_are_made_later_tell_all_texts_apart(engine: sqlalchemy.Engine) -> None:
    """The first ones were made by a release before, or by a worker that died then."""
    with_shops(engine).prepare(engine.begin)
    tables = with_shops(engine, *of_shops())
    store(engine, tables, Shop("/A"), Shop("/a"))
    record = store(engine, tables, Page("/A"), Page("/a"))
    assert len(rows(engine, record.target.table)) == 2


def test_tables_are_made_beside_those_of_another_collation(engine: sqlalchemy.Engine) -> None:
    """With the same one: a foreign key is refused otherwise."""
    execute(engine, "CREATE TABLE shop (name VARCHAR(200) PRIMARY KEY)")
    tables = with_shops(engine, *of_shops())
    store(engine, tables, Shop("a"), Page("a"))


def test_a_key_that_takes_different_texts_for_the_same_is_told_of(
    engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """The project's table was there, with MariaDB's own collation, and is used as it is."""
    if engine.dialect.name != "mysql":
        pytest.skip("compares texts byte by byte")
    execute(engine, "CREATE TABLE page (url VARCHAR(200) PRIMARY KEY, name TEXT)")
    metadata = sqlalchemy.MetaData()
    key = sqlalchemy.Column("url", sqlalchemy.String(200), primary_key=True)
    sqlalchemy.Table("page", metadata, key, sqlalchemy.Column("name", sqlalchemy.Text))
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "name": attrs.field(type=str)})
    tables = Tables({item: {}}, metadata, engine.dialect)
    tables.prepare(engine.begin)
    assert "the collation of 'url' takes different keys for the same" in caplog.text


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


SINGLE: dict[str, list[Any]] = {
    "postgresql": [sqlalchemy.REAL, sqlalchemy.Float(24)],
    "mysql": [sqlalchemy.Float, mysql.FLOAT],
}


def test_floats_of_32_bits_are_a_mismatch(engine: sqlalchemy.Engine) -> None:
    """They would give 0.1 back as 0.10000000149."""
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "x": attrs.field(type=float)})
    for type_ in SINGLE.get(engine.dialect.name, []):
        with pytest.raises(SinkMismatch, match="column 'x' is"):
            Tables({item: {}}, _with_x(type_), engine.dialect)
    for type_ in (sqlalchemy.Double, sqlalchemy.Float(53)):
        Tables({item: {}}, _with_x(type_), engine.dialect)


def _with_x(type_: Any) -> sqlalchemy.MetaData:
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.String(9), primary_key=True)
    sqlalchemy.Table("page", metadata, url, sqlalchemy.Column("x", type_))
    return metadata


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


def test_a_text_in_a_json_column_of_sqlite_stays_itself(sqlite_engine: sqlalchemy.Engine) -> None:
    """SQLite would make the number 7 of "007": a text needs a column of text."""
    execute(sqlite_engine, "CREATE TABLE page (url TEXT PRIMARY KEY, name JSON)")
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "name": attrs.field(type=str)})
    tables = Tables({item: {"key": ["url"]}}, None, sqlite_engine.dialect)
    with pytest.raises(SinkMismatch, match="column 'name' is JSON, not TEXT"):
        tables.prepare(sqlite_engine.begin)


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


def test_lists_of_other_types_are_copies() -> None:
    """The item's own may be changed before it is written."""
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.Text, primary_key=True)
    tags = sqlalchemy.Column("tags", postgresql.ARRAY(sqlalchemy.Text))
    sqlalchemy.Table("page", metadata, url, tags)
    item_class = attrs.make_class("Page", {"url": attrs.field(type=str), "tags": attrs.field()})
    tables = Tables({item_class: {}}, metadata, postgresql.dialect())
    item = item_class("a", ["x"])
    record = tables.record(item, KEY)
    item.tags.append("y")
    assert record.values["tags"] == ["x"]
