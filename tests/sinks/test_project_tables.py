"""The project's own tables: their keys, their types, and rows of nested items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import pytest
import scrapy
import sqlalchemy
from sqlalchemy.dialects import mysql, postgresql

from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from tests.sinks.tables import (
    KEY,
    OTHER_KEY,
    SQLITE,
    Book,
    Colour,
    as_json,
    execute,
    rows,
    shop_column,
    store,
    table_of,
    url_column,
)


@pytest.fixture
def metadata() -> sqlalchemy.MetaData:
    """A shop: books with reviews, and reviews with votes."""
    made = sqlalchemy.MetaData()
    sqlalchemy.Table(
        "book",
        made,
        sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
        sqlalchemy.Column("url", sqlalchemy.String(100), nullable=False, unique=True),
        sqlalchemy.Column("title", sqlalchemy.String(20)),
        sqlalchemy.Column("price", sqlalchemy.Numeric(8, 2)),
        sqlalchemy.Column("crawled_at", sqlalchemy.DateTime),
        sqlalchemy.Column("state", sqlalchemy.String(10), nullable=False, default="new"),
    )
    sqlalchemy.Table(
        "comment",
        made,
        sqlalchemy.Column("book_url", sqlalchemy.ForeignKey("book.url"), primary_key=True),
        sqlalchemy.Column("author", sqlalchemy.String(20), primary_key=True),
        sqlalchemy.Column("text", sqlalchemy.Text),
    )
    sqlalchemy.Table(
        "vote",
        made,
        sqlalchemy.Column("redisq_key", sqlalchemy.String(32), primary_key=True),
        sqlalchemy.Column("book_url", sqlalchemy.String(100)),
        sqlalchemy.Column("author", sqlalchemy.String(20)),
        sqlalchemy.Column("stars", sqlalchemy.Integer),
        sqlalchemy.ForeignKeyConstraint(
            ["book_url", "author"], ["comment.book_url", "comment.author"]
        ),
    )
    return made


@dataclass
class Vote:
    stars: int


@dataclass
class Comment:
    author: str
    text: str | None = None
    votes: list[Vote] = field(default_factory=list)


@dataclass
class BookWithComments(Book):
    comments: list[Comment] = field(default_factory=list)
    best: Comment | None = None


WITH_COMMENTS: dict[Any, Any] = {BookWithComments: {"table": "book", "key": ["url"]}}


def test_the_projects_tables_are_used_as_they_are(
    engine: sqlalchemy.Engine, metadata: sqlalchemy.MetaData
) -> None:
    """Made if missing, with columns that are no fields left to their defaults."""
    tables = Tables({Book: {"key": ["url"]}}, metadata, engine.dialect)

    (record,) = store(engine, tables, Book("a", "t", Decimal("1.50")), Book("a", "u"))

    assert record.target.table is metadata.tables["book"]
    (row,) = rows(engine, record.target.table)
    assert (row["id"], row["url"], row["title"], row["state"]) == (1, "a", "u", "new")


@pytest.mark.parametrize(
    ("type_", "value", "words"),
    [
        (postgresql.ARRAY(sqlalchemy.Text), "abc", "takes list"),
        (postgresql.ARRAY(sqlalchemy.Text), {"a": 1}, "takes list"),
        (sqlalchemy.Uuid(), [], "takes UUID"),
        (sqlalchemy.Uuid(as_uuid=False), "no-uuid", "takes UUID"),
        (sqlalchemy.Interval(), "007", "takes timedelta"),
        (mysql.YEAR(), 1, "takes years of four digits"),
        (mysql.SET("a"), {"A"}, "takes a set of a"),
        (postgresql.ARRAY(sqlalchemy.String(2)), [["abc"]], "at most 2 characters"),
        (postgresql.ARRAY(sqlalchemy.Integer), [1.6], "takes int"),
        (sqlalchemy.Numeric(5, -2), Decimal(1234), "-2 after it"),
        (postgresql.DOMAIN("short", sqlalchemy.String(2)), "abc", "at most 2 characters"),
        (sqlalchemy.types.NCHAR(2), "a ", "final spaces"),
    ],
)
def test_types_of_databases_own_take_what_they_are_in_python(
    type_: Any, value: Any, words: str
) -> None:
    """Some drivers make an array of the letters of a text, or the year 2001 of a one."""
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.Text, primary_key=True)
    sqlalchemy.Table("page", metadata, url, sqlalchemy.Column("value", type_))
    item_class = attrs.make_class("Page", {"url": attrs.field(type=str), "value": attrs.field()})
    tables = Tables({item_class: {}}, metadata, postgresql.dialect())
    with pytest.raises(RowRefused, match=words):
        tables.records(item_class("a", value), KEY)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Book("a", price=Decimal("0.125")), "6 digits before the point and 2 after it"),
        (Book("a", price=Decimal(10**6)), "6 digits before the point"),
        (Book(None), "it is of the key"),  # type: ignore[arg-type]
    ],
)
def test_values_that_the_projects_columns_would_change_are_refused(
    metadata: sqlalchemy.MetaData, item: Book, words: str
) -> None:
    """A Numeric(8, 2) would be rounded."""
    tables = Tables({Book: {"key": ["url"]}}, metadata, SQLITE)
    with pytest.raises(RowRefused, match=words):
        tables.records(item, KEY)


def test_nested_items_become_rows_of_their_tables(
    engine: sqlalchemy.Engine, metadata: sqlalchemy.MetaData
) -> None:
    """Tied to their parents by the foreign keys, parents first; the same keys next time."""
    tables = Tables(WITH_COMMENTS, metadata, engine.dialect)
    comments = [Comment("Ann", "good", [Vote(1), Vote(2)]), Comment("Bob")]
    item = BookWithComments("a", comments=comments, best=Comment("Eve", votes=[Vote(3)]))

    for _ in range(2):
        records = store(engine, tables, item)

    names = [record.target.table.name for record in records]
    assert names == ["book", "comment", "vote", "vote", "comment", "comment", "vote"]
    found = rows(engine, metadata.tables["comment"])
    assert [(row["book_url"], row["author"], row["text"]) for row in found] == [
        ("a", "Ann", "good"),
        ("a", "Bob", None),
        ("a", "Eve", None),
    ]
    votes = rows(engine, metadata.tables["vote"])
    assert sorted((row["author"], row["stars"]) for row in votes) == [
        ("Ann", 1),
        ("Ann", 2),
        ("Eve", 3),
    ]
    assert all(len(row["redisq_key"]) == 32 for row in votes)
    (other, *_) = tables.records(item, OTHER_KEY)
    assert other.values == records[0].values


def test_children_of_two_parents_have_different_keys(metadata: sqlalchemy.MetaData) -> None:
    """Their keys come from the parent's and the place in it, never from the request's."""
    tables = Tables(WITH_COMMENTS, metadata, SQLITE)

    def keys(url: str, key: str) -> list[str]:
        comments = [Comment("Ann", votes=[Vote(1), Vote(1)])]
        records = tables.records(BookWithComments(url, comments=comments), key)
        return [r.values["redisq_key"] for r in records if "redisq_key" in r.values]

    assert keys("a", KEY) == keys("a", OTHER_KEY)
    assert len({*keys("a", KEY), *keys("b", KEY)}) == 4


class LooseBook(scrapy.Item):
    url = scrapy.Field()
    comments = scrapy.Field()


def test_untyped_fields_may_hold_child_items(metadata: sqlalchemy.MetaData) -> None:
    """What an item holds decides, if the class does not say."""
    tables = Tables({LooseBook: {"table": "book", "key": ["url"]}}, metadata, SQLITE)
    records = tables.records(LooseBook(url="a", comments=[Comment("Ann")]), KEY)
    assert [record.target.table.name for record in records] == ["book", "comment"]
    assert len(tables.records(LooseBook(url="a", comments=[]), KEY)) == 1
    with pytest.raises(RowRefused, match="no column of table book takes 'comments'"):
        tables.records(LooseBook(url="a", comments=["text"]), KEY)


def test_nested_items_without_a_table_are_json(engine: sqlalchemy.Engine) -> None:
    """Also if their class has a table that does not refer to the parent's."""
    tables = Tables({Comment: {"table": "comments"}}, None, engine.dialect)
    (record,) = store(engine, tables, BookWithComments("a", comments=[Comment("Ann")]))
    (row,) = rows(engine, record.target.table)
    assert as_json(row["comments"]) == [{"author": "Ann", "text": None, "votes": []}]


def test_tables_with_foreign_keys_that_are_there_take_children(engine: sqlalchemy.Engine) -> None:
    """Without MetaData: REDISQ_TABLES names them, and the database knows the rest."""
    exact = " COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
    price = {"postgresql": "NUMERIC", "mysql": "DECIMAL(65, 30)"}.get(engine.dialect.name, "TEXT")
    moment = {"postgresql": "TIMESTAMPTZ"}.get(engine.dialect.name, "DATETIME(6)")
    execute(
        engine,
        f"CREATE TABLE books (url VARCHAR(50){exact} PRIMARY KEY, title VARCHAR(50), "
        f"price {price}, crawled_at {moment})",
        f"CREATE TABLE comments (url VARCHAR(50){exact} NOT NULL, author VARCHAR(50) NOT NULL, "
        "text VARCHAR(50), votes VARCHAR(100), PRIMARY KEY (url, author), "
        "FOREIGN KEY (url) REFERENCES books (url))",
    )
    options = {
        BookWithComments: {"table": "books", "key": ["url"]},
        Comment: {"table": "comments"},
    }
    tables = Tables(options, None, engine.dialect)
    tables.prepare(engine.begin)
    item = BookWithComments("a", comments=[Comment("Ann", votes=[Vote(1)])])

    for _ in range(2):
        records = store(engine, tables, item)

    assert [record.target.table.name for record in records] == ["books", "comments"]
    (row,) = rows(engine, records[1].target.table)
    assert (row["url"], row["author"], row["votes"]) == ("a", "Ann", '[{"stars": 1}]')


@dataclass
class Category:
    name: str
    children: list[Category] = field(default_factory=list)


def test_a_class_may_be_nested_in_itself(engine: sqlalchemy.Engine) -> None:
    """A table that refers to itself takes trees of any depth."""
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table(
        "category",
        metadata,
        sqlalchemy.Column("name", sqlalchemy.String(20), primary_key=True),
        sqlalchemy.Column("parent", sqlalchemy.ForeignKey("category.name")),
    )
    tables = Tables({}, metadata, engine.dialect)
    item = Category("a", [Category("b", [Category("c", [Category("d")])]), Category("e")])
    store(engine, tables, item)
    found = [(row["name"], row["parent"]) for row in rows(engine, metadata.tables["category"])]
    assert found == [("a", None), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "a")]


@dataclass
class Other:
    url: str
    shop: str
    when: date | None = None


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([url_column], "no column takes the field 'shop'; no column takes the field 'when'"),
        (
            [url_column, shop_column, lambda: sqlalchemy.Column("when", sqlalchemy.Text)],
            r"column 'when' is Text\(\) and the field date",
        ),
        (
            [
                url_column,
                shop_column,
                lambda: sqlalchemy.Column("when", sqlalchemy.Date),
                lambda: sqlalchemy.Column("sum", sqlalchemy.Integer, nullable=False),
            ],
            "column 'sum' is NOT NULL and no field fills it",
        ),
        (
            [
                lambda: sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
                lambda: sqlalchemy.Column("url", sqlalchemy.Text),
                shop_column,
                lambda: sqlalchemy.Column("when", sqlalchemy.Date),
            ],
            "no key: name one",
        ),
    ],
)
def test_a_class_that_does_not_fit_the_projects_table_is_told(
    columns: list[Callable[[], Any]], words: str
) -> None:
    """At start if REDISQ_TABLES names it, else at its first item."""
    metadata = table_of(*(column() for column in columns))
    with pytest.raises(SinkMismatch, match=words):
        Tables({Other: {}}, metadata, SQLITE)
    with pytest.raises(SinkMismatch, match=words):
        Tables({}, metadata, SQLITE).records(Other("a", "b"), KEY)


def test_the_key_of_the_projects_table_must_be_unique() -> None:
    """A key that no constraint or index backs; and one that an index backs."""
    when = sqlalchemy.Column("when", sqlalchemy.Date)
    metadata = table_of(url_column(), shop_column(), when)
    with pytest.raises(SettingError, match=r"\['key'\] = \('shop',\).*unique constraint"):
        Tables({Other: {"key": "shop"}}, metadata, SQLITE)
    table = metadata.tables["other"]
    sqlalchemy.Index("shops", table.c.shop, unique=True)
    (record,) = Tables({Other: {"key": "shop"}}, metadata, SQLITE).records(Other("a", "b"), KEY)
    assert record.target.key == ("shop",)


def test_the_key_of_the_projects_table_must_be_unique_in_the_database(
    engine: sqlalchemy.Engine,
) -> None:
    """The model says so, and the table was made without."""
    execute(engine, "CREATE TABLE other (url VARCHAR(100), shop VARCHAR(100))")
    metadata = table_of(url_column(), shop_column())
    options = {"dict": {"table": "other", "columns": {"url": "str", "shop": "str"}}}
    with pytest.raises(SinkMismatch, match="no unique index for the key url"):
        Tables(options, metadata, engine.dialect).prepare(engine.begin)


def test_keys_of_columns_that_make_one_parameter_are_refused() -> None:
    """SQLAlchemy before 2.1 writes the value of one of them into both."""
    columns = [sqlalchemy.Column(name, sqlalchemy.Text) for name in ("a.b", "a_b")]
    options = {"table": "other", "columns": {"url": "str", "a.b": "str", "a_b": "str"}}
    with pytest.raises(SinkMismatch, match="differ only in punctuation"):
        Tables({"dict": options}, table_of(url_column(), *columns), SQLITE)


def test_columns_with_keys_of_their_own(engine: sqlalchemy.Engine) -> None:
    """Fields go by the names of columns, records by the keys that SQLAlchemy wants."""
    metadata = table_of(
        sqlalchemy.Column("url", sqlalchemy.String(100), key="address", primary_key=True),
        sqlalchemy.Column("shop", sqlalchemy.Text, key="seller"),
        sqlalchemy.Column("when", sqlalchemy.Date, key="then"),
    )
    tables = Tables({}, metadata, engine.dialect)
    (record,) = store(engine, tables, Other("a", "b", date(2024, 1, 1)))
    assert record.target.key == ("address",)
    assert record.values == {"address": "a", "seller": "b", "then": date(2024, 1, 1)}
    assert rows(engine, record.target.table) == [
        {"url": "a", "shop": "b", "when": date(2024, 1, 1)}
    ]


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
    (record,) = store(engine, tables, item)
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
        tables.records({"url": "a", "word": "green"}, KEY)
