"""How many workers would have work now. `wanted_workers` is a function of what was looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

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


class Bounds(TypedDict, total=False):
    """What `wanted_workers` takes beside what was looked at."""

    least: int
    most: int
    pages_per_minute: float | None
    concurrency: int
    rest_after: float
    run: str


def wanted_workers(
    status: Mapping[str, Any],
    waits: Iterable[Waits] = (),
    *,
    least: int = 0,
    most: int = 1_000,
    pages_per_minute: float | None = None,
    concurrency: int = CONCURRENCY,
    rest_after: float = math.inf,
    run: str = "",
) -> Wanted:
    """The number of workers that would have work now, from ``least`` to ``most``.

    ``status`` as `Frontier.status` gives it, ``waits`` of its shards; ``pages_per_minute`` of one
    worker (None: the best of those that say it), and the downloads that it has at a time.

    0 (whatever ``least`` is) only if nothing is left that a worker would have to do: the run is
    complete, or (REDISQ_KEEP_ALIVE) created = finished, and no start() goes on. A run that only
    waits keeps one, which sees to delays and to dead workers' requests; unless everything waits for
    longer than ``rest_after`` seconds, or for a person, and no worker holds anything.

    ``run`` is the name that workers are given (REDISQ_RUN): where there is no run of that name yet,
    one worker is wanted, which begins it. While workers of a run with another name are alive none
    is, for it would be refused; and one where they have left that run, which says so or, with
    REDISQ_RESUME=False, begins.
    """
    other = status["run_name"]
    if run and status["state"] in OVER and other != run:
        return Wanted(max(1, least), f"the run {run} has not begun")
    if run and other not in {None, run} and status["state"] != "resetting":
        refused = status["state"] == "running"
        return Wanted(0 if refused else 1, f"the run {other} is not finished, and {run} not begun")
    look = _Work(status, list(waits))
    if reason := look.over():
        return Wanted(0, reason)
    if status["crawl_paused"]:
        rests = rest_after < math.inf and not status["leased"]
        return Wanted(0 if rests else max(1, least), "the crawl is paused")
    if (wait := look.wait()) is not None and wait > rest_after:
        what = "a person" if wait == math.inf else f"{wait:,.0f} s"
        return Wanted(0, f"everything waits for {what}")
    bounds = look.bounds(pages_per_minute or look.best_pace(), max(1, concurrency))
    workers, because = min(bounds, key=lambda bound: bound[0])
    if workers < max(1, least):
        workers, because = max(1, least), f"the least; {because}"
    if workers > most:
        workers, because = most, f"the most; {because}"
    return Wanted(workers, because)


class _Work:
    def __init__(self, status: Mapping[str, Any], waits: list[Waits]) -> None:
        self._status = status
        self._first = list({wait.shard: wait for wait in reversed(waits)}.values())
        self._waits = waits
        self._alive = [worker for worker in status["workers"] if worker["alive"]]

    def over(self) -> str:
        """Why nobody has anything to do, or ""."""
        status = self._status
        if status["state"] in OVER:
            return f"the run is {status['state']}"
        if status["state"] == "resetting" or status["created"] > status["finished"]:
            return ""
        if status["posted"] or any(wait.starting for wait in self._first):
            return ""
        # Without REDISQ_KEEP_ALIVE workers leave by themselves when it is the end. Until then a
        # spider_idle handler may have more, or the only worker has died before start() was read.
        return "everything is finished" if any(wait.keep_alive for wait in self._first) else ""

    def wait(self) -> float | None:
        """Seconds until anything may be started, inf: a person has to say so; None: now, soon
        enough, or somebody has it."""
        starting = any(wait.starting for wait in self._first)
        if self._status["leased"] or self._status["posted"] or starting or not self._first:
            return None
        kinds = {kind for wait in self._waits for kind, (n, _) in wait.kinds.items() if n}
        if kinds & {"due", "concurrency"}:
            return None
        times = [wait.next for wait in self._first if wait.next >= 0]
        times += [wait.delayed[1] for wait in self._first if wait.delayed[0]]
        if times:
            return min(times) / 1e6
        return math.inf if kinds == {"paused"} else None

    def best_pace(self) -> float | None:
        """Pages a minute of the best worker: others may have had less to do."""
        paces = [float(worker.get("pages_per_minute") or 0) for worker in self._alive]
        return max(paces, default=0) or None

    def bounds(self, pace: float | None, concurrency: int) -> list[tuple[int, str]]:
        """What each thing that may be short allows."""
        status = self._status
        due_soon = self._due_soon()
        requests = status["queued"] + status["leased"] + due_soon
        share = max(concurrency, (pace or 0) * HALF_A_MINUTE)
        found = [
            (math.ceil(requests / share), f"{counted(requests, 'request')} could be in progress")
        ]
        if self._waits:
            downloads = min(requests, self._downloads() + due_soon)
            text = f"hosts have room for {counted(downloads, 'download')} at a time"
            found.append((math.ceil(downloads / concurrency), text))
        starts = self._starts()
        if pace and starts is not None:
            text = f"delays and rates allow {starts:,.0f} starts a minute"
            found.append((math.ceil((starts + due_soon) / pace), text))
        return found

    def _due_soon(self) -> float:
        """Delayed requests that are due within `SOON`, taken for evenly spread."""
        total = 0.0
        for wait in self._first:
            n, first, last = wait.delayed
            if n and first / 1e6 <= SOON:
                total += n * min(1.0, (SOON - first / 1e6) / max(1e-6, (last - first) / 1e6))
        return math.ceil(total)

    def _scale(self) -> dict[int, float]:
        """What one of the hosts that were looked at stands for, by shard."""
        looked: dict[int, int] = {}
        for wait in self._waits:
            looked[wait.shard] = looked.get(wait.shard, 0) + wait.looked
        return {one.shard: max(1.0, one.slots / max(1, looked[one.shard])) for one in self._first}

    def _downloads(self) -> float:
        """What hosts with requests have room for, and what is held of all others."""
        scale = self._scale()
        room = sum(wait.room[0] * scale[wait.shard] for wait in self._waits)
        held = sum(wait.room[1] * scale[wait.shard] for wait in self._waits)
        others = max(0.0, self._status["leased"] - held)
        return float(math.ceil(room + others))

    def _starts(self) -> float | None:
        """Starts a minute that limits allow; None: a host has none."""
        if not any(wait.looked for wait in self._waits) or any(w.starts < 0 for w in self._waits):
            return None
        scale = self._scale()
        return float(sum(wait.starts * scale[wait.shard] for wait in self._waits))
