"""The table that all ways write into, and the ways of the drivers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql

from benchmarks.crawls.spiders import shop
from benchmarks.crawls.workers import DidNotRun
from lab.databases import Database

METADATA = sqlalchemy.MetaData()
URL = sqlalchemy.String(500).with_variant(
    mysql.VARCHAR(500, collation="utf8mb4_nopad_bin"), "mysql"
)
TIME = sqlalchemy.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
TABLE = sqlalchemy.Table(
    "product",
    METADATA,
    sqlalchemy.Column("url", URL, primary_key=True),
    sqlalchemy.Column("title", sqlalchemy.Text),
    sqlalchemy.Column("description", sqlalchemy.Text),
    sqlalchemy.Column("price", sqlalchemy.Double),
    sqlalchemy.Column("stock", sqlalchemy.BigInteger),
    sqlalchemy.Column("available", sqlalchemy.Boolean),
    sqlalchemy.Column("brand", sqlalchemy.Text),
    sqlalchemy.Column("crawled_at", TIME),
)
"""All contestants write into it."""


def empty(database: Database) -> None:
    """A new database with the table in it; SQLite's in WAL mode."""
    database.fresh()
    shop.connect(database.url).close()
    engine = sqlalchemy.create_engine(database.url, poolclass=sqlalchemy.NullPool)
    METADATA.create_all(engine)
    engine.dispose()


def check(database: Database, rows: int) -> None:
    """Raise `DidNotRun` unless the table has so many rows."""
    found = database.query("SELECT COUNT(*) FROM product")[0][0]
    if found != rows:
        raise DidNotRun(f"{database.kind} has {found} of {rows} rows")


# Ways into a database by its driver

Rows = list[tuple[Any, ...]]
Way = Callable[[Any, str, Rows], None]


def insert(cursor: Any, dialect: str, rows: Rows) -> None:
    cursor.executemany(shop.insert(dialect, upsert=False), rows)


def upsert(cursor: Any, dialect: str, rows: Rows) -> None:
    cursor.executemany(shop.insert(dialect, upsert=True), rows)


def copy(cursor: Any, dialect: str, rows: Rows) -> None:
    with cursor.copy(f"COPY product ({', '.join(shop.COLUMNS)}) FROM STDIN") as lines:
        for row in rows:
            lines.write_row(row)


WAYS: dict[str, Way] = {
    "executemany of INSERT": insert,
    "executemany of upsert": upsert,
    "COPY": copy,
}
