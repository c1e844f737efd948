"""The metrics of one frontier, made of what `Frontier` says of it.

No label holds a host or a URL, so that there are as many series as crawls allow. Counts begin anew
with a run, which Prometheus takes for the restart of a counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

EVENTS = {
    "created": "created",
    "finished": "finished",
    "duplicates": "duplicate",
    "retried": "retried",
    "dead": "dead",
    "dropped": "dropped",
    "released": "released",
    "reclaimed": "reclaimed",
}
"""Fields of a status, and what they are called here: in the singular."""

STATES = ("running", "stopped", "complete", "resetting")
WAITS = ("delay", "concurrency", "parked", "set_aside", "paused")

METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "redisq_up": ("gauge", "1 if Redis answered for every crawl, else 0.", ()),
    "redisq_crawl_up": ("gauge", "1 if this crawl could be read, else 0.", ("crawl",)),
    "redisq_look_duration_seconds": ("gauge", "How long it took to ask Redis.", ()),
    "redisq_run_state": ("gauge", "1 for the state that the run is in.", ("crawl", "state")),
    "redisq_run_began_timestamp_seconds": ("gauge", "When the run began.", ("crawl",)),
    "redisq_requests": ("gauge", "Requests of the run by where they are.", ("crawl", "state")),
    "redisq_requests_total": (
        *("counter", "What became of requests, since the run began."),
        ("crawl", "event"),
    ),
    "redisq_pages_total": ("counter", "Pages that left a worker for good.", ("crawl",)),
    "redisq_items_total": ("counter", "Items of these pages.", ("crawl",)),
    "redisq_errors_total": ("counter", "Callbacks that raised, downloads given up.", ("crawl",)),
    "redisq_responses_total": ("counter", "Responses by HTTP status.", ("crawl", "status")),
    "redisq_sink_rows_total": ("counter", "Rows that sinks have written.", ("crawl",)),
    "redisq_sink_batches_total": ("counter", "Batches that these came in.", ("crawl",)),
    "redisq_sink_seconds_total": ("counter", "Seconds that writing them took.", ("crawl",)),
    "redisq_sink_retries_total": ("counter", "Batches that were tried again.", ("crawl",)),
    "redisq_sink_refused_total": ("counter", "Rows that a sink refused.", ("crawl",)),
    "redisq_exchange_duration_seconds": (
        *("histogram", "How long workers waited for the answer to an exchange."),
        ("crawl",),
    ),
    "redisq_workers": ("gauge", "Workers that are registered.", ("crawl", "state")),
    "redisq_workers_wanted": ("gauge", "Workers that would have work now.", ("crawl",)),
    "redisq_workers_idle": ("gauge", "Workers that found nothing to claim.", ("crawl",)),
    "redisq_workers_cut_off": ("gauge", "Workers whose sink is away.", ("crawl",)),
    "redisq_workers_memory_bytes": ("gauge", "Memory of the workers' processes.", ("crawl",)),
    "redisq_slots": ("gauge", "Hosts with requests by what they wait for.", ("crawl", "state")),
    "redisq_why": ("gauge", "1 for what status gives as the reason.", ("crawl", "reason")),
    "redisq_oldest_due_seconds": ("gauge", "How long a host has been due at most.", ("crawl",)),
    "redisq_next_start_seconds": ("gauge", "Until a host that waits may go on.", ("crawl",)),
    "redisq_feed_lines": ("gauge", "Lines that wait in feeds.", ("crawl",)),
    "redisq_posted_pages": (
        "gauge",
        "Finished pages whose links to other servers are being made safe.",
        ("crawl",),
    ),
    "redisq_seen_urls": ("gauge", "URLs in the dupefilter.", ("crawl",)),
    "redisq_seen_capacity_urls": ("gauge", "URLs for which it is laid out.", ("crawl",)),
    "redisq_seen_loss_ratio": ("gauge", "Share of new URLs that it takes for seen.", ("crawl",)),
    "redisq_memory_bytes": ("gauge", "Memory in Redis by part of the crawl.", ("crawl", "part")),
    "redisq_redis_memory_bytes": ("gauge", "Memory that the servers use.", ()),
    "redisq_redis_memory_max_bytes": ("gauge", "Their maxmemory; 0: none.", ()),
    "redisq_redis_full_in_seconds": ("gauge", "Until maxmemory, at this pace.", ("crawl",)),
}
"""Name -> type, meaning, labels."""


class Histogram(NamedTuple):
    """How many are within each bound, from the lowest to ``+Inf``, and the sum of all."""

    buckets: list[tuple[str, float]]
    sum_value: float


Sample = tuple[str, tuple[str, ...], float | Histogram]


def samples(status: Mapping[str, Any], why: Mapping[str, Any], wanted: int) -> Iterator[Sample]:
    """Of `Frontier.status`, `Frontier.why` and the workers that are wanted -> metric, labels behind
    ``crawl``, value."""
    for state in STATES:
        yield "redisq_run_state", (state,), float(status["state"] == state)
    if status["began"]:
        began = datetime.fromisoformat(status["began"]).timestamp()
        yield "redisq_run_began_timestamp_seconds", (), began
    for state in ("queued", "delayed", "leased", "dead"):
        yield "redisq_requests", (state,), status[state]
    for field, event in EVENTS.items():
        # A counter that went back would count as begun anew, and all it had once more.
        back = status["requeued"] if field in {"finished", "dead"} else 0
        yield "redisq_requests_total", (event,), status[field] + back
    for field in ("pages", "items", "errors"):
        yield f"redisq_{field}_total", (), status[field]
    for code, number in status["responses"].items():
        yield "redisq_responses_total", (code,), number
    for field, value in status["sink"].items():
        yield f"redisq_sink_{field}_total", (), value
    yield "redisq_exchange_duration_seconds", (), _histogram(status["exchanges"])
    yield from _of_workers(status["workers"])
    yield "redisq_workers_wanted", (), wanted
    yield "redisq_workers_idle", (), why["idle_workers"]
    waiting = why["waiting"]
    for state in WAITS:
        yield "redisq_slots", (state,), waiting.get(state, 0)
    yield "redisq_slots", ("due",), max(0, why["slots"] - sum(waiting.values()))
    yield "redisq_why", (why["reason"],), 1
    yield "redisq_oldest_due_seconds", (), why["oldest_due"] or 0.0
    if why["next_start"] is not None:
        yield "redisq_next_start_seconds", (), why["next_start"]
    yield "redisq_feed_lines", (), sum(lines or 0 for lines in status["feeds"].values())
    yield "redisq_posted_pages", (), status["posted"]
    yield "redisq_seen_urls", (), status["seen"]
    if status["dupefilter"]:
        if status["dupefilter"]["capacity"]:
            yield "redisq_seen_capacity_urls", (), status["dupefilter"]["capacity"]
        yield "redisq_seen_loss_ratio", (), status["dupefilter"]["expected_loss"]


def of_memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The same of `Frontier.memory`, which is looked at less often."""
    for part, told in (memory["parts"] or {}).items():
        yield "redisq_memory_bytes", (part,), told["bytes"]
    if memory["full_in"] is not None:
        yield "redisq_redis_full_in_seconds", (), memory["full_in"]


def _histogram(exchanges: Mapping[str, Any]) -> Histogram:
    within = [(str(bound), float(number)) for bound, number in exchanges["within"]]
    return Histogram([*within, ("+Inf", exchanges["number"])], exchanges["seconds"])


def _of_workers(workers: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    alive = [worker for worker in workers if worker["alive"]]
    quiet = sum(bool(worker["quiet"]) for worker in alive)
    yield "redisq_workers", ("working",), len(alive) - quiet
    yield "redisq_workers", ("quiet",), quiet
    yield "redisq_workers", ("dead",), sum(not worker["alive"] for worker in workers)
    yield "redisq_workers_cut_off", (), sum(bool(worker["sink"]) for worker in alive)
    # Crawls that share a process say the same of it.
    processes = {(worker["host"], worker["pid"]): worker["rss_bytes"] for worker in alive}
    yield "redisq_workers_memory_bytes", (), sum(size or 0 for size in processes.values())
