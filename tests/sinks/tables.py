"""What the tests of tables share: classes of items, and how they are written and read."""

from __future__ import annotations

import enum
import json
import typing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import sqlalchemy
from sqlalchemy.dialects import sqlite

from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import Record, write

KEY = "0123456789abcdef0123456789abcdef"
SQLITE = sqlite.dialect()


def store(engine: sqlalchemy.Engine, tables: Tables, *items: Any, key: str = KEY) -> Record:
    """Write items, prepared first; the record of the last."""
    for item in items:
        record = tables.record(item, key)
        tables.prepare(engine.begin)
        with engine.begin() as connection:
            write(connection, [record])
    return record


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
    return (moment.astimezone(timezone.utc) if moment.tzinfo else moment).replace(tzinfo=None)


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


def as_json(value: Any) -> Any:
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


@dataclass
class Book:
    url: str
    title: str | None = None
    price: Decimal | None = None
    crawled_at: datetime | None = None


BOOKS: dict[str, Any] = {"table": "books", "key": ["url"]}

DICT: dict[str, Any] = {
    "dict": {"table": "items", "key": ["url"], "columns": {"url": "str", "price": "decimal"}}
}


def table_of(*columns: sqlalchemy.Column[Any], name: str = "other") -> sqlalchemy.MetaData:
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table(name, metadata, *columns)
    return metadata


def url_column() -> sqlalchemy.Column[Any]:
    return sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True)


def shop_column() -> sqlalchemy.Column[Any]:
    return sqlalchemy.Column("shop", sqlalchemy.Text)
