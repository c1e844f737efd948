"""Whoever cannot start requests of a slot does not keep it from others: leases, turns, tokens."""

from __future__ import annotations

import itertools
import json
import threading
import time
from types import SimpleNamespace

import pytest
import scrapy
from scrapy.core.engine import ExecutionEngine
from scrapy.http import Request
from scrapy.utils.test import get_crawler

from lab.servers import RedisServer, wait_until
from lab.site import Answer, Site
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.operations import Lease, TurnGrant
from scrapy_redisq.worker import inbox as inbox_module
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.politeness import turns as turns_module
from scrapy_redisq.worker.politeness.turns import Turns
from tests.harness.busy import Busy
from tests.harness.crawl import Run

PATIENCE = 0.05


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "PATIENCE", PATIENCE)
    monkeypatch.setattr(turns_module, "PATIENCE", PATIENCE)


def filled(*slots: str, by_slot: bool = True) -> Inbox[None]:
    inbox: Inbox[None] = Inbox(2, 10, by_slot=by_slot)
    for number, slot in enumerate(slots):
        inbox.add(Lease(str(number), slot, 0, 0, b""), None)
    return inbox


def given_up(inbox: Inbox[None], *, stuck: str = "", full: bool = False) -> list[str]:
    return [lease.id for lease, _ in inbox.remove_stuck(lambda slot: slot not in stuck, full=full)]


def passes(since: float) -> None:
    wait_until(lambda: time.monotonic() - since > PATIENCE, 5, "patience is over")


# What a worker holds


@pytest.mark.usefixtures("impatient")
def test_leases_of_a_slot_that_is_stuck() -> None:
    """They go back after a while, in order; no more of the slot is worth holding until something of
    it can be started again."""
    inbox = filled("a", "b", "a")
    assert given_up(inbox, stuck="a") == []
    passes(time.monotonic())
    assert given_up(inbox, stuck="a") == ["0", "2"]
    assert inbox.waiting() == {"b": 1}
    assert inbox.limit("a") == inbox.limit("a", stock=5) == inbox.room()["a"] == 0
    assert given_up(inbox) == []
    assert inbox.limit("a") == 2


@pytest.mark.usefixtures("impatient")
def test_a_turn_is_not_kept_for_what_a_middleware_keeps() -> None:
    """A request that Scrapy was given, and that does not come to its download, keeps the turn for a
    while only."""
    turns = Turns()
    grant = TurnGrant("host", 60_000_000, 1, 0, 0, 1_000_000, 0, 1, -1, 0, 0)
    turns.received([grant], [], time.monotonic())
    request = Request("http://host/")
    turns.handed_out(request, "host")

    def done() -> int:
        ((_, _, _, _, done, _),) = turns.report({}, lambda slot, stock: 1, lambda slot: True)
        return int(done)

    assert done() == 0
    passes(time.monotonic())
    assert done() == 1
    assert not turns.soon("host"), "it is still on its way"


def test_what_scrapy_is_about_to_start_counts() -> None:
    """A request that Scrapy is being given, and has not begun with, is one of its slot's: without
    it a host that does not answer got all places of the downloader."""
    crawler = get_crawler(settings_dict={"DOWNLOAD_HANDLERS": dict.fromkeys(["http", "https"])})
    crawler.engine = ExecutionEngine(crawler, lambda spider: None)  # type: ignore
    crawler.engine._slot = SimpleNamespace(inprogress=set(), nextcall=SimpleNamespace(schedule=0))
    engine = Engine(crawler)
    for number in range(3):
        engine.downloads.handed_out(Request(f"http://host/{number}"), "host")
        assert [engine.downloads.by_slot()("host") for _ in range(2)] == [number + 1] * 2


# Crawls


HOSTS = [f"127.0.0.{n}" for n in range(1, 11)]
LIMITS = {host: [{"delay": 0.2}, {"concurrency": 8}][n % 2] for n, host in enumerate(HOSTS)}
PAGES = 5


@pytest.mark.skipif(scrapy.version_info < (2, 18), reason="0 meant no downloads at all")
def test_any_number_of_downloads(crawl: Run) -> None:
    """CONCURRENT_REQUESTS = 0 is no limit: seven at a time, once the host has given an answer."""
    all_at_once = threading.Event()

    def page(path: str) -> Answer:
        if len(site.hits) == 8:
            all_at_once.set()
        return Answer("x", until=all_at_once if len(site.hits) > 1 else None)

    with Site(page) as site:
        worker = crawl("many", site, {"CONCURRENT_REQUESTS": 0})
        wait_until(all_at_once.is_set, 30, "seven at a time")
        assert worker.wait().reason == "finished"


def test_a_worker_whose_downloads_hang(crawl: Run, redis_server: RedisServer) -> None:
    """All that it has not begun, an idle worker fetches; no host waits for longer than 2 s."""
    end = threading.Event()

    def page(path: str) -> Answer:
        return Answer("x", until=end if site.hits[-1].agent == "hangs" else None)

    given = {"REDISQ_KEEP_ALIVE": True, "REDISQ_SLOT_LIMITS": json.dumps(LIMITS)}
    with (
        Site(page, hosts=len(HOSTS)) as site,
        Frontier.from_url(redis_server.url, "ordered") as frontier,
    ):
        workers = [
            crawl("ordered", None, {**given, "USER_AGENT": agent, "CONCURRENT_REQUESTS": 4})
            for agent in ("hangs", "helps")
        ]
        wait_until(lambda: len(frontier.status()["workers"]) == 2, 30, "both are there")
        frontier.push(f"http://{host}:{site.port}/{n}" for n in range(PAGES) for host in HOSTS)
        began, busy = time.monotonic(), Busy(redis_server, workers)
        try:

            def fetched() -> bool:
                helped = [hit for hit in site.hits if hit.agent == "helps"]
                return len(helped) >= len(HOSTS) * PAGES - 4

            wait_until(fetched, 60, "all is fetched but what hangs")
            lost = busy.took()
            assert sum(hit.agent == "hangs" for hit in site.hits) == 4
            for host, times in site.starts().items():
                gaps = [later - earlier for earlier, later in itertools.pairwise([began, *times])]
                assert max(gaps) < 2.5 + lost, (host, gaps)
        finally:
            end.set()
            for worker in workers:
                worker.terminate()
                worker.wait()
        assert site.counts() == {f"/{n}": len(HOSTS) for n in range(PAGES)}
