"""What is seen of the crawl from outside: by the site's log, the result and the frontier.

Pages and items come from the first two, which know nothing of scrapy-redisq: the demo does not
take its word for what it claims.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy_redisq.frontier import Frontier
from shop_site.catalogue import Catalogue
from shop_site.server import Hit

_RATE_WINDOW = 2.0  # seconds
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
    unvisited_redirects: int
    unvisited_missing: int
    rate: float
    """Pages per second in the last two seconds."""

    @classmethod
    def read(cls, shop: Catalogue, hits: Sequence[Hit]) -> SiteLog:
        by_path: dict[str, list[int]] = {}
        pages: Counter[int] = Counter()
        recent = 0
        since = time.time() - _RATE_WINDOW
        for hit in tuple(hits):
            if hit.path == "/robots.txt":
                continue  # each process reads it once, outside the frontier
            found = _PID.search(hit.agent)
            pid = int(found[1]) if found else 0
            by_path.setdefault(hit.path, []).append(pid)
            if hit.path in shop.pages:
                pages[pid] += 1
                recent += hit.time >= since
        known = shop.pages.keys() | shop.redirects.keys() | shop.missing
        return cls(
            fetched=len(by_path.keys() & shop.pages.keys()),
            pages=pages,
            repeated={path: pids for path, pids in by_path.items() if len(pids) > 1},
            unknown=sorted(by_path.keys() - known),
            unvisited_redirects=len(shop.redirects.keys() - by_path.keys()),
            unvisited_missing=len(shop.missing - by_path.keys()),
            rate=recent / _RATE_WINDOW,
        )


@dataclass(frozen=True)
class FrontierView:
    """The frontier's view: counts of requests, and for each worker's pid what it says of it."""

    state: str = "absent"
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
            state=status["state"],
            **{name: status[name] for name in numbers},
            leases={worker["pid"]: worker["leased"] for worker in status["workers"]},
            seen_ago={worker["pid"]: worker["seen_ago"] for worker in status["workers"]},
        )

    @property
    def left(self) -> int:
        """Requests that are still to be done."""
        return self.queued + self.delayed + self.leased


class ResultFile:
    """Reads the pipeline's database while others write to it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def urls(self, table: str) -> set[str]:
        return {url for (url,) in self._connection.execute(f"SELECT url FROM {table}")}

    def rows_by_pid(self) -> Counter[int]:
        """Rows of pages and books by the worker that wrote them last."""
        rows = self._connection.execute(
            "SELECT worker, count(*) FROM (SELECT worker FROM pages UNION ALL"
            " SELECT worker FROM books) GROUP BY worker"
        )
        return Counter({int(worker.rpartition(":")[2]): count for worker, count in rows})
