"""The pipeline for databases: batches, and their tables, when something goes wrong."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
import scrapy
import sqlalchemy

from lab.databases.database import Database, SQLiteDatabase
from lab.databases.mariadb import MariaServer
from lab.servers import wait_until
from lab.site import Site, linked_pages
from scrapy_redisq.errors import SinkMismatch, SinkUnavailable, WriteFailed
from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline
from tests.harness.crawl import Run
from tests.harness.in_loop import in_a_loop
from tests.harness.pipelines import opened
from tests.sinks.tables import table_of, url_column


@dataclass
class Book:
    """Its table is there when the crawl begins."""

    url: str
    title: str


@dataclass
class Page:
    """A class that nobody has named: its table is made when the first item comes."""

    url: str


METADATA = table_of(url_column(), sqlalchemy.Column("title", sqlalchemy.String(100)), name="book")
TABLE = "CREATE TABLE book (url VARCHAR(100) PRIMARY KEY, title VARCHAR(100))"


def pipeline(database: Database, **settings: Any) -> AbstractAsyncContextManager[DatabasePipeline]:
    return opened(DatabasePipeline, REDISQ_DATABASE_URL=database.url, **settings)


def rows(pipeline: DatabasePipeline, *items: Any) -> list[Any]:
    return [pipeline.row(item, f"{number:032x}") for number, item in enumerate(items)]


def urls(database: Database, table: str) -> list[str]:
    return sorted(url for (url,) in database.query(f"SELECT url FROM {table}"))


@in_a_loop
async def test_a_table_that_goes_away_takes_no_other_with_it(each_database: Database) -> None:
    """What was made for a batch that could not be written is there when it is written again."""
    each_database.execute(TABLE)
    async with pipeline(each_database, REDISQ_METADATA=f"{__name__}.METADATA") as sink:
        each_database.execute("DROP TABLE book")
        batch = rows(sink, Page("p"), Book("b", "yes"))
        with pytest.raises(SinkUnavailable):
            await sink.write(batch)
        each_database.execute(TABLE)
        await sink.write(batch)
    assert (urls(each_database, "book"), urls(each_database, "page")) == (["b"], ["p"])


@dataclass
class Numbered:
    """As classes of SQLModel are: the database gives the number."""

    url: str
    id: int | None = None
    stock: int | None = None


NUMBERED = table_of(
    sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
    sqlalchemy.Column("url", sqlalchemy.String(100), unique=True),
    sqlalchemy.Column("stock", sqlalchemy.Integer, nullable=False, server_default="7"),
    name="numbered",
)


@in_a_loop
async def test_what_the_database_gives_is_left_to_it(each_database: Database) -> None:
    """None in a column that may not be NULL and has a default. A value stays when None comes, so
    does a 0, "the next number" for MariaDB. A key that it gives is none for a sink, which
    takes the other unique column, or says at start what to do."""
    async with pipeline(each_database, REDISQ_METADATA=f"{__name__}.NUMBERED") as sink:
        await sink.write(rows(sink, Numbered("a"), Numbered("b", stock=1), Numbered("c", 0)))
        await sink.write(rows(sink, Numbered("a", stock=3), Numbered("b")))
        with pytest.raises(SinkMismatch, match="the database gives id, which is no key"):
            sink.row(Alone(), "0" * 32)
    found = each_database.query("SELECT url, stock, id FROM numbered ORDER BY url")
    assert [row[:2] for row in found] == [("a", 3), ("b", 1), ("c", 7)]
    assert found[2][2] == 0
    assert len({number for _, _, number in found}) == 3


@dataclass
class Alone:
    """Nothing but a number that the database gives."""

    id: int | None = None


sqlalchemy.Table("alone", NUMBERED, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))

DEFAULTS = table_of(
    url_column(),
    sqlalchemy.Column("stock", sqlalchemy.Integer, server_default="7"),
    sqlalchemy.Column("twice", sqlalchemy.Integer, sqlalchemy.Computed("2 * stock")),
    name="defaults",
)


class DefaultsItem(scrapy.Item):
    url = scrapy.Field()
    stock = scrapy.Field()
    twice = scrapy.Field()


class DefaultsModel(pydantic.BaseModel):
    url: str
    stock: int | None = None
    twice: int | None = None


@dataclass
class DefaultsData:
    url: str
    stock: int | None = None
    twice: int | None = None


@pytest.mark.parametrize("make", [DefaultsItem, DefaultsModel, DefaultsData, dict])
@in_a_loop
async def test_unset_fields_are_left_to_the_database(each_database: Database, make: Any) -> None:
    """Also where NULL may stand: a None that was given is NULL, if that is known."""
    path = "dict" if make is dict else f"{__name__}.{make.__name__}"
    settings = {
        "REDISQ_METADATA": f"{__name__}.DEFAULTS",
        "REDISQ_TABLES": {
            path: {
                "table": "defaults",
                "key": ["url"],
                # A dict has the columns without a default, unless it is described.
                "columns": dict.fromkeys(("url", "stock", "twice"), "int") | {"url": "str"}
                if make is dict
                else {},
            }
        },
    }
    async with pipeline(each_database, **settings) as sink:
        items = make(url="a"), make(url="b", stock=None), make(url="c", stock=1)
        await sink.write(rows(sink, *items))
        with pytest.raises((SinkMismatch, WriteFailed), match="twice"):
            await sink.write(rows(sink, make(url="d", twice=4)))
    known = make is not DefaultsData
    expected = [("a", 7, 14), ("b", None, None) if known else ("b", 7, 14), ("c", 1, 2)]
    found = each_database.query("SELECT url, stock, twice FROM defaults ORDER BY url")
    assert found == expected


@pytest.mark.parametrize("how", ["removed", "replaced"])
@in_a_loop
async def test_an_sqlite_file_that_goes_away(sqlite_database: SQLiteDatabase, how: str) -> None:
    """Nothing is said to be written into a file that is gone: the crawl ends."""
    sqlite_database.fresh()
    path = sqlite_database.path
    async with pipeline(sqlite_database) as sink:
        await sink.write(rows(sink, Page("a")))
        if how == "replaced":
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        else:
            path.unlink()
        for _ in range(2):
            with pytest.raises(SinkMismatch, match=r"removed or replaced.*Start the crawl again"):
                await sink.write(rows(sink, Page("b")))
        assert path.exists() == (how == "replaced")


def test_a_worker_whose_statement_waits_ends(crawl: Run, mariadb_server: MariaServer) -> None:
    """SIGTERM counts, whatever it waits for: pages go back."""
    mariadb_server.empty()
    given = {
        "ITEM_PIPELINES": json.dumps({"scrapy_redisq.pipelines.DatabasePipeline": 300}),
        "REDISQ_DATABASE_URL": mariadb_server.url,
        "REDISQ_TABLES": json.dumps(
            {"dict": {"table": "page", "key": ["url"], "columns": {"url": "str", "pid": "int"}}}
        ),
        "REDISQ_CLOSE_TIMEOUT": 1,
    }
    with Site(linked_pages(60, delay=0.2)) as site:
        worker = crawl("follow", site, given)
        worker.wait_for("Items go to")
        wait_until(lambda: len(urls(mariadb_server, "page")) > 3, 20, "the first rows")
        mariadb_server.pause()
        try:
            assert worker.terminate().wait(30).reason == "shutdown"
        finally:
            mariadb_server.resume()
        assert "Traceback" not in worker.log
        state = crawl.status()
        assert (state["leased"], state["dead"], state["workers"]) == (0, 0, [])
        # What hung may be there all the same; its page is fetched again.
        assert state["finished"] <= len(urls(mariadb_server, "page"))
