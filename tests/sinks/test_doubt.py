"""Rows that fail while nobody says why: refused is one that fails while others pass.

Also rows with which the connection to the database ends, each time; and connections that just end.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy

from lab.databases.database import Database
from lab.databases.postgres import PostgresServer
from scrapy_redisq.errors import SinkUnavailable
from scrapy_redisq.pipelines import doubt
from scrapy_redisq.pipelines.batch import ItemRefused
from scrapy_redisq.pipelines.database import engine
from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline
from tests.harness.in_loop import in_a_loop, results, until
from tests.harness.pipelines import in_a_crawl, opened
from tests.sinks.tables import table_of, url_column
from tests.sinks.test_database import urls


@dataclass
class Book:
    """Its table refuses what a test says."""

    url: str
    stock: int = 1


METADATA = table_of(
    url_column(),
    sqlalchemy.Column("stock", sqlalchemy.Integer),
    sqlalchemy.Column("state", sqlalchemy.String(10), nullable=False, default="new"),
    name="book",
)

pytestmark = pytest.mark.usefixtures("quick")


def pipeline(database: Database, **query: str) -> AbstractAsyncContextManager[DatabasePipeline]:
    """An open pipeline, in a crawl that only has it."""
    if database.kind == "mariadb":  # PyMySQL would read all certificates for each connection
        query["ssl_disabled"] = "true"
    url = sqlalchemy.make_url(database.url).update_query_dict(query)
    return in_a_crawl(
        DatabasePipeline,
        REDISQ_DATABASE_URL=url.render_as_string(hide_password=False),
        REDISQ_METADATA=f"{__name__}.METADATA",
        REDISQ_TABLES={f"{__name__}.Book": {}},  # so that its table is known at start
        REDISQ_CLOSE_TIMEOUT=0.5,
    )


def put(sink: DatabasePipeline, *items: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(sink.process_item(item)) for item in items]


def books(count: int, stock: int = 1) -> list[Book]:
    return [Book(f"u{number:03}", stock) for number in range(count)]


ACTIONS = {
    "fails": {
        "sqlite": "SELECT json('x')",
        "postgres": "RAISE 'malformed' USING ERRCODE = 'XX000'",
        "mariadb": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1180, MESSAGE_TEXT = 'malformed'",
    },
    "is in need": {
        "postgres": "RAISE 'malformed' USING ERRCODE = '53200'",
        "mariadb": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'malformed'",
    },
    "is slow": {"postgres": "PERFORM pg_sleep(1)", "mariadb": "SET @slept = SLEEP(1)"},
    "hangs up": {
        "postgres": "PERFORM pg_terminate_backend(pg_backend_pid())",
        "mariadb": "KILL CONNECTION_ID()",
    },
}
"""What a database does for a row; in a way that no list of codes knows, or as one in need does."""


def let(database: Database, action: str, condition: str, *, at_commit: bool = False) -> None:
    """Let the database do that for each book for which the condition is true."""
    if database.kind not in ACTIONS[action]:
        pytest.skip("has nothing like that")
    sql = ACTIONS[action][database.kind]
    trigger = "TRIGGER t BEFORE INSERT ON book"
    if at_commit:
        trigger = "CONSTRAINT TRIGGER t AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED"
    if database.kind == "sqlite":
        database.execute(f"CREATE {trigger} WHEN {condition} BEGIN {sql}; END")
        return
    sql = f"IF {condition} THEN {sql}; END IF"
    if database.kind == "postgres":
        database.execute(
            "CREATE OR REPLACE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {sql}; RETURN NEW; END $$"
        )
        sql = "EXECUTE FUNCTION f()"
    database.execute(f"CREATE {trigger} FOR EACH ROW {sql}")


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
        let(each_database, "fails", "NEW.stock = 13")
        each_database.execute("ALTER TABLE book RENAME TO away")
        tasks = put(sink, *books(count, 13))
        await until(lambda: retries(sink) > 50 or tasks[0].done(), "it has been tried")
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
    "postgres": {"options": "-cstatement_timeout=100"},
    "mariadb": {"init_command": "SET max_statement_time=0.1"},
}


@in_a_loop
async def test_a_row_that_is_alone_takes_longer_than_it_may(
    each_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is halved until it is alone. It is refused when it has done so often, and others
    did not; six of them stop nobody."""
    if each_database.kind not in LIMITED:
        pytest.skip("has no limit")
    monkeypatch.setattr(doubt, "PROOFS", 2)
    async with pipeline(each_database, **LIMITED[each_database.kind]) as sink:
        await results(put(sink, Book("before")))
        let(each_database, "is slow", "NEW.stock = 13")
        assert await results(put(sink, *books(6, 13), Book("a"))) == [ItemRefused] * 6 + [None]
    assert urls(each_database, "book") == ["a", "before"]


LOCKS = {
    "postgres": {"options": "-clock_timeout=200"},
    "mariadb": {"init_command": "SET innodb_lock_wait_timeout=1"},
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
    async with pipeline(each_database, **LOCKS[each_database.kind]) as sink:
        sink.silent_seconds = 0.1
        await results(put(sink, *books(count)))
        locking = sqlalchemy.create_engine(each_database.url)
        with locking.connect() as other:
            for book in books(count):  # MariaDB would lock what is between them, too
                sql = f"UPDATE book SET stock = 9 WHERE url = '{book.url}'"
                other.execute(sqlalchemy.text(sql))
            tasks = put(sink, *books(count, 2))
            waiting = sink._batches.writer
            await until(lambda: len(waiting.doubts) == count, "all are set aside")
            assert not waiting._away
            assert await results(put(sink, Book("a"))) == [None]
            other.rollback()
        locking.dispose()
        assert await results(tasks) == [None] * count
    assert each_database.query("SELECT sum(stock) FROM book")[0][0] == 2 * count + 1
    assert caplog.text.count("cannot write") < 4


# Connections that end


@in_a_loop
async def test_a_server_that_takes_connections_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At start it is waited for no longer than the settings say, with a warning before; `close`
    does not wait for it. PyMySQL itself would wait for two minutes."""
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(DatabasePipeline, "silent_seconds", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
        given = {"REDISQ_DATABASE_URL": url, "REDISQ_CONNECT_TIMEOUT": 0.2}
        with pytest.raises(SinkUnavailable, match=r"no answer .*REDISQ_CONNECT_TIMEOUT"):
            async with opened(DatabasePipeline, **given):  # type: ignore[arg-type]
                pass
    (warning,) = caplog.records
    assert "waiting 0.2 s" in warning.getMessage()


@in_a_loop
async def test_a_row_that_ends_its_connection(each_database: Database) -> None:
    """It is refused, and the rows beside and behind it are written; also where the table has no
    other row, and the fault is in its key."""
    async with pipeline(each_database) as sink:
        let(each_database, "hangs up", "NEW.url LIKE 'x%'")
        first = put(sink, Book("x", 13))
        await until(lambda: retries(sink) > 3, "it has been tried")
        tasks = put(sink, *books(40), Book("x2", 13), *books(40))
        assert await results(tasks) == [None] * 40 + [ItemRefused] + [None] * 40
        assert await results(first) == [ItemRefused]
        assert not sink._batches.writer._away
    assert len(urls(each_database, "book")) == 40


@in_a_loop
async def test_a_row_that_fails_as_a_server_in_need_does(each_database: Database) -> None:
    """Out of memory, or killed: it is refused, others are written."""
    async with pipeline(each_database) as sink:
        assert await results(put(sink, Book("before"))) == [None]
        let(each_database, "is in need", "NEW.stock = 13")
        tasks = put(sink, *books(3), Book("x", 13))
        assert await results(tasks) == [None] * 3 + [ItemRefused]
        assert not sink._batches.writer._away


@in_a_loop
async def test_connections_end_at_the_commit(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not committed proves nothing against a row, also at the end; others that are do."""
    monkeypatch.setattr(doubt, "END", 0)
    postgres_server.empty()
    async with pipeline(postgres_server) as sink:
        await results(put(sink, Book("before")))
        let(postgres_server, "hangs up", "NEW.stock = 13", at_commit=True)
        tasks = put(sink, *books(3, 13))
        await until(lambda: retries(sink) > 25, "it has been tried often")
        assert not any(task.done() for task in tasks)
        for number in range(100):
            await results(put(sink, Book(f"a{number}")))
            if all(task.done() for task in tasks):
                break
        assert await results(tasks) == [ItemRefused] * 3
