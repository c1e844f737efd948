"""Names of tables and columns: kept exactly as they are, or refused with words."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy

from scrapy_redisq.errors import SinkMismatch
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from tests.sinks.tables import (
    KEY,
    Book,
    execute,
    rows,
    store,
)

HOSTILE = [
    *("select", "order", "group", "table", "user", "index", "primary", "values", "new", "excluded"),
    *("a b", "a'b", 'a"b', "a`b", "a;b", '"; DROP TABLE x; --', "'; DROP TABLE x; --"),
    *("`; DROP TABLE x; --", "100%", "%s", "%(x)s", "%%", "a:b", ":x", "a::b", "{x}", "{{}}"),
    *("[x]", "(x)", "a,b", "a_b", "back\\slash", "end\\", "\\'", "new\nline", "tab\t", "größe"),
    *("価格", "emoji 😀", " lead", "trail ", "?", "@x", "#x", "--x", "/*x*/", "$1", "-", "0"),
    *("param_1", "\x01", "\x7f", "a\u2028b", "nul\0", "x" * 63, "x" * 64, "x" * 65, "é" * 40),
    *(
        "sqlite_x",
        "ctid",
        "EXCLUDED",
        "half \ud800",
        "` int, `b",
        "KEY `x` (`y`)",
        "redisq",
        "x.y.z",
    ),
]

NOWHERE = {"nul\0", "half \ud800", "%(x)s"}
REFUSED = {
    "sqlite": NOWHERE,
    "postgresql": {*NOWHERE, "x" * 64, "x" * 65, "é" * 40},
    "mysql": {
        *(name for name in HOSTILE if set(name) & set("`%\n\t\x01😀") or name.endswith(" ")),
        *NOWHERE,
        "x" * 65,
    },
}
RESERVED = {
    "sqlite": ["sqlite_x", "EXCLUDED", "excluded", "x.y.z"],
    "postgresql": ["sqlite_x", "EXCLUDED", "excluded", "x.y.z"],
    "mysql": ["x.y.z"],
}


def test_hostile_names_of_tables_are_kept_exactly_or_refused_with_words(
    engine: sqlalchemy.Engine,
) -> None:
    """No name changes a statement: there is a table of just this name, or an error before."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    kept = set()
    for name in HOSTILE:
        options = {"table": name, "key": ["key"], "columns": {"key": "str", "value": "str"}}
        try:
            tables = Tables({"dict": options}, None, engine.dialect)
            tables.prepare(engine.begin)
            with engine.begin() as connection:
                for value in ("old", "new"):
                    record = tables.record({"key": "'%s\\", "value": value}, KEY)
                    write(connection, [record])
        except SinkMismatch as mismatch:
            assert "REDISQ_TABLES" in str(mismatch)
            continue
        kept.add(name)
        assert rows(engine, record.target.table) == [{"key": "'%s\\", "value": "new"}]
    assert set(sqlalchemy.inspect(engine).get_table_names()) == {*kept, "x"}
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"
    refused = {*REFUSED[engine.dialect.name], *RESERVED[engine.dialect.name]}
    assert set(HOSTILE) - kept == refused


def test_hostile_names_of_columns_are_kept_exactly_or_refused_with_words(
    engine: sqlalchemy.Engine,
) -> None:
    """In the key and beside it: there are columns of just these names, or an error before."""
    execute(engine, "CREATE TABLE x (kept INTEGER)")
    kept = []
    for name in HOSTILE:
        options = {"table": "t", "key": [name], "columns": {name: "str"}}
        try:
            Tables({"dict": options}, None, engine.dialect)
            kept.append(name)
        except SinkMismatch as mismatch:
            assert "REDISQ_TABLES" in str(mismatch)
    if engine.dialect.name == "postgresql":
        kept.remove("ctid")  # only the database knows: see below
        options = {"table": "t", "columns": {"ctid": "str"}}
        with pytest.raises(SinkMismatch, match=r'(?s)cannot be made: .*"ctid".*REDISQ_TABLES'):
            Tables({"dict": options}, None, engine.dialect).prepare(engine.begin)
    for start in range(0, len(kept), 10):
        names = kept[start : start + 10]
        key = names[: len(names) // 2 + 1]
        options = {"table": f"t{start}", "key": key, "columns": dict.fromkeys(names, "str")}
        tables = Tables({"dict": options}, None, engine.dialect)
        tables.prepare(engine.begin)
        with engine.begin() as connection:
            for value in ("old", "new"):
                item = {name: name if name in key else name + value for name in names}
                record = tables.record(item, KEY)
                write(connection, [record])
        assert rows(engine, record.target.table) == [item]
        columns = sqlalchemy.inspect(engine).get_columns(f"t{start}")
        assert [column["name"] for column in columns] == names
    assert sqlalchemy.inspect(engine).get_columns("x")[0]["name"] == "kept"
    assert set(HOSTILE) - set(kept) == REFUSED[engine.dialect.name] | (
        {"ctid"} if engine.dialect.name == "postgresql" else set()
    )


@pytest.mark.parametrize(("one", "two"), [("a.b", "a_b"), ("a b", "a_b"), ("a(", "aA")])
def test_names_that_look_alike_as_parameters_keep_their_values(
    engine: sqlalchemy.Engine, one: str, two: str
) -> None:
    """SQLAlchemy makes names of parameters of them."""
    options = {"table": "t", "columns": {one: "str", two: "str"}}
    tables = Tables({"dict": options}, None, engine.dialect)
    record = store(engine, tables, {one: "1", two: "2"})
    (row,) = rows(engine, record.target.table)
    assert (row[one], row[two]) == ("1", "2")


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
    with pytest.raises(SinkMismatch, match=r"(?i)cannot be made: .*duplicate column"):
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


def test_a_table_that_the_database_cannot_have_says_why(engine: sqlalchemy.Engine) -> None:
    """More columns, in the table or its key, than it takes: no retry would help."""
    many = [f"c{number}" for number in range(2500)]
    for options in ({"columns": dict.fromkeys(many, "int")}, _keyed(many[:40])):
        tables = Tables({"dict": options}, None, engine.dialect)
        if engine.dialect.name == "sqlite" and "key" in options:
            tables.prepare(engine.begin)  # has no such limit
            continue
        with pytest.raises(SinkMismatch, match=r"(?s)table dict cannot be made: .*REDISQ_TABLES"):
            tables.prepare(engine.begin)


def _keyed(names: list[str]) -> dict[str, Any]:
    return {"key": names, "columns": dict.fromkeys(names, "int")}
