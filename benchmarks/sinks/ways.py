"""Ways into a database: crawls with and without a pipeline, and the driver alone."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import sqlalchemy

from benchmarks.common import Figures
from benchmarks.crawls import workers
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.spiders import shop
from benchmarks.crawls.workers import REDISQ_BLOOM, DidNotRun
from benchmarks.sinks.drivers import Way, check, empty
from lab.databases import Database
from lab.servers import RedisServer

BATCH = 500
"""Rows of a transaction, batch_rows of DatabasePipeline; and CONCURRENT_ITEMS."""

NONE, USUAL, OURS = "no pipeline", "usual pipeline", "DatabasePipeline"
ALCHEMY = f"{USUAL}, by SQLAlchemy"
DEFAULT = f"{OURS}, CONCURRENT_ITEMS 100"
PIPELINES = {
    NONE: {},
    USUAL: {"shop.UsualPipeline": 300},
    ALCHEMY: {"shop.AlchemyPipeline": 300},
    OURS: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
    DEFAULT: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
}
TABLES = {"shop.Product": {"table": "product", "key": ["url"]}}


class Contest:
    """All ways into a database, each from the start into an empty one.

    ``rows``: how many the drivers alone write.
    """

    def __init__(self, redis: RedisServer, rows: int) -> None:
        self._redis, self._rows = redis, rows

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

    def bare(self, database: Database, way: Way, most: int) -> Figures:
        """The same rows by the driver alone, ``most`` of them a transaction."""
        empty(database)
        dialect = sqlalchemy.make_url(database.url).get_backend_name()
        rows = [
            shop.values(dialect, shop.product("http://127.0.0.1:12345/index.html", number))
            for number in range(self._rows)
        ]
        with closing(shop.connect(database.url)) as connection:
            cursor = connection.cursor()
            began = time.perf_counter()
            for first in range(0, len(rows), most):
                way(cursor, dialect, rows[first : first + most])
                connection.commit()
            seconds = time.perf_counter() - began
        check(database, len(rows))
        return {"rows": len(rows), "sink rows/s": len(rows) / seconds}

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
            "CONCURRENT_ITEMS": 100 if follow or pipeline == DEFAULT else BATCH,
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
