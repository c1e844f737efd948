"""Tables that are there when a crawl starts: made by a run before, by hand, by another worker."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
import sqlalchemy

from lab.databases.database import Database
from scrapy_redisq.errors import RowRefused, SinkMismatch
from scrapy_redisq.pipelines.database.server import DatabaseServer
from scrapy_redisq.pipelines.database.tables import Tables
from tests.sinks.tables import BOOKS, EVERYTHING, KEY, Book, execute, store


def listed_books() -> sqlalchemy.MetaData:
    """A project's table of books whose key is an index, which is a statement of its own."""
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.String(50), nullable=False)
    title = sqlalchemy.Column("title", sqlalchemy.String(50))
    sqlalchemy.Table("books", metadata, url, title, sqlalchemy.Index("urls", url, unique=True))
    sqlalchemy.Table("shops", metadata, sqlalchemy.Column("url", sqlalchemy.Text))
    return metadata


def test_many_workers_make_the_same_tables_at_the_same_moment(each_database: Database) -> None:
    """All of them find the tables made, whoever made them, and their indexes."""
    columns = {"url": "str", "title": "str"}
    options = {"dict": {"table": "books", "key": ["url"], "columns": columns}}
    workers = 6
    barrier = threading.Barrier(workers)
    failures: list[BaseException] = []

    def work() -> None:
        server = DatabaseServer(each_database.url, connect_timeout=30)
        try:
            server.open()
            tables = Tables(options, listed_books(), server.dialect)
            barrier.wait(20)
            server.open(lambda: tables.prepare(server.begin))
            tables.record(EVERYTHING, KEY)
            barrier.wait(20)
            server.open(lambda: tables.prepare(server.begin))
        except BaseException as failure:
            failures.append(failure)
            barrier.abort()
        finally:
            server.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    engine = sqlalchemy.create_engine(each_database.url)
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {"books", "everything", "shops"}
    engine.dispose()


def test_drift_is_found_with_all_differences_and_what_to_do(engine: sqlalchemy.Engine) -> None:
    """A column missing, one of another kind, one that nobody fills, and a key without an index."""
    execute(
        engine,
        "CREATE TABLE books (url VARCHAR(100), title INTEGER, crawled_at DATE, "
        "shop VARCHAR(20) NOT NULL)",
    )
    tables = Tables({Book: BOOKS}, None, engine.dialect)
    with pytest.raises(SinkMismatch) as mismatch:
        tables.prepare(engine.begin)
    message = str(mismatch.value)
    assert f"table books does not fit {Book.__module__}.Book" in message
    assert "column 'title' is INTEGER" in message
    assert "column 'crawled_at' is DATE, not " in message
    assert "column 'shop' is NOT NULL and no field fills it" in message
    assert "no unique index for the key url" in message
    assert "it has no column 'price' (" in message
    assert "REDISQ_METADATA" in message


def described(engine: sqlalchemy.Engine) -> sqlalchemy.MetaData:
    """What SQLAlchemy reads of the tables that are there, as a project may."""
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    return metadata


def test_a_table_made_by_hand_can_be_used(engine: sqlalchemy.Engine) -> None:
    """With a number of its own, a default, shorter types, and a unique key beside the primary."""
    number = {
        "sqlite": "id INTEGER PRIMARY KEY",
        "postgresql": "id SERIAL PRIMARY KEY",
        "mysql": "id INTEGER AUTO_INCREMENT PRIMARY KEY",
    }[engine.dialect.name]
    collation = " COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
    execute(
        engine,
        f"CREATE TABLE hand ({number}, url VARCHAR(200){collation} NOT NULL, "
        "whole SMALLINT, made INTEGER NOT NULL DEFAULT 5, note VARCHAR(10), UNIQUE (url))",
    )
    options = {"table": "hand", "key": ["url"], "columns": {"url": "str", "whole": "int"}}
    tables = Tables({"dict": options}, described(engine), engine.dialect)

    store(engine, tables, {"url": "a", "whole": 1}, {"url": "a", "whole": 2})

    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT id, url, whole, made, note FROM hand").all()
    assert [tuple(row) for row in found] == [(1, "a", 2, 5, None)]


LOSSY = {
    "postgresql": [
        ("decimal", "NUMERIC(10, 2)"),
        ("decimal", "DOUBLE PRECISION"),
        ("float", "REAL"),
        ("float", "NUMERIC"),
        ("datetime", "TIMESTAMP"),
        ("datetime", "TIMESTAMPTZ(0)"),
        ("time", "TIMETZ"),
        ("bytes", "TEXT"),
        ("str", "JSONB"),
        ("str", "MONEY"),
        ("str", "UUID"),
        ("decimal", "digits"),
    ],
    "mysql": [
        ("decimal", "DECIMAL(10, 2)"),
        ("decimal", "DOUBLE"),
        ("float", "FLOAT"),
        ("float", "DOUBLE(30, 2)"),
        ("datetime", "DATETIME"),
        ("datetime", "TIMESTAMP(6)"),
        ("time", "TIME"),
        ("bytes", "LONGTEXT"),
        ("str", "SET('a')"),
        ("str", "ENUM('a')"),
        ("str", "UUID"),
        ("int", "YEAR"),
        ("int", "BIT(64)"),
    ],
    "sqlite": [("decimal", "NUMERIC"), ("float", "INTEGER"), ("bytes", "TEXT")],
}


def test_columns_that_would_change_values_do_not_fit(engine: sqlalchemy.Engine) -> None:
    """Those that round, cut or shift values are found, also if their kind is the right one."""
    if engine.dialect.name == "postgresql":
        execute(engine, "CREATE DOMAIN digits AS NUMERIC(5, 2)")
    lossy = {f"c{number}": pair for number, pair in enumerate(LOSSY[engine.dialect.name])}
    there = ", ".join(f"{name} {type_}" for name, (_, type_) in lossy.items())
    execute(engine, f"CREATE TABLE lossy (url VARCHAR(9) PRIMARY KEY, {there})")
    kinds = {"url": "str"} | {name: kind for name, (kind, _) in lossy.items()}
    options = {"table": "lossy", "key": ["url"], "columns": kinds}
    with pytest.raises(SinkMismatch) as mismatch:
        Tables({"dict": options}, None, engine.dialect).prepare(engine.begin)
    fits = [
        pair for name, pair in lossy.items() if f"column {name!r} is " not in str(mismatch.value)
    ]
    assert fits == []


def test_a_key_with_another_collation_does_not_fit(engine: sqlalchemy.Engine) -> None:
    """MariaDB's own would merge rows whose keys differ in case."""
    if engine.dialect.name != "mysql":
        collations = ["TEXT"]
    else:
        collations = ["VARCHAR(99)", "VARCHAR(99) COLLATE utf8mb4_bin"]
    for collation in collations:
        execute(engine, f"CREATE TABLE books (url {collation} PRIMARY KEY)")
        tables = Tables({Book: {**BOOKS, "columns": {}}}, None, engine.dialect)
        with pytest.raises(SinkMismatch) as mismatch:
            tables.prepare(engine.begin)
        told = "the collation of 'url' takes different keys for the same" in str(mismatch.value)
        assert told == (engine.dialect.name == "mysql")
        execute(engine, "DROP TABLE books")


def test_dicts_without_columns_take_those_of_their_table(engine: sqlalchemy.Engine) -> None:
    """As the database says; columns with defaults are left to them."""
    execute(
        engine,
        "CREATE TABLE items (url VARCHAR(99) PRIMARY KEY, price DECIMAL(10, 2), "
        "made INTEGER NOT NULL DEFAULT 5)",
    )
    tables = Tables({"dict": {"table": "items"}}, described(engine), engine.dialect)
    tables.prepare(engine.begin)

    record = store(engine, tables, {"url": "a", "price": Decimal("1.50")})

    assert record.target.key == ("url",)
    with engine.connect() as connection:
        (row,) = connection.exec_driver_sql("SELECT url, price, made FROM items")
    assert (row[0], Decimal(str(row[1])), row[2]) == ("a", Decimal("1.5"), 5)
    with pytest.raises(RowRefused, match="8 digits before the point and 2 after"):
        tables.record({"url": "a", "price": Decimal("1.555")}, KEY)
    with pytest.raises(RowRefused, match="'made'"):
        tables.record({"url": "a", "made": 1}, KEY)
