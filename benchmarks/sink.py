"""Rows per second of `DatabasePipeline`, and what it costs a crawl.

The sink's own part, rows by the seconds in ``write``, stands beside the same rows written by the
driver alone; its crawl beside that of the usual pipeline, and of no pipeline at all, which is as
fast as Scrapy hands items over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import mysql

from benchmarks import workers
from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.pages import Pages
from benchmarks.spiders import shop
from benchmarks.workers import REDISQ_BLOOM, DidNotRun
from tests.harness.databases import Database, MariaServer, PostgresServer, SQLiteDatabase
from tests.harness.servers import RedisServer, any_server

DATABASES: dict[str, Callable[[], Database]] = {
    "SQLite": SQLiteDatabase,
    # The tests' servers are small; here they have the memory that they have by default.
    "PostgreSQL": lambda: PostgresServer("-c", "shared_buffers=128MB", "-c", "autovacuum=on"),
    "MariaDB": lambda: MariaServer("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"),
}

BATCH = 500
"""Rows of a transaction, REDISQ_DATABASE_BATCH's default; and CONCURRENT_ITEMS."""

NONE, USUAL, OURS = "no pipeline", "usual pipeline", "DatabasePipeline"
DEFAULT = f"{OURS}, CONCURRENT_ITEMS 100"
PIPELINES = {
    NONE: {},
    USUAL: {"shop.UsualPipeline": 300},
    OURS: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
    DEFAULT: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
}
TABLES = {"shop.Product": {"table": "product", "key": ["url"]}}

FASTER_THAN_USUAL = 10
OF_LIMIT = 0.5
OF_CRAWL = 0.9

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


@dataclass(frozen=True)
class Size:
    """How much is run. ``links``: of the generated sites' pages."""

    rows: int
    usual_rows: int
    rounds: int
    pages: int
    links: tuple[int, ...]
    crawl_rounds: int


FULL = Size(rows=20_000, usual_rows=4_000, rounds=5, pages=1500, links=(50, 10), crawl_rounds=3)
QUICK = Size(rows=100, usual_rows=20, rounds=1, pages=0, links=(), crawl_rounds=0)

COLUMNS = ["what", "database", "rows/s", "x usual", "x no pipeline", "sink rows/s"]
COLUMNS += ["x limit", "rows/batch", "CPU µs/row", "pages/s", "CPU ms/page"]


class Bench:
    """The servers, the rows of the table and the goals so far."""

    def __init__(self, size: Size, databases: dict[str, Database], redis: RedisServer) -> None:
        self.size = size
        self.databases = databases
        self.redis = redis
        self.rows: list[dict[str, Any]] = []
        self.targets: list[Target] = []

    # Rows per second

    def compare(self, name: str) -> None:
        """All ways into one database."""
        database, size = self.databases[name], self.size
        with Pages(1, links=0) as site:
            shop_page = partial(self.one_page, database, site)
            variants: dict[str, Callable[[], Figures]] = {
                NONE: partial(shop_page, NONE, size.rows),
                USUAL: partial(shop_page, USUAL, size.usual_rows),
                OURS: partial(shop_page, OURS, size.rows),
            }
            if size.rounds > 1:
                variants[DEFAULT] = partial(shop_page, DEFAULT, size.rows)
            for which, way in WAYS.items():
                if name == "PostgreSQL" or way is not copy:
                    for most in (BATCH, size.rows):
                        what = f"{which}, {most:,} a transaction"
                        variants[what] = partial(self.bare, database, way, most)
            runs = alternating(variants, size.rounds)
        limit = max(
            (what for what in runs if what.endswith(f" {BATCH} a transaction")),
            key=lambda what: medians(runs[what])["sink rows/s"],
        )
        for what, measured in runs.items():
            figures = medians(measured)
            row: dict[str, Any] = {"what": what, "database": name, **figures}
            row["rows"] = int(figures["rows"])
            row["x limit"] = ratio(measured, runs[limit], "sink rows/s") if what != NONE else ""
            if "rows/s" in figures:
                row["x usual"] = ratio(measured, runs[USUAL], "rows/s")
                row["x no pipeline"] = ratio(measured, runs[NONE], "rows/s")
            if what == limit:
                row["what"] = f"{what}: the limit"
            self.rows.append(row)
        self._judge(name, runs, limit)

    def one_page(self, database: Database, site: Pages, pipeline: str, rows: int) -> Figures:
        """A crawl of one page with all the items, into an empty table."""
        report = self.crawl(database, site, pipeline, rows, follow="")
        figures = {
            "rows": rows,
            "rows/s": rows / report["seconds"],
            "CPU µs/row": report["cpu"] / rows * 1e6,
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
            for number in range(self.size.rows)
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

    def _judge(self, name: str, runs: dict[str, list[Figures]], limit: str) -> None:
        usual = ratio(runs[OURS], runs[USUAL], "rows/s")
        itself = ratio(runs[OURS], runs[USUAL], "sink rows/s")
        of_limit = ratio(runs[OURS], runs[limit], "sink rows/s")
        for what, wanted, measured in (
            ("rows/s of the crawl beside the usual pipeline", FASTER_THAN_USUAL, usual),
            ("rows/s of the sink itself beside the usual pipeline", FASTER_THAN_USUAL, itself),
            ("rows/s of the sink itself beside the limit", OF_LIMIT, of_limit),
        ):
            self.goal(f"{name}: {what}", wanted, measured)

    # Pages per second

    def crawls(self, links: int) -> None:
        """Crawls of a generated site with three items a page, with and without a sink."""
        some = next(iter(self.databases.values()))
        with Pages(self.size.pages, links) as site:
            variants = {NONE: partial(self.pages, some, site, NONE)}
            for name, database in self.databases.items():
                variants[name] = partial(self.pages, database, site, OURS)
            runs = alternating(variants, self.size.crawl_rounds)
        for name, measured in runs.items():
            beside = ratio(measured, runs[NONE], "pages/s")
            self.rows.append(
                {
                    "what": f"crawl, {links} links a page" + (f", {NONE}" if name == NONE else ""),
                    "database": "" if name == NONE else name,
                    **medians(measured),
                    "x no pipeline": beside,
                    "rows": int(measured[0]["rows"]),
                }
            )
            if name != NONE:
                what = f"{name}: pages/s of a crawl beside one without, {links} links a page"
                self.goal(what, OF_CRAWL, beside)

    def pages(self, database: Database, site: Pages, pipeline: str) -> Figures:
        """A crawl of the whole site, three items a page."""
        report = self.crawl(database, site, pipeline, 3, follow="yes")
        figures = {
            "rows": report["items"],
            "pages/s": report["pages"] / report["seconds"],
            "CPU ms/page": report["cpu"] / report["pages"] * 1e3,
        }
        if pipeline == OURS:
            figures["sink rows/s"] = report["items"] / report["sink"]["seconds"]
            figures["rows/batch"] = report["items"] / report["sink"]["batches"]
        return figures

    # Both

    def crawl(
        self, database: Database, site: Pages, pipeline: str, items: int, follow: str
    ) -> dict[str, Any]:
        """One crawl by a process of its own, into an empty Redis and an empty table."""
        empty(database)
        settings = {
            "CONCURRENT_ITEMS": 100 if follow or pipeline == DEFAULT else BATCH,
            "ITEM_PIPELINES": json.dumps(PIPELINES[pipeline]),
            "REDISQ_DATABASE_URL": database.url,
            "REDISQ_DATABASE_BATCH": BATCH,
            "REDISQ_TABLES": json.dumps(TABLES),
        }
        report = workers.crawl(
            REDISQ_BLOOM,
            site.start_url,
            self.redis,
            settings=settings,
            spider="products",
            arguments={"items": items, "follow": follow},
        )
        wanted = site.pages * items
        if report["items"] != wanted:
            raise DidNotRun(f"{pipeline} scraped {report['items']} of {wanted} items")
        check(database, 0 if pipeline == NONE else wanted)
        return report

    def goal(self, what: str, wanted: float, measured: float) -> None:
        """One more goal: so many times as fast, or faster."""
        self.targets.append(Target(what, f">= {wanted} x", f"{measured:.2f} x", measured >= wanted))


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


def _versions(databases: dict[str, Database]) -> Iterator[str]:
    for name, database in databases.items():
        function = "sqlite_version()" if name == "SQLite" else "version()"
        (answer,) = database.query(f"SELECT {function}")[0]
        yield f"{name} {answer.removeprefix('PostgreSQL ').split()[0].partition('-')[0]}"
    for package in ("SQLAlchemy", "psycopg", "PyMySQL"):
        yield f"{package} {version(package)}"


def run(*, quick: bool) -> Result:
    """Write into all databases in all ways, then crawl with each."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        redis = stack.enter_context(closing(RedisServer(any_server("redis-7"))))
        databases = {
            name: stack.enter_context(closing(make()))
            for name, make in list(DATABASES.items())[: 1 if quick else None]
        }
        bench = Bench(size, databases, redis)
        for name in databases:
            bench.compare(name)
        for links in size.links:
            bench.crawls(links)
        software = ", ".join(_versions(databases))
    return Result(
        "sink",
        "Rows into databases, beside the usual pipeline, Scrapy's pace and the driver alone",
        COLUMNS,
        bench.rows,
        targets=bench.targets,
        notes=[
            f"Medians of {size.rounds} rounds, crawls {size.crawl_rounds}; a process for each. "
            f"Items of 8 fields, all from one page, {size.rows:,} (usual pipeline: "
            f"{size.usual_rows:,}), CONCURRENT_ITEMS {BATCH}; crawls have three "
            "a page and Scrapy's default of 100. Everybody writes into a table that is there.",
            "rows/s: from the first response to the close of the spider. Scrapy's pace, with no "
            "pipeline, is the most that any pipeline can reach there.",
            "sink rows/s: by the seconds in `write`, or in the usual pipeline's execute and "
            "commit, in which Scrapy's own thread runs, too. The limit is the fastest way with "
            f"{BATCH} rows a transaction, by a process that does nothing else.",
            "All are durable: SQLite with WAL and synchronous = FULL, PostgreSQL and MariaDB with "
            "fsync at each commit, as they are by default. The usual pipeline: INSERT … ON "
            "CONFLICT DO UPDATE (MariaDB: ON DUPLICATE KEY UPDATE) and COMMIT in process_item.",
            f"{software}.",
        ],
    )
