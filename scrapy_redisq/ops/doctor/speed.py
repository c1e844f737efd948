"""How quick a server answers, and what holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from scrapy_redisq.ops.doctor.report import Line, note, ok, warning
from scrapy_redisq.ops.doctor.told import Told
from scrapy_redisq.ops.doctor.words import ms_text, time_text

SPEED = "Speed"

PINGS = 30
SLOW_TRIP, VERY_SLOW_TRIP = 0.02, 0.1
"""Seconds of a round trip."""
JITTER = 0.1
CLOCK = 5.0
"""Seconds between the server's clock and this machine's that are worth a word."""
SPIKE, SLOW_CALL, SLOW_SCRIPT = 100, 10_000, 50_000
"""ms of a latency spike, us of a call in the slow log, and of one of a script."""
NOBODY = {b"", b"?:0"}
"""Who makes a script's calls, as Redis logs them; Valkey says whoever has called the script, just
before which they stand."""


def speed(told: Told) -> Iterator[Line]:
    """Round trip and jitter, clocks, spikes, slow calls."""
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        told.client.ping()
        trips.append(time.perf_counter() - began)
    trips = trips[1:]  # the first one connects
    middle, worst = median(trips), max(trips)
    text = f"round trip {ms_text(middle)}, at worst {ms_text(worst)} of {len(trips)}"
    if middle > VERY_SLOW_TRIP:
        yield warning(
            SPEED,
            text,
            "Each exchange takes a round trip. Workers hold requests in store against that, but "
            "slots with limits wait for it.",
            "Redis nearer to the workers; more REDISQ_MAX_LEASES",
        )
    elif middle > SLOW_TRIP or worst > JITTER:
        yield note(
            SPEED,
            text,
            "Slots with a delay below that are slower than they may be.",
            "Redis nearer to the workers, on a machine that is less busy",
        )
    else:
        yield ok(SPEED, text)
    yield from _clock(told)
    yield from _spikes(told)


def _clock(told: Told) -> Iterator[Line]:
    at = told.ask(told.client.time)
    if at is None:
        return
    ahead = at[0] + at[1] / 1e6 - time.time()
    where = "ahead" if ahead > 0 else "behind"
    if abs(ahead) > CLOCK:
        yield note(
            SPEED,
            f"the server's clock is {time_text(abs(ahead))} {where}",
            "Crawls go by the server's clock alone; times in tables are off by that much.",
            "NTP on both machines",
        )
    else:
        yield ok(SPEED, "the server's clock is this machine's")


def _spikes(told: Told) -> Iterator[Line]:
    latest = told.ask(told.client.execute_command, "LATENCY LATEST") or []
    worst = max(latest, key=lambda event: int(event[3]), default=None)
    if worst and int(worst[3]) >= SPIKE:
        ago = time_text(time.time() - int(worst[1]))
        event = worst[0].decode(errors="replace")
        yield warning(
            SPEED,
            f"latency spikes ({event}) of up to {int(worst[3]):,} ms, the last {ago} ago",
            "All workers wait for that long. LATENCY DOCTOR on the server says more.",
            "what it says: mostly its disk, huge pages, or commands of other clients",
        )
    for command, took in _slow_calls(told).items():
        text = (
            f"slow calls in its log: {command}, {len(took)} times, up to {max(took) / 1e3:,.0f} ms"
        )
        if command == "scripts":
            yield note(
                SPEED,
                text,
                "While one runs nobody else is served. Those of a frontier take about 1 ms.",
                "a less busy machine for Redis",
            )
        else:
            yield warning(
                SPEED,
                text,
                "While one runs nobody else is served: all workers wait.",
                f"no {command} over large keys beside a crawl",
            )


def _slow_calls(told: Told) -> dict[str, list[int]]:
    """-> us that each slow call took, by command; those of scripts are not calls of their own."""
    slow: dict[str, list[int]] = {}
    of_script: object = None
    left = 0
    for call in told.ask(told.client.slowlog_get, 128) or []:  # newest first
        command = call["command"].split(b" ")[0].decode(errors="replace")[:20].upper()
        took, client = call["duration"], call.get("client_address")
        script = command in {"EVAL", "EVALSHA"}
        if script:
            of_script, left = client, took
        elif client in NOBODY:
            continue
        elif client == of_script and took <= left:
            left -= took
            continue
        else:
            of_script = None
        if took >= (SLOW_SCRIPT if script else SLOW_CALL):
            slow.setdefault("scripts" if script else command, []).append(took)
    return slow
