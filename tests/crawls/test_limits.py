"""Limits of slots, which the whole fleet keeps: protocol, and crawls of real sites. Whoever cannot
start requests of a slot does not keep it from others."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import scrapy
from scrapy.core.engine import ExecutionEngine
from scrapy.http import Request
from scrapy.utils.test import get_crawler

from lab.servers import RedisServer, wait_until
from lab.site import Answer, Site
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.operations import TurnGrant
from scrapy_redisq.worker.politeness import turns as turns_module
from scrapy_redisq.worker.politeness.turns import NOT_NOW, Turns
from tests.harness.crawl import JITTER, LATENESS, Busy, Run, finish, gaps
from tests.harness.in_loop import in_a_loop
from tests.harness.worker import NAME, Make, Worker, ask, report

TURN = 1_000_000  # us, as in lua/shared/slots/state.lua
FREE, REFUSED = -2, -1

# Protocol


def test_slots_with_turns_leave_room_for_others(member: Make) -> None:
    """A worker that could take all it wants of a slot whose turn it has takes some of each other
    slot that is due."""
    worker = member({"host": {"rate": "100/s", "burst": 50}})
    worker.send(f"/{n}" for n in range(40))
    worker.send((f"/other/{n}" for n in range(40)), slot="other")
    assert {lease.slot for lease in ask(worker, want=2).leases} == {"host", "other"}
    leases = ask(worker, 4, report(want=4)).leases
    assert sorted(lease.slot for lease in leases) == ["host"] * 3 + ["other"]


def test_a_slot_without_a_claimed_request_is_left_to_others(member: Make) -> None:
    """A worker that takes one request has the turn of its slot alone, though others are due."""
    limits = {"*": {"delay": 0.9}}
    workers = [member(limits) for _ in range(3)]
    for slot in ("one", "two", "three"):
        workers[0].send([f"/{slot}"], slot=slot)
    done = report(slot="four", done=1)  # it was looked for, so one slot more is looked at
    claimed = [lease.slot for worker in workers for lease in ask(worker, 1, done).leases]
    assert sorted(claimed) == ["one", "three", "two"]


def test_a_turn_that_another_worker_waits_for(member: Make) -> None:
    """It ends after its second though its owner has more to start, and goes to who waits, and back
    as soon; what was reported is all that the delay counts from. Who waits no longer, or was not
    heard of for a second, ends no turn."""
    delay = 0.2
    limits = {"host": {"delay": delay}}
    first, second = member(limits), member(limits)
    first.send(f"/{n}" for n in range(90))

    def turn_of(worker: Worker, **told: int) -> TurnGrant | None:
        (granted,) = ask(worker, 1, turns=report(want=1, **told)).turns
        return granted if granted.left > 0 and not granted.is_refused else None

    assert ask(first, 1).leases
    for owner, waits in ((first, second), (second, first)):
        began, given, longest = time.monotonic(), None, 0.0
        while given is None:
            passed = time.monotonic() - began
            assert passed < 20
            turn_of(owner, since=int(passed * 1e6))
            given = turn_of(waits)
            longest = max(longest, time.monotonic() - began - passed)
        assert passed > 0.6
        assert given.is_new
        # A report that took so long on its way makes the start as much later, and so does the one
        # that came when the turn was over.
        assert given.next_start <= (delay - passed + 2 * longest + 0.1) * 1e6
    assert turn_of(second) is None
    ask(second, 0, turns=report(done=1))  # and waits no longer
    kept = turn_of(first)
    assert kept is not None
    assert kept.left >= TURN
    assert turn_of(second) is None  # and is dead
    dead = time.monotonic()
    wait_until(lambda: turn_of(first) and time.monotonic() > dead + 1.1, 20, "it is kept")


def test_the_worst_is_assumed_of_a_turn_that_was_not_reported(member: Make) -> None:
    """A worker that had the turn and said nothing may have started a request at its very end."""
    limits = {"host": {"delay": 0.9}}
    first, second = member(limits), member(limits)
    first.send(f"/{n}" for n in range(5))
    ask(first)
    reply = wait_until(lambda: (r := ask(second)).leases and r, 20, "its turn is over")
    ((_, _, is_new, next_start, *_),) = reply.turns
    assert is_new == 1
    assert next_start > 0
    ((_, left, *_),) = ask(second, turns=report()).turns
    assert left > 0
    # The first one comes back, and has no turn.
    ((_, left, news, *_),) = ask(first, turns=report(since=800_000)).turns
    assert (left, news) == (0, REFUSED)


def test_who_leaves_takes_nothing_known_of_a_slot_along(member: Make, client: redis.Redis) -> None:
    """The tokens of one who leaves come back; that the slot is parked for two hours is kept for as
    long, and that a person holds it for ever."""
    key = f"redisq:{{{NAME}:0}}:slot:host"
    parked = int((time.time() + 7_200) * 1e6)
    for field, value, kept in (("parked", parked, 7_200_000), ("held", 1, -1)):
        worker = member({"host": {"concurrency": 1}})
        worker.send(f"/{field}/{n}" for n in range(4))
        assert len(ask(worker, 1).leases) == 1
        client.hset(key, field, value)
        worker.leave()
        assert client.hget(key, "out") is None
        left = client.pttl(key)
        assert left == kept if kept < 0 else left > kept
        client.hdel(key, field)


def test_patterns(member: Make) -> None:
    """The slot itself comes before its domain, a longer domain before a shorter, then all."""
    worker = member(
        {
            "a.b.example": {"concurrency": 1},
            "*.b.example": {"concurrency": 2},
            "*.example": {"concurrency": 3},
            "*": {"concurrency": 4},
        }
    )
    expected = {"a.b.example": 1, "x.b.example": 2, "b.example": 3, "y.z.example": 3, "host": 4}
    for slot in expected:
        worker.send((f"/{slot}/{n}" for n in range(9)), slot=slot)
    turns = {turn[0]: turn[8] for turn in ask(worker, want=100).turns}
    assert turns == expected


def test_slots_are_forgotten(member: Make, client: redis.Redis) -> None:
    """What is known of a slot expires when nothing happens; without limits nothing is kept."""
    worker = member({"host": {"delay": 0.1}})
    worker.send(["/1"])
    worker.send(["/2"], slot="free")
    assert len(ask(worker).leases) == 2
    slots = [key.decode() for key in client.scan_iter(f"redisq:{{{NAME}:0}}:slot:*")]
    assert slots == [f"redisq:{{{NAME}:0}}:slot:host"]
    assert 3_000_000 < client.pttl(slots[0]) < 3_700_000


def test_a_clock_that_went_back(member: Make, client: redis.Redis) -> None:
    """What is known of a slot outlives the frontier's clock, which a reset deletes."""
    ahead = int((time.time() + 3_600) * 1e6)
    times = {"last": ahead, "tat": ahead + 1, "ends": ahead + TURN, "parked": ahead + TURN}
    client.hset(f"redisq:{{{NAME}:0}}:slot:host", mapping={**times, "owner": "gone"})
    worker = member({"host": {"delay": 0.1}})
    worker.send(["/1"])
    assert wait_until(lambda: ask(worker).leases, 10, "the turn")


# What a worker keeps


def turn(slot: str = "host", *, left: int = -1, tokens: int = -1, delay: int = 0) -> TurnGrant:
    """A turn as the frontier tells it."""
    return TurnGrant(slot, left, 1, 0, 0, delay, 0, 1, tokens, 0, 0)


def told(turns: Turns, *grants: TurnGrant) -> list[str]:
    """The slots of which the frontier is told, and then tells these turns."""
    reported = turns.report({}, lambda slot, stock: stock, lambda slot: True)
    turns.received(grants, reported, time.monotonic())
    return [item.slot for item in reported]


@in_a_loop
async def test_a_busy_loop_makes_the_next_start_later() -> None:
    """A request is written when the loop comes to it; the delay counts from then, also for what
    other workers are told before."""
    turns = Turns()
    told = turn(left=60 * TURN, delay=TURN)
    turns.received([told], [], time.monotonic())
    began = await turns.may_begin("request", "host", lambda parked: None)
    assert began is not None
    at = began.last
    time.sleep(0.05)
    (told_before,) = turns.report({}, lambda slot, stock: stock, lambda slot: True)
    assert told_before.since < 50_000
    for _ in range(3):
        await asyncio.sleep(0)
    assert at is not None
    assert began.last is not None
    assert began.last - at >= 0.05


def test_a_slot_that_a_person_has_paused_is_not_forgotten() -> None:
    """Before the frontier says something else: what comes to it an hour later would be started."""
    turns = Turns()
    paused = turn(left=0)._replace(news=REFUSED, parked=50_000, paused=1)
    assert turns.received([paused], [], time.monotonic()) == ["host"]

    wait_until(
        lambda: not told(turns) and turns.of("host").parked < time.monotonic(),
        5,
        "its time is over",
    )
    assert turns.knows("host")
    turns.suspend("host", 0.0, told=True)
    wait_until(lambda: not told(turns) and not turns.knows("host"), 5, "it is forgotten")


def test_a_slot_of_which_more_waits_in_scrapy_is_not_forgotten() -> None:
    """However long the downloads take that it waits for; but once the slot has no limits."""
    waits = {"limited", "free"}
    turns = Turns(has_more=waits.__contains__)
    for slot in ("limited", "free", "over"):
        turns.suspend(slot, 0.0, told=True)

    assert told(turns, turn("free", left=FREE)) == ["limited", "free", "over"]
    assert told(turns) == []  # to tell of it once is enough
    assert [turns.knows(slot) for slot in ("limited", "free", "over")] == [True, False, False]
    assert turns.wait("limited") == NOT_NOW
    waits.clear()
    told(turns)
    assert not turns.knows("limited")


def test_a_turn_is_not_kept_for_what_a_middleware_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that Scrapy was given, and that does not come to its download, keeps the turn for a
    while only."""
    monkeypatch.setattr(turns_module, "PATIENCE", 0.05)
    turns = Turns()
    turns.received([turn(left=60 * TURN, delay=TURN)], [], time.monotonic())
    request = Request("http://host/")
    turns.handed_out(request, "host")

    def done() -> int:
        ((_, _, _, _, done, _),) = turns.report({}, lambda slot, stock: 1, lambda slot: True)
        return int(done)

    assert done() == 0
    time.sleep(0.06)
    assert done() == 1
    assert turns.wait("host") == NOT_NOW, "it is still on its way"


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


def test_a_download_slot_that_a_middleware_sets(crawl: Run) -> None:
    """The limits of a host, and the peace that it asks for, hold for its pages by whatever proxies
    they are fetched; nothing is sent back again and again."""
    with Site(lambda path: Answer("x")) as site:

        def page(path: str) -> Answer:
            busy = time.monotonic() < site.hits[0].at + 1
            return Answer("", 503, {"Retry-After": "1"}) if busy else Answer("x")

        site.page = page
        given = {"REDISQ_SLOT_LIMITS": json.dumps({"127.0.0.1": {"delay": 0.3}})}
        worker = crawl("rotated", None, given, sites=site.urls(1), pages=6).wait()
    assert (worker.reason, worker.stats["redisq/sent_back"]) == ("finished", 1)
    (times,) = site.starts().values()
    assert len(times) == 7
    assert min(gaps(times)) >= 0.3 - JITTER


def test_limits_of_what_no_lease_stands_for(crawl: Run, tmp_path: Path) -> None:
    """They hold for hosts of which no worker has a lease: for the files of a pipeline, and for
    start requests that cannot be stored."""
    with Site(lambda path: Answer("x"), hosts=2) as site:
        given = {"REDISQ_SLOT_LIMITS": '{"*": {"delay": 0.2}}', "FILES_STORE": tmp_path / "files"}
        # The last URL is that of the other host.
        sites = f"{site.url} http://127.0.0.2:{site.port}/files"
        finish([crawl("sideways", None, given, sites=sites, pages=3)])
    for times in site.starts().values():
        assert len(times) >= 3
        assert min(gaps(times)) >= 0.2 - JITTER


def test_slow_answers_do_not_slow_a_slot(crawl: Run, redis_server: RedisServer) -> None:
    """Downloads begin as often as the delay allows, however long they take."""
    all_asked = threading.Event()

    def page(path: str) -> Answer:
        # The second one waits for the first answer, until it is known how fast this worker is.
        first = len(site.hits) == 1
        if len(site.hits) == 30:
            all_asked.set()
        return Answer("x", until=None if first else all_asked)

    with Site(page) as site:
        given = {
            "REDISQ_SLOT_LIMITS": json.dumps({"*": {"delay": 0.05}}),
            "CONCURRENT_REQUESTS": 100,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
            **LATENESS,
        }
        worker = crawl("hosts", None, given, sites=site.urls(1), pages=30)
        wait_until(lambda: site.hits, 60, "the first page")
        busy = Busy(redis_server)
        assert worker.wait().reason == "finished"
        lost = busy.took([worker])
    (times,) = site.starts().values()
    assert times[-1] - times[1] < 28 * 0.05 * 1.5 + lost


def test_budget_of_a_page(crawl: Run) -> None:
    """The links of a page beyond its budget are dead letters."""
    links = "".join(f'<a href="/{n}">x</a>' for n in range(1, 21))
    with Site(lambda path: links if path == "/0" else "") as site:
        assert crawl("follow", site, {"REDISQ_PAGE_BUDGET": 5}).wait().reason == "finished"
    found = [(letter.reason, letter.detail) for letter in crawl.letters()]
    assert found == [("budget", "that of its page (REDISQ_PAGE_BUDGET)")] * 15
    assert len(site.counts()) == 6


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
    with Site(page, hosts=len(HOSTS)) as site, crawl.frontier("ordered") as frontier:
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
                waited = gaps([began, *times])
                assert max(waited) < 2.5 + lost, (host, waited)
        finally:
            end.set()
            for worker in workers:
                worker.terminate().wait()
        assert site.counts() == {f"/{n}": len(HOSTS) for n in range(PAGES)}
