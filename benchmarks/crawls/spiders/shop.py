"""Items as shops have them, and the item pipelines that people write for databases."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy
from scrapy.crawler import Crawler

SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)
WORDS = ("plain", "oak", "chair", "with", "four", "legs", "and", "a", "woven", "seat")


@dataclass
class Product:
    """What a page has to tell."""

    url: str
    title: str
    description: str
    price: float
    stock: int
    available: bool
    brand: str | None
    crawled_at: datetime


COLUMNS = tuple(field.name for field in fields(Product))


def product(page: str, number: int) -> Product:
    """The product ``number`` of a page; the same whenever it is asked for."""
    return Product(
        url=f"{page}#{number}",
        title=f"Chair {number:06}, {WORDS[number % 10]} {WORDS[number // 10 % 10]}",
        description=" ".join(WORDS[(number + step) % 10] for step in range(20)),
        price=round(number % 977 * 1.37, 2),
        stock=number % 41,
        available=number % 41 > 0,
        brand=None if number % 7 == 0 else f"Brand {number % 7}",
        crawled_at=SINCE + timedelta(milliseconds=number),
    )


def values(dialect: str, item: Product) -> tuple[Any, ...]:
    """What the driver is given; SQLite has no dates."""
    if dialect == "sqlite":
        return (*astuple(item)[:-1], item.crawled_at.strftime("%Y-%m-%d %H:%M:%S.%f"))
    return astuple(item)


def insert(dialect: str) -> str:
    """An upsert of a product: it takes the place of the one with the same URL."""
    places = ", ".join(["?" if dialect == "sqlite" else "%s"] * len(COLUMNS))
    statement = f"INSERT INTO product ({', '.join(COLUMNS)}) VALUES ({places})"
    if dialect == "mysql":
        sets = ", ".join(f"{name} = VALUES({name})" for name in COLUMNS[1:])
        return f"{statement} ON DUPLICATE KEY UPDATE {sets}"
    sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
    return f"{statement} ON CONFLICT (url) DO UPDATE SET {sets}"


def connect(url: str) -> Any:
    """A connection of the driver itself, as durable as the database is by default."""
    parts = sqlalchemy.make_url(url)
    if parts.get_backend_name() == "sqlite":
        connection = sqlite3.connect(parts.database or "")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    whose: dict[str, Any] = {"host": parts.host, "port": parts.port, "user": parts.username}
    if parts.get_backend_name() == "postgresql":
        import psycopg  # noqa: PLC0415 - a worker needs but one of the drivers

        return psycopg.connect(**whose, password=parts.password, dbname=parts.database)
    import pymysql  # noqa: PLC0415

    return pymysql.connect(
        **whose, password=parts.password, database=parts.database, charset="utf8mb4"
    )


class UsualPipeline:
    """One INSERT and one COMMIT for each item, as in Scrapy's documentation and most projects.

    Counts as `scrapy_redisq.pipelines.BatchPipeline` does.
    """

    def __init__(self, url: str, stats: Any) -> None:
        self.url = url
        self.stats = stats
        self.dialect = sqlalchemy.make_url(url).get_backend_name()
        self.statement = insert(self.dialect)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> UsualPipeline:
        return cls(crawler.settings["REDISQ_DATABASE_URL"], crawler.stats)

    def open_spider(self) -> None:
        self.connection = connect(self.url)
        self.cursor = self.connection.cursor()

    def close_spider(self) -> None:
        self.connection.close()

    def process_item(self, item: Product) -> Product:
        began = time.monotonic()
        self.write(item)
        self.stats.inc_value("redisq/sink/seconds", time.monotonic() - began)
        self.stats.inc_value("redisq/sink/rows")
        return item

    def write(self, item: Product) -> None:
        self.cursor.execute(self.statement, values(self.dialect, item))
        self.connection.commit()
