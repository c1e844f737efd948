"""Rows that fail while nobody says why: refused is one that fails while others pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from scrapy.utils.test import get_crawler

from lab.databases import Database
from scrapy_redisq.pipelines import doubt, writer
from scrapy_redisq.pipelines.batch import ItemRefused
from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline
from tests.harness.in_loop import in_a_loop, until

MANY = 150
"""More than fit into the time limits below."""


@dataclass
class Book:
    """Its table refuses what a test says."""

    url: str
    stock: int = 1


METADATA = sqlalchemy.MetaData()
sqlalchemy.Table(
    "book",
    METADATA,
    sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True),
    sqlalchemy.Column("stock", sqlalchemy.Integer),
    sqlalchemy.Column("state", sqlalchemy.String(10), nullable=False, default="new"),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that let a test try often."""
    monkeypatch.setattr(writer, "RETRY_LAST", 0.1)
    monkeypatch.setattr(doubt, "FIRST", 0.02)
    monkeypatch.setattr(doubt, "LAST", 0.05)
    monkeypatch.setattr(doubt, "FIRST_OF_SLOW", 0.02)


@asynccontextmanager
async def pipeline(database: Database, query: str = "") -> AsyncIterator[DatabasePipeline]:
    """An open pipeline, in a crawl that only has it."""
    crawler = get_crawler(
        settings_dict={
            "REDISQ_DATABASE_URL": database.url + query,
            "REDISQ_METADATA": f"{__name__}.METADATA",
            "REDISQ_TABLES": {f"{__name__}.Book": {}},  # so that its table is known at start
            "REDISQ_CLOSE_TIMEOUT": 0.5,
        }
    )
    slot = SimpleNamespace(scheduler=None, closing=None)
    scraper = SimpleNamespace(_redisq_watched=True)
    crawler.engine = SimpleNamespace(_slot=slot, scraper=scraper)  # type: ignore[assignment]
    crawler.spider = SimpleNamespace(name="spider")  # type: ignore[assignment]
    sink = DatabasePipeline(crawler)
    await sink.open_spider()
    try:
        yield sink
    finally:
        await sink.close_spider()


def put(sink: DatabasePipeline, *items: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(sink.process_item(item)) for item in items]


async def results(tasks: list[asyncio.Task[Any]]) -> list[type[BaseException] | None]:
    """Which of them were refused; None: it was written."""
    await asyncio.wait(tasks, timeout=90)
    assert all(task.done() for task in tasks)
    return [type(error) if (error := task.exception()) else None for task in tasks]


def books(count: int, stock: int = 1) -> list[Book]:
    return [Book(f"u{number:03}", stock) for number in range(count)]


def urls(database: Database) -> list[str]:
    return sorted(url for (url,) in database.query("SELECT url FROM book"))


def fail(database: Database, condition: str, code: str = "") -> None:
    """Let the table of books fail, in a way that no list of codes knows, where it is true."""
    code = code or {"postgres": "XX000", "mariadb": "1180"}.get(database.kind, "")
    sql = {
        "sqlite": [
            f"CREATE TRIGGER t BEFORE INSERT ON book WHEN {condition} BEGIN SELECT json('x'); END"
        ],
        "postgres": [
            "CREATE OR REPLACE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF {condition} THEN RAISE 'malformed' USING ERRCODE = '{code}'; END IF;"
            " RETURN NEW; END $$",
            "CREATE TRIGGER t BEFORE INSERT ON book FOR EACH ROW EXECUTE FUNCTION no()",
        ],
        "mariadb": [
            f"CREATE TRIGGER t BEFORE INSERT ON book FOR EACH ROW IF {condition} THEN"
            f" SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'malformed'; END IF"
        ],
    }
    for each in sql[database.kind]:
        database.execute(each)


def retries(sink: DatabasePipeline) -> int:
    stats: Any = sink.crawler.stats
    return int(stats.get_value("redisq/sink/retries", 0))


@in_a_loop
async def test_nothing_was_ever_written(
    each_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are refused at the end of a crawl also then: the database takes their own statement
    without a row. Not while it does not, as without their table."""
    monkeypatch.setattr(doubt, "END", 0)
    count = 7
    async with pipeline(each_database) as sink:
        fail(each_database, "NEW.stock = 13")
        each_database.execute("ALTER TABLE book RENAME TO away")
        tasks = put(sink, *books(count, 13))
        await until(lambda: retries(sink) > 12 or tasks[0].done(), "it has been tried")
        assert not any(task.done() for task in tasks)
        each_database.execute("ALTER TABLE away RENAME TO book")
        assert await results(tasks) == [ItemRefused] * count


@in_a_loop
async def test_a_table_that_takes_no_new_row(
    each_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A CHECK that all new rows break: they wait until it is mended, although the table takes what
    it has once more; of that nothing is kept."""
    async with pipeline(each_database) as sink:
        book = "url VARCHAR(100) PRIMARY KEY, stock INTEGER, state VARCHAR(10)"
        each_database.execute("DROP TABLE book")
        each_database.execute(f"CREATE TABLE book ({book}, CHECK (stock < 13))")
        assert await results(put(sink, Book("before"))) == [None]
        each_database.execute("UPDATE book SET state = 'changed'")
        tasks = put(sink, *books(8, 13))
        await until(lambda: retries(sink) > 30 or tasks[0].done(), "it has been tried often")
        assert not any(task.done() for task in tasks)
        assert any(word in caplog.text for word in ("book", "CHECK"))
        assert each_database.query("SELECT * FROM book") == [("before", 1, "changed")]
        each_database.execute("DROP TABLE book")
        each_database.execute(f"CREATE TABLE book ({book})")
        assert await results(tasks) == [None] * 8


LIMITED = {
    "postgres": (
        "?options=-cstatement_timeout%3D400",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON book FOR EACH ROW EXECUTE FUNCTION slow()",
    ),
    "mariadb": (
        "?init_command=SET+max_statement_time%3D0.4",
        "CREATE TRIGGER t BEFORE INSERT ON book FOR EACH ROW SET @slept = SLEEP(0.01)",
    ),
}


@in_a_loop
async def test_a_time_limit_makes_batches_smaller(each_database: Database) -> None:
    """A batch that takes longer than a statement may is not repeated for ever as it is."""
    if each_database.kind not in LIMITED:
        pytest.skip("has no limit")
    query, *sql = LIMITED[each_database.kind]
    async with pipeline(each_database):
        pass
    for each in sql:
        each_database.execute(each)
    async with pipeline(each_database, query) as sink:
        assert await results(put(sink, *books(MANY))) == [None] * MANY
    assert len(urls(each_database)) == MANY


@in_a_loop
async def test_a_row_that_is_alone_takes_longer_than_it_may(
    each_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused when it has done so often, and others did not; six of them stop nobody."""
    if each_database.kind not in LIMITED:
        pytest.skip("has no limit")
    monkeypatch.setattr(doubt, "PROOFS", 2)
    query, *sql = LIMITED[each_database.kind]
    query = query.replace("400", "100").replace("0.4", "0.1")
    async with pipeline(each_database, query) as sink:
        await results(put(sink, Book("before")))
        for each in sql:
            when = each.replace("0.01", "CASE NEW.stock WHEN 13 THEN 1 ELSE 0 END")
            each_database.execute(when)
        assert await results(put(sink, *books(6, 13), Book("a"))) == [ItemRefused] * 6 + [None]
    assert urls(each_database) == ["a", "before"]


LOCKS = {
    "postgres": "?options=-clock_timeout%3D200",
    "mariadb": "?init_command=SET+innodb_lock_wait_timeout%3D1",
}


@in_a_loop
async def test_rows_that_somebody_has_locked(
    each_database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait, and do not keep others from being claimed and written; it is told of once."""
    if each_database.kind not in LOCKS:
        pytest.skip("locks all of it")
    monkeypatch.setattr(doubt, "FIRST_OF_SLOW", 3)
    monkeypatch.setattr(doubt, "LAST", 3)
    count = {"postgres": 6, "mariadb": 1}[each_database.kind]
    async with pipeline(each_database, LOCKS[each_database.kind]) as sink:
        sink.silent_seconds = 0.1
        await results(put(sink, *books(count)))
        engine = sqlalchemy.create_engine(each_database.url)
        with engine.connect() as other:
            for book in books(count):  # MariaDB would lock what is between them, too
                sql = f"UPDATE book SET stock = 9 WHERE url = '{book.url}'"
                other.execute(sqlalchemy.text(sql))
            tasks = put(sink, *books(count, 2))
            writer = sink._batches.writer
            await until(lambda: len(writer.doubts) == count, "all are set aside")
            assert not writer._away
            assert await results(put(sink, Book("a"))) == [None]
            other.rollback()
        engine.dispose()
        assert await results(tasks) == [None] * count
    assert each_database.query("SELECT sum(stock) FROM book")[0][0] == 2 * count + 1
    assert caplog.text.count("cannot write") < 4
