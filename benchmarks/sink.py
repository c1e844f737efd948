"""Rows per second of `DatabasePipeline`, and what it costs a crawl.

Its crawl stands beside that of the usual pipeline, and of no pipeline at all, which is as fast as
Scrapy hands items over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls import workers
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import REDISQ_BLOOM, DidNotRun
from lab.databases.database import Database, SQLiteDatabase
from lab.databases.mariadb import MariaServer
from lab.databases.postgres import PostgresServer
from lab.servers import RedisServer, any_server

DATABASES: dict[str, Callable[[], Database]] = {
    "SQLite": SQLiteDatabase,
    # The tests' servers are small; here they have the memory that they have by default.
    "PostgreSQL": lambda: PostgresServer("-c", "shared_buffers=128MB", "-c", "autovacuum=on"),
    "MariaDB": lambda: MariaServer("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"),
}

BATCH = 500
"""Rows of a transaction, batch_rows of DatabasePipeline; and CONCURRENT_ITEMS."""

PAGES, CRAWL_ROUNDS, LINKS = 1500, 3, (50, 10)
"""Of the generated sites, and links on a page of theirs."""

NONE, USUAL, OURS = "no pipeline", "usual pipeline", "DatabasePipeline"
PIPELINES = {
    NONE: {},
    USUAL: {"products.UsualPipeline": 300},
    OURS: {"scrapy_redisq.pipelines.DatabasePipeline": 300},
}
TABLES = {"products.Product": {"table": "product", "key": ["url"]}}

TYPES = {
    "sqlite": ("TEXT", "DATETIME"),
    "postgres": ("TEXT", "TIMESTAMPTZ"),
    "mariadb": ("VARCHAR(768) COLLATE utf8mb4_nopad_bin", "DATETIME(6)"),
}
"""Of a key and of a time, as DatabasePipeline would make them."""

COLUMNS = ["what", "database", "rows/s", "x usual", "x no pipeline", "sink rows/s"]
COLUMNS += ["rows/batch", "CPU µs/row", "database CPU µs/row"]
COLUMNS += ["pages/s", "CPU ms/page"]


def empty(database: Database) -> None:
    """A new database with the table in it that all write into; SQLite's in WAL mode."""
    database.fresh()
    if database.kind == "sqlite":
        database.execute("PRAGMA journal_mode = WAL")
    key, time = TYPES[database.kind]
    database.execute(
        f"CREATE TABLE product (url {key} NOT NULL PRIMARY KEY, title TEXT, description TEXT,"
        " price DOUBLE PRECISION, stock BIGINT, available BOOLEAN, brand TEXT,"
        f" crawled_at {time})"
    )


def crawl(
    redis: RedisServer,
    site: Pages,
    database: Database,
    pipeline: str,
    items: int,
    *,
    follow: bool = False,
) -> Figures:
    """One crawl by a process of its own, into an empty Redis and an empty table: of the first page
    with so many items, or of the whole site with so many a page. Raises `DidNotRun`."""
    empty(database)
    before = database.cpu_seconds()
    report = workers.crawl(
        REDISQ_BLOOM,
        site,
        redis,
        settings={
            "CONCURRENT_ITEMS": 100 if follow else BATCH,
            "ITEM_PIPELINES": json.dumps(PIPELINES[pipeline]),
            "REDISQ_DATABASE_URL": database.url,
            "REDISQ_TABLES": json.dumps(TABLES),
        },
        spider="products",
        arguments={"items": items, "follow": "yes" if follow else ""},
    )
    of_database = database.cpu_seconds() - before
    rows = report["items"]
    found = database.query("SELECT COUNT(*) FROM product")[0][0]
    if rows != site.pages * items or found != (0 if pipeline == NONE else rows):
        raise DidNotRun(
            f"{pipeline} scraped {rows} of {site.pages * items} items, {database.kind} has {found}"
        )
    figures = {}
    if follow:
        figures["pages/s"] = site.pages / report["seconds"]
        figures["CPU ms/page"] = report["cpu"] / site.pages * 1e3
    else:
        figures["rows/s"] = rows / report["seconds"]
        figures["CPU µs/row"] = report["cpu"] / rows * 1e6
        figures["database CPU µs/row"] = of_database / rows * 1e6
    for column, stat in (("sink rows/s", "seconds"), ("rows/batch", "batches")):
        if number := report.get(f"redisq/sink/{stat}"):
            figures[column] = rows / number
    return figures


def _versions(databases: dict[str, Database]) -> Iterator[str]:
    for name, database in databases.items():
        function = "sqlite_version()" if name == "SQLite" else "version()"
        (answer,) = database.query(f"SELECT {function}")[0]
        yield f"{name} {answer.removeprefix('PostgreSQL ').split()[0].partition('-')[0]}"
    for package in ("SQLAlchemy", "psycopg", "PyMySQL"):
        yield f"{package} {version(package)}"


def run(*, quick: bool) -> Result:
    """Write into all databases in all ways, then crawl with each."""
    rows, usual, rounds = (100, 20, 1) if quick else (20_000, 4_000, 5)
    lines: list[dict[str, Any]] = []
    targets = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(any_server("redis-7")))
        databases = {
            name: stack.enter_context(closing(make()))
            for name, make in list(DATABASES.items())[: 1 if quick else None]
        }
        for name, database in databases.items():
            with Pages(1, links=0) as site:
                runs = alternating(
                    {
                        pipeline: partial(crawl, redis, site, database, pipeline, items)
                        for pipeline, items in ((NONE, rows), (USUAL, usual), (OURS, rows))
                    },
                    rounds,
                )
            for pipeline, measured in runs.items():
                line = {"what": pipeline, "database": name, **medians(measured)}
                line["x usual"] = ratio(measured, runs[USUAL], "rows/s")
                line["x no pipeline"] = ratio(measured, runs[NONE], "rows/s")
                lines.append(line)
            for whose, unit in ("the crawl", "rows/s"), ("the sink itself", "sink rows/s"):
                what = f"{name}: rows/s of {whose} beside the usual pipeline"
                times = ratio(runs[OURS], runs[USUAL], unit)
                targets.append(Target.at_least(what, times, 10))
        for links in () if quick else LINKS:
            with Pages(PAGES, links) as site:
                crawl_of = partial(crawl, redis, site, items=3, follow=True)
                variants = {"": partial(crawl_of, database, NONE)}
                for name, database in databases.items():
                    variants[name] = partial(crawl_of, database, OURS)
                runs = alternating(variants, CRAWL_ROUNDS)
            for name, measured in runs.items():
                what = f"crawl, {links} links a page"
                beside = ratio(measured, runs[""], "pages/s")
                line = {"what": what if name else f"{what}, {NONE}", "database": name}
                lines.append({**line, **medians(measured), "x no pipeline": beside})
                if name:
                    what = f"{name}: pages/s of a crawl beside one without, {links} links a page"
                    targets.append(Target.at_least(what, beside, 0.9))
        software = ", ".join(_versions(databases))
    return Result(
        "sink",
        "Rows into databases, beside the usual pipeline and Scrapy's pace",
        COLUMNS,
        lines,
        targets=targets,
        notes=[
            f"Medians of {rounds} rounds, crawls {CRAWL_ROUNDS}; a process for each. "
            f"Items of 8 fields, all from one page, {rows:,} (usual pipeline: "
            f"{usual:,}), CONCURRENT_ITEMS {BATCH}; crawls have three "
            "a page and Scrapy's default of 100. Everybody writes into a table that is there.",
            "rows/s: from the first response to the close of the spider. Scrapy's pace, with no "
            "pipeline, is the most that any pipeline can reach there.",
            "sink rows/s: by the seconds in `write`, or in the usual pipeline's execute and "
            "commit, in which Scrapy's own thread runs, too.",
            "All are durable: SQLite with WAL and synchronous = FULL, PostgreSQL and MariaDB with "
            "fsync at each commit, as they are by default. The usual pipeline: INSERT … ON "
            "CONFLICT DO UPDATE (MariaDB: ON DUPLICATE KEY UPDATE) and COMMIT in process_item.",
            f"{software}.",
        ],
    )
