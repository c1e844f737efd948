"""Crawls of one worker, beside those of Scrapy in memory."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis

from benchmarks.common import Figures, alternating, medians, ratio
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import (
    MEMORY,
    DidNotRun,
    Variant,
    crawl,
)
from lab.proxy import Proxy
from lab.servers import RedisServer


class Comparison:
    """One Redis server and the rows so far."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._runs: dict[str, bool] = {}

    def crawl(self, variant: Variant, site: Pages, redis_port: int) -> Figures:
        """One crawl of the whole site. Raises `DidNotRun`."""
        report = crawl(variant, site.start_url, self.server, redis_port=redis_port)
        if report["pages"] != site.pages:
            raise DidNotRun(f"{variant.name} fetched {report['pages']} of {site.pages} pages")
        return {
            "pages": report["pages"],
            "pages/s": report["pages"] / report["seconds"],
            "CPU ms/page": report["cpu"] / report["pages"] * 1000,
            "exchanges": report["exchanges"],
        }

    def compare(
        self, name: str, site: Pages, round_trip: int, variants: tuple[Variant, ...], rounds: int
    ) -> None:
        """Rows of the variants and of Scrapy in memory, in alternating rounds."""
        with self._distant(round_trip) as port:
            if round_trip and name == "generated":
                self.notes.append(f"Round trip {round_trip} ms: a PING took {ping(port):.1f} ms.")
            runs = alternating(
                {
                    variant.name: partial(self.crawl, variant, site, port)
                    for variant in (MEMORY, *filter(self.runs, variants))
                },
                rounds,
            )
        for variant, measured in runs.items():
            self._add(name, round_trip, variant, measured, runs[MEMORY.name])

    def beside(self, name: str, site: Pages, round_trip: int, peer: Variant) -> None:
        """One crawl by a peer, beside the row that Scrapy in memory has already."""
        memory = self.row(name, round_trip, MEMORY)
        if memory is not None and self.runs(peer):
            with self._distant(round_trip) as port:
                figures = self.crawl(peer, site, port)
            self._add(name, round_trip, peer.name, [figures], [memory])

    @contextmanager
    def _distant(self, round_trip: int) -> Iterator[int]:
        """A port at which the server is so many ms away."""
        if not round_trip:
            yield self.server.port
            return
        with Proxy(self.server.port) as proxy:
            proxy.round_trip = round_trip / 1000
            yield proxy.port

    def runs(self, variant: Variant) -> bool:
        """Whether a peer runs with this Scrapy at all; noted once if not."""
        if variant.peer and variant.name not in self._runs:
            try:
                with Pages(3, links=3) as tiny:
                    self.crawl(variant, tiny, self.server.port)
                self._runs[variant.name] = True
            except (DidNotRun, subprocess.CalledProcessError) as error:
                self._runs[variant.name] = False
                detail = getattr(error, "stderr", None) or str(error)
                self.notes.append(f"{variant.name} did not run: {detail.strip().splitlines()[-1]}")
        return self._runs.get(variant.name, True)

    def _add(
        self,
        site: str,
        round_trip: int,
        variant: str,
        measured: list[Figures],
        memory: list[Figures],
    ) -> None:
        """Ratios are medians of the rounds' ratios, so that they are between neighbours in time."""
        figures = medians(measured)
        row = {"site": site, "round trip ms": round_trip, "variant": variant, **figures}
        row["pages"] = int(figures["pages"])
        row["x memory"] = ratio(measured, memory, "pages/s")
        row["CPU x memory"] = ratio(measured, memory, "CPU ms/page")
        self.rows.append(row)

    def row(self, site: str, round_trip: int, variant: Variant) -> dict[str, Any] | None:
        """The row of a measurement, None if it was not made."""
        wanted = (site, round_trip, variant.name)
        rows = ((row["site"], row["round trip ms"], row["variant"]) for row in self.rows)
        return next((row for row, key in zip(self.rows, rows, strict=True) if key == wanted), None)


def ping(port: int) -> float:
    """The median time of a PING in ms."""
    times = []
    with redis.Redis(port=port) as client:
        client.ping()
        for _ in range(20):
            began = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
