"""Tables that are there when a crawl starts: made by a run before, by hand, by another worker."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import make_url

from lab.databases import Database
from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines.database.engine import engine as engine_for
from scrapy_redisq.pipelines.database.tables import Tables
from tests.sinks.tables import (
    BOOKS,
    DICT,
    EVERYTHING,
    KEY,
    Book,
    execute,
    store,
)


def test_many_workers_make_the_same_tables_at_the_same_moment(each_database: Database) -> None:
    """All of them find the tables made, whoever made them."""
    metadata = sqlalchemy.MetaData()
    column = sqlalchemy.Column("url", sqlalchemy.String(50), primary_key=True)
    sqlalchemy.Table("shops", metadata, column)
    workers = 6
    barrier = threading.Barrier(workers)
    failures: list[BaseException] = []

    def work() -> None:
        engine = sqlalchemy.create_engine(each_database.url)
        try:
            with engine.connect():
                pass
            tables = Tables({Book: BOOKS}, metadata, engine.dialect)
            barrier.wait(20)
            tables.prepare(engine.begin)
            tables.record(EVERYTHING, KEY)
            barrier.wait(20)
            tables.prepare(engine.begin)
        except BaseException as failure:
            failures.append(failure)
            barrier.abort()
        finally:
            engine.dispose()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    engine = sqlalchemy.create_engine(each_database.url)
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {"books", "everything", "shops"}
    engine.dispose()


def listed_books() -> sqlalchemy.MetaData:
    """A project's table of books with an index that is a statement of its own."""
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.String(50), primary_key=True)
    title = sqlalchemy.Column("title", sqlalchemy.String(50))
    sqlalchemy.Table("books", metadata, url, title, sqlalchemy.Index("titles", title, unique=True))
    return metadata


def listed(key: str) -> dict[str, Any]:
    columns = {"url": "str", "title": "str"}
    return {"dict": {"table": "books", "key": [key], "columns": columns}}


@pytest.mark.parametrize("key", ["url", "title"])
def test_a_table_is_looked_at_before_its_indexes_are_there(
    each_database: Database, key: str
) -> None:
    """MariaDB makes them one by one: they are waited for, and known by their description."""
    maker, other = (engine_for(make_url(each_database.url), "", 10) for _ in range(2))
    for engine in (maker, other):
        engine.connect().close()  # a dialect knows its server only then
    looks = threading.Event()
    seen: list[Any] = []

    @sqlalchemy.event.listens_for(other, "before_cursor_execute")
    def asks(*args: Any) -> None:
        if any(word in args[2] for word in ("SHOW CREATE", "advisory", "IMMEDIATE")):
            looks.set()

    def look() -> None:
        try:
            tables = Tables(listed(key), listed_books(), other.dialect)
            tables.prepare(other.begin)
            record = tables.record({"url": "a", "title": "b"}, KEY)
            seen.append(record.target.also_unique)
        except BaseException as failure:
            seen.append(failure)
        finally:
            looks.set()

    worker = threading.Thread(target=look)

    @sqlalchemy.event.listens_for(maker, "before_cursor_execute")
    def between(*args: Any) -> None:
        if "UNIQUE INDEX" in args[2]:
            worker.start()
            assert looks.wait(20)

    Tables(listed(key), listed_books(), maker.dialect).prepare(maker.begin)
    worker.join(20)
    maker.dispose()
    other.dispose()
    assert seen == [True]


def test_tables_of_the_run_before_fit(engine: sqlalchemy.Engine) -> None:
    """What was made for a class is what the class needs: no difference is seen."""
    for _ in range(2):
        tables = Tables({Book: {**BOOKS, "extra": "more"}, **DICT}, None, engine.dialect)
        store(engine, tables, EVERYTHING, Book("a"), {"url": "a"})


def test_prepare_asks_the_database_only_about_what_is_new(sqlite_engine: sqlalchemy.Engine) -> None:
    """It is called before each batch."""
    tables = Tables({Book: BOOKS}, None, sqlite_engine.dialect)
    tables.prepare(sqlite_engine.begin)
    statements: list[str] = []
    sqlalchemy.event.listen(
        sqlite_engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    tables.record(Book("a"), KEY)
    tables.prepare(sqlite_engine.begin)
    assert statements == []
    tables.record(EVERYTHING, KEY)
    tables.prepare(sqlite_engine.begin)
    assert any("CREATE TABLE IF NOT EXISTS everything" in statement for statement in statements)


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


def test_texts_and_bytes_are_held_to_the_column_that_is_there(engine: sqlalchemy.Engine) -> None:
    """Final spaces are no error for a database, and what it fills up would come back longer."""
    if engine.dialect.name == "sqlite":
        pytest.skip("its types are names")
    is_postgres = engine.dialect.name == "postgresql"
    exact = "" if is_postgres else "COLLATE utf8mb4_nopad_bin"
    execute(
        engine,
        f"CREATE TABLE held (url VARCHAR(9) {exact} PRIMARY KEY, short VARCHAR(3), filled CHAR(3), "
        f"data {'BYTEA' if is_postgres else 'BINARY(3)'})",
    )
    columns = dict.fromkeys(("url", "short", "filled"), "str") | {"data": "bytes"}
    tables = Tables(
        {"dict": {"table": "held", "key": ["url"], "columns": columns}},
        described(engine),
        engine.dialect,
    )

    def taken(**values: Any) -> bool:
        try:
            store(engine, tables, {"url": "u", **values})
        except RowRefused:
            return False
        return True

    full: dict[str, Any] = {"short": "ab ", "filled": "abc", "data": b"abc"}
    assert taken(**full)
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT short, filled, data FROM held").one()
    assert tuple(row) == tuple(full.values())
    refused: list[dict[str, Any]] = [{"short": "abc "}, {"filled": "a "}, {"url": "u" * 9 + " "}]
    if not is_postgres:
        refused.append({"data": b"a"})
    assert not any(taken(**values) for values in refused)


def prepare_for(engine: sqlalchemy.Engine, item: Any) -> None:
    """What a new worker does whose first item this is."""
    tables = Tables({}, None, engine.dialect)
    tables.record(item, KEY)
    tables.prepare(engine.begin)


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


def test_a_key_that_is_unique_by_a_word_at_its_column(engine: sqlalchemy.Engine) -> None:
    """SQLAlchemy does not see each of these in SQLite."""
    collation = " COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
    execute(engine, f"CREATE TABLE hand (url VARCHAR(99){collation} NOT NULL UNIQUE)")
    metadata = sqlalchemy.MetaData()
    url = sqlalchemy.Column("url", sqlalchemy.String(99), nullable=False, unique=True)
    sqlalchemy.Table("hand", metadata, url)
    tables = Tables({"dict": {"table": "hand", "key": ["url"]}}, metadata, engine.dialect)
    store(engine, tables, {"url": "a"}, {"url": "a"})


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


def test_dicts_without_columns_need_their_table(sqlite_engine: sqlalchemy.Engine) -> None:
    """The error says what to give."""
    with pytest.raises(SettingError, match=r"\['columns'\].*REDISQ_METADATA has no table items"):
        Tables({"dict": {"table": "items"}}, None, sqlite_engine.dialect)
