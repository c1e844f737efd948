"""The plots of RESULTS.md."""

from __future__ import annotations

from typing import Any

from benchmarks import plots
from benchmarks.crawl import ROUND_TRIPS
from benchmarks.crawls.workers import (
    MEMORY,
    REDISQ_BLOOM,
    REDISQ_EXACT,
    SCRAPY_REDIS,
    SCRAPY_REDIS_BLOOM,
)

Json = dict[str, Any]


def draw(results: dict[str, Json]) -> dict[str, tuple[str, str]]:
    """Draw what there are results for; -> the plots' titles and SVG by result."""
    drawn = {}
    makers = {"crawl": _crawl_plot, "memory": _memory_plot, "growth": _growth_plot}
    for name, make in makers.items():
        if name in results and (plot := make(results[name]["rows"])):
            drawn[name] = plot
    return drawn


def _crawl_plot(rows: list[Json]) -> tuple[str, str] | None:
    title = "Pages per second of one worker, by distance from Redis"
    series = {}
    for variant in (REDISQ_BLOOM, REDISQ_EXACT, SCRAPY_REDIS, SCRAPY_REDIS_BLOOM, MEMORY):
        at = {
            row["round trip ms"]: row["pages/s"]
            for row in rows
            if row["site"] == "generated" and row["variant"] == variant.name
        }
        if at:
            series[variant.name] = [at.get(round_trip) for round_trip in ROUND_TRIPS]
    if not series:
        return None
    ticks = [str(round_trip) for round_trip in ROUND_TRIPS]
    x_title = "added round trip in ms; pages of 50 links; logarithmic"
    return title, plots.lines(title, x_title, ticks, series, log=True)


def _memory_plot(rows: list[Json]) -> tuple[str, str] | None:
    """Of the rows about seen URLs: their texts, and their first figure."""
    title = "Bytes of Redis memory for each seen URL"
    values = {
        text: figure
        for row in rows
        if "seen" in (text := _text(row)).lower() and (figure := _first(row, float)) is not None
    }
    if not values:
        return None
    return title, plots.bars(title, values, "B", ours=lambda name: "scrapy-redis:" not in name)


def _growth_plot(rows: list[Json]) -> tuple[str, str] | None:
    title = "Redis time of an exchange, by the length of the queue"
    lengths = sorted({row["queued"] for row in rows if row["series"] == "queue"})
    series: dict[str, list[float | None]] = {}
    for row in rows:
        if row["series"] == "queue":
            size = row["of each"]
            name = f"µs, {size} of each"
            points = series.setdefault(name, [None] * len(lengths))
            points[lengths.index(row["queued"])] = row["µs an exchange"]
    if not series:
        return None
    ticks = [f"{length:,}" for length in lengths]
    return title, plots.lines(
        title, "requests queued; of each: enqueues, claims, finishes", ticks, series
    )


def _text(row: Json) -> str:
    return " ".join(value for value in row.values() if isinstance(value, str))


def _first(row: Json, kind: type[float | int]) -> Any:
    return next((value for value in row.values() if type(value) is kind), None)
