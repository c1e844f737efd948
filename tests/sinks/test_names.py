"""Names of tables and columns: kept exactly as they are, or refused with words."""

from __future__ import annotations

import pytest
import sqlalchemy

from scrapy_redisq.errors import RedisqError, SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from tests.sinks.tables import Book, execute, rows, store

HOSTILE = [
    *("select", "table", "user", "primary", "values", "new", "param_1"),
    *("a b", "a_b", "a.b", "a(", "aA", "a'b", 'a"b', "a:b", ":x", "[x]", "a,b"),
    *('"; DROP TABLE x; --', "'; DROP TABLE x; --", "back\\slash", "end\\", "größe", "価格"),
    *(" lead", "?", "@x", "--x", "/*x*/", "$1", "-", "0"),
]
"""Some of them are the same to SQLAlchemy, where it makes names of parameters of them."""


def test_hostile_names_are_kept_exactly(engine: sqlalchemy.Engine) -> None:
    """No name changes a statement: there are a table and columns of just these names."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    key, plain = HOSTILE[::8], [name for name in HOSTILE if "." not in name]
    for table in plain:
        options = {"table": table, "key": key, "columns": dict.fromkeys(HOSTILE, "str")}
        tables = Tables({"dict": options}, None, engine.dialect)
        items = [{name: name if name in key else name + new for name in HOSTILE} for new in "ab"]
        record = store(engine, tables, *items)
        assert rows(engine, record.target.table) == [items[1]]
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {*plain, "x"}
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"


@pytest.mark.parametrize("name", ["sqlite_x", "x" * 70, "ctid", "nul\0", "a`b%"])
def test_names_that_the_database_does_not_have(engine: sqlalchemy.Engine, name: str) -> None:
    """They are kept exactly, too, or are an error at start."""
    options = {"table": name, "key": [name], "columns": {name: "str"}}
    try:
        record = store(engine, Tables({"dict": options}, None, engine.dialect), {name: "a"})
    except (RedisqError, sqlalchemy.exc.SQLAlchemyError, ValueError):
        return
    assert rows(engine, record.target.table) == [{name: "a"}]
    assert name in sqlalchemy.inspect(engine).get_table_names()


def test_names_that_differ_in_case_alone(engine: sqlalchemy.Engine) -> None:
    """PostgreSQL tells them apart; SQLite and MariaDB do not, and the error says so."""
    options = {"table": "t", "columns": {"url": "str", "Url": "str"}}
    if engine.dialect.name == "postgresql":
        record = store(
            engine, Tables({"dict": options}, None, engine.dialect), {"url": "1", "Url": "2"}
        )
        (row,) = rows(engine, record.target.table)
        assert (row["url"], row["Url"]) == ("1", "2")
        return
    tables = Tables({"dict": options}, None, engine.dialect)
    with pytest.raises(sqlalchemy.exc.OperationalError, match=r"(?i)duplicate column"):
        tables.prepare(engine.begin)


def test_a_table_in_a_schema(engine: sqlalchemy.Engine) -> None:
    """A dot in the name of a table parts schema and table; without the schema there are words."""
    options = {"table": "shop.books", "key": ["url"]}
    tables = Tables({Book: options}, None, engine.dialect)
    with pytest.raises(SinkMismatch, match="no schema 'shop'"):
        store(engine, tables, Book("a"))
    if engine.dialect.name == "postgresql":
        execute(engine, "CREATE SCHEMA shop")
        record = store(engine, tables, Book("a"))
        assert record.target.table.schema == "shop"
        assert len(rows(engine, record.target.table)) == 1
