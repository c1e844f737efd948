"""The pipeline for databases: batches, and their tables, when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy
from scrapy.utils.test import get_crawler

from scrapy_redisq.errors import RowRefused, SinkUnavailable
from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline
from scrapy_redisq.settings import RedisqSettings
from tests.harness.databases import Database


@dataclass
class Book:
    """Its table is there when the crawl begins."""

    url: str
    title: str


@dataclass
class Page:
    """A class that nobody has named: its table is made when the first item comes."""

    url: str


METADATA = sqlalchemy.MetaData()
sqlalchemy.Table(
    "book",
    METADATA,
    sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True),
    sqlalchemy.Column("title", sqlalchemy.String(100)),
)
TABLE = (
    "CREATE TABLE book (url VARCHAR(100) PRIMARY KEY, title VARCHAR(100), CHECK (title <> 'no'))"
)


@asynccontextmanager
async def pipeline(database: Database, **settings: Any) -> AsyncIterator[DatabasePipeline]:
    """An open pipeline, without a crawl."""
    crawler = get_crawler(settings_dict={"REDISQ_DATABASE_URL": database.url, **settings})
    pipeline = DatabasePipeline(crawler)
    pipeline.settings = RedisqSettings.read(crawler.settings)
    await pipeline.open()
    try:
        yield pipeline
    finally:
        await pipeline.close()


def rows(pipeline: DatabasePipeline, *items: Any) -> list[Any]:
    return [pipeline.row(item, f"{number:032x}") for number, item in enumerate(items)]


def urls(database: Database, table: str) -> list[str]:
    return sorted(url for (url,) in database.query(f"SELECT url FROM {table}"))


def test_a_refused_row_takes_no_table_with_it(each_database: Database) -> None:
    """The transaction of a batch is rolled back; the tables of new classes in it are there."""
    each_database.execute(TABLE)

    async def crawl() -> None:
        async with pipeline(each_database, REDISQ_METADATA=f"{__name__}.METADATA") as sink:
            refused = rows(sink, Book("b", "no"), Page("p"))
            with pytest.raises(RowRefused):
                await sink.write(refused)
            await sink.write(refused[1:])
            await sink.write(rows(sink, Book("c", "yes")))

    asyncio.run(crawl())
    assert (urls(each_database, "book"), urls(each_database, "page")) == (["c"], ["p"])


@pytest.mark.parametrize("known", [True, False])
def test_a_table_that_goes_away_takes_no_other_with_it(
    each_database: Database, known: bool
) -> None:
    """What was made for a batch that could not be written is there when it is written again.

    A table that is gone is waited for, whether items have come for it before or not.
    """
    each_database.execute(TABLE)

    async def crawl() -> None:
        async with pipeline(each_database, REDISQ_METADATA=f"{__name__}.METADATA") as sink:
            if known:
                await sink.write(rows(sink, Book("a", "yes")))
            each_database.execute("DROP TABLE book")
            batch = rows(sink, Page("p"), Book("b", "yes"))
            with pytest.raises(SinkUnavailable):
                await sink.write(batch)
            each_database.execute(TABLE)
            await sink.write(batch)

    asyncio.run(crawl())
    assert (urls(each_database, "book"), urls(each_database, "page")) == (["b"], ["p"])
