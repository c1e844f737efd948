"""What a table that is there would change is refused, and rows with a wrong key are found."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.dialects import postgresql

from lab.databases import Database, PostgresServer
from scrapy_redisq.errors import RowRefused, SinkMismatch
from scrapy_redisq.pipelines.batch import ItemRefused
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from scrapy_redisq.pipelines.doubt import Doubts
from scrapy_redisq.pipelines.encoding import encoder
from tests.sinks.tables import KEY, execute, table_of, url_column
from tests.sinks.test_doubt import Book, books, fail, pipeline, put, results


@dataclass
class Text:
    url: str
    value: str | None


@dataclass
class Listed:
    url: str
    value: list[Any]


@pytest.mark.parametrize(("type_", "value"), [("VARCHAR(5)", "abc   "), ("CHAR(5)", "a ")])
def test_texts_that_a_column_cuts_off_or_fills_up(
    engine: sqlalchemy.Engine, type_: str, value: str
) -> None:
    """Final spaces are no error for a database; so the column that is there is looked at."""
    if engine.dialect.name == "sqlite":
        pytest.skip("its types are names")
    exact = "" if engine.dialect.name == "postgresql" else "COLLATE utf8mb4_nopad_bin"
    execute(engine, f"CREATE TABLE text (url VARCHAR(9) {exact} PRIMARY KEY, value {type_})")
    tables = Tables({Text: {"key": ["url"]}}, None, engine.dialect)
    records = tables.records(Text("u", value), KEY)
    tables.prepare(engine.begin)
    with engine.begin() as connection, pytest.raises(RowRefused):
        write(connection, records)


def test_types_that_round_do_not_fit(postgres_server: PostgresServer) -> None:
    """A domain, and what only the database knows."""
    engine = sqlalchemy.create_engine(postgres_server.fresh())
    execute(engine, "CREATE DOMAIN short AS CHAR(5)", "CREATE TABLE text (url TEXT, value MONEY)")
    tables = Tables({Text: {"key": ["url"]}}, None, engine.dialect)
    with pytest.raises(SinkMismatch, match="MONEY"):
        tables.prepare(engine.begin)
    engine.dispose()


@pytest.mark.parametrize(
    ("type_", "value"),
    [(sqlalchemy.String(5), "abcdefgh"), (sqlalchemy.Integer(), 1.6), (sqlalchemy.Integer(), "2")],
)
def test_elements_of_arrays(type_: Any, value: Any) -> None:
    """The cast of an array cuts off and rounds."""
    dialect = postgresql.psycopg.dialect()
    metadata = table_of(url_column(), sqlalchemy.Column("value", postgresql.ARRAY(type_)), name="l")
    tables = Tables({Listed: {"table": "l"}}, metadata, dialect)
    with pytest.raises(RowRefused):
        tables.records(Listed("u", [value]), KEY)


def test_rows_with_a_wrong_key_come_alone(each_database: Database) -> None:
    """A trigger looks at the key: those that it does not take are refused, nobody waits."""

    async def crawl() -> None:
        async with pipeline(each_database) as sink:
            assert await results(put(sink, *books(3))) == [None] * 3
            fail(each_database, "NEW.url NOT LIKE 'u%'")
            wrong = put(sink, *(Book(f"x{number}") for number in range(7)))
            assert await results(wrong) == [ItemRefused] * 7

    asyncio.run(crawl())


def test_others_do_not_hasten_a_slow_row() -> None:
    """Each of its tries costs a time limit."""
    doubts: Doubts[str] = Doubts(lambda row: ("kind",))
    for _ in range(9):
        doubts.failed("slow", others_pass=True, slow=True)
        doubts.set_aside("slow", slow=True)
        due = doubts.due_at()
        doubts.passed(["other"])
        assert doubts.due_at() == due
        doubts._aside.clear()


def test_offsets_of_seconds_have_no_json() -> None:
    moment = datetime(1890, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=21, seconds=10)))
    with pytest.raises(ValueError, match="whole minutes"):
        encoder("json")({"at": moment})
