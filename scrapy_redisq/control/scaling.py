"""How many workers would have work now. `wanted_workers` is a function of what was looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from scrapy_redisq.control.observed import Observed
from scrapy_redisq.control.words import counted
from scrapy_redisq.frontier.admin import Waits

CONCURRENCY = 16
"""Downloads that a worker has in progress at a time: Scrapy's CONCURRENT_REQUESTS."""

SOON = 10.0
"""Seconds: what is due by then is worth a worker now."""

HALF_A_MINUTE = 0.5
"""Minutes of work that a further worker should find: it takes seconds to start."""

OVER = frozenset({"absent", "complete"})


@dataclass(frozen=True)
class Wanted:
    """How many workers, and in a sentence why."""

    workers: int
    because: str


class Terms(msgspec.Struct, forbid_unknown_fields=True):
    """Terms of `wanted_workers`, which ``/scale/NAME?…`` takes, too.

    ``least`` and ``most`` workers; ``pages_per_minute`` of one (None: the best of those that say
    it), and the downloads that it has at a time (``concurrency``). A run of which everything waits
    for longer than ``rest_after`` seconds, or for a person, wants none. ``run`` is the name that
    workers are given (REDISQ_RUN).
    """

    least: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = msgspec.field(default=0, name="min")
    most: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = msgspec.field(default=1_000, name="max")
    pages_per_minute: Annotated[float, msgspec.Meta(ge=0)] | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1)] = CONCURRENCY
    rest_after: Annotated[float, msgspec.Meta(ge=0)] = math.inf
    run: str = ""


def wanted_workers(
    status: Mapping[str, Any], waits: Iterable[Waits] = (), terms: Terms | None = None
) -> Wanted:
    """The number of workers that would have work now.

    ``status`` as `Frontier.status` gives it, ``waits`` of its shards. 0 (whatever ``least`` is)
    only if nothing is left to do, ``rest_after`` says so, or workers of a run with another name are
    alive, which would refuse them. Where there is no run of the name ``run`` yet, one worker is
    wanted, which begins it.
    """
    terms = terms or Terms()
    least, run = terms.least, terms.run
    other = status["run_name"]
    if run and status["state"] in OVER and other != run:
        return Wanted(max(1, least), f"the run {run} has not begun")
    if run and other not in {None, run} and status["state"] != "resetting":
        refused = status["state"] == "running"
        return Wanted(0 if refused else 1, f"the run {other} is not finished, and {run} not begun")
    seen = Observed(status, waits)
    if reason := _over(seen):
        return Wanted(0, reason)
    if status["crawl_paused"]:
        rests = terms.rest_after < math.inf and not status["leased"]
        return Wanted(0 if rests else max(1, least), "the crawl is paused")
    if (wait := _wait(seen)) is not None and wait > terms.rest_after:
        what = "a person" if wait == math.inf else f"{wait:,.0f} s"
        return Wanted(0, f"everything waits for {what}")
    bounds = _bounds(seen, terms.pages_per_minute, max(1, terms.concurrency))
    workers, because = min(bounds, key=lambda bound: bound[0])
    if workers < max(1, least):
        workers, because = max(1, least), f"the least; {because}"
    if workers > terms.most:
        workers, because = terms.most, f"the most; {because}"
    return Wanted(workers, because)


def _over(seen: Observed) -> str:
    """Why nobody has anything to do, or ""."""
    status = seen.status
    if seen.lines:
        return ""
    if seen.state in OVER:
        return f"the run is {seen.state}"
    if seen.state == "resetting" or status["created"] > status["finished"]:
        return ""
    if status["posted"] or seen.starting:
        return ""
    # Without REDISQ_KEEP_ALIVE workers leave by themselves when it is the end. Until then a
    # spider_idle handler may have more, or the only worker has died before start() was read.
    return "everything is finished" if seen.keep_alive else ""


def _wait(seen: Observed) -> float | None:
    """Seconds until anything may be started, inf: a person has to say so; None: now, soon enough,
    or somebody has it."""
    if seen.leased or seen.status["posted"] or seen.starting or seen.lines or not seen.shards:
        return None
    kinds = {kind for kind, n in seen.kinds.items() if n}
    if kinds & {"due", "concurrency"}:
        return None
    times = [first for _, first, _ in seen.delays]
    times += [] if seen.next_start is None else [seen.next_start]
    return min(times) if times else math.inf if kinds == {"paused"} else None


def _bounds(seen: Observed, pace: float | None, concurrency: int) -> list[tuple[int, str]]:
    """Workers that each bound allows. ``pace``: pages a minute of a worker, None: of the
    best one, for others may have had less to do."""
    pace = pace or max((float(w.get("pages_per_minute") or 0) for w in seen.alive), default=0.0)
    there, room = seen.status["queued"] + seen.leased, _downloads(seen)
    # Nobody knows the hosts of lines: they may be those that hold requests back already.
    due_soon = _due_soon(seen) + (seen.lines if there <= room else 0)
    requests = there + due_soon
    share = max(concurrency, pace * HALF_A_MINUTE)
    found = [(math.ceil(requests / share), f"{counted(requests, 'request')} could be in progress")]
    if seen.waits:
        downloads = min(requests, room + due_soon)
        text = f"hosts have room for {counted(downloads, 'download')} at a time"
        found.append((math.ceil(downloads / concurrency), text))
    starts = seen.starts()
    if pace and starts is not None:
        text = f"delays and rates allow {starts:,.0f} starts a minute"
        found.append((math.ceil((starts + due_soon) / pace), text))
    return found


def _due_soon(seen: Observed) -> float:
    """Delayed requests that are due within `SOON`, taken for evenly spread."""
    total = 0.0
    for n, first, last in seen.delays:
        if first <= SOON:
            total += n * min(1.0, (SOON - first) / max(1e-6, last - first))
    return math.ceil(total)


def _downloads(seen: Observed) -> float:
    """Leases that hosts with requests have room for, and leases that are held of all others."""
    room = sum(wait.room[0] * seen.scale[wait.shard] for wait in seen.waits)
    held = sum(wait.room[1] * seen.scale[wait.shard] for wait in seen.waits)
    return float(math.ceil(room + max(0.0, seen.leased - held)))
