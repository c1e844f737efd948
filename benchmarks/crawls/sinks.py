"""Crawls with and without a pipeline, and the table that all of them write into."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql

from benchmarks.common import Figures
from benchmarks.crawls import workers
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.spiders import shop
from benchmarks.crawls.workers import REDISQ_BLOOM, DidNotRun
from lab.databases import Database
from lab.servers import RedisServer

BATCH = 500
"""Rows of a transaction, batch_rows of DatabasePipeline; and CONCURRENT_ITEMS."""

NONE, USUAL, OURS = "no pipeline", "usual pipeline", "DatabasePipeline"
PIPELINES = {
    NONE: {},
    USUAL: {"shop.UsualPipeline": 300},
    OURS: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
}
TABLES = {"shop.Product": {"table": "product", "key": ["url"]}}


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


class Contest:
    """All ways into a database, each from the start into an empty one."""

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis

    def one_page(self, database: Database, site: Pages, pipeline: str, rows: int) -> Figures:
        """A crawl of one page with all the items, into an empty table."""
        report, seconds = self.crawl(database, site, pipeline, rows, follow="")
        figures = {
            "rows": rows,
            "rows/s": rows / report["seconds"],
            "CPU µs/row": report["cpu"] / rows * 1e6,
            "database CPU µs/row": seconds / rows * 1e6,
        }
        sink = report["sink"]
        if sink["rows"]:
            figures["sink rows/s"] = rows / sink["seconds"]
        if sink["batches"]:
            figures["rows/batch"] = rows / sink["batches"]
        return figures

    def pages(self, database: Database, site: Pages, pipeline: str) -> Figures:
        """A crawl of the whole site, three items a page."""
        report, _ = self.crawl(database, site, pipeline, 3, follow="yes")
        figures = {
            "rows": report["items"],
            "pages/s": report["pages"] / report["seconds"],
            "CPU ms/page": report["cpu"] / report["pages"] * 1e3,
        }
        if pipeline == OURS:
            figures["sink rows/s"] = report["items"] / report["sink"]["seconds"]
            figures["rows/batch"] = report["items"] / report["sink"]["batches"]
        return figures

    def crawl(
        self, database: Database, site: Pages, pipeline: str, items: int, follow: str
    ) -> tuple[dict[str, Any], float]:
        """One crawl by a process of its own, into an empty Redis and an empty table.

        -> its report, and the CPU seconds of the database's processes.
        """
        empty(database)
        before = database.cpu_seconds()
        settings = {
            "CONCURRENT_ITEMS": 100 if follow else BATCH,
            "ITEM_PIPELINES": json.dumps(PIPELINES[pipeline]),
            "REDISQ_DATABASE_URL": database.url,
            "REDISQ_TABLES": json.dumps(TABLES),
        }
        report = workers.crawl(
            REDISQ_BLOOM,
            site.start_url,
            self._redis,
            settings=settings,
            spider="products",
            arguments={"items": items, "follow": follow},
        )
        seconds = database.cpu_seconds() - before
        wanted = site.pages * items
        if report["items"] != wanted:
            raise DidNotRun(f"{pipeline} scraped {report['items']} of {wanted} items")
        check(database, 0 if pipeline == NONE else wanted)
        return report, seconds
