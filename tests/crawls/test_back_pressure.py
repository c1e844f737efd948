"""Back-pressure: a full frontier makes those wait that would add to it, and stops nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from lab.servers import wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.calls import RunTerms
from scrapy_redisq.frontier.growth import NO_LIMIT, GrowthLimit, ServerState
from scrapy_redisq.worker import back_pressure
from scrapy_redisq.worker.back_pressure import BackPressure
from tests.harness.in_loop import in_a_loop
from tests.harness.worker import EXACT, Worker

# In the worker


@pytest.mark.parametrize(
    ("limit", "unfinished", "used", "reached"),
    [
        (GrowthLimit(), 10**9, 10**12, False),
        (GrowthLimit(pending=5), 4, 0, False),
        (GrowthLimit(pending=5), 5, 0, True),
        (GrowthLimit(memory=0.8), 9, 799, False),
        (GrowthLimit(memory=0.8), 9, 800, True),
        (GrowthLimit(memory=900), 9, 899, False),
        (GrowthLimit(memory=900), 9, 900, True),
    ],
)
def test_when_a_frontier_is_full(
    limit: GrowthLimit, unfinished: int, used: int, reached: bool
) -> None:
    """By requests, by bytes, or by a share of what the server may have."""
    assert bool(limit.reached(unfinished, [ServerState(0, unfinished, used, 1_000)])) is reached


class Clock:
    """Of `back_pressure`."""

    now = 1_000.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(back_pressure.time, "monotonic", lambda: self.now)


def pressure_of(
    limit: GrowthLimit = NO_LIMIT,
    *,
    unfinished: Callable[[], int] = lambda: 1,
    closing: Callable[[], bool] = lambda: False,
) -> BackPressure:
    return BackPressure(limit, unfinished=unfinished, closing=closing)


def test_a_share_of_no_maxmemory_is_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    """And that is said."""
    pressure = pressure_of(GrowthLimit(memory=0.5))
    pressure.filled([ServerState(0, 0, 10**12, 0)])
    assert not pressure.limit.reached(0, [ServerState(0, 0, 10**12, 0)])
    assert "give bytes" in caplog.text


def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is twice as long as the one before, up to an hour; what was started before one ends
    makes it no longer."""
    clock, pressure, lengths = Clock(monkeypatch), pressure_of(), []
    for _ in range(11):
        for _ in range(3):
            assert not pressure.heard(0, full=True, news=True)
        began = clock.now
        while pressure.pauses:
            assert not pressure.may_start(False)
            clock.now += 5
        lengths.append(clock.now - began)
    assert lengths == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


def test_what_a_full_frontier_lets_a_worker_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that brings nothing new; after a pause one request at a time; all when there is room."""
    clock, pressure = Clock(monkeypatch), pressure_of()
    pressure.heard(0, full=True, news=False)
    assert pressure.may_start(working=True)
    pressure.heard(1, full=False, news=True)  # also of another shard
    assert not pressure.may_start(working=False)
    clock.now += 10
    assert pressure.may_start(working=False)
    assert not pressure.may_start(working=True)
    pressure.heard(1, full=True, news=True)
    assert not pressure.heard(0, full=False, news=False)
    assert pressure.heard(1, full=False, news=False)
    assert pressure.may_start(working=True)
    pressure.heard(1, full=True, news=True)
    clock.now += 10
    assert pressure.may_start(working=False)


def test_the_limit_of_memory_is_as_good_as_a_full_server() -> None:
    """The one of requests is not: it stops start() alone."""
    pressure = pressure_of(GrowthLimit(pending=1, memory=900))
    pressure.heard(0, full=False, news=True)
    assert pressure.may_start(working=True)
    pressure.filled([ServerState(0, 1, 900, 0)])
    pressure.heard(0, full=False, news=True)
    assert pressure.pauses
    pressure.filled([ServerState(0, 1, 899, 0)])
    assert pressure.heard(0, full=False, news=False)


@pytest.mark.parametrize("way", ["room", "closing", "idle"])
@in_a_loop
async def test_start_waits(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """For room, or that the spider is being closed, or that there was nothing to do for a pause."""
    monkeypatch.setattr(back_pressure, "POLL", 0.001)
    monkeypatch.setattr(back_pressure, "PAUSE_FIRST", 0.05)
    state = {"room": False, "closing": False, "idle": False}
    pressure = pressure_of(
        GrowthLimit(pending=1),
        unfinished=lambda: int(not state["room"]),
        closing=lambda: state["closing"],
    )
    waiting = asyncio.ensure_future(pressure.start_may_go_on(lambda: not state["idle"]))
    await asyncio.sleep(0.1)
    assert pressure.holds_back
    assert not waiting.done()
    state[way] = True
    await asyncio.wait_for(waiting, 5)
    assert not pressure.holds_back


# Producers


def test_a_push_waits_for_room(frontier: Frontier) -> None:
    """It says so, and goes on when workers have finished some. A program without settings keeps the
    limit of the workers."""
    said: list[str] = []
    done = 0
    worker = Worker(frontier.client, "books", EXACT, terms=RunTerms(growth=GrowthLimit(pending=3)))
    frontier.waiting_to_push = said.append
    urls = [f"https://books.example/{number}" for number in range(8)]
    push = threading.Thread(target=frontier.push, args=(urls,))
    push.start()
    wait_until(lambda: said, 10, "the push to say that it waits")
    assert "REDISQ_MAX_PENDING is 3" in said[0]
    while push.is_alive() or done < len(urls):
        leases = worker.claim(10)
        assert len(leases) <= 3
        for lease in leases:
            worker.finish(lease)
        done += len(leases)
    push.join()
    assert done == len(urls)


def test_a_push_keeps_the_limit_of_the_workers_in_the_run_that_it_begins(
    frontier: Frontier,
) -> None:
    """A producer that begins a run knows no limit; the next one is to find it."""
    growth = GrowthLimit(pending=3)
    worker = Worker(frontier.client, "books", EXACT, terms=RunTerms(growth=growth))
    worker.send(seeded=True)
    assert worker.leave()  # the run is complete
    frontier.push(["https://books.example/1"])
    assert frontier._growth_limit(frontier._meta(frontier._status(0))) == growth


def test_a_push_waits_for_a_full_redis(frontier: Frontier) -> None:
    """To begin a run as well as to add to one."""

    def make_room(why: str) -> None:
        assert "maxmemory" in why
        frontier.client.config_set("maxmemory", 0)

    frontier.waiting_to_push = make_room
    for url in ("https://books.example/1", "https://books.example/2"):
        frontier.client.config_set("maxmemory", 1)
        assert frontier.push([url]).accepted == 1
