"""The spider whose items go into databases, and the item pipeline that people write for that:
``scrapy runspider products.py -a start_url=… -a hosts=… -a report=… -a items=3 -a follow=yes``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy
from follow import Follow
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


class Products(Follow):
    """``items``: how many each page has; ``follow``: not empty to go on to the pages linked."""

    name = "products"
    items = "3"
    follow = ""

    def parse(self, response: Any) -> Iterator[Any]:
        for number in range(int(self.items)):
            yield product(response.url, number)
        if self.follow:
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link)


class UsualPipeline:
    """One INSERT and one COMMIT for each item, as in Scrapy's documentation and most projects. By
    the driver itself, as durable as the database is by default; a product takes the place of the
    one with the same URL. Counts as `scrapy_redisq.pipelines.BatchPipeline` does.
    """

    def __init__(self, url: str, stats: Any) -> None:
        self.engine = sqlalchemy.create_engine(url)
        self.stats = stats
        self.sqlite = self.engine.name == "sqlite"
        names = [field.name for field in fields(Product)]
        places = ", ".join(["?" if self.sqlite else "%s"] * len(names))
        new, update = "excluded.{0}", "ON CONFLICT (url) DO UPDATE SET"
        if self.engine.name == "mysql":
            new, update = "VALUES({0})", "ON DUPLICATE KEY UPDATE"
        sets = ", ".join(f"{name} = {new.format(name)}" for name in names[1:])
        self.statement = (
            f"INSERT INTO product ({', '.join(names)}) VALUES ({places}) {update} {sets}"
        )

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> UsualPipeline:
        return cls(crawler.settings["REDISQ_DATABASE_URL"], crawler.stats)

    def open_spider(self) -> None:
        positional, named = self.engine.dialect.create_connect_args(self.engine.url)
        self.connection = self.engine.dialect.connect(*positional, **named)
        self.cursor = self.connection.cursor()
        if self.sqlite:
            self.cursor.execute("PRAGMA synchronous = FULL")

    def close_spider(self) -> None:
        self.connection.close()

    def process_item(self, item: Product) -> Product:
        began = time.monotonic()
        *values, crawled_at = astuple(item)
        if self.sqlite:  # has no dates
            crawled_at = crawled_at.strftime("%Y-%m-%d %H:%M:%S.%f")
        self.cursor.execute(self.statement, (*values, crawled_at))
        self.connection.commit()
        self.stats.inc_value("redisq/sink/seconds", time.monotonic() - began)
        self.stats.inc_value("redisq/sink/rows")
        return item
