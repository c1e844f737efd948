"""Rows per second of `DatabasePipeline`, and what it costs a crawl.

Its crawl stands beside that of the usual pipeline, and of no pipeline at all, which is as fast as
Scrapy hands items over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, medians, ratio
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.sinks import BATCH, NONE, OURS, USUAL, Contest
from lab.databases import Database, MariaServer, PostgresServer, SQLiteDatabase
from lab.servers import RedisServer, any_server

DATABASES: dict[str, Callable[[], Database]] = {
    "SQLite": SQLiteDatabase,
    # The tests' servers are small; here they have the memory that they have by default.
    "PostgreSQL": lambda: PostgresServer("-c", "shared_buffers=128MB", "-c", "autovacuum=on"),
    "MariaDB": lambda: MariaServer("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"),
}

FASTER_THAN_USUAL = 10
OF_CRAWL = 0.9


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
COLUMNS += ["rows/batch", "CPU µs/row", "database CPU µs/row"]
COLUMNS += ["pages/s", "CPU ms/page"]


class Bench:
    """The servers, the rows of the table and the goals so far."""

    def __init__(self, size: Size, databases: dict[str, Database], redis: RedisServer) -> None:
        self.size = size
        self.databases = databases
        self.contest = Contest(redis)
        self.rows: list[dict[str, Any]] = []
        self.targets: list[Target] = []

    # Rows per second

    def compare(self, name: str) -> None:
        """One page of items into one database."""
        database, size = self.databases[name], self.size
        with Pages(1, links=0) as site:
            shop_page = partial(self.contest.one_page, database, site)
            variants: dict[str, Callable[[], Figures]] = {
                NONE: partial(shop_page, NONE, size.rows),
                USUAL: partial(shop_page, USUAL, size.usual_rows),
                OURS: partial(shop_page, OURS, size.rows),
            }
            runs = alternating(variants, size.rounds)
        for what, measured in runs.items():
            figures = medians(measured)
            row: dict[str, Any] = {"what": what, "database": name, **figures}
            row["rows"] = int(figures["rows"])
            row["x usual"] = ratio(measured, runs[USUAL], "rows/s")
            row["x no pipeline"] = ratio(measured, runs[NONE], "rows/s")
            self.rows.append(row)
        for whose, unit in ("the crawl", "rows/s"), ("the sink itself", "sink rows/s"):
            what = f"{name}: rows/s of {whose} beside the usual pipeline"
            self.goal(what, FASTER_THAN_USUAL, ratio(runs[OURS], runs[USUAL], unit))

    # Pages per second

    def crawls(self, links: int) -> None:
        """Crawls of a generated site with three items a page, with and without a sink."""
        some = next(iter(self.databases.values()))
        with Pages(self.size.pages, links) as site:
            variants = {NONE: partial(self.contest.pages, some, site, NONE)}
            for name, database in self.databases.items():
                variants[name] = partial(self.contest.pages, database, site, OURS)
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

    def goal(self, what: str, wanted: float, measured: float) -> None:
        """One more goal: so many times as fast, or faster."""
        self.targets.append(Target(what, f">= {wanted} x", f"{measured:.2f} x", measured >= wanted))


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
        "Rows into databases, beside the usual pipeline and Scrapy's pace",
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
            "commit, in which Scrapy's own thread runs, too.",
            "All are durable: SQLite with WAL and synchronous = FULL, PostgreSQL and MariaDB with "
            "fsync at each commit, as they are by default. The usual pipeline: INSERT … ON "
            "CONFLICT DO UPDATE (MariaDB: ON DUPLICATE KEY UPDATE) and COMMIT in process_item.",
            f"{software}.",
        ],
    )
