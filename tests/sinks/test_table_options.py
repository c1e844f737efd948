"""Keys, versions and names of tables, and REDISQ_TABLES that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import scrapy
import sqlalchemy

from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from tests.sinks.tables import BOOKS, KEY, SQLITE, Book, execute, rows, store, utc


def test_a_key_is_the_primary_key_and_tells_all_texts_apart(engine: sqlalchemy.Engine) -> None:
    """Case, accents and final spaces matter, as they do in URLs; the default of MariaDB differs."""
    tables = Tables({f"{Book.__module__}.Book": BOOKS}, None, engine.dialect)
    urls = ["a", "A", "ä", "a ", "a" * 700]

    store(engine, tables, *map(Book, urls))
    record = store(engine, tables, *(Book(url, "again") for url in urls))

    assert record.target.key == ("url",)
    assert sorted(row["url"] for row in rows(engine, record.target.table)) == sorted(urls)
    assert {row["title"] for row in rows(engine, record.target.table)} == {"again"}


def test_none_in_a_key_or_a_version_is_refused() -> None:
    """Such a row could not be found again, or not be compared."""
    tables = Tables({Book: {**BOOKS, "version": "crawled_at"}}, None, SQLITE)
    with pytest.raises(RowRefused, match=r"Book\.url = None .*key"):
        tables.record(Book(None), KEY)  # type: ignore[arg-type]
    with pytest.raises(RowRefused, match=r"Book\.crawled_at = None .*version"):
        tables.record(Book("a"), KEY)


@dataclass
class Keyed:
    text: str
    data: bytes
    whole: int
    price: Decimal
    day: date
    flag: bool


def test_keys_of_several_columns_of_all_kinds(engine: sqlalchemy.Engine) -> None:
    """They fit into the index of each database, and equal numbers are equal keys."""
    names = ["text", "data", "whole", "price", "day", "flag"]
    tables = Tables({Keyed: {"key": names}}, None, engine.dialect)
    one = Keyed("a", b"b", 0, Decimal("1.50"), date(2024, 1, 1), True)
    two = Keyed("a", b"b", 0, Decimal("1.5"), date(2024, 1, 1), True)

    record = store(engine, tables, one, two)

    (row,) = rows(engine, record.target.table)
    assert (row["whole"], Decimal(row["price"])) == (0, Decimal("1.5"))


def test_a_key_that_is_too_long_for_the_index_is_refused(engine: sqlalchemy.Engine) -> None:
    """MariaDB takes 768 characters; the others take these, too."""
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    if engine.dialect.name == "mysql":
        with pytest.raises(RowRefused, match="at most 768 characters, and these are 769"):
            tables.record(Book("x" * 769), KEY)
        return
    record = store(engine, tables, Book("x" * 769))
    assert [row["url"] for row in rows(engine, record.target.table)] == ["x" * 769]


VERSIONS = [
    datetime(999, 1, 1),
    datetime(1000, 1, 1, 0, 0, 0, 1),
    datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, 10, tzinfo=timezone.utc),
]


def test_datetimes_compare_as_versions(engine: sqlalchemy.Engine) -> None:
    """Whatever the order they come in, in one batch as in several, the latest one stays; with
    "ignore" the first one that came."""
    for on_conflict, stays in ("update", VERSIONS[-1]), ("ignore", VERSIONS[2]):
        options = {**BOOKS, "on_conflict": on_conflict, "version": "crawled_at"}
        tables = Tables({Book: {**options, "table": on_conflict}}, None, engine.dialect)
        come = [Book("a", crawled_at=version) for version in (*VERSIONS[2:], *VERSIONS[:2])]
        record = store(engine, tables, *come)
        with engine.begin() as connection:
            again = [Book("b", crawled_at=book.crawled_at) for book in come]
            write(connection, [tables.record(book, KEY) for book in again])
        moments = [utc(row["crawled_at"]) for row in rows(engine, record.target.table)]
        assert moments == [utc(stays)] * 2


class BookReviewHTML(scrapy.Item):
    url = scrapy.Field()


def test_a_table_is_called_like_its_class() -> None:
    """In snake case."""
    record = Tables({}, None, SQLITE).record(BookReviewHTML(), KEY)
    assert record.target.table.name == "book_review_html"


def test_two_classes_of_one_name_are_told_apart_only_by_settings() -> None:
    """The error names both; with a table for one of them both work."""
    twin = type("Book", (scrapy.Item,), {"url": scrapy.Field(), "__module__": "elsewhere"})
    tables = Tables({}, None, SQLITE)
    tables.record(Book("a"), KEY)
    with pytest.raises(
        SinkMismatch, match=rf"{Book.__module__}\.Book and elsewhere\.Book.*REDISQ_TABLES"
    ):
        tables.record(twin(), KEY)
    tables = Tables({twin: {"table": "twins"}}, None, SQLITE)
    assert tables.record(Book("a"), KEY).target.table.name == "book"
    assert tables.record(twin(), KEY).target.table.name == "twins"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1], "REDISQ_TABLES = .*takes a dict such as"),
        ({"shop.items.Book": {}}, "shop.items.Book.*No module"),
        ({"builtins.print": {}}, "no class of items"),
        (
            {f"{Book.__module__}.Book": "books"},
            r"REDISQ_TABLES\['.*Book'\].*takes a dict with some of",
        ),
        ({Book: {"tabel": "x"}}, r"takes a dict with some of table, .*unknown field `tabel`"),
        ({Book: {"table": ""}}, r"length >= 1 - at `\$.table`"),
        ({Book: {"key": 5}}, r"got `int` - at `\$.key`"),
        ({Book: {"key": ["ulr"]}}, r"\['key'\] = 'ulr'.*fields: url"),
        ({Book: {"key": ["url", "url"]}}, "each name once"),
        ({Book: {"columns": {"url": "json"}, "key": "url"}}, "no JSON"),
        ({Book: {"on_conflict": "replace"}}, r"'replace' - at `\$.on_conflict`"),
        ({Book: {"version": "crawledat"}}, r"\['version'\].*time: crawled_at"),
        ({Book: {"version": "title"}}, r"\['version'\].*a number or time"),
        ({Book: {"version": "price"}}, r"\['version'\].*a number or time"),
        ({Book: {"extra": "title"}}, r"\['extra'\].*no field has"),
        ({Book: {"columns": {"prise": "float"}}}, r"\['columns'\] = 'prise'.*price"),
        ({Book: {"columns": {"price": "flaot"}}}, r"\['columns'\].*one of str, int, float"),
        ({Book: {"columns": {"price": [1]}}}, r"\['columns'\].*takes a dict of fields"),
        ({Book: {"columns": "price"}}, r"got `str` - at `\$.columns`"),
        ({"dict": {"columns": {1: "str"}}}, r"got `int` - at `key.* in `\$.columns`"),
        ({f"{Book.__module__}.Book": {}, Book: {}}, "each class once"),
        ({"dict": {"table": "items"}}, r"\['columns'\].*REDISQ_METADATA has no table items"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_takes(given: Any, words: str) -> None:
    """Before anything is crawled."""
    with pytest.raises(SettingError, match=words) as error:
        Tables(given, None, SQLITE)
    assert str(error.value).startswith("REDISQ_TABLES")


def test_metadata_must_be_metadata() -> None:
    """REDISQ_METADATA that leads to something else."""
    with pytest.raises(SettingError, match=r"REDISQ_METADATA.*takes the import path"):
        Tables({}, object(), SQLITE)  # type: ignore[arg-type]


HOSTILE = [
    *("select", "table", "user", "primary", "values", "new", "param_1"),
    *("a b", "a_b", "a.b", "a(", "aA", "a'b", 'a"b', "a:b", ":x", "[x]", "a,b"),
    *('"; DROP TABLE x; --', "'; DROP TABLE x; --", "back\\slash", "end\\", "größe", "価格"),
    *(" lead", "?", "@x", "--x", "/*x*/", "$1", "-", "0"),
]
"""Some of them are the same to SQLAlchemy, where it makes names of parameters of them."""


def test_hostile_names_are_kept_exactly(engine: sqlalchemy.Engine) -> None:
    """No name changes a statement: there are a table and columns of just these names."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    key, plain = HOSTILE[::8], [name for name in HOSTILE if "." not in name]
    for table in plain[::6]:
        options = {"table": table, "key": key, "columns": dict.fromkeys(HOSTILE, "str")}
        tables = Tables({"dict": options}, None, engine.dialect)
        items = [{name: name if name in key else name + new for name in HOSTILE} for new in "ab"]
        record = store(engine, tables, *items)
        assert rows(engine, record.target.table) == [items[1]]
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {*plain[::6], "x"}
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"


def test_names_that_differ_in_case_alone(engine: sqlalchemy.Engine) -> None:
    """PostgreSQL tells them apart; SQLite and MariaDB do not, and the error says so."""
    options = {"table": "t", "columns": {"url": "str", "Url": "str"}}
    tables = Tables({"dict": options}, None, engine.dialect)
    if engine.dialect.name == "postgresql":
        record = store(engine, tables, {"url": "1", "Url": "2"})
        (row,) = rows(engine, record.target.table)
        assert (row["url"], row["Url"]) == ("1", "2")
        return
    with pytest.raises(sqlalchemy.exc.OperationalError, match=r"(?i)duplicate column"):
        tables.prepare(engine.begin)


def test_a_table_in_a_schema(engine: sqlalchemy.Engine) -> None:
    """A dot in the name of a table parts schema and table; without the schema there are words."""
    options = {"table": "shop.books", "key": ["url"]}
    tables = Tables({Book: options}, None, engine.dialect)
    with pytest.raises(SinkMismatch, match="no schema 'shop'"):
        store(engine, tables, Book("a"))
    if engine.dialect.name == "postgresql":
        execute(engine, "CREATE SCHEMA shop")
        record = store(engine, tables, Book("a"))
        assert record.target.table.schema == "shop"
        assert len(rows(engine, record.target.table)) == 1
