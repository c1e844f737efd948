"""How quick a server answers, and what holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from scrapy_redisq.control.words import time_text
from scrapy_redisq.ops.doctor.report import Line, note, ok, warning
from scrapy_redisq.ops.doctor.rights import IN_SCRIPTS
from scrapy_redisq.ops.doctor.server_info import Told

PINGS = 30
SLOW_TRIP, VERY_SLOW_TRIP, JITTER = 0.02, 0.1, 0.1
"""Seconds of a round trip: in the middle, and at worst."""
SPIKE, SLOW_CALL, SLOW_SCRIPT = 100, 10_000, 50_000
"""ms of a latency spike, us of a call in the slow log, and of one of a script."""


def speed(told: Told) -> Iterator[Line]:
    """Round trip and jitter, spikes, slow calls."""
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        told.client.ping()
        trips.append(time.perf_counter() - began)
    trips = trips[1:]  # the first one connects
    middle, worst = median(trips), max(trips)
    text = f"round trip {middle * 1_000:.1f} ms, at worst {worst * 1_000:.1f} ms of {len(trips)}"
    if middle > VERY_SLOW_TRIP:
        yield warning(
            text,
            "Each exchange takes a round trip. Workers hold requests in store against that, but "
            "slots with limits wait for it.",
            "Redis nearer to the workers; more REDISQ_MAX_LEASES",
        )
    elif middle > SLOW_TRIP or worst > JITTER:
        yield note(
            text,
            "Slots with a delay below that are slower than they may be.",
            "Redis nearer to the workers, on a machine that is less busy",
        )
    else:
        yield ok(text)
    yield from _spikes(told)
    yield from _slow_calls(told)


def _spikes(told: Told) -> Iterator[Line]:
    latest = told.ask(told.client.execute_command, "LATENCY LATEST") or []
    worst = max(latest, key=lambda event: int(event[3]), default=None)
    if worst and int(worst[3]) >= SPIKE:
        ago = time_text(time.time() - int(worst[1]))
        event = worst[0].decode(errors="replace")
        yield warning(
            f"latency spikes ({event}) of up to {int(worst[3]):,} ms, the last {ago} ago",
            "All workers wait for that long. LATENCY DOCTOR on the server says more.",
            "what it says: mostly its disk, huge pages, or commands of other clients",
        )


def _slow_calls(told: Told) -> Iterator[Line]:
    """By command. A command that scripts call is theirs: some servers log it beside its script."""
    slow: dict[str, list[int]] = {}
    for call in told.ask(told.client.slowlog_get, 128) or []:
        command = call["command"].split(b" ")[0].decode(errors="replace")[:20].upper()
        script = command in {"EVAL", "EVALSHA"}
        least = SLOW_SCRIPT if script else SLOW_CALL
        if call["duration"] >= least and command.lower() not in IN_SCRIPTS:
            slow.setdefault("scripts" if script else command, []).append(call["duration"])
    for command, took in slow.items():
        most = max(took) / 1e3
        text = f"slow calls in its log: {command}, {len(took)} times, up to {most:,.0f} ms"
        if command == "scripts":
            why = "While one runs nobody else is served. Those of a frontier take about 1 ms."
            yield note(text, why, "a less busy machine for Redis")
        else:
            why = "While one runs nobody else is served: all workers wait."
            yield warning(text, why, f"no {command} over large keys beside a crawl")
