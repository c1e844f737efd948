"""Rows with which the connection to the database ends, each time; and connections that just end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager

import pytest
from scrapy.utils.test import get_crawler

from lab.databases import Database, PostgresServer
from scrapy_redisq.errors import SinkUnavailable
from scrapy_redisq.pipelines import doubt, writer
from scrapy_redisq.pipelines.batch import ItemRefused
from scrapy_redisq.pipelines.database import engine
from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline
from scrapy_redisq.settings.settings import RedisqSettings
from tests.harness.in_loop import in_a_loop, until
from tests.sinks.test_doubt import (
    Book,
    books,
    fail,
    pipeline,
    put,
    results,
    retries,
    urls,
)

MANY = 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that let a test try often."""
    monkeypatch.setattr(writer, "RETRY_LAST", 0.1)
    monkeypatch.setattr(doubt, "PROOFS", 3)
    monkeypatch.setattr(doubt, "FIRST", 0.02)
    monkeypatch.setattr(doubt, "FIRST_OF_SLOW", 0.02)
    monkeypatch.setattr(doubt, "LAST", 0.1)


def opened(database: Database) -> AbstractAsyncContextManager[DatabasePipeline]:
    """An open pipeline. PyMySQL would read all certificates of the machine for each connection."""
    return pipeline(database, "?ssl_disabled=true" if database.kind == "mariadb" else "")


def hang_up(database: Database, condition: str, *, at_commit: bool = False) -> None:
    """Let the server end the connection that writes a book for which the condition is true."""
    if database.kind == "sqlite":
        pytest.skip("has no connection")
    if database.kind == "mariadb":
        database.execute(
            "CREATE TRIGGER t BEFORE INSERT ON book FOR EACH ROW"
            f" IF {condition} THEN KILL CONNECTION_ID(); END IF"
        )
        return
    database.execute(
        "CREATE OR REPLACE FUNCTION bye() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {condition} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN NEW; END $$"
    )
    when = "TRIGGER t BEFORE INSERT ON book"
    if at_commit:
        when = "CONSTRAINT TRIGGER t AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED"
    database.execute(f"CREATE {when} FOR EACH ROW EXECUTE FUNCTION bye()")


def test_a_server_that_takes_connections_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At start it is waited for no longer than the settings say, with a warning before; `close`
    does not wait for it. PyMySQL itself would wait for two minutes."""
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
        settings = {"REDISQ_DATABASE_URL": url, "REDISQ_CONNECT_TIMEOUT": 0.2}
        crawler = get_crawler(settings_dict=settings)
        sink = DatabasePipeline(crawler)
        sink.settings = RedisqSettings.read(crawler.settings)
        sink.silent_seconds = 0.05

        async def start() -> None:
            with pytest.raises(SinkUnavailable, match=r"no answer .*REDISQ_CONNECT_TIMEOUT"):
                await asyncio.wait_for(sink.open(), 30)
            await asyncio.wait_for(sink.close(), 30)

        asyncio.run(start())
    (warning,) = caplog.records
    assert "waiting 0.2 s" in warning.getMessage()


@in_a_loop
async def test_a_row_that_ends_its_connection(each_database: Database) -> None:
    """It is refused, and the rows beside and behind it are written; also where the table has no
    other row, and the fault is in its key."""
    async with opened(each_database) as sink:
        hang_up(each_database, "NEW.url LIKE 'x%'")
        first = put(sink, Book("x", 13))
        await until(lambda: retries(sink) > 3, "it has been tried")
        tasks = put(sink, *books(MANY), Book("x2", 13), *books(MANY))
        assert await results(tasks) == [None] * MANY + [ItemRefused] + [None] * MANY
        assert await results(first) == [ItemRefused]
        assert not sink._batches.writer._away
    assert len(urls(each_database)) == MANY


@in_a_loop
async def test_a_row_that_fails_as_a_server_in_need_does(each_database: Database) -> None:
    """Out of memory, or killed: it is refused, others are written."""
    if each_database.kind == "sqlite":
        pytest.skip("has no server")
    async with opened(each_database) as sink:
        assert await results(put(sink, Book("before"))) == [None]
        code = "53200" if each_database.kind == "postgres" else "1317"
        fail(each_database, "NEW.stock = 13", code)
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
        hang_up(postgres_server, "NEW.stock = 13", at_commit=True)
        tasks = put(sink, *books(3, 13))
        await until(lambda: retries(sink) > 25, "it has been tried often")
        assert not any(task.done() for task in tasks)
        for number in range(100):
            await results(put(sink, Book(f"a{number}")))
            if all(task.done() for task in tasks):
                break
        assert await results(tasks) == [ItemRefused] * 3
