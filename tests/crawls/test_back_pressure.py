"""Back-pressure: a full frontier makes those wait that would add to it, and stops nobody."""

from __future__ import annotations

import asyncio
import threading

import pytest
from scrapy import Request

from lab.servers import RedisServer, any_server, wait_until
from lab.site import Answer, Site
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.calls import RunTerms
from scrapy_redisq.frontier.growth import Fill, GrowthLimit
from scrapy_redisq.worker import back_pressure
from scrapy_redisq.worker.back_pressure import BackPressure
from tests.crawls.test_crawl import nothing_left
from tests.harness.crawl import Run
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
    assert bool(limit.reached(unfinished, [Fill(unfinished, used, 1_000)])) is reached


def test_a_share_of_no_maxmemory_is_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    """And that is said."""
    pressure = BackPressure(GrowthLimit(memory=0.5), 8, lambda: 0, lambda: False)
    pressure.filled([Fill(0, 10**12, 0)])
    assert not pressure.limit.reached(0, [Fill(0, 10**12, 0)])
    assert "give bytes" in caplog.text


async def _waiting(pressure: BackPressure, pages: list[Request]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(pressure.link_may_go(page)) for page in pages]
    await asyncio.sleep(0)
    return tasks


async def _who_went(tasks: list[asyncio.Task[None]]) -> list[bool]:
    await asyncio.sleep(0.01)
    return [task.done() for task in tasks]


def test_at_most_half_of_what_a_worker_may_hold_waits() -> None:
    """The one that waited longest goes on, with all its links; the others when there is room."""

    async def play() -> None:
        full = True
        pressure = BackPressure(GrowthLimit(pending=1), 4, lambda: int(full), lambda: False)
        pages = [Request(f"data:,{number}") for number in range(3)]
        tasks = await _waiting(pressure, pages)
        pressure.look(10)
        assert await _who_went(tasks) == [True, False, False]
        await asyncio.wait_for(pressure.link_may_go(pages[0]), 1)
        full = False
        pressure.look(10)
        assert await _who_went(tasks) == [True, True, True]

    asyncio.run(play())


def test_where_nothing_else_goes_on_one_after_the_other_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages first, then start(). Who closes lets all of them go."""
    monkeypatch.setattr(back_pressure, "STALL", 0.0)
    monkeypatch.setattr(back_pressure, "START_STALL", 0.0)

    async def play() -> None:
        closing = False
        pressure = BackPressure(GrowthLimit(pending=1), 100, lambda: 1, lambda: closing)
        start = asyncio.ensure_future(pressure.start_may_go_on())
        tasks = [start, *await _waiting(pressure, [Request("data:,1"), Request("data:,2")])]
        for _ in range(3):
            pressure.look(3)
        assert await _who_went(tasks) == [False, False, False]
        for went in ([False, True, False], [False, True, True], [True, True, True]):
            pressure.look(2 - sum(went[1:]) + 1)
            while pressure.holds_back and await _who_went(tasks) != went:
                pressure.look(0)
            assert await _who_went(tasks) == went
        tasks = await _waiting(pressure, [Request("data:,3"), Request("data:,4")])
        closing = True
        assert await _who_went(tasks) == [True, True]

    asyncio.run(play())


def test_large_pages_that_wait_keep_nobody_waiting() -> None:
    """Scrapy begins no other page then, so there is nothing to wait for."""

    async def play() -> None:
        pressure = BackPressure(GrowthLimit(pending=1), 100, lambda: 1, lambda: False)
        tasks = await _waiting(pressure, [Request("data:,1"), Request("data:,2")])
        pressure.look(2)
        assert await _who_went(tasks) == [False, False]
        pressure.look(3, takes_more=False)
        assert await _who_went(tasks) == [False, False]
        pressure.look(2, takes_more=False)
        assert await _who_went(tasks) == [True, False]

    asyncio.run(play())


def test_callbacks_that_wait_for_one_that_waits_are_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a lock that it holds. Where no page ends, one goes on, though callbacks download this
    and that on the side."""
    monkeypatch.setattr(back_pressure, "PATIENCE", 0.02)

    async def play() -> None:
        pressure = BackPressure(GrowthLimit(pending=1), 100, lambda: 1, lambda: False)
        tasks = await _waiting(pressure, [Request("data:,1")])
        pressure.look(2)
        assert await _who_went(tasks) == [False]
        await asyncio.sleep(0.03)
        pressure.look(2, ended=1)
        assert await _who_went(tasks) == [False]
        await asyncio.sleep(0.03)
        pressure.look(3, ended=1)
        assert await _who_went(tasks) == [True]

    asyncio.run(play())


# Crawls


def test_a_worker_whose_frontier_is_gone_ends_although_links_wait(
    redis_server: RedisServer, crawl: Run
) -> None:
    """Nobody looks after those that wait then."""

    def page(path: str) -> Answer:
        links = (f"{path.rstrip('/')}/{number}" for number in range(5))
        return Answer("".join(f'<a href="{link}">x</a>' for link in links), delay=0.2)

    with Site(page) as site, redis_server.client() as client:
        worker = crawl("follow", site, {"REDISQ_MAX_PENDING": 1}, first="/1 /2 /3")
        worker.wait_for("Back-pressure: ")
        wait_until(lambda: site.hits, 10, "a page")
        client.flushall()
        assert worker.wait(20).reason == "frontier_lost"


def test_a_worker_ends_while_redis_is_away_although_links_wait(crawl: Run) -> None:
    """It does not wait for Redis to come back."""

    def page(path: str) -> Answer:
        links = (f"{path.rstrip('/')}/{number}" for number in range(5))
        return Answer("".join(f'<a href="{link}">x</a>' for link in links), delay=0.2)

    server = RedisServer(any_server())
    try:
        with Site(page) as site:
            settings = {
                "REDISQ_URL": server.url,
                "REDISQ_MAX_PENDING": 4,
                "REDISQ_CLOSE_TIMEOUT": 1,
            }
            worker = crawl("follow", site, settings, first="/1 /2 /3 /4")
            wait_until(lambda: len(site.hits) > 3, 20, "pages")
            server.kill()
            worker.wait_for("Redis is away")
            worker.terminate()
            assert worker.wait(20).reason == "shutdown"
    finally:
        server.close()


def test_a_crawl_that_grows_past_its_limit_ends(redis_server: RedisServer, crawl: Run) -> None:
    """Two workers, of which each page has more links than there may be requests: nothing is lost,
    and nothing stands still. Start requests come as there is room."""
    pages = 40

    def page(path: str) -> Answer:
        number = int(path.strip("/"))
        links = range(5 * number + 1, 5 * number + 6)
        return Answer("".join(f'<a href="/{link}">x</a>' for link in links if link < pages))

    with Site(page) as site:
        workers = crawl.fleet(2, "follow", site, {"REDISQ_MAX_PENDING": 4})
        for worker in workers:
            assert worker.wait().reason == "finished"
        assert dict.fromkeys(site.counts(), 1) == dict(site.counts())
        assert len(site.counts()) == pages
    nothing_left(redis_server)
    assert any("Back-pressure: " in worker.log for worker in workers)


def test_start_requests_wait_for_room(redis_server: RedisServer, crawl: Run) -> None:
    """There are never many more than the limit."""
    most = 0

    def page(path: str) -> Answer:
        nonlocal most
        with Frontier.from_url(redis_server.url, "follow") as frontier:
            status = frontier.status()
        most = max(most, status["created"] - status["finished"])
        return Answer("")

    with Site(page) as site:
        first = " ".join(f"/{number}" for number in range(60))
        worker = crawl("follow", site, {"REDISQ_MAX_PENDING": 10}, first=first)
        assert worker.wait().reason == "finished"
        assert len(site.counts()) == 60
    assert 0 < most < 40


# Producers


def test_a_push_waits_for_room(redis_server: RedisServer) -> None:
    """It says so, and goes on when workers have finished some. A program without settings keeps the
    limit of the workers."""
    said: list[str] = []
    done = 0
    with (
        redis_server.client() as client,
        Frontier.from_url(redis_server.url, "books") as frontier,
    ):
        worker = Worker(client, "books", EXACT, terms=RunTerms(growth=GrowthLimit(pending=3)))
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
    redis_server: RedisServer,
) -> None:
    """A producer that begins a run knows no limit; the next one is to find it."""
    growth = GrowthLimit(pending=3)
    with (
        redis_server.client() as client,
        Frontier.from_url(redis_server.url, "books") as frontier,
    ):
        worker = Worker(client, "books", EXACT, terms=RunTerms(growth=growth))
        worker.send(seeded=True)
        assert worker.leave()  # the run is complete
        frontier.push(["https://books.example/1"])
        assert frontier._growth_limit_of_workers() == growth
