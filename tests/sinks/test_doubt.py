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
"""More than go one by one into PostgreSQL."""


@dataclass
class Book:
    """Its table refuses what a test says."""

    url: str
    stock: int = 1


@dataclass
class Shop:
    """Its table takes everything."""

    url: str


METADATA = sqlalchemy.MetaData()
sqlalchemy.Table(
    "book",
    METADATA,
    sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True),
    sqlalchemy.Column("stock", sqlalchemy.Integer),
    sqlalchemy.Column("state", sqlalchemy.String(10), nullable=False, default="new"),
)
sqlalchemy.Table(
    "shop", METADATA, sqlalchemy.Column("url", sqlalchemy.String(100), primary_key=True)
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that let a test try often."""
    monkeypatch.setattr(writer, "RETRY_LAST", 0.1)
    monkeypatch.setattr(doubt, "FIRST", 0.02)
    monkeypatch.setattr(doubt, "LAST", 0.05)
    monkeypatch.setattr(doubt, "FIRST_OF_SLOW", 0.02)


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other row is expected, at once instead of after minutes."""
    monkeypatch.setattr(doubt, "END", 0)


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


def urls(database: Database, table: str = "book") -> list[str]:
    return sorted(url for (url,) in database.query(f"SELECT url FROM {table}"))


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


def work_again(database: Database) -> None:
    database.execute("DROP TRIGGER t" + (" ON book" if database.kind == "postgres" else ""))


@in_a_loop
async def test_an_outage_of_an_unknown_kind(
    each_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """While no row passes none is refused; it writes again. What it took before tells that it is
    away, and so does the log."""
    async with pipeline(each_database) as sink:
        assert await results(put(sink, Book("before"))) == [None]
        fail(each_database, "1 = 1")
        tasks = put(sink, *books(MANY))
        await until(lambda: retries(sink) > 25, "it has been tried often")
        assert not any(task.done() for task in tasks)
        assert urls(each_database) == ["before"]
        assert "cannot write" in caplog.text
        assert "writes again" not in caplog.text
        work_again(each_database)
        assert await results(tasks) == [None] * MANY
        assert "writes again" in caplog.text
    assert len(urls(each_database)) == MANY + 1


def retries(sink: DatabasePipeline) -> int:
    stats: Any = sink.crawler.stats
    return int(stats.get_value("redisq/sink/retries", 0))


@pytest.mark.usefixtures("at_the_end")
@pytest.mark.parametrize(
    ("before", "count"), [(Book("before", 5), 1), (Shop("of another table"), 7)]
)
@in_a_loop
async def test_rows_at_fault_that_are_alone(
    each_database: Database, before: Any, count: int
) -> None:
    """At the end of a crawl they are refused, if what was written before is taken once more; of
    that nothing is kept. It may be of another table, if no other row has gone into theirs."""
    async with pipeline(each_database) as sink:
        assert await results(put(sink, before)) == [None]
        each_database.execute("UPDATE book SET state = 'changed'")
        fail(each_database, "NEW.stock = 13")
        assert await results(put(sink, *books(count, 13))) == [ItemRefused] * count
    mine = [("before", 5, "changed")] if isinstance(before, Book) else []
    assert each_database.query("SELECT * FROM book") == mine


@pytest.mark.usefixtures("at_the_end")
@pytest.mark.parametrize(("fault", "count"), [("check", 1), ("unknown", 7)])
@in_a_loop
async def test_nothing_was_ever_written(each_database: Database, count: int, fault: str) -> None:
    """Rows are refused at the end of a crawl also then, whatever the error: the database takes
    their own statement without a row. Not while it does not, as without their table."""
    async with pipeline(each_database) as sink:
        if fault == "check":
            each_database.execute("DROP TABLE book")
            each_database.execute(
                "CREATE TABLE book (url VARCHAR(100) PRIMARY KEY, stock INTEGER,"
                " state VARCHAR(10), CHECK (stock < 13))"
            )
        else:
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
    """A CHECK that all new rows break: they wait until it is mended, although the table would take
    other values, and those that it has."""
    async with pipeline(each_database) as sink:
        book = "url VARCHAR(100) PRIMARY KEY, stock INTEGER, state VARCHAR(10)"
        each_database.execute("DROP TABLE book")
        each_database.execute(f"CREATE TABLE book ({book}, CHECK (stock < 13))")
        assert await results(put(sink, Book("before"))) == [None]
        tasks = put(sink, *books(8, 13))
        await until(lambda: retries(sink) > 30 or tasks[0].done(), "it has been tried often")
        assert not any(task.done() for task in tasks)
        assert any(word in caplog.text for word in ("book", "CHECK"))
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
