"""Classes of items as tables: types, values, names, keys, nested items, what was there before."""

from __future__ import annotations

import enum
import json
import threading
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import attrs
import pydantic
import pytest
import scrapy
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import mysql, postgresql, sqlite

from lab.databases import Database
from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines.database.columns import column_kind, column_type
from scrapy_redisq.pipelines.database.fields import KINDS
from scrapy_redisq.pipelines.database.records import Record
from scrapy_redisq.pipelines.database.tables import Tables

KEY = "0123456789abcdef0123456789abcdef"
OTHER_KEY = "f" * 32
HERE = __name__

SQLITE = sqlite.dialect()


@pytest.fixture
def engine(each_database: Database) -> Iterator[sqlalchemy.Engine]:
    """An engine for a new database of each kind."""
    engine = sqlalchemy.create_engine(each_database.url)
    with engine.connect():  # a dialect knows its server only then
        pass
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine() -> Iterator[sqlalchemy.Engine]:
    """An SQLite database in memory."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    yield engine
    engine.dispose()


def upsert(connection: sqlalchemy.Connection, record: Record) -> None:
    """Write a record as a sink does: SQLAlchemy's statement of the database's own."""
    table, key = record.target.table, record.target.key
    changed = [name for name in record.values if name not in key] or list(key)
    if connection.dialect.name in ("mysql", "mariadb"):
        insert = mysql.insert(table)
        new = {name: insert.inserted[name] for name in changed}
        connection.execute(insert.on_duplicate_key_update(new), record.values)
        return
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(table)
    new = {name: insert.excluded[name] for name in changed}
    index = [table.columns[name] for name in key]
    connection.execute(insert.on_conflict_do_update(index_elements=index, set_=new), record.values)


def store(engine: sqlalchemy.Engine, tables: Tables, *items: Any, key: str = KEY) -> list[Record]:
    """Write items, prepared first; all records of the last."""
    records: list[Record] = []
    for item in items:
        records = tables.records(item, key)
        tables.prepare(engine.begin)
        with engine.begin() as connection:
            for record in records:
                upsert(connection, record)
    return records


def rows(engine: sqlalchemy.Engine, table: sqlalchemy.Table) -> list[dict[str, Any]]:
    """The rows of a table, in the order of its key."""
    with engine.connect() as connection:
        query = sqlalchemy.select(table).order_by(*table.primary_key.columns)
        return [dict(row) for row in connection.execute(query).mappings()]


def execute(engine: sqlalchemy.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execution_options(no_parameters=True).exec_driver_sql(statement)


def utc(moment: datetime) -> datetime:
    """As it reads in UTC, whether the database gives its time zone back or not."""
    return (
        moment.replace(tzinfo=None)
        if moment.tzinfo is None
        else (moment.astimezone(timezone.utc).replace(tzinfo=None))
    )


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mixed(enum.Enum):
    PAIR = (1, 2)
    WORD = "word"


Isbn = typing.NewType("Isbn", str)


@dataclass
class Review:
    author: str
    stars: int


@dataclass
class Everything:
    text: str
    whole: int
    number: float
    price: Decimal
    flag: bool
    day: date
    moment: datetime
    clock: time
    data: bytes
    colour: Colour
    size: Size
    mixed: Mixed
    tags: list[str]
    details: dict[str, Any]
    reviews: tuple[Review, ...]
    isbn: Isbn
    kind: typing.Literal["book", "map"]
    pages: typing.Annotated[int, "a count"]
    anything: Any
    either: str | int
    uuid: UUID
    path: PurePosixPath
    none: int | None
    default: float = None  # type: ignore[assignment]


EVERYTHING = Everything(
    text="größe 😀 'quoted' \"double\" \\ %s :x",
    whole=-(1 << 63),
    number=0.1,
    price=Decimal("12.3400"),
    flag=True,
    day=date(1, 1, 1),
    moment=datetime(2024, 2, 29, 23, 59, 59, 999_999, timezone(timedelta(hours=-5))),
    clock=time(23, 59, 59, 999_999),
    data=bytes(range(256)),
    colour=Colour.BLUE,
    size=Size.LARGE,
    mixed=Mixed.PAIR,
    tags=["a", "ü"],
    details={"deep": {"price": Decimal("1.10"), "when": date(2024, 1, 2)}, "none": None},
    reviews=(Review("Ann", 5),),
    isbn=Isbn("978-3"),
    kind="map",
    pages=3,
    anything=[1, "x"],
    either=7,
    uuid=UUID(int=5),
    path=PurePosixPath("/a/b"),
    none=None,
)


def test_each_type_comes_back_from_its_column(engine: sqlalchemy.Engine) -> None:
    """Every type that an annotation can name has a column that gives equal values back."""
    tables = Tables({}, None, engine.dialect)

    (record,) = store(engine, tables, EVERYTHING)

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
    assert (row["anything"], row["either"]) == ('[1, "x"]', "7")
    document = {name: _json(row[name]) for name in ("tags", "details", "reviews")}
    assert document == {
        "tags": ["a", "ü"],
        "details": {"deep": {"price": "1.10", "when": "2024-01-02"}, "none": None},
        "reviews": [{"author": "Ann", "stars": 5}],
    }


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@dataclass
class Values:
    text: str
    whole: int
    number: float
    price: Decimal
    moment: datetime
    clock: time
    data: bytes
    anything: Any


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    st.builds(
        Values,
        text=st.text(),
        whole=st.integers(-(1 << 70), 1 << 70),
        number=st.floats() | st.integers(-(1 << 70), 1 << 70),
        price=st.decimals() | st.integers(),
        moment=st.datetimes(timezones=st.none() | st.timezones()),
        clock=st.times(),
        data=st.binary(),
        anything=st.text() | st.integers(),
    )
)
def test_a_value_comes_back_equal_or_is_refused(engine: sqlalchemy.Engine, item: Values) -> None:
    """Nothing is changed silently, whatever the value: it reads the same, or was refused."""
    tables = Tables({}, None, engine.dialect)
    try:
        (record,) = store(engine, tables, item)
    except RowRefused as refusal:
        assert "Values." in str(refusal)
        return
    (row,) = rows(engine, record.target.table)
    assert (row["text"], row["whole"], row["data"], row["clock"]) == (
        item.text,
        item.whole,
        item.data,
        item.clock,
    )
    assert repr(row["number"]) == repr(float(item.number))
    assert Decimal(row["price"]) == item.price
    assert utc(row["moment"]) == utc(item.moment)
    assert row["anything"] == str(item.anything)


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
        ("tags", [object()], "object has no form in JSON"),
        ("tags", [{(1, 2): 3}], "keys in JSON are text"),
        ("tags", ["\udc00"], "surrogate"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: Any, words: str) -> None:
    """The refusal names class, field, value and type, and what the column takes."""
    item = Everything(**{**vars(EVERYTHING), name: value})
    with pytest.raises(RowRefused, match=words) as refusal:
        Tables({}, None, SQLITE).records(item, KEY)
    assert f"{HERE}.Everything.{name} = " in str(refusal.value)
    assert type(value).__qualname__ in str(refusal.value)
    assert len(str(refusal.value)) < 300


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
        ("tags", {3, 1, 2}, "[1, 2, 3]"),
        ("tags", [b"\xff", Colour.RED, Size.LARGE, {1: time(1, 2)}], None),
    ],
)
def test_what_is_lossless_and_obvious_is_converted(name: str, value: Any, stored: Any) -> None:
    """An int for a float, a bool for an int, an enum's value, other forms in JSON."""
    item = Everything(**{**vars(EVERYTHING), name: value})
    (record,) = Tables({}, None, SQLITE).records(item, KEY)
    if stored is None:
        stored = '["/w==", "red", 2, {"1": "01:02:00"}]'
    assert record.values[name] == stored
    assert type(record.values[name]) is type(stored)


@pytest.mark.parametrize("dialect", [SQLITE, postgresql.dialect(), mysql.dialect()])
@pytest.mark.parametrize("kind", KINDS)
def test_the_column_for_a_kind_is_known_as_one_of_that_kind(kind: str, dialect: Any) -> None:
    """Or values would go into it unchecked."""
    made = column_kind(column_type(kind, dialect))
    assert made == ("str" if (kind, dialect.name) == ("decimal", "sqlite") else kind)


def test_a_subclass_of_text_is_stored_as_text() -> None:
    """A driver gets plain text, not an object that holds its whole document."""

    class Node(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "<Node>"

    item = Everything(**{**vars(EVERYTHING), "text": Node("words")})
    (record,) = Tables({}, None, SQLITE).records(item, KEY)
    assert type(record.values["text"]) is str
    assert record.values["text"] == "words"


def test_postgres_refuses_nul_with_words_and_others_keep_it(engine: sqlalchemy.Engine) -> None:
    """PostgreSQL has no character NUL in texts; SQLite and MariaDB give it back."""
    tables = Tables({}, None, engine.dialect)
    item = Everything(**{**vars(EVERYTHING), "text": "a\0b"})
    if engine.dialect.name == "postgresql":
        with pytest.raises(RowRefused, match="NUL"):
            tables.records(item, KEY)
        return
    (record,) = store(engine, tables, item)
    assert [row["text"] for row in rows(engine, record.target.table)] == ["a\0b"]


# Classes of each kind


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

    (one,) = store(engine, tables, AttrsBook(url, Decimal("1.5")))
    (two,) = store(engine, tables, PydanticBook(url=url, seen=seen))
    (three,) = store(engine, tables, ScrapyBook(url=url, pages=3, tags=["a"]))

    (row,) = rows(engine, one.target.table)
    assert (row["url"], Decimal(row["price"])) == (url, Decimal("1.5"))
    (row,) = rows(engine, two.target.table)
    assert (row["url"], row["price"], utc(row["seen"])) == (url, None, utc(seen))
    (row,) = rows(engine, three.target.table)
    assert (row["url"], row["price"], row["pages"], _json(row["tags"])) == (url, None, 3, ["a"])


def test_scrapy_fields_without_a_type_take_text_as_it_is_and_the_rest_as_json() -> None:
    """A number in a field without a type is its JSON, and unset is NULL."""
    tables = Tables({}, None, SQLITE)
    stored = [
        tables.records(ScrapyBook(url=value), KEY)[0].values["url"]
        for value in ("text", 1, 1.5, True, ["ü", Decimal("1.0")], UUID(int=1), Colour.RED)
    ]
    expected = ["text", "1", "1.5", "true", '["ü", "1.0"]', str(UUID(int=1)), "red"]
    assert stored == expected
    assert tables.records(ScrapyBook(), KEY)[0].values["url"] is None


def test_records_of_a_class_have_the_same_columns_all() -> None:
    """Fields that are not set are NULL, so that many rows make one statement."""
    tables = Tables({}, None, SQLITE)
    (one,) = tables.records(ScrapyBook(url="a"), KEY)
    (two,) = tables.records(ScrapyBook(price=1), KEY)
    assert list(one.values) == list(two.values)
    assert one.target is two.target


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
        Tables({}, None, SQLITE).records(Unresolvable("a", 1), KEY)
    tables = Tables({Unresolvable: {"columns": {"other": "int"}}}, None, SQLITE)
    assert tables.records(Unresolvable("a", 1), KEY)[0].values["other"] == 1


def test_a_type_without_a_column_says_what_to_do() -> None:
    """No column is made for complex numbers."""
    with pytest.raises(SinkMismatch, match=r"Uncolumned\.z: no column is made for complex"):
        Tables({}, None, SQLITE).records(Uncolumned(1j), KEY)


def test_plain_dicts_need_a_description() -> None:
    """The error shows the setting."""
    with pytest.raises(SinkMismatch, match=r"REDISQ_TABLES = \{'dict'"):
        Tables({}, None, SQLITE).records({"url": "a"}, KEY)


# Keys, versions, tables


@dataclass
class Book:
    url: str
    title: str | None = None
    price: Decimal | None = None
    crawled_at: datetime | None = None


BOOKS: dict[str, Any] = {"table": "books", "key": ["url"]}


def test_a_key_is_the_primary_key_and_tells_all_texts_apart(engine: sqlalchemy.Engine) -> None:
    """Case, accents and final spaces matter, as they do in URLs; the default of MariaDB differs."""
    tables = Tables({f"{HERE}.Book": BOOKS}, None, engine.dialect)
    urls = ["a", "A", "ä", "a ", "a" * 700]

    store(engine, tables, *map(Book, urls))
    (record,) = store(engine, tables, *(Book(url, "again") for url in urls))

    assert record.target.key == ("url",)
    assert sorted(row["url"] for row in rows(engine, record.target.table)) == sorted(urls)
    assert {row["title"] for row in rows(engine, record.target.table)} == {"again"}


def test_none_in_a_key_or_a_version_is_refused() -> None:
    """Such a row could not be found again, or not be compared."""
    tables = Tables({Book: {**BOOKS, "version": "crawled_at"}}, None, SQLITE)
    with pytest.raises(RowRefused, match=r"Book\.url = None .*key"):
        tables.records(Book(None), KEY)  # type: ignore[arg-type]
    with pytest.raises(RowRefused, match=r"Book\.crawled_at = None .*version"):
        tables.records(Book("a"), KEY)


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

    (record,) = store(engine, tables, one, two)

    (row,) = rows(engine, record.target.table)
    assert (row["whole"], Decimal(row["price"])) == (0, Decimal("1.5"))


def test_a_key_that_is_too_long_for_the_index_is_refused(engine: sqlalchemy.Engine) -> None:
    """MariaDB takes 768 characters; the others take these, too."""
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    if engine.dialect.name == "mysql":
        with pytest.raises(RowRefused, match="at most 768 characters, and these are 769"):
            tables.records(Book("x" * 769), KEY)
        return
    (record,) = store(engine, tables, Book("x" * 769))
    assert [row["url"] for row in rows(engine, record.target.table)] == ["x" * 769]


@pytest.mark.parametrize(
    "versions",
    [
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2024, 1, 1)),
        (datetime(999, 1, 1), datetime(1000, 1, 1, 0, 0, 0, 1)),
        (datetime(2024, 1, 1, 9), datetime(2024, 1, 1, 10, tzinfo=timezone.utc)),
    ],
)
def test_datetimes_compare_as_versions(
    engine: sqlalchemy.Engine, versions: tuple[datetime, datetime]
) -> None:
    """The earlier one is smaller in the database, and so are the values of the records."""
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    records = [
        store(engine, tables, Book(str(index), crawled_at=version))[0]
        for index, version in enumerate(versions)
    ]
    column = records[0].target.table.columns["crawled_at"]
    with engine.connect() as connection:
        query = sqlalchemy.select(records[0].target.table.columns["url"]).order_by(column)
        assert connection.scalars(query).all() == ["0", "1"]
    assert records[0].values["crawled_at"] < records[1].values["crawled_at"]


def test_options_reach_the_target() -> None:
    """Also under the class itself instead of its import path."""
    options = {**BOOKS, "on_conflict": "ignore", "version": "crawled_at"}
    (record,) = Tables({Book: options}, None, SQLITE).records(
        Book("a", crawled_at=datetime(2024, 1, 1)), KEY
    )
    target = record.target
    assert (target.table.name, target.key) == ("books", ("url",))
    assert (target.on_conflict, target.version) == ("ignore", "crawled_at")


class BookReviewHTML(scrapy.Item):
    url = scrapy.Field()


def test_a_table_is_called_like_its_class() -> None:
    """In snake case."""
    (record,) = Tables({}, None, SQLITE).records(BookReviewHTML(), KEY)
    assert record.target.table.name == "book_review_html"


def test_two_classes_of_one_name_are_told_apart_only_by_settings() -> None:
    """The error names both; with a table for one of them both work."""
    twin = type("Book", (scrapy.Item,), {"url": scrapy.Field(), "__module__": "elsewhere"})
    tables = Tables({}, None, SQLITE)
    tables.records(Book("a"), KEY)
    with pytest.raises(SinkMismatch, match=rf"{HERE}\.Book and elsewhere\.Book.*REDISQ_TABLES"):
        tables.records(twin(), KEY)
    tables = Tables({twin: {"table": "twins"}}, None, SQLITE)
    assert tables.records(Book("a"), KEY)[0].target.table.name == "book"
    assert tables.records(twin(), KEY)[0].target.table.name == "twins"


def test_two_classes_share_a_table_if_both_are_told_to_and_have_its_columns() -> None:
    """Else REDISQ_TABLES is wrong."""
    fields = {"url": scrapy.Field(type=str), "__module__": "elsewhere"}
    one, two = (type(name, (scrapy.Item,), fields) for name in ("One", "Two"))
    tables = Tables({one: {"table": "t"}, two: {"table": "t"}}, None, SQLITE)
    targets = [tables.records(cls(), KEY)[0].target for cls in (one, two)]
    assert targets[0].table is targets[1].table
    with pytest.raises(SettingError, match=r"REDISQ_TABLES.*would have the same table 't'"):
        Tables({one: {"table": "t"}, Book: {"table": "t"}}, None, SQLITE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1], "REDISQ_TABLES = .*takes a dict such as"),
        ({"shop.items.Book": {}}, "shop.items.Book.*No module"),
        ({"builtins.print": {}}, "no class of items"),
        ({f"{HERE}.Book": "books"}, r"REDISQ_TABLES\['.*Book'\].*takes a dict with some of"),
        ({Book: {"tabel": "x"}}, r"\['tabel'\].*did you mean 'table'"),
        ({Book: {"table": ""}}, r"\['table'\] = ''.*takes a name"),
        ({Book: {"key": 5}}, r"\['key'\] = 5.*takes a list"),
        ({Book: {"key": ["ulr"]}}, r"\['key'\] = 'ulr'.*url.*did you mean 'url'"),
        ({Book: {"key": ["url", "url"]}}, "each name once"),
        ({Book: {"columns": {"url": "json"}, "key": "url"}}, "no JSON"),
        ({Book: {"on_conflict": "replace"}}, r"\['on_conflict'\].*'update' or 'ignore'"),
        ({Book: {"version": "crawledat"}}, r"\['version'\].*did you mean 'crawled_at'"),
        ({Book: {"version": "title"}}, r"\['version'\].*a number or time"),
        ({Book: {"version": "price"}}, r"\['version'\].*a number or time"),
        ({Book: {"extra": "title"}}, r"\['extra'\].*no field has"),
        ({Book: {"columns": {"prise": "float"}}}, r"\['columns'\] = 'prise'.*'price'"),
        ({Book: {"columns": {"price": "flaot"}}}, r"\['columns'\].*did you mean 'float'"),
        ({Book: {"columns": {"price": [1]}}}, r"\['columns'\].*takes a dict of fields"),
        ({Book: {"columns": "price"}}, r"\['columns'\].*takes a dict of fields"),
        ({"dict": {"columns": {1: "str"}}}, r"\['columns'\] = 1"),
        ({f"{HERE}.Book": {}, Book: {}}, "each class once"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_takes(given: Any, words: str) -> None:
    """Before anything is crawled, with the nearest name that would be right."""
    with pytest.raises(SettingError, match=words) as error:
        Tables(given, None, SQLITE)
    assert str(error.value).startswith("REDISQ_TABLES")


def test_metadata_must_be_metadata() -> None:
    """REDISQ_METADATA that leads to something else."""
    with pytest.raises(SettingError, match=r"REDISQ_METADATA.*takes the import path"):
        Tables({}, object(), SQLITE)  # type: ignore[arg-type]


# Fields without a column

DICT: dict[str, Any] = {
    "dict": {"table": "items", "key": ["url"], "columns": {"url": "str", "price": "decimal"}}
}


def test_a_field_without_a_column_is_refused_by_name() -> None:
    """With what to do; one that is None holds nothing."""
    tables = Tables(DICT, None, SQLITE)
    with pytest.raises(RowRefused, match=r"dict: no column .* items takes 'colour', 2.*'extra'"):
        tables.records({"url": "a", "colour": "red", 2: 3, "none": None}, KEY)
    (record,) = tables.records({"url": "a", "none": None}, KEY)
    assert record.values == {"url": "a", "price": None}


def test_fields_without_a_column_go_into_the_extra_column(engine: sqlalchemy.Engine) -> None:
    """As one JSON object; NULL if there are none."""
    tables = Tables({"dict": {**DICT["dict"], "extra": "extra"}}, None, engine.dialect)
    one = {"url": "a", "price": Decimal("1.5"), "colour": "red", "tags": [], "extra": 1}

    (record,) = store(engine, tables, one, {"url": "b"})

    extras = [_json(row["extra"]) for row in rows(engine, record.target.table)]
    assert extras == [{"colour": "red", "tags": [], "extra": 1}, None]
    with pytest.raises(RowRefused, match=r"dict\.extra = .*no JSON"):
        tables.records({"url": "a", "x": float("nan")}, KEY)


def test_fields_that_a_pydantic_model_allows_beyond_its_own_are_not_lost() -> None:
    """itemadapter does not show them."""
    with pytest.raises(RowRefused, match="'colour'"):
        Tables({}, None, SQLITE).records(OpenBook(url="a", colour="red"), KEY)  # type: ignore[call-arg]


def test_dicts_of_a_class_of_their_own_are_written_like_plain_ones() -> None:
    """Subclasses of dict that nothing is said about."""

    class Special(dict[str, Any]):
        pass

    (record,) = Tables(DICT, None, SQLITE).records(Special(url="a"), KEY)
    assert record.values["url"] == "a"


# Names

HOSTILE = [
    *("select", "order", "group", "table", "user", "index", "primary", "values", "new", "excluded"),
    *("a b", "a'b", 'a"b', "a`b", "a;b", '"; DROP TABLE x; --', "'; DROP TABLE x; --"),
    *("`; DROP TABLE x; --", "100%", "%s", "%(x)s", "%%", "a:b", ":x", "a::b", "{x}", "{{}}"),
    *("[x]", "(x)", "a,b", "a_b", "back\\slash", "end\\", "\\'", "new\nline", "tab\t", "größe"),
    *("価格", "emoji 😀", " lead", "trail ", "?", "@x", "#x", "--x", "/*x*/", "$1", "-", "0"),
    *("param_1", "\x01", "\x7f", "a\u2028b", "nul\0", "x" * 63, "x" * 64, "x" * 65, "é" * 40),
    *(
        "sqlite_x",
        "ctid",
        "EXCLUDED",
        "half \ud800",
        "` int, `b",
        "KEY `x` (`y`)",
        "redisq",
        "x.y.z",
    ),
]

NOWHERE = {"nul\0", "half \ud800", "%(x)s"}
REFUSED = {
    "sqlite": NOWHERE,
    "postgresql": {*NOWHERE, "x" * 64, "x" * 65, "é" * 40},
    "mysql": {
        *(name for name in HOSTILE if set(name) & set("`%\n\t\x01😀") or name.endswith(" ")),
        *NOWHERE,
        "x" * 65,
    },
}
RESERVED = {
    "sqlite": ["sqlite_x", "EXCLUDED", "excluded", "x.y.z"],
    "postgresql": ["EXCLUDED", "excluded", "x.y.z"],
    "mysql": ["x.y.z"],
}


def test_hostile_names_of_tables_are_kept_exactly_or_refused_with_words(
    engine: sqlalchemy.Engine,
) -> None:
    """No name changes a statement: there is a table of just this name, or an error before."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    kept = set()
    for name in HOSTILE:
        options = {"table": name, "key": ["key"], "columns": {"key": "str", "value": "str"}}
        try:
            tables = Tables({"dict": options}, None, engine.dialect)
            tables.prepare(engine.begin)
            with engine.begin() as connection:
                for value in ("old", "new"):
                    (record,) = tables.records({"key": "'%s\\", "value": value}, KEY)
                    upsert(connection, record)
        except SinkMismatch as mismatch:
            assert "REDISQ_TABLES" in str(mismatch)
            continue
        kept.add(name)
        assert rows(engine, record.target.table) == [{"key": "'%s\\", "value": "new"}]
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {*kept, "x"}
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"
    refused = {*REFUSED[engine.dialect.name], *RESERVED[engine.dialect.name]}
    assert set(HOSTILE) - kept == refused


def test_hostile_names_of_columns_are_kept_exactly_or_refused_with_words(
    engine: sqlalchemy.Engine,
) -> None:
    """In the key and beside it: there are columns of just these names, or an error before."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    kept = []
    for name in HOSTILE:
        options = {"table": "t", "key": [name], "columns": {name: "str"}}
        try:
            Tables({"dict": options}, None, engine.dialect)
            kept.append(name)
        except SinkMismatch as mismatch:
            assert "REDISQ_TABLES" in str(mismatch)
    if engine.dialect.name == "postgresql":
        kept.remove("ctid")  # only the database knows: see below
        options = {"table": "t", "columns": {"ctid": "str"}}
        with pytest.raises(SinkMismatch, match=r'(?s)cannot be made: .*"ctid".*REDISQ_TABLES'):
            Tables({"dict": options}, None, engine.dialect).prepare(engine.begin)
    for start in range(0, len(kept), 10):
        names = kept[start : start + 10]
        key = names[: len(names) // 2 + 1]
        options = {"table": f"t{start}", "key": key, "columns": dict.fromkeys(names, "str")}
        tables = Tables({"dict": options}, None, engine.dialect)
        tables.prepare(engine.begin)
        with engine.begin() as connection:
            for value in ("old", "new"):
                item = {name: name if name in key else name + value for name in names}
                (record,) = tables.records(item, KEY)
                upsert(connection, record)
        assert rows(engine, record.target.table) == [item]
        columns = sqlalchemy.inspect(engine).get_columns(f"t{start}")
        assert [column["name"] for column in columns] == names
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"
    assert set(HOSTILE) - set(kept) == REFUSED[engine.dialect.name] | (
        {"ctid"} if engine.dialect.name == "postgresql" else set()
    )


@pytest.mark.parametrize(("one", "two"), [("a.b", "a_b"), ("a b", "a_b"), ("a(", "aA")])
def test_names_that_look_alike_as_parameters_keep_their_values(
    engine: sqlalchemy.Engine, one: str, two: str
) -> None:
    """SQLAlchemy makes names of parameters of them."""
    options = {"table": "t", "columns": {one: "str", two: "str"}}
    tables = Tables({"dict": options}, None, engine.dialect)
    (record,) = store(engine, tables, {one: "1", two: "2"})
    (row,) = rows(engine, record.target.table)
    assert (row[one], row[two]) == ("1", "2")


def test_names_that_differ_in_case_alone(engine: sqlalchemy.Engine) -> None:
    """PostgreSQL tells them apart; SQLite and MariaDB do not, and the error says so."""
    options = {"table": "t", "columns": {"url": "str", "Url": "str"}}
    if engine.dialect.name == "postgresql":
        (record,) = store(
            engine, Tables({"dict": options}, None, engine.dialect), {"url": "1", "Url": "2"}
        )
        (row,) = rows(engine, record.target.table)
        assert (row["url"], row["Url"]) == ("1", "2")
        return
    with pytest.raises(SinkMismatch, match="does not tell the columns 'url' and 'Url' apart"):
        Tables({"dict": options}, None, engine.dialect)


def test_a_table_in_a_schema(engine: sqlalchemy.Engine) -> None:
    """A dot in the name of a table parts schema and table; without the schema there are words."""
    options = {"table": "shop.books", "key": ["url"]}
    tables = Tables({Book: options}, None, engine.dialect)
    with pytest.raises(SinkMismatch, match="no schema 'shop'"):
        store(engine, tables, Book("a"))
    if engine.dialect.name == "postgresql":
        execute(engine, "CREATE SCHEMA shop")
        (record,) = store(engine, tables, Book("a"))
        assert record.target.table.schema == "shop"
        assert len(rows(engine, record.target.table)) == 1


def test_a_table_that_the_database_cannot_have_says_why(engine: sqlalchemy.Engine) -> None:
    """More columns, in the table or its key, than it takes: no retry would help."""
    many = [f"c{number}" for number in range(2500)]
    for options in ({"columns": dict.fromkeys(many, "int")}, _keyed(many[:40])):
        tables = Tables({"dict": options}, None, engine.dialect)
        if engine.dialect.name == "sqlite" and "key" in options:
            tables.prepare(engine.begin)  # has no such limit
            continue
        with pytest.raises(SinkMismatch, match=r"(?s)table dict cannot be made: .*REDISQ_TABLES"):
            tables.prepare(engine.begin)


def _keyed(names: list[str]) -> dict[str, Any]:
    return {"key": names, "columns": dict.fromkeys(names, "int")}


# What is in the database before


def test_many_workers_make_the_same_tables_at_the_same_moment(each_database: Database) -> None:
    """All of them find the tables made, whoever made them."""
    metadata = sqlalchemy.MetaData()
    column = sqlalchemy.Column("url", sqlalchemy.String(50), primary_key=True)
    sqlalchemy.Table("shops", metadata, column)
    workers = 6
    barrier = threading.Barrier(workers)
    failures: list[BaseException] = []

    def work() -> None:
        engine = sqlalchemy.create_engine(each_database.url)
        try:
            with engine.connect():
                pass
            tables = Tables({Book: BOOKS}, metadata, engine.dialect)
            barrier.wait(20)
            tables.prepare(engine.begin)
            tables.records(EVERYTHING, KEY)
            barrier.wait(20)
            tables.prepare(engine.begin)
        except BaseException as failure:
            failures.append(failure)
            barrier.abort()
        finally:
            engine.dispose()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    engine = sqlalchemy.create_engine(each_database.url)
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {"books", "everything", "shops"}
    engine.dispose()


def test_tables_of_the_run_before_fit(engine: sqlalchemy.Engine) -> None:
    """What was made for a class is what the class needs: no difference is seen."""
    for _ in range(2):
        tables = Tables({Book: {**BOOKS, "extra": "more"}, **DICT}, None, engine.dialect)
        store(engine, tables, EVERYTHING, Book("a"), {"url": "a"})


def test_prepare_asks_the_database_only_about_what_is_new(sqlite_engine: sqlalchemy.Engine) -> None:
    """It is called before each batch."""
    tables = Tables({Book: BOOKS}, None, sqlite_engine.dialect)
    tables.prepare(sqlite_engine.begin)
    statements: list[str] = []
    sqlalchemy.event.listen(
        sqlite_engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    tables.records(Book("a"), KEY)
    tables.prepare(sqlite_engine.begin)
    assert statements == []
    tables.records(EVERYTHING, KEY)
    tables.prepare(sqlite_engine.begin)
    assert any("CREATE TABLE IF NOT EXISTS everything" in statement for statement in statements)


def test_drift_is_found_with_all_differences_and_what_to_do(engine: sqlalchemy.Engine) -> None:
    """A column missing, one of another kind, one that nobody fills, and a key without an index."""
    execute(
        engine,
        "CREATE TABLE books (url VARCHAR(100), title INTEGER, crawled_at DATE, "
        "shop VARCHAR(20) NOT NULL)",
    )
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    with pytest.raises(SinkMismatch) as mismatch:
        tables.prepare(engine.begin)
    message = str(mismatch.value)
    assert f"table books does not fit {HERE}.Book" in message
    assert "it has no column 'price'" in message
    assert "column 'title' is INTEGER" in message
    assert "column 'crawled_at' is DATE, not " in message
    assert "column 'shop' is NOT NULL and no field fills it" in message
    assert "no unique index for the key url" in message
    assert "ALTER TABLE books ADD COLUMN price " in message
    assert "CREATE UNIQUE INDEX books_key ON books (url);" in message
    assert "REDISQ_METADATA" in message


@pytest.mark.parametrize("attempt", [1, 2])
def test_what_the_error_says_to_do_mends_the_table(engine: sqlalchemy.Engine, attempt: int) -> None:
    """The statements in it can be run as they are."""
    execute(engine, "CREATE TABLE books (url VARCHAR(100) NOT NULL, title INTEGER)")
    if engine.dialect.name == "sqlite":
        execute(engine, "DROP TABLE books", "CREATE TABLE books (url TEXT, title TEXT)")
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    for _ in range(2):  # the collation of a key is looked at once it has an index
        try:
            tables.prepare(engine.begin)
        except SinkMismatch as mismatch:
            advice = str(mismatch).split("Change the table (")[1].split(";)")[0]
            execute(engine, *advice.split("; "))
    (record,) = store(engine, tables, Book("a", "b"))
    assert rows(engine, record.target.table)[0]["title"] == "b"


def test_a_table_made_by_hand_can_be_used(engine: sqlalchemy.Engine) -> None:
    """With a number of its own, a default, shorter types, and a unique key beside the primary."""
    number = {
        "sqlite": "id INTEGER PRIMARY KEY",
        "postgresql": "id SERIAL PRIMARY KEY",
        "mysql": "id INTEGER AUTO_INCREMENT PRIMARY KEY",
    }[engine.dialect.name]
    collation = " COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
    execute(
        engine,
        f"CREATE TABLE hand ({number}, url VARCHAR(200){collation} NOT NULL UNIQUE, "
        "whole SMALLINT, made INTEGER NOT NULL DEFAULT 5, note VARCHAR(10))",
    )
    options = {"table": "hand", "key": ["url"], "columns": {"url": "str", "whole": "int"}}
    tables = Tables({"dict": options}, None, engine.dialect)

    store(engine, tables, {"url": "a", "whole": 1}, {"url": "a", "whole": 2})

    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT id, url, whole, made, note FROM hand").all()
    assert [tuple(row) for row in found] == [(1, "a", 2, 5, None)]


LOSSY = {
    "postgresql": [
        ("price", "NUMERIC(10, 2)"),
        ("price", "DOUBLE PRECISION"),
        ("number", "REAL"),
        ("number", "NUMERIC"),
        ("moment", "TIMESTAMP"),
        ("moment", "TIMESTAMPTZ(0)"),
        ("data", "TEXT"),
        ("anything", "JSONB"),
    ],
    "mysql": [
        ("price", "DECIMAL(10, 2)"),
        ("price", "DOUBLE"),
        ("number", "FLOAT"),
        ("moment", "DATETIME"),
        ("moment", "TIMESTAMP(6)"),
        ("clock", "TIME"),
        ("data", "LONGTEXT"),
    ],
    "sqlite": [("price", "NUMERIC"), ("number", "INTEGER"), ("data", "TEXT")],
}


def test_columns_that_would_change_values_do_not_fit(engine: sqlalchemy.Engine) -> None:
    """Those that round, cut or shift values are found, also if their kind is the right one."""
    for name, type_ in LOSSY[engine.dialect.name]:
        tables = Tables({}, None, engine.dialect)
        item = Values("", 1, 1.0, Decimal(1), datetime(2024, 1, 1), time(1), b"", "")
        store(engine, tables, item)
        quoted = engine.dialect.identifier_preparer.quote(name)
        execute(
            engine,
            f"ALTER TABLE {'values'!r} DROP COLUMN {quoted}".replace("'", _quote(engine)),
            f"ALTER TABLE {'values'!r} ADD COLUMN {quoted} {type_}".replace("'", _quote(engine)),
        )
        try:
            prepare_for(engine, item)
        except SinkMismatch as mismatch:
            assert f"column {name!r} is " in str(mismatch)
        else:
            pytest.fail(f"{name} {type_} fits")
        execute(engine, f"DROP TABLE {'values'!r}".replace("'", _quote(engine)))


def _quote(engine: sqlalchemy.Engine) -> str:
    return "`" if engine.dialect.name == "mysql" else '"'


def prepare_for(engine: sqlalchemy.Engine, item: Any) -> None:
    """What a new worker does whose first item this is."""
    tables = Tables({}, None, engine.dialect)
    tables.records(item, KEY)
    tables.prepare(engine.begin)


def test_a_key_with_another_collation_does_not_fit(engine: sqlalchemy.Engine) -> None:
    """MariaDB's own would merge rows whose keys differ in case."""
    if engine.dialect.name != "mysql":
        collations = ["TEXT"]
    else:
        collations = ["VARCHAR(99)", "VARCHAR(99) COLLATE utf8mb4_bin"]
    for collation in collations:
        execute(engine, f"CREATE TABLE books (url {collation} PRIMARY KEY)")
        tables = Tables({Book: {**BOOKS, "columns": {}}}, None, engine.dialect)
        with pytest.raises(SinkMismatch) as mismatch:
            tables.prepare(engine.begin)
        told = "the collation of 'url' takes different keys for the same" in str(mismatch.value)
        assert told == (engine.dialect.name == "mysql")
        execute(engine, "DROP TABLE books")


def test_dicts_without_columns_take_those_of_their_table(engine: sqlalchemy.Engine) -> None:
    """As the database says; columns with defaults are left to them."""
    execute(
        engine,
        "CREATE TABLE items (url VARCHAR(99) PRIMARY KEY, price DECIMAL(10, 2), "
        "made INTEGER NOT NULL DEFAULT 5)",
    )
    tables = Tables({"dict": {"table": "items"}}, None, engine.dialect)
    tables.prepare(engine.begin)

    (record,) = store(engine, tables, {"url": "a", "price": Decimal("1.50")})

    assert record.target.key == ("url",)
    with engine.connect() as connection:
        (row,) = connection.exec_driver_sql("SELECT url, price, made FROM items")
    assert (row[0], Decimal(str(row[1])), row[2]) == ("a", Decimal("1.5"), 5)
    with pytest.raises(RowRefused, match="8 digits before the point and 2 after"):
        tables.records({"url": "a", "price": Decimal("1.555")}, KEY)
    with pytest.raises(RowRefused, match="'made'"):
        tables.records({"url": "a", "made": 1}, KEY)


def test_dicts_without_columns_need_their_table(sqlite_engine: sqlalchemy.Engine) -> None:
    """The error says what to give."""
    tables = Tables({"dict": {"table": "items"}}, None, sqlite_engine.dialect)
    with pytest.raises(SettingError, match=r"\['columns'\].*there is no table items"):
        tables.prepare(sqlite_engine.begin)


# The project's own tables


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
    assert _json(row["comments"]) == [{"author": "Ann", "text": None, "votes": []}]


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


def table_of(*columns: sqlalchemy.Column[Any], name: str = "other") -> sqlalchemy.MetaData:
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table(name, metadata, *columns)
    return metadata


def url_column() -> sqlalchemy.Column[Any]:
    return sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True)


def shop_column(**options: Any) -> sqlalchemy.Column[Any]:
    return sqlalchemy.Column("shop", sqlalchemy.Text, **options)


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


# Columns as they are in the database


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
    (record, *_) = store(engine, tables, *map(Page, urls))
    assert sorted(row["url"] for row in rows(engine, record.target.table)) == sorted(urls)


INEXACT = {
    "sqlite": "VARCHAR(200) COLLATE NOCASE",
    "mysql": "VARCHAR(200) COLLATE utf8mb4_general_ci",
    "postgresql": "citext",
}


def test_a_key_that_takes_different_texts_for_the_same_is_told_of(
    engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """The project's table was there, and is used as it is."""
    if engine.dialect.name == "postgresql":
        try:
            execute(engine, "CREATE EXTENSION citext")
        except sqlalchemy.exc.DBAPIError as missing:
            pytest.skip(str(missing))
    type_ = INEXACT[engine.dialect.name]
    execute(engine, f"CREATE TABLE page (url {type_} PRIMARY KEY, name TEXT)")
    metadata = sqlalchemy.MetaData()
    key = sqlalchemy.Column("url", sqlalchemy.String(200), primary_key=True)
    sqlalchemy.Table("page", metadata, key, sqlalchemy.Column("name", sqlalchemy.Text))
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "name": attrs.field(type=str)})
    tables = Tables({item: {}}, metadata, engine.dialect)
    tables.prepare(engine.begin)
    assert "the collation of 'url' takes different keys for the same" in caplog.text


def test_parts_of_seconds_are_not_cut_off(
    engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A column without them refuses what has some, and it is said at start."""
    types: dict[str, Any] = {}
    if engine.dialect.name == "postgresql":
        types = {"at": postgresql.TIMESTAMP(precision=0), "clock": postgresql.TIME(precision=0)}
    tables = given_table(engine, *page_columns(**types))
    tables.prepare(engine.begin)
    whole = Page("whole", datetime(2024, 1, 1, 1, 1, 1), time(1, 1, 1))
    (record,) = store(engine, tables, whole)
    (row,) = rows(engine, record.target.table)
    assert (row["at"], str(row["clock"]).zfill(8)) == (whole.at, "01:01:01")
    parts = Page("p", datetime(2024, 1, 1, 1, 1, 1, 600_000)), Page("p", None, time(1, 1, 1, 1))
    if engine.dialect.name == "sqlite":
        store(engine, tables, *parts)
        assert caplog.text == ""
        return
    for item in parts:
        with pytest.raises(RowRefused, match="takes 0 digits after the point of seconds"):
            tables.records(item, KEY)
    assert caplog.text.count("keeps 0 digits") == 2


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


def test_what_the_database_fills_up_is_refused_if_it_would_not_come_back(
    engine: sqlalchemy.Engine,
) -> None:
    """CHAR(n) loses or gains spaces, BINARY(n) gains zeros."""
    types: dict[str, Any] = {"name": sqlalchemy.CHAR(4)}
    if engine.dialect.name == "mysql":
        types["data"] = sqlalchemy.BINARY(4)
    tables = given_table(engine, *page_columns(**types))
    written = []
    for item in (
        *(Page(text, name=text) for text in ("abcd", "ab", "ab  ", "    ", "abcde")),
        *(Page(data.hex(), data=data) for data in (b"abcd", b"ab", b"")),
    ):
        try:
            (record,) = store(engine, tables, item)
        except RowRefused:
            continue
        written.append(item)
        found = {row["url"]: row for row in rows(engine, record.target.table)}[item.url]
        assert (found["name"], found["data"]) == (item.name, item.data)
    assert written[0].url == "abcd"
    assert len(written) >= {"sqlite": 8, "mysql": 3, "postgresql": 4}[engine.dialect.name]


GENERATED = {
    "sqlite": "number INTEGER GENERATED ALWAYS AS (length(url)) STORED",
    "mysql": "number INTEGER GENERATED ALWAYS AS (length(url)) STORED",
    "postgresql": "number INTEGER GENERATED ALWAYS AS IDENTITY",
}


def test_a_field_for_a_column_that_only_the_database_fills(engine: sqlalchemy.Engine) -> None:
    """It is a mismatch at start."""
    collation = " COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
    execute(
        engine,
        f"CREATE TABLE page (url VARCHAR(99){collation} PRIMARY KEY,"
        f" {GENERATED[engine.dialect.name]})",
    )
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "number": attrs.field(type=int)})
    tables = Tables({item: {"key": ["url"]}}, None, engine.dialect)
    with pytest.raises(SinkMismatch, match="column 'number' is filled by the database alone"):
        tables.prepare(engine.begin)


def test_a_text_in_a_json_column_of_sqlite_stays_itself(sqlite_engine: sqlalchemy.Engine) -> None:
    """SQLite would make the number 7 of "007": a text needs a column of text."""
    execute(sqlite_engine, "CREATE TABLE page (url TEXT PRIMARY KEY, name JSON)")
    item = attrs.make_class("Page", {"url": attrs.field(type=str), "name": attrs.field(type=str)})
    tables = Tables({item: {"key": ["url"]}}, None, sqlite_engine.dialect)
    with pytest.raises(SinkMismatch, match="column 'name' is JSON, not TEXT"):
        tables.prepare(sqlite_engine.begin)


def test_lists_of_other_types_are_copies() -> None:
    """The item's own may be changed before it is written."""
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.Text, primary_key=True)
    tags = sqlalchemy.Column("tags", postgresql.ARRAY(sqlalchemy.Text))
    sqlalchemy.Table("page", metadata, url, tags)
    item_class = attrs.make_class("Page", {"url": attrs.field(type=str), "tags": attrs.field()})
    tables = Tables({item_class: {}}, metadata, postgresql.dialect())
    item = item_class("a", ["x"])
    (record,) = tables.records(item, KEY)
    item.tags.append("y")
    assert record.values["tags"] == ["x"]


@pytest.mark.parametrize(
    "value", [{1: "a", "1": "b"}, [{"x": {None: 1, "null": 2}}], ({True: 1, "true": 2},)]
)
def test_keys_that_are_one_in_json_are_refused(value: Any) -> None:
    """Or one of the two values would be gone."""
    item_class = attrs.make_class("Page", {"tree": attrs.field(type=list)})
    tables = Tables({item_class: {"columns": {"tree": "json"}}}, None, SQLITE)
    with pytest.raises(RowRefused, match="two of these are the same"):
        tables.records(item_class(value), KEY)
    tables.records(item_class({1: "a", "2": "b"}), KEY)
