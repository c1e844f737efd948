"""Slots in trouble, which the whole fleet leaves alone: judging answers, protocol, and crawls."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from scrapy.http import Request, Response

from lab.servers import wait_until
from lab.site import Answer, Site
from scrapy_redisq.frontier import shard_session
from scrapy_redisq.frontier.operations import DownloadResult, Lease
from scrapy_redisq.serialization.entry_format import back_offs, forget_retries, with_back_offs
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.page import Page
from scrapy_redisq.worker.politeness.gate import DownloadGate
from scrapy_redisq.worker.politeness.judge import Judge
from tests.harness.crawl import Run
from tests.harness.worker import NAME, Make, Worker, ask, downloaded

# Judging


@pytest.fixture
def judge() -> Judge:
    return Judge([429, 503], (OSError,))


def answer(status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response("http://a.example/", status=status, headers=named)


def judged(judge: Judge, result: Any) -> DownloadResult | None:
    return judge.judge("a.example", Request("http://a.example/"), result, 0.0)


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (answer(), False),
        (answer(404), False),
        (answer(500), None),
        (answer(429), True),
        (answer(503), True),
        (ConnectionRefusedError(), True),
    ],
)
def test_what_means_trouble(judge: Judge, result: Any, failed: bool | None) -> None:
    """The codes of the setting and connection errors; other errors of a server say nothing."""
    outcome = judged(judge, result)
    assert outcome is not None
    assert outcome.failed is failed
    assert judged(judge, KeyError()) is None


def test_entries_count_back_offs() -> None:
    """Up to 15; the request stays the same, and a requeued one begins anew."""
    serializer = Serializer(None, max_bytes=10_000)
    fresh = serializer.dumps(Request("http://a.example/", meta={"n": 1}))
    for number in range(20):
        entry = with_back_offs(fresh, number)
        assert back_offs(entry) == min(number, 15)
        assert serializer.loads(entry).meta == {"n": 1}
    assert forget_retries(entry) == fresh
    assert forget_retries(fresh) is None
    meta = {"n": 1, "retry_times": 2, "redisq_wanted_again": 1}  # as its callback asked for one
    assert forget_retries(serializer.dumps(Request("http://a.example/", meta=meta))) == fresh


def test_what_is_sent_back(judge: Judge) -> None:
    """A request of the frontier that was refused, as often as that may be; what the spider wants to
    see at once, what comes from elsewhere, and hosts that never answered are not. Without retries
    (RETRY_ENABLED) nothing is."""
    pages, nothing = InProgress(lambda request: b""), cast(Any, None)
    slots = DownloadGate(nothing, nothing, nothing, pages, judge, nothing, download_timeout=60)
    serializer = Serializer(None, max_bytes=10_000)

    def sent_back(result: Any, number: int = 0, **meta: Any) -> bool:
        request = Request("http://a.example/", meta=meta)
        entry = with_back_offs(serializer.dumps(request), number)
        pages.begin(Page(request, Lease("1.1", "a.example", 0, 0, entry), nothing))
        return slots.send_back(request, result)

    assert sent_back(answer(503), 9)
    assert not sent_back(answer(503), 10)
    assert sent_back(answer(503, Retry_After="3"), 9)
    assert not sent_back(answer(503), dont_retry=True)
    assert not sent_back(answer(500))
    assert not slots.send_back(Request("http://a.example/"), answer(503))
    assert not sent_back(ConnectionRefusedError())
    first = judged(judge, answer())
    assert first is not None
    judge.is_news(first)
    assert sent_back(ConnectionRefusedError())
    assert not sent_back(ConnectionRefusedError(), 10)
    judge.retries = False
    assert not sent_back(answer(429, Retry_After="3"))
    assert not sent_back(ConnectionRefusedError())


def test_a_slot_that_a_middleware_answers_is_trusted(crawl: Run) -> None:
    """As with an HTTP cache no download of it begins: its pages go side by side all the same."""
    settings = {"DOWNLOADER_MIDDLEWARES": '{"crawls.spiders.tools.Answers": 700}'}
    with Site(lambda path: None) as site:
        worker = crawl("answered_at_once", site, settings=settings).wait()
    assert site.hits == []
    assert max(item["at_once"] for item in worker.items()) > 1


def test_hosts_that_may_hang_leave_places_to_others(judge: Judge) -> None:
    """Of a slot that has never answered here one request is downloaded at a time. All of these
    slots, and those that have failed last, leave half of the places to slots that answer and
    wait."""
    pages, nothing = InProgress(lambda request: b""), cast(Any, None)
    number: dict[str, int] = {}
    downloads = SimpleNamespace(by_slot=lambda: lambda slot: number.get(slot, 0), places=8)
    inbox: Inbox[Any] = Inbox(1, 100, by_slot=True)
    gate = DownloadGate(
        cast(Any, SimpleNamespace(downloads=downloads)),
        *(inbox, nothing, pages, judge, nothing),
        download_timeout=60,
    )

    def wait(slot: str) -> None:
        inbox.add(Lease("1.1", slot, 0, 0, b""), nothing)

    def begin(slot: str) -> None:
        number[slot] = number.get(slot, 0) + 1
        request = Request(f"http://{slot}/")
        pages.begin(Page(request, Lease("1.1", slot, 0, 0, b""), nothing))

    def end(slot: str, result: Any) -> None:
        told = judge.judge(slot, Request(f"http://{slot}/"), result, 0.0)
        assert told is not None
        judge.is_news(told)

    def may_begin(slot: str) -> bool:
        return gate.downloading()(slot) is not None

    wait("well")
    for last, is_new in ((None, True), (answer(), False), (TimeoutError(), False)):
        if last:
            end("well", last)
        number["well"] = 0
        assert may_begin("well")
        number["well"] = 1
        assert may_begin("well") is not is_new
    end("well", answer())
    hanging = [f"hangs {n}" for n in range(9)]
    for slot in hanging:
        wait(slot)
    for slot in hanging[:7]:
        assert may_begin(slot)
        begin(slot)
    assert not may_begin(hanging[7]), "a place is left to the slot that waits"
    assert may_begin("well")
    for n in range(10):
        end(f"well {n}", answer())
        wait(f"well {n}")
    for slot in hanging[4:7]:
        pages.end({one for one in pages._pages if slot not in one.url}, closing=False)
    assert not may_begin(hanging[7]), "half of the places are left to those that wait"
    inbox.clear()
    wait(hanging[7])
    assert may_begin(hanging[7]), "nothing else waits"


# Protocol


def state(client: redis.Redis, slot: str = "host") -> dict[str, str]:
    found = client.hgetall(f"redisq:{{{NAME}:0}}:slot:{slot}")
    return {name.decode(): value.decode() for name, value in found.items()}


def test_pauses_grow_until_a_success(
    member: Make, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures in a row double the pause, up to the longest. The jitter is half of the pause. A
    success of what was begun before the last failure says nothing; a later one ends the trouble."""
    monkeypatch.setattr(shard_session, "LONGEST_PAUSE", 10.0)
    worker = member()
    worker.send(["/0"])
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10):
        downloaded(worker)
        began = time.monotonic()
        ask(worker, 0)
        seconds, micros = client.time()
        left = int(state(client).get("parked", 0)) / 1e6 - seconds - micros / 1e6
        assert left <= pause
        assert left + time.monotonic() - began >= pause * 0.45
        client.hset(f"redisq:{{{NAME}:0}}:slot:host", "parked", 0)
    downloaded(worker, False, begun=began - 1)
    ask(worker, 0)
    assert state(client)["fails"] == "10"
    downloaded(worker, False)
    ask(worker, 0)
    assert "fails" not in state(client)


def test_what_began_before_counts_once(worker: Worker, client: redis.Redis) -> None:
    """Downloads that were in progress when one failed say nothing new when they fail, too."""
    began = time.monotonic() - 0.1
    for _ in range(5):
        downloaded(worker, begun=began)
        ask(worker, 0)
    assert state(client)["fails"] == "1"
    downloaded(worker, None)
    ask(worker, 0)
    assert (state(client)["fails"], state(client)["status"]) == ("1", "500")


def test_one_request_is_tried(member: Make) -> None:
    """After the pause one worker may start one request, and nobody another one before it has
    succeeded."""
    first, second = member(), member()
    first.send(f"/{n}" for n in range(20))
    for _ in range(6):
        downloaded(first)
        ask(first, 0)
        time.sleep(0.001)
    reply = wait_until(lambda: (r := ask(second)).leases and r, 20, "a try")
    assert len(reply.leases) == 1
    ((*_, tokens, _, trouble, _),) = reply.turns
    assert (tokens, trouble) == (1, 1)
    for _ in range(20):
        assert ask(first).leases == []
    downloaded(second, False)
    ask(second, 0)
    assert len(ask(first).leases) > 1


def test_a_crawl_waits_for_what_is_not_set_aside(member: Make, client: redis.Redis) -> None:
    """A slot that is set aside may have no requests left; one that asked for peace is awaited."""
    worker = member(give_up=2)
    for slot in ("down", "busy"):
        worker.send(["/" + slot], slot=slot)
    for lease in ask(worker).leases:
        if lease.slot == "down":
            worker.finish(lease, "dead", reason="retries")
        else:
            worker.finish(lease, "backed_off", entry=lease.entry)
            downloaded(worker, slot="busy", retry_after=60.0)
    for _ in range(2):
        downloaded(worker, slot="down")
        ask(worker, 0)
        time.sleep(0.001)
    assert client.zrange(f"redisq:{{{NAME}:0}}:aside", 0, -1) == [b"down"]
    assert ask(worker).stuck is None


def test_backed_off_goes_to_the_front(worker: Worker) -> None:
    """With its new entry, and no delivery counted; from the second failure on others are tried
    before it."""
    worker.send(f"/{n}" for n in range(4))
    (lease,) = ask(worker, 1).leases
    assert isinstance(lease, Lease)
    for expected, entry in ((b"first", b"first"), (b"/1", b"second")):
        worker.finish(lease, "backed_off", entry=entry)
        downloaded(worker)
        ask(worker, 0)
        reply = wait_until(lambda: (r := ask(worker, 1)).leases and r, 20, "the pause is over")
        (lease,) = reply.leases
        assert (lease.entry, lease.deliveries) == (expected, 0)


# Crawls


def test_without_retries_each_request_is_tried_once(crawl: Run) -> None:
    """As in Scrapy: also the only one of its host, one that is refused, and after it the others."""
    refused = {"/1": Answer("", 503), "/2": Answer("", 429, {"Retry-After": "1"})}
    refused["/3"] = Answer("x", delay=60)
    with Site(lambda path: refused.get(path, "x")) as site:
        settings = {"DOWNLOAD_TIMEOUT": 0.5, "RETRY_ENABLED": False, "CONCURRENT_REQUESTS": 1}
        worker = crawl("hosts", None, settings, sites=site.urls(1), pages=6).wait()
        assert worker.reason == "finished"
        assert site.counts() == dict.fromkeys((f"/{n}" for n in range(6)), 1)
    assert "redisq/sent_back" not in worker.stats


def test_a_url_that_hangs_while_others_are_answered(crawl: Run) -> None:
    """It is fetched as often as RETRY_TIMES allows, no more."""
    with Site(lambda path: Answer("x", delay=60 if path == "/3" else 0.1)) as site:
        settings = {
            "DOWNLOAD_TIMEOUT": 1,
            "RETRY_TIMES": 1,
            "REDISQ_RETRY_DELAYS": "0",
            "CONCURRENT_REQUESTS": 2,
        }
        worker = crawl("hosts", None, settings, sites=site.urls(1), pages=20).wait()
        assert worker.reason == "finished"
        assert site.counts()["/3"] == 2


def test_a_slot_that_fails_is_tried_beside_what_hangs(crawl: Run) -> None:
    """A page that hangs was begun before its slot failed: it keeps no other from being the next
    try, also where the slot fails again soon after."""
    failing = ("/5", "/12")
    others_done, failed = threading.Event(), Counter[str]()

    def page(path: str) -> Answer:
        if path == "/1":
            return Answer("x", until=others_done)
        if path in failing and not failed[path]:
            failed[path] += 1
            return Answer(status=503)
        if len(site.counts()) == 20:
            others_done.set()
        return Answer("x")

    with Site(page) as site:
        settings = {"DOWNLOAD_TIMEOUT": 10, "CONCURRENT_REQUESTS": 2}
        worker = crawl("hosts", None, settings, sites=site.urls(1), pages=20).wait()
        assert worker.reason == "finished"
        assert site.counts() == {f"/{n}": 1 + (f"/{n}" in failing) for n in range(20)}
