"""What becomes of requests that stay in their process, step by step: when they are settled, and who
has them when their worker, or the page that asked for them, is somewhere else."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from scrapy import Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Request
from scrapy.utils.test import get_crawler

from lab.servers import wait_until
from scrapy_redisq._scrapy.output import current_page
from scrapy_redisq.dupefilter import ExactDupeFilter
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Enqueue, Lease, Link
from scrapy_redisq.frontier.run_session import RunSession, Terms
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import Claim
from scrapy_redisq.frontier.slot_names import shard_of
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker import local_queue
from scrapy_redisq.worker.in_progress import InProgress, Page, Problem
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.local_queue import LocalQueue
from scrapy_redisq.worker.local_requests import LocalRequests
from scrapy_redisq.worker.outbox import Outbox
from scrapy_redisq.worker.parts import Parts
from scrapy_redisq.worker.worker import Worker as CrawlWorker
from tests.harness.worker import EXACT, NAME, Worker

KEPT = "redisq:{books:%d}:kept"


class Books(Spider):
    name = "books"


class Process:
    """A worker whose requests are started and ended by hand, on a real frontier."""

    def __init__(
        self,
        client: redis.Redis,
        config: FrontierConfig = EXACT,
        *,
        foreign: bool = False,
        most: int = 10,
        name: str = NAME,
    ) -> None:
        self.member = Worker(client, name, config, suspect_from=2, max_deliveries=5)
        self.crawler = crawler = get_crawler(Books)
        crawler.spider = Books()
        self.engine: Any = SimpleNamespace(
            in_progress=set(),
            closing=False,
            downloads=SimpleNamespace(slot_of=lambda request: request.url.split("/")[2]),
            is_of_start=lambda request: current_page.get() is None,
            is_returned=lambda request: False,
            wake=lambda: None,
        )
        nothing = cast(Any, None)
        self.run = RunSession(nothing, Terms(name, config, 60.0, 5, 100, 10_000))
        self.run.sessions = self.member.sessions
        self.run.seen, self.run.joined = self.member.seen, self.member.joined
        self.in_progress = InProgress(crawler.request_fingerprinter.fingerprint)  # type: ignore[union-attr]
        self.local = LocalQueue()
        filter_class: Any = RFPDupeFilter if foreign else ExactDupeFilter
        exchange_loop: Any = SimpleNamespace(run_session=self.run, enqueue=self.run.enqueue)
        self.requests = LocalRequests(
            self.engine, exchange_loop, self.in_progress, self.local, crawler.stats, most=most
        )
        self.outbox = Outbox(
            crawler,
            RedisqSettings.read(crawler.settings),
            engine=self.engine,
            serializer=Serializer(crawler.spider, max_bytes=10_000),
            dupefilter=filter_class.from_crawler(crawler),
            in_progress=self.in_progress,
            local_requests=self.requests,
            exchange_loop=exchange_loop,
        )

    @contextmanager
    def of(self, request: Request | None) -> Iterator[None]:
        """What is asked for meanwhile comes of this request; of ``start()`` with None."""
        token = current_page.set(request)
        try:
            yield
        finally:
            current_page.reset(token)

    def ask(self, asking: Request | None, url: str, **options: Any) -> Request:
        """Ask for a request that cannot be stored."""
        request = Request(url, meta={"lock": threading.Lock()}, **options)
        with self.of(asking):
            self.outbox.take(request)
        return request

    def exchange(self) -> None:
        """Send all that waits, and heed the answers, as the scheduler does."""
        while self.run.waiting():
            self.run.release()
            for session in self.run.sessions:
                reply = self.member.exchange(
                    shard=session.shard, starting=True, suspects=self.run.suspects_to_claim()
                )
                assert reply is not None
                for claim in reply.claimed:
                    self.requests.granted(claim, is_new=claim in reply.new_claims)
                for claim in reply.deadly:
                    self.requests.bury_claimed(claim)
                for claim in reply.waits:
                    self.requests.is_with_another(claim)
                for enqueue in reply.duplicates:
                    if isinstance(enqueue, Claim):
                        self.requests.refused(enqueue)

    def fetch(self, slot: str = "a") -> Request:
        """Begin with a page of the frontier."""
        (lease,) = self.member.claim(1, shard=shard_of(slot, len(self.run.sessions)))
        request = Request(lease.entry.decode())
        self.in_progress.begin(request, Page(lease, self.run.shard_of(lease.slot)))
        self.engine.in_progress.add(request)
        return request

    def start(self) -> Request | None:
        """Begin with the next request that stays here."""
        popped = self.requests.next(lambda slot: 0, lambda slot: None)
        if popped is None:
            return None
        self.in_progress.keep(*popped)
        self.engine.in_progress.add(popped[0])
        return popped[0]

    def work(self) -> list[str]:
        """Ask for what may be asked for, start all that is here, be done with it. -> the URLs"""
        self.requests.ask()
        self.exchange()
        started = []
        while (request := self.start()) is not None:
            started.append(request)
        self.end(*started)
        return [request.url for request in started]

    def end(self, *requests: Request) -> None:
        """Scrapy is done with them."""
        self.engine.in_progress -= set(requests)
        self.requests.collect_ended()
        for page in self.in_progress.end(self.engine.in_progress, closing=False):
            self.run.finish(page.session, page.finish(), page.sent, page.links)

    def die(self) -> None:
        """It is killed, and others notice it."""
        for session in self.run.sessions:
            prefix = calls.prefix(NAME, session.shard)
            self.member.client.zadd(prefix + "workers", {session.worker: 1})
            self.member.client.delete(prefix + "reaped")
            execute(self.member.client, calls.reap(NAME, session.shard, session.run, 5, 100))

    def rejoin(self) -> None:
        """Go on as a new worker: all leases are void."""
        self.member.rejoin()
        self.requests.rejoined()


NewProcess = Callable[..., Process]


@pytest.fixture
def process(client: redis.Redis) -> NewProcess:
    return lambda *args, **options: Process(client, *args, **options)


def kept(client: redis.Redis, shard: int = 0) -> int:
    return int(client.hlen(KEPT % shard))  # type: ignore[arg-type]


def held(process: Process) -> int:
    return sum(len(session.held) for session in process.run.sessions)


def push(process: Process, *urls: str) -> None:
    for url in urls:
        process.member.enqueue(url, slot=url.split("/")[2])
    process.exchange()


def test_each_is_settled_when_all_that_came_of_it_is_over(
    client: redis.Redis, process: NewProcess
) -> None:
    """And the page that stands for them is ended last: who fetches it again before asks for what is
    not over, and for that alone."""
    first, second = process(), process()
    push(first, "http://a/page")
    page = first.fetch()
    outer = first.ask(page, "http://a/outer")
    first.exchange()
    assert first.start() is outer
    inner = first.ask(outer, "http://a/inner")
    again = first.ask(outer, "http://a/inner")
    first.exchange()
    first.end(page, outer)
    first.exchange()
    assert (kept(client), held(first)) == (2, 1)
    assert again not in first.local
    assert first.start() is inner
    first.end(inner)
    first.exchange()
    assert (kept(client), held(first), len(first.local)) == (0, 0, 0)
    assert second.member.send(["http://a/outer", "http://a/inner"]).accepted


def test_a_page_that_goes_to_another_worker_takes_them_with_it(
    client: redis.Redis, process: NewProcess
) -> None:
    """What waits is dropped, what is in progress settles nothing, what it asks for is dropped: the
    other one has all of it, and its page waits for it."""
    first, second = process(), process()
    push(first, "http://a/page")
    page = first.fetch()
    running, waiting, over = (
        first.ask(page, f"http://a/{name}", priority=priority)
        for name, priority in (("running", 1), ("waiting", 0), ("over", 1))
    )
    first.exchange()
    assert (first.start(), first.start()) == (running, over)
    first.rejoin()
    assert [request in first.local for request in (running, waiting, over)] == [True, False, True]
    first.ask(over, "http://a/inner")
    first.end(over)
    first.exchange()
    page_again = second.fetch()
    for name in ("running", "waiting", "over"):
        second.ask(page_again, f"http://a/{name}")
    second.exchange()
    assert second.local.waiting == 3
    first.ask(running, "http://a/inner")
    first.end(page, running)
    first.exchange()
    assert (len(first.local), kept(client)) == (0, 3)
    second.end(page_again)
    fetched = []
    while (request := second.start()) is not None:
        fetched.append(request.url)
        second.ask(request, "http://a/inner")
        second.exchange()
        second.end(request)
    second.exchange()
    assert sorted(fetched) == [
        f"http://a/{name}" for name in ("inner", "over", "running", "waiting")
    ]
    assert (held(second), kept(client), len(second.local)) == (0, 0, 0)


def test_start_requests_of_a_worker_that_comes_back(
    client: redis.Redis, process: NewProcess
) -> None:
    """They are claimed again if nobody has them, and wait if somebody has."""
    first, second = process(), process()
    mine, others = (first.ask(None, f"http://a/{name}") for name in ("mine", "others"))
    first.exchange()
    first.member.rejoin()
    second.ask(None, "http://a/others")
    second.exchange()
    first.requests.rejoined()
    first.exchange()
    assert first.start() is mine
    assert first.start() is None
    assert others in first.local
    assert second.start() is not None
    first.end(mine)
    first.exchange()
    assert kept(client) == 1


def fetch_tree(process: Process) -> list[str]:
    """Fetch one request that is here, and ask for the two that come of it, up to 9. -> its URL"""
    process.requests.ask()
    process.exchange()
    request = process.start()
    if request is None:
        process.end()
        process.exchange()
        return []
    number = int(request.url[9:])
    for child in (2 * number, 2 * number + 1):
        if child < 10:
            process.ask(request, f"http://a/{child}")
    process.exchange()
    process.end(request)
    process.exchange()
    return [request.url[9:]]


@pytest.mark.parametrize("lost", [False, True])
def test_one_worker_goes_on_with_what_comes_of_a_start_request(
    process: NewProcess, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Of which that may be the whole crawl: after its worker has joined again it is the same one,
    or if another was granted it meanwhile, that one. Should that die, this one may have it."""
    monkeypatch.setattr(local_queue, "ASK_AGAIN", 0.0)
    first, second = process(), process()
    for worker in (first, second):
        worker.ask(None, "http://a/1")
        worker.requests.ask()
        worker.exchange()
    fetched = [*fetch_tree(first), *fetch_tree(first), *fetch_tree(second)]
    assert fetched == ["1", "2"]
    first.rejoin()
    if not lost:
        first.exchange()
    again = [number for _ in range(5) for number in fetch_tree(second)]
    assert again == (["1", "2", "3", "4", "5"] if lost else [])
    if lost:
        assert [fetch_tree(first), fetch_tree(first), len(first.local)] == [[], [], 1]
        second.die()
    there = [number for _ in range(12) for number in fetch_tree(first)]
    assert there == list("12346789" if lost else "3456789")  # 5 was over
    assert not first.local
    if not lost:
        assert fetch_tree(second) == [] and not second.local


def test_what_waits_when_a_worker_is_closed(client: redis.Redis, process: NewProcess) -> None:
    """Goes back before its page does."""
    first, second = process(), process()
    push(first, "http://a/page")
    page = first.fetch()
    outer = first.ask(page, "http://a/outer")
    first.exchange()
    first.start()
    first.ask(outer, "http://a/inner")
    first.exchange()
    first.engine.closing = True
    first.end(page, outer)
    first.exchange()
    assert (held(first), len(first.local), first.requests.lost) == (0, 0, 0)
    page = second.fetch()
    outer = second.ask(page, "http://a/outer")
    second.ask(page, "http://a/inner")
    second.exchange()
    assert second.local.waiting == 2


def test_what_nothing_asks_for_again_is_told(process: NewProcess) -> None:
    """A handler of ``spider_idle`` may not; every worker's ``start()`` does."""
    first = process()
    first.ask(None, "http://a/start")
    first.ask(None, "http://a/other", dont_filter=True)
    first.engine.is_of_start = lambda request: False
    first.ask(None, "http://a/idle")
    first.ask(None, "http://a/unfiltered", dont_filter=True)
    first.exchange()
    first.engine.closing = True
    first.end()
    assert first.requests.lost == 2


def test_a_failure_is_the_pages(client: redis.Redis, process: NewProcess) -> None:
    """Who requeues it has what failed again, and what had asked for that."""
    first = process()
    push(first, "http://a/page")
    page = first.fetch()
    outer = first.ask(page, "http://a/outer")
    first.exchange()
    first.start()
    inner = first.ask(outer, "http://a/inner")
    done = first.ask(outer, "http://a/done")
    first.exchange()
    first.start()
    first.start()
    first.in_progress.mark_failed(inner, Problem("download", "no answer"))
    first.end(page, outer, inner, done)
    finish = first.run.sessions[0].unsent[-1]
    assert (cast(Any, finish).ending, cast(Any, finish).detail) == (
        "dead",
        "<GET http://a/outer>, which stayed in its process: no answer",
    )
    first.exchange()
    assert kept(client) == 2
    assert list(cast(Any, client.hvals(KEPT % 0))) == [b"0", b"0"]


def test_children_on_other_shards_come_first(client: redis.Redis, process: NewProcess) -> None:
    """Nothing is settled before they have been taken."""
    config = replace(EXACT, shards=2)
    first = process(config)
    here, there = (
        next(slot for slot in map(str, range(20)) if shard_of(slot, 2) == shard)
        for shard in range(2)
    )
    push(first, f"http://{here}/page")
    page = first.fetch(here)
    local = first.ask(page, f"http://{here}/local")
    first.exchange()
    first.start()
    with first.of(local):
        first.outbox.take(Request(f"http://{there}/link"))
    first.end(page, local)
    first.member.exchange(shard=0)
    assert (kept(client), held(first)) == (1, 1)
    first.member.exchange(shard=1)
    first.exchange()
    assert (kept(client), held(first)) == (0, 0)


def test_one_that_asks_for_itself_without_end(process: NewProcess) -> None:
    """Keeps nothing of what was before it."""
    first = process()
    push(first, "http://a/page")
    request = first.fetch()

    def known() -> int:
        gc.collect()
        return sum(isinstance(thing, Page) for thing in gc.get_objects())

    before = known()
    for _ in range(20):
        following = first.ask(request, "http://a/again", dont_filter=True)
        assert first.start() is following
        first.end(request)
        request = following
    assert known() <= before + 2


@pytest.mark.parametrize("dont_filter", [False, True])
def test_too_large_a_body_is_not_copied(process: NewProcess, dont_filter: bool) -> None:
    """It is refused before a fingerprint is made, for which Scrapy copies it six times."""
    worker = process()
    request = Request("https://a/", method="POST", body=b"x" * 4_000_000, dont_filter=dont_filter)
    tracemalloc.start()
    try:
        with worker.of(None):
            assert not worker.outbox.take(request)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(request.body)
    assert worker.crawler.stats.get_value("redisq/refused/too_large") == 1


def test_a_long_chain_is_over_at_once(client: redis.Redis, process: NewProcess) -> None:
    first = process()
    push(first, "http://a/page")
    request = page = first.fetch()
    chain = []
    for number in range(200):
        request = first.ask(request, f"http://a/{number}")
        first.exchange()
        assert first.start() is request
        chain.append(request)
    first.end(page, *chain[:-1])
    assert len(first.local) == 200
    looks = 0

    class Counting(set[Request]):
        def __contains__(self, request: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(request)

    first.engine.in_progress = Counting(first.engine.in_progress)
    first.end()
    assert looks == 1, "those that wait for what came of them are looked at each time"
    first.end(chain[-1])
    first.exchange()
    assert (held(first), kept(client), len(first.local)) == (0, 0, 0)


def test_what_a_filter_of_others_has_let_through(process: NewProcess) -> None:
    """Goes on where its page is somebody else's by now: the filter knows it already."""
    first = process(foreign=True)
    push(first, "http://a/page")
    page = first.fetch()
    filtered = first.ask(page, "http://a/filtered")
    unfiltered = first.ask(page, "http://a/unfiltered", dont_filter=True)
    first.rejoin()
    late = first.ask(page, "http://a/late")
    assert [request in first.local for request in (filtered, unfiltered, late)] == [
        True,
        False,
        True,
    ]
    assert first.start() is filtered
    assert first.start() is late
    first.end(page, filtered, late)
    assert len(first.local) == 0


def test_a_row_whose_page_stays_here_can_wait(process: NewProcess) -> None:
    """For what it refers to, as often as others, at growing intervals."""
    first = process()
    push(first, "http://a/page")
    page = first.fetch()
    local = first.ask(page, "http://a/local", dont_filter=True)
    first.start()

    async def later() -> list[bool]:
        results = []
        for _ in range(3):
            results.append(first.in_progress.give_back_later(local, (0.01, 0.01)))
            first.end(local)
            if results[-1]:
                while first.start() is None:
                    await asyncio.sleep(0.01)
        return results

    assert asyncio.run(later()) == [True, True, False]
    first.end(page)
    assert len(first.local) == 0


def test_each_worker_has_its_part_of_the_start_requests(
    client: redis.Redis, process: NewProcess
) -> None:
    """Nobody claims more than it may hold, be it the first that asks; who has them dies, and others
    have the rest."""
    first, second = process(most=3), process(most=3)
    urls = [f"http://a/{number}" for number in range(10)]
    for each in (first, second):
        for url in urls:
            each.ask(None, url)
    first.exchange()
    assert kept(client) == 3
    assert second.work() == []  # the first three are another's; it is to ask for others
    assert second.work() == urls[3:6]
    assert second.work() == urls[6:9]
    begun = [request for _ in range(4) if (request := first.start())]
    assert [request.url for request in begun] == urls[:3]
    first.end(*begun)
    first.exchange()
    wait_until(lambda: [*first.work(), *second.work()] == urls[9:], 10, "the last one")
    wait_until(
        lambda: not (first.work() or second.work() or first.local or second.local), 20, "all"
    )
    assert kept(client) == 0


def test_start_requests_that_go_on_without_end(process: NewProcess) -> None:
    """Do not keep others from being started."""
    first = process(most=1)
    endless, another = (first.ask(None, f"http://a/{name}") for name in ("endless", "another"))
    first.exchange()
    assert first.start() is endless
    assert first.start() is None
    first.ask(endless, "http://a/endless", dont_filter=True)
    first.end(endless)
    first.requests.ask()
    first.exchange()
    first.start(), first.start()
    assert another in first.engine.in_progress


def test_what_became_of_one_is_forgotten_with_its_pages_lease(
    client: redis.Redis, process: NewProcess
) -> None:
    """A server that has lost its last second has lost what a kept request asked for, too: that it
    is over must not be said by a worker that is told to join again."""
    first = process()
    push(first, "http://a/page")
    page = first.fetch()
    local = first.ask(page, "http://a/local")
    first.exchange()
    assert first.start() is local
    before = {key: client.dump(key) for key in sorted(cast(Any, client.keys()))}
    with first.of(local):
        first.outbox.take(Request("http://a/link"))
    first.exchange()
    first.end(local)
    client.flushdb()
    for key, value in before.items():
        client.restore(key, 0, cast(Any, value))
    first.member.exchange(starting=True)
    first.requests.rejoined()
    first.outbox.forgotten()
    first.exchange()
    first.end(page)
    first.exchange()
    second = process()
    page = second.fetch()
    local = second.ask(page, "http://a/local")
    second.exchange()
    assert second.start() is local


def test_start_requests_that_are_left_keep_the_run_open(process: NewProcess) -> None:
    """Whoever starts the crawl again reads ``start()``: this one counts as not read to its end."""
    first = process()
    for number in range(2):
        first.ask(None, f"http://a/{number}")
    first.requests.ask()
    first.exchange()
    assert not first.requests.gave_back
    first.engine.closing = True
    first.end()
    assert first.requests.gave_back
    assert not first.local
    while first.run.waiting():
        first.member.exchange(seeded=False)
    assert not first.member.leave()
    second = process()
    assert second.member.joined.run == first.member.joined.run
    for number in range(2):
        second.ask(None, f"http://a/{number}")
    assert len(second.work()) == 2


def test_what_passes_links_that_wait_for_room_does_not_stand_for_them(process: NewProcess) -> None:
    """A page on one shard is not ended because something else than its links got through to the
    other one, which is full."""
    first = process(replace(EXACT, shards=2))
    here, there = (
        next(slot for slot in map(str, range(20)) if shard_of(slot, 2) == shard)
        for shard in range(2)
    )
    push(first, f"http://{here}/page", f"http://{there}/other")
    page, other = first.fetch(here), first.fetch(there)
    local = first.ask(other, f"http://{there}/local")
    first.exchange()
    assert first.start() is local
    full = first.run.sessions[1]
    with first.of(page):
        first.outbox.take(Request(f"http://{there}/link"))
    first.end(page, other, local)
    for _ in range(3):
        first.run.release()
        full.full = True
        for shard in range(2):
            first.member.exchange(shard=shard)
    assert len(full.unsent) == 1
    assert len(first.run.sessions[0].held) == 1
    full.full = False
    first.exchange()
    assert held(first) == 0


@pytest.mark.parametrize("root", [True, False])
def test_a_link_that_is_known_has_a_page_that_stands_for_it(
    process: NewProcess, *, root: bool
) -> None:
    """While Redis is full a page whose link was met before is done only if that waits with another
    page, which is fetched again where the worker dies; not where it comes of none, such as a
    handler of ``spider_idle``."""
    first = process()
    push(first, "http://a/0", "http://a/1")
    pages = [first.fetch(), first.fetch()]
    for asking in (pages[0] if root else None, pages[1]):
        with first.of(asking):
            first.outbox.take(Request("http://a/link"))
    first.end(pages[1])
    (session,) = first.run.sessions
    session.full = True
    first.run.release()
    first.member.exchange()
    assert (len(session.unsent), held(first)) == ((1, 1) if root else (3, 2))
    session.full = False
    first.exchange()
    assert held(first) == 1


def test_each_try_asks_for_the_same(client: redis.Redis, process: NewProcess) -> None:
    """A kept request that is tried again is not its former try: its unfiltered children are the
    same, and what went wrong with that is forgotten."""
    first = process()
    push(first, "http://a/page")
    page = first.fetch()
    local = first.ask(page, "http://a/local")
    first.exchange()
    assert first.start() is local

    async def tries() -> None:
        for _ in range(3):
            with first.of(local):
                first.outbox.take(Request("http://a/child", dont_filter=True))
            first.exchange()
            first.in_progress.mark_failed(local, Problem("spider_error", "once"))
            first.in_progress.give_back_later(local, (0.01,) * 5)
            first.end(local)
            while first.start() is None:
                await asyncio.sleep(0.01)

    asyncio.run(tries())
    first.end(page, local)
    assert cast(Any, first.run.sessions[0].unsent[-1]).ending == "done"
    assert client.llen("redisq:{books:0}:queue:a:0") == 1


def test_start_requests_that_wait_for_their_time_keep_no_other(process: NewProcess) -> None:
    """A worker has but so many of them at a time, of those that could be started."""
    first = process(most=2)

    async def crawl() -> list[str]:
        for number in range(2):
            meta = {"lock": threading.Lock(), "redisq_delay": 3_600}
            first.outbox.take(Request(f"http://a/{number}", meta=meta))
        first.ask(None, "http://b/now")
        return [*first.work(), *first.work()]

    assert asyncio.run(crawl()) == ["http://b/now"]


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_start_request_is_over_when_a_worker_that_came_back_has_sent_what_it_asked_for(
    client: redis.Redis, process: NewProcess, acknowledged: bool
) -> None:
    """To whichever shard: the server may have lost it, and before it is there the worker may die.
    What is no longer sent, as its page is void, is not taken for it."""
    first = process(replace(EXACT, shards=2))
    here, there = (
        next(slot for slot in map(str, range(20)) if shard_of(slot, 2) == shard)
        for shard in range(2)
    )
    push(first, f"http://{there}/page")
    local = first.ask(None, f"http://{here}/start")
    first.exchange()
    assert first.start() is local
    page = first.fetch(there)
    with first.of(local):
        first.outbox.take(Request(f"http://{there}/link"))
    if acknowledged:
        first.exchange()
    first.ask(page, f"http://{there}/void")
    first.rejoin()
    first.end(local)
    for _ in range(2):
        first.run.release()
        first.member.exchange(shard=0, starting=True)
    assert kept(client) == 1
    first.exchange()
    assert kept(client) == 0


@pytest.mark.parametrize("granted", [True, False])
def test_a_start_request_waits_for_its_time_also_when_its_worker_joins_again(
    process: NewProcess, granted: bool
) -> None:
    first = process()

    async def crawl() -> list[str]:
        for path, delay in (("now", 0), ("later", 3_600)):
            meta = {"lock": threading.Lock(), "redisq_delay": delay}
            first.outbox.take(Request(f"http://a/{path}", meta=meta))
        if granted:
            first.exchange()
        first.rejoin()
        return [*first.work(), *first.work()]

    assert asyncio.run(crawl()) == ["http://a/now"]


def test_nothing_is_started_while_a_sink_is_away(process: NewProcess) -> None:
    """Items would gather in memory: those of kept requests, too."""
    first = process()
    first.engine.downloads.by_slot = lambda: lambda slot: 0
    first.engine.downloads.handed_out = lambda request, slot: None
    loop = SimpleNamespace(run_session=first.run, waiting=first.run.waiting, wake=lambda: None)
    parts: dict[str, Any] = dict.fromkeys(field.name for field in fields(Parts))
    parts |= {
        "crawler": first.crawler,
        "settings": SimpleNamespace(scheduling="slot", max_outbox=100),
        "engine": first.engine,
        "exchange_loop": loop,
        "inbox": Inbox(2, 10, by_slot=True),
        "in_progress": first.in_progress,
        "local": first.local,
        "local_requests": first.requests,
    }
    worker = CrawlWorker(Parts(**parts))
    request = first.ask(None, "http://a/start")
    first.exchange()
    worker.sink_is_away(True)
    assert worker.next_request() is None
    worker.sink_is_away(False)
    assert worker.next_request() is request


def test_what_failed_is_over_when_its_dead_letter_is_there(
    client: redis.Redis, process: NewProcess
) -> None:
    """A full Redis takes no dead letter, and would take the end of the claim."""
    first = process()
    local = first.ask(None, "http://a/start")
    first.exchange()
    assert first.start() is local
    first.in_progress.mark_failed(local, Problem("spider_error", "always"))
    first.end(local)
    (session,) = first.run.sessions
    session.full = True
    first.member.exchange(starting=True)
    assert (kept(client), client.hlen("redisq:{books:0}:letters")) == (1, 0)
    session.full = False
    first.exchange()
    assert (kept(client), client.hlen("redisq:{books:0}:letters")) == (0, 1)


def test_a_start_request_that_its_workers_die_of(
    client: redis.Redis, process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second death on each worker has one such at a time, and what five have died with is
    a dead letter, as a stored request would be: it does not take down worker after worker."""
    monkeypatch.setattr(local_queue, "ASK_AGAIN", 0.0)

    def begin(*names: str) -> tuple[Process, list[str]]:
        worker = process()
        for name in names:
            worker.ask(None, f"http://a/{name}")
        worker.exchange()
        begun = [request.url[9:] for _ in names if (request := worker.start())]
        return worker, begun

    for _ in range(2):
        worker, begun = begin("deadly", "harmless")
        assert begun == ["deadly", "harmless"]
        worker.die()
    worker, begun = begin("deadly", "harmless", "new")
    assert begun == ["deadly", "new"]
    worker.die()
    worker, begun = begin("harmless", "deadly", "new")
    assert begun == ["harmless", "new"]
    worker.end(*worker.engine.in_progress)
    worker.requests.ask()
    worker.exchange()
    assert worker.start() is not None
    worker.die()
    worker, begun = begin("deadly")
    assert begun == ["deadly"]
    worker.die()
    worker, begun = begin("deadly", "harmless")
    assert begun == [] and not worker.local
    assert worker.run.suspects_to_claim() == 1
    worker.exchange()
    assert (kept(client), client.hlen("redisq:{books:0}:letters")) == (0, 1)


def test_a_suspect_that_has_begun_goes_on(
    process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its worker joins again, and may be granted no suspect just then."""

    def begin() -> tuple[Process, Request]:
        worker = process()
        worker.ask(None, "http://a/1")
        worker.exchange()
        begun = worker.start()
        assert begun is not None
        return worker, begun

    for _ in range(2):
        begin()[0].die()
    worker, begun = begin()
    monkeypatch.setattr(worker.run, "suspects_to_claim", lambda: 0)
    worker.rejoin()
    worker.requests.ask()
    worker.exchange()
    worker.ask(begun, "http://a/2")
    worker.exchange()
    worker.end(begun)
    worker.exchange()
    assert [number for _ in range(6) for number in fetch_tree(worker)] == list("24589")
    assert not worker.local


@pytest.mark.parametrize("stored", [False, True])
def test_deaths_count_while_nothing_new_comes(
    client: redis.Redis, process: NewProcess, stored: bool
) -> None:
    """Of a start request, or of a page, that all of a crawl comes of and that is not over before:
    its workers may be killed as often as it takes. Five deaths with nothing new between are its
    own fault."""

    if stored:
        push(process(), "http://a/0")

    def live(pages: int) -> None:
        worker = process()
        worker.ask(worker.fetch() if stored else None, "http://a/1")
        for number in range(2, pages + 2):
            worker.exchange()
            if (request := worker.start()) and number < 9:
                worker.ask(request, f"http://a/{number}")
        worker.exchange()
        worker.die()

    for pages in (2, 3, 4, 5, 6, 7, 8, 8, 8):
        live(pages)
    assert client.hlen("redisq:{books:0}:letters") == 0
    live(8)
    if not stored:
        live(0)
    assert client.hlen("redisq:{books:0}:letters") == 1


def test_an_end_is_something_new(client: redis.Redis, process: NewProcess) -> None:
    """Of one request that came of it: that one is not fetched again, whoever dies."""
    for _ in range(6):
        worker = process()
        start = worker.ask(None, "http://a/start")
        worker.exchange()
        assert worker.start() is start
        for number in range(7):
            worker.ask(start, f"http://a/{number}")
        worker.exchange()
        child = worker.start()
        assert child is not None
        worker.end(child)
        worker.exchange()
        worker.die()
    assert kept(client) == 2


def test_a_stored_request_is_something_new(client: redis.Redis, process: NewProcess) -> None:
    """If the dupefilter did not know it. What comes of the others is not known by anything."""
    for _ in range(7):
        worker = process()
        start = worker.ask(None, "http://a/start")
        worker.exchange()
        assert worker.start() is start
        link, root = Request("http://a/link"), worker.in_progress.asking(start)
        assert root is not None
        worker.requests.stored(link, root)
        worker.requests.accepted(link)
        worker.exchange()
        worker.die()
    assert client.hlen("redisq:{books:0}:letters") == 0


def test_what_was_new_is_told_again(client: redis.Redis, process: NewProcess) -> None:
    """When its worker joins again, as the server may have lost it."""
    worker = process()
    start = worker.ask(None, "http://a/start")
    worker.exchange()
    (field,) = client.hkeys(KEPT % 0)
    assert worker.start() is start
    for number in range(2):
        worker.ask(start, f"http://a/{number}")
        worker.exchange()
        deaths, _, rest = client.hget(KEPT % 0, field).partition(b" ")
        assert deaths == b"0"
        client.hset(KEPT % 0, field, b"3 " + rest)
        worker.rejoin()


def test_only_deaths_count(client: redis.Redis, process: NewProcess) -> None:
    """Not that a worker is stopped, or joins again."""
    for _ in range(6):
        worker = process()
        request = worker.ask(None, "http://a/start")
        worker.exchange()
        for _ in range(6):
            worker.rejoin()
            worker.exchange()
        assert request in worker.local
        worker.engine.closing = True
        worker.requests.collect_ended()
        worker.exchange()
        worker.member.leave()
    assert worker.run.suspects_to_claim() == 1
    assert client.hvals(KEPT % 0) == [b"0"]


def test_a_worker_that_joins_again_twice_has_not_died(
    client: redis.Redis, process: NewProcess
) -> None:
    """The second time before it could say what it has begun."""
    worker = process()
    request = worker.ask(None, "http://a/start")
    worker.requests.ask()
    worker.exchange()
    assert worker.start() is request
    worker.rejoin()
    worker.rejoin()
    worker.exchange()
    assert [bytes(value)[:2] for value in client.hvals(KEPT % 0)] == [b"0 "]  # type: ignore[union-attr]


def test_links_that_are_safe_are_not_kept() -> None:
    """What comes of one page may be the whole crawl."""
    page = Page(Lease("1", "a", 0, 0, b""), cast(Any, None))
    unsafe = Enqueue("b", 0, b"", None, link=Link())
    page.keep_links([unsafe])
    for _ in range(100):
        page.keep_links([Enqueue("b", 0, b"", None, link=Link(safe=True)) for _ in range(100)])
    assert len(page.links) < 2_000
    assert unsafe in page.links
