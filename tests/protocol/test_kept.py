"""What becomes of requests that stay in their process, step by step: they are held by the page that
asked for them, and go with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from scrapy import Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Request
from scrapy.utils.test import get_crawler

from scrapy_redisq._scrapy.output import current_page
from scrapy_redisq.dupefilter import ExactDupeFilter
from scrapy_redisq.frontier.operations import Enqueue, Link
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.outbox import Outbox
from scrapy_redisq.worker.page import KeptPage, Output, Page, Problem
from tests.harness.worker import EXACT, NAME, OneServer, Worker


class Books(Spider):
    name = "books"


class Process:
    """A worker whose requests are started and ended by hand, on a real frontier."""

    def __init__(self, client: redis.Redis, *, foreign: bool = False) -> None:
        self.member = Worker(client, NAME, EXACT, suspect_from=2, max_deliveries=5)
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
        self.run = RunSession(nothing, Terms(NAME, EXACT, 60.0, 5, 100, 10_000), OneServer())
        self.run.sessions = self.member.sessions
        self.run.seen, self.run.joined = self.member.seen, self.member.joined
        self.in_progress = InProgress(crawler.request_fingerprinter.fingerprint)  # type: ignore[union-attr]
        filter_class: Any = RFPDupeFilter if foreign else ExactDupeFilter
        self.kept = KeptRequests(self.engine, self.run, crawler.stats)
        self.outbox = Outbox(
            crawler,
            RedisqSettings.read(crawler.settings),
            engine=self.engine,
            serializer=Serializer(crawler.spider, max_bytes=10_000),
            dupefilter=filter_class.from_crawler(crawler),
            in_progress=self.in_progress,
            kept=self.kept,
            run_session=self.run,
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
            self.member.exchange(starting=True)

    def fetch(self) -> Request:
        """Begin with a page of the frontier."""
        (lease,) = self.member.claim(1)
        request = Request(lease.entry.decode())
        self.in_progress.begin(Page(request, lease, self.run.shard_of(lease.slot)))
        self.engine.in_progress.add(request)
        return request

    def start(self) -> Request | None:
        """Begin with the next request that stays here."""
        page = self.kept.next(lambda slot: 0, lambda slot: None)
        if page is None:
            return None
        self.in_progress.begin(page)
        self.engine.in_progress.add(page.request)
        return page.request

    def end(self, *requests: Request) -> None:
        """Scrapy is done with them."""
        self.engine.in_progress -= set(requests)
        for _ in range(2):  # the page that holds another one ends after it
            self.kept.drop()
            for page in self.in_progress.end(self.engine.in_progress, closing=False):
                if isinstance(page, KeptPage):
                    self.kept.ended(page)
                    continue
                finish = page.finish()
                self.kept.page_ended(page, done=finish.ending == "done" and page.is_held)
                page.session.finish(finish, page.output.links)

    def rejoin(self) -> None:
        """Go on as a new worker: all leases are void."""
        self.member.rejoin()
        self.kept.forgotten()


def held(process: Process) -> int:
    return len(process.run.sessions[0].held)


def push(process: Process, *urls: str) -> None:
    for url in urls:
        process.member.enqueue(url, slot=url.split("/")[2])
    process.exchange()


def test_what_was_asked_for_is_known_while_its_page_is_not_given_up(client: redis.Redis) -> None:
    """And after it, if that was done; not where history was lost."""
    first = Process(client)
    push(first, "http://a/done", "http://a/dead", "http://a/other")
    done, dead, other = first.fetch(), first.fetch(), first.fetch()
    kept = [first.ask(page, f"{page.url}/kept") for page in (done, dead)]
    for page in (done, dead):
        assert first.ask(other, f"{page.url}/kept") not in first.kept
    assert [first.start(), first.start()] == kept
    first.in_progress.mark_failed(dead, Problem("spider_error", "always"))
    first.end(done, dead, *kept)
    assert first.ask(other, "http://a/done/kept") not in first.kept
    assert first.ask(other, "http://a/dead/kept") in first.kept
    first.rejoin()
    push(first, "http://a/later")
    assert first.ask(first.fetch(), "http://a/done/kept") in first.kept


def test_what_waits_when_a_worker_is_closed(client: redis.Redis) -> None:
    """Goes back before its page does."""
    first, second = Process(client), Process(client)
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
    assert (held(first), len(first.kept), first.kept.lost) == (0, 0, 0)
    page = second.fetch()
    outer = second.ask(page, "http://a/outer")
    second.ask(page, "http://a/inner")
    second.exchange()
    assert second.kept.waiting == 2


def test_what_nothing_asks_for_again_is_told(client: redis.Redis) -> None:
    """A handler of ``spider_idle`` may not; every worker's ``start()`` does."""
    first = Process(client)
    first.ask(None, "http://a/start")
    first.ask(None, "http://a/other", dont_filter=True)
    first.engine.is_of_start = lambda request: False
    first.ask(None, "http://a/idle")
    first.ask(None, "http://a/unfiltered", dont_filter=True)
    first.exchange()
    first.engine.closing = True
    first.end()
    assert first.kept.lost == 2


def test_a_failure_is_the_pages(client: redis.Redis) -> None:
    """Who requeues it has all that it held again."""
    first = Process(client)
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
    finish = first.run.sessions[0].outgoing._unsent[-1]
    assert (cast(Any, finish).ending, cast(Any, finish).detail) == (
        "dead",
        "<GET http://a/inner>, which stayed in its process: no answer",
    )
    first.exchange()


def test_a_failure_that_is_no_pages(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A start request that stays here is a dead letter itself, and the log tells of it."""
    first = Process(client)
    start = first.ask(None, "http://a/start")
    first.start()
    first.in_progress.mark_failed(start, Problem("item", "no row"))
    first.end(start)
    text = "Dead letter (item): <GET http://a/start> (callback parse): no row"
    assert [record.getMessage() for record in caplog.records].count(text) == 1
    assert first.crawler.stats.get_value("redisq/dead/item") == 1  # type: ignore[union-attr]
    first.exchange()
    assert client.zcard(f"redisq:{{{NAME}:0}}:dead") == 1


def test_what_a_filter_of_others_has_let_through(client: redis.Redis) -> None:
    """Goes on where its page is somebody else's by now: the filter knows it already."""
    first = Process(client, foreign=True)
    push(first, "http://a/page")
    page = first.fetch()
    filtered = first.ask(page, "http://a/filtered")
    unfiltered = first.ask(page, "http://a/unfiltered", dont_filter=True)
    first.rejoin()
    first.end()
    late = first.ask(page, "http://a/late")
    goes_on = [request in first.kept for request in (filtered, unfiltered, late)]
    assert goes_on == [True, False, True]
    assert first.start() is filtered
    assert first.start() is late
    first.end(page, filtered, late)
    assert len(first.kept) == 0


def test_start_requests_that_are_left_keep_the_run_open(client: redis.Redis) -> None:
    """Whoever starts the crawl again reads ``start()``: this one counts as not read to its end."""
    first = Process(client)
    for number in range(2):
        first.ask(None, f"http://a/{number}")
    first.exchange()
    assert not first.kept.left_start
    first.engine.closing = True
    first.end()
    assert first.kept.left_start
    assert not first.kept
    while first.run.waiting():
        first.member.exchange(seeded=False)
    assert not first.member.leave()
    second = Process(client)
    assert second.member.joined.run == first.member.joined.run
    for number in range(2):
        second.ask(None, f"http://a/{number}")
    assert [second.start() is None for _ in range(3)] == [False, False, True]


def test_links_that_are_safe_are_not_kept() -> None:
    """What comes of one page may be the whole crawl."""
    output = Output()
    unsafe = Enqueue("b", 0, b"", None, link=Link())
    output.keep_link(unsafe)
    for _ in range(10_000):
        output.keep_link(Enqueue("b", 0, b"", None, link=Link(safe=True)))
    assert len(output.links) < 2_000
    assert unsafe in output.links
