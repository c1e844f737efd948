"""A site of many hosts, each with a limit, and a fleet that crawls it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.crawls.workers import REDISQ_EXACT, Fleet
from lab.servers import RedisServer
from lab.site import Answer, Hit, Site, address
from scrapy_redisq.frontier.limits import SlotLimit

LEASE_TTL = 2
"""Seconds until the requests and tokens of a killed worker go to others."""

PROMPT = 0.05
"""Seconds that answers of most hosts take."""

STRETCH = (1.0, 1.25, 1.5, 2.0, 3.0)
"""By which the limits below are made slower, so that fifty hosts have fifty limits."""

LIMITS = (
    (SlotLimit(delay=0.2), PROMPT),
    (SlotLimit(delay=0.35), PROMPT),
    (SlotLimit(delay=0.5), PROMPT),
    (SlotLimit(delay=1.0), PROMPT),
    (SlotLimit(rate=4.0), PROMPT),
    (SlotLimit(rate=2.0, burst=4), PROMPT),
    (SlotLimit(rate=1.5, burst=10), PROMPT),
    (SlotLimit(concurrency=1), 0.5),
    (SlotLimit(concurrency=2), 0.75),
    (SlotLimit(delay=0.25, concurrency=1, rate=3.0, burst=3), 0.1),
)
"""Ten kinds of limits, and seconds that answers of such a host take. As for a crawl of ten minutes
with times a tenth as long."""


class Hosts(Site):
    """The site. ``seconds``: what answers of each host take."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__(lambda path: None, hosts=len(seconds))
        self._seconds = {address(number): each for number, each in enumerate(seconds)}

    async def listen(self) -> list[asyncio.Server]:
        """Before all processes and other threads where it may, so that times are those of arrival
        and not of when it got the processor."""
        with contextlib.suppress(AttributeError, OSError):  # other systems, other users
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return await super().listen()

    def answer(self, hit: Hit) -> Answer:
        return Answer("ok", delay=self._seconds[hit.host.partition(":")[0]])


def hosts_of(number: int) -> Iterator[tuple[SlotLimit, float]]:
    """So many different limits, and what answers of their hosts take."""
    for stretch, (limit, answer) in itertools.islice(itertools.product(STRETCH, LIMITS), number):
        delay, rate = limit.delay * stretch, limit.rate / stretch
        slower = SlotLimit(delay, limit.concurrency, rate, limit.burst)
        yield slower, answer * stretch if limit == SlotLimit(0, limit.concurrency) else answer


def allowed(limit: SlotLimit, answer: float, seconds: float) -> int:
    """The most requests of a limit that can begin in a time when each takes ``answer`` seconds."""
    interval = 1 / limit.rate if limit.rate else 0.0
    number, start, at, tat = 0, 0.0, 0.0, 0.0
    ends: list[float] = []
    while True:
        start = max(at, tat - (limit.burst - 1) * interval)
        if limit.concurrency and len(ends) == limit.concurrency:
            start = max(start, heapq.heappop(ends))
        if start >= seconds:
            return number
        number += 1
        heapq.heappush(ends, start + answer)
        at, tat = start + limit.delay, max(tat, start) + interval


@dataclass(frozen=True)
class Crawled:
    """What one fleet did to a site. ``pages``: pushed to each host. ``killed``: pids. ``cores``:
    kept busy."""

    limits: Sequence[SlotLimit]
    pages: Sequence[int]
    began: float
    hits: list[Hit]
    killed: set[str]
    cores: float


def crawl(
    server: RedisServer,
    hosts: Sequence[tuple[SlotLimit, float]],
    *,
    seconds: float,
    workers: int,
    kill_every: float = 0.0,
) -> Crawled:
    """Let a fleet fetch from each host what its limits allow in the time."""
    limits, answers = zip(*hosts, strict=True)
    pages = [allowed(limit, answer, seconds) for limit, answer in hosts]
    slots = {
        address(host): {
            "delay": limit.delay,
            "concurrency": limit.concurrency,
            "rate": f"{limit.rate * 3600:.6f}/h" if limit.rate else "",
            "burst": limit.burst,
        }
        for host, limit in enumerate(limits)
    }
    settings = {"REDISQ_SLOT_LIMITS": json.dumps(slots), "REDISQ_LEASE_TTL": LEASE_TTL}
    killed: set[str] = set()
    chance = random.Random(6)
    with (
        Hosts(answers) as site,
        Fleet(server, workers, variant=REDISQ_EXACT, spider="polite", settings=settings) as fleet,
    ):
        began = time.monotonic()
        psutil.cpu_percent()
        fleet.frontier.push(
            f"http://{address(host)}:{site.port}/{number}"
            for number in range(max(pages))
            for host in range(len(hosts))
            if number < pages[host]
        )
        fleet.begin()
        kills = math.ceil(seconds / kill_every) - 1 if kill_every else 0
        for number in range(1, kills + 1):
            time.sleep(max(0.0, began + number * kill_every - time.monotonic()))
            killed.add(str(fleet.replace(chance.randrange(workers))))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
        fleet.reports(seconds + 60)
        hits = sorted(site.hits, key=lambda hit: hit.at)
        return Crawled(limits, pages, began, hits, killed, cores)
