"""What is seen of the crawl from outside: by the site's log, the database and the frontier.

Pages and rows come from the first two, which know nothing of scrapy-redisq: the demo does not
take its word for what it claims.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy

from scrapy_redisq.control import Frontier
from shop_site.catalogue import Catalogue
from shop_site.server import Hit

_RATE_WINDOW = 2.0  # seconds
_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
_PID = re.compile(r"\(pid (\d+)\)")


@dataclass(frozen=True)
class SiteLog:
    """The site's view. ``pages`` and ``fetches`` count requests for pages, by worker's pid."""

    fetched: int
    """Distinct pages that were asked for."""
    pages: Counter[int]
    repeated: dict[str, list[int]]
    """Each path that was asked for more than once, with the pids in order of time."""
    unknown: list[str]
    """Paths that no page of the shop links to."""
    untried: int
    """Redirects and dead links that nobody asked for."""
    rate: float
    """Pages per second in the last two seconds."""

    @classmethod
    def read(cls, shop: Catalogue, hits: Sequence[Hit]) -> SiteLog:
        by_path: dict[str, list[int]] = {}
        pages: Counter[int] = Counter()
        recent = 0
        since = time.monotonic() - _RATE_WINDOW
        for hit in tuple(hits):
            if hit.path == "/robots.txt":
                continue  # each process reads it once, outside the frontier
            found = _PID.search(hit.agent)
            pid = int(found[1]) if found else 0
            by_path.setdefault(hit.path, []).append(pid)
            if hit.path in shop.pages:
                pages[pid] += 1
                recent += hit.at >= since
        known = shop.pages.keys() | shop.redirects.keys() | shop.missing
        return cls(
            fetched=len(by_path.keys() & shop.pages.keys()),
            pages=pages,
            repeated={path: pids for path, pids in by_path.items() if len(pids) > 1},
            unknown=sorted(by_path.keys() - known),
            untried=len((shop.redirects.keys() | shop.missing) - by_path.keys()),
            rate=recent / _RATE_WINDOW,
        )


@dataclass(frozen=True)
class FrontierView:
    """The frontier's view: counts of requests, and for each worker's pid what it says of it."""

    queued: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    duplicates: int = 0
    reclaimed: int = 0
    leases: dict[int, int] = field(default_factory=dict)
    seen_ago: dict[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, frontier: Frontier) -> FrontierView:
        """The only place of the demo that looks into a frontier."""
        status: dict[str, Any] = frontier.status()
        numbers = ("queued", "delayed", "leased", "dead", "duplicates", "reclaimed")
        return cls(
            **{name: status[name] for name in numbers},
            leases={worker["pid"]: worker["leased"] for worker in status["workers"]},
            seen_ago={worker["pid"]: worker["seen_ago"] for worker in status["workers"]},
        )

    @property
    def left(self) -> int:
        """Requests that are still to be done."""
        return self.queued + self.delayed + self.leased


class Result:
    """Reads the database while the pipelines of all workers write to it."""

    def __init__(self, url: str) -> None:
        # A transaction left open would keep old rows alive, and show no new ones.
        self._engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with self._engine.connect():
            dialect: Any = self._engine.dialect
        version = ".".join(str(part) for part in dialect.server_version_info)
        self.database = f"{_NAMES[dialect.name]} {version}"

    def close(self) -> None:
        self._engine.dispose()

    def _query(self, table: str, sql: str) -> list[Any]:
        """Rows of a query; none while no worker has made the table."""
        with self._engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table(table):
                return []
            return list(connection.execute(sqlalchemy.text(sql)))

    def urls(self, table: str) -> list[str]:
        """The URL of each row."""
        return [url for (url,) in self._query(table, f"SELECT url FROM {table}")]

    def count(self, table: str) -> int:
        return sum(count for (count,) in self._query(table, f"SELECT count(*) FROM {table}"))

    def pages_by_pid(self) -> Counter[int]:
        """Rows of pages by the worker that wrote them last."""
        rows = self._query("pages", "SELECT worker, count(*) FROM pages GROUP BY worker")
        return Counter(dict(rows))
