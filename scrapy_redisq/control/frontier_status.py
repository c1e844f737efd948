"""Replies of scripts about a whole frontier, as people and tools read them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from scrapy_redisq.control.words import utc
from scrapy_redisq.frontier.config import FrontierConfig, shown_arguments
from scrapy_redisq.frontier.names import number, pairs, stats_in
from scrapy_redisq.frontier.round_trips import Durations
from scrapy_redisq.frontier.seen import SeenStatus

COUNTS = (
    "created", "finished", "dead", "dropped", "foreign", "duplicates", "claimed", "released",
    "reclaimed", "retried", "requeued", "stale", "pages", "items", "errors",
)  # fmt: skip


class _Report(msgspec.Struct):
    """A worker's report, as ``worker/report.py`` makes it. None: that is not known."""

    pages_per_minute: float | None = None
    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    blocked_seconds: float | None = None
    downloading: int | None = None
    in_callbacks: int | None = None
    waiting_for_sink: int | None = None
    waiting_to_send: int | None = None
    kept: int | None = None
    sink: str | None = None
    quiet: bool | None = None


_report = msgspec.json.Decoder(_Report).decode
REPORTED = _Report.__struct_fields__
"""Fields that a worker reports of itself."""

STATUS_COUNT = re.compile(r"status_([0-9](?:\d\d|xx))", re.ASCII)
"""The name of a count of responses."""

SINK_COUNTS = ("rows", "batches", "seconds", "retries", "refused")
"""Counts of the item pipelines of all workers in this run."""


def config_of(meta: Mapping[str, str]) -> FrontierConfig:
    """The configuration in a ``meta`` hash."""
    parts = (name.partition("config:") for name in meta)
    return FrontierConfig.from_meta(
        {name: meta[f"config:{name}"] for before, prefix, name in parts if prefix and not before}
    )


def absent(name: str) -> dict[str, Any]:
    """The status of a frontier that is not there: every field, with nothing in it."""
    nothing = summary(name, {"state": "absent"}, FrontierConfig(), [], SeenStatus.total([]))
    unknown = dict.fromkeys(("began", "dupefilter", "scheduling", "order"))
    return {**nothing, **unknown, "shards": 0}


def summary(
    name: str,
    meta: Mapping[str, str],
    config: FrontierConfig,
    shards: list[dict[str, Any]],
    seen: SeenStatus,
) -> dict[str, Any]:
    """One status from those of all shards."""
    totals: Counter[str] = Counter()
    for shard in shards:
        for field_name, value in pairs(shard.get("counts", [])).items():
            totals[field_name] += number(value)

    def sum_of(field_name: str) -> int:
        return sum(int(shard.get(field_name, 0)) for shard in shards)

    counts = {field_name: totals[field_name] for field_name in COUNTS}
    delayed, posted, leased = sum_of("delayed"), sum_of("posted"), totals["leased"]
    unfinished = counts["created"] - counts["finished"]
    workers = workers_of(shards)
    return {
        "frontier": name,
        "run": meta.get("run"),
        "run_name": meta.get("name"),
        "state": _state(meta, workers, unfinished + posted),
        "began": utc(number(meta.get("began", 0)) / 1e6),
        **counts,
        "done": counts["finished"] - counts["dead"] - counts["dropped"],
        "queued": max(0, unfinished - leased - delayed),
        "delayed": delayed,
        "leased": leased,
        "seen": seen.count,
        "set_aside": sum_of("aside"),
        "paused": sum_of("paused"),
        "crawl_paused": utc(number(meta["paused"]) / 1e6) if "paused" in meta else None,
        "posted": posted,
        "dupefilter": {
            "kind": config.dupefilter,
            "backend": config.backend,
            "error_rate": 0.0 if config.backend == "exact" else config.error_rate,
            **{name: getattr(seen, name) for name in ("capacity", "fill", "expected_loss")},
        },
        **{name: getattr(config, name) for name in ("scheduling", "order", "shards", "spider")},
        "arguments": shown_arguments(config.arguments) if config.arguments else None,
        "sink": {
            **{name: totals[f"sink_{name}"] for name in SINK_COUNTS},
            "seconds": totals["sink_us"] / 1e6,
        },
        "responses": {
            found[1]: totals[name]
            for name in sorted(totals)
            if (found := STATUS_COUNT.fullmatch(name))
        },
        "stats": stats_in(totals),
        "feeds": {},
        "exchanges": _exchanges(totals),
        "workers": workers,
    }


def _state(meta: Mapping[str, str], workers: list[dict[str, Any]], left: int) -> str:
    state = meta.get("state", "open")
    if state != "open":
        return state
    if any(worker["alive"] for worker in workers):
        return "running"
    # The last worker may have been killed after the last page.
    over = meta.get("seeded") == "1" and "keep_alive" not in meta and left <= 0
    return "complete" if over else "stopped"


def _exchanges(totals: Mapping[str, int]) -> dict[str, Any]:
    within, seconds = Durations.of(totals)
    return {
        "number": within[-1][1],
        "seconds": seconds,
        "within": [list(one) for one in within[:-1]],
    }


def workers_of(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The workers that are registered, from the statuses of all shards, shard 0's first."""
    workers: dict[str, dict[str, Any]] = {}
    for status in shards:
        now = status.get("now", 0)
        for worker_id, deadline, leased, flat in status.get("workers", []):
            info = pairs(flat)
            worker = workers.setdefault(
                worker_id,
                {
                    "id": worker_id,
                    **{
                        name: info.get(name, "")
                        for name in ("host", "spider", "release", "settings")
                    },
                    **{name: number(info.get(name, 0)) for name in ("pid", "pages", "items")},
                    "leased": 0,
                    "since": utc(number(info.get("since", 0)) / 1e6),
                    "alive": deadline >= now,
                    "told": "",
                    **dict.fromkeys(REPORTED),
                },
            )
            if status is shards[0]:
                report = _report((info.get("report") or "{}").encode())
                worker.update(msgspec.structs.asdict(report), told=info.get("told", ""))
            worker["leased"] += leased
            silent = (now - deadline + number(info.get("ttl", 0))) / 1e6
            worker["seen_ago"] = round(max(0.0, silent), 3)
    return list(workers.values())
