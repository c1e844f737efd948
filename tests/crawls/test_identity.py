"""Who a request is: marks, repeats, and what the frontier makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis
from scrapy import Spider
from scrapy.http import Request

from lab.servers import wait_until
from lab.site import Answer, Site
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Letter
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.serialization.identity import (
    NO_MARKS,
    Repeats,
    marks,
    of_child,
    of_nowhere,
    of_start,
)
from tests.harness.crawl import Run, constants, finish
from tests.harness.shard import read_shard
from tests.harness.worker import NAME, Worker, as_stored, ask, member

URL = "http://a.example/"


class Callbacks(Spider):
    name = "callbacks"

    def parse_other(self, response: Any) -> None: ...


class TestMarks:
    @pytest.mark.parametrize(
        "options",
        [
            {"cb_kwargs": {"login": "a"}},
            {"cookies": {"user": "a"}},
            {"cookies": [{"name": "user", "value": "a"}]},
            {"meta": {"cookiejar": 0}},
            {"meta": {"job": None}},
            {"headers": {"X-Key": "a"}},
            {"callback": Callbacks().parse_other},
        ],
    )
    def test_what_people_make_requests_differ_by(self, options: dict[str, Any]) -> None:
        """Each of them is a mark, alike in equal requests."""
        assert marks(Request(URL, **options)) == marks(Request(URL, **options)) != NO_MARKS

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"callback": Callbacks().parse},
            {"headers": {"User-Agent": "a", "Referer": URL, "Accept": "*", "Accept-Language": "x"}},
            {"meta": {"proxy": "http://p", "depth": 3, "retry_times": 2, "redirect_urls": [URL]}},
            {"priority": 3, "dont_filter": True, "flags": ["x"]},
        ],
    )
    def test_what_is_drawn_or_written_by_scrapy(self, options: dict[str, Any]) -> None:
        """None of that is a mark."""
        assert marks(Request(URL, **options)) == NO_MARKS

    def test_order_does_not_matter(self) -> None:
        """Of the keys of dicts, the members of sets, and the headers."""
        one = Request(
            URL, cb_kwargs={"a": {"x": 1, "y": {1, 2, 3}}, "b": 2}, headers={"P": "", "Q": ""}
        )
        two = Request(
            URL, headers={"Q": "", "P": ""}, cb_kwargs={"b": 2, "a": {"y": {3, 2, 1}, "x": 1}}
        )
        assert marks(one) == marks(two)

    def test_whatever_is_in_it(self) -> None:
        """Neither recursion nor size nor surrogates nor objects stop it."""
        endless: list[Any] = []
        endless.append(endless)
        shared: list[Any] = [0]
        for _ in range(40):
            shared = [shared, shared]
        for value in (endless, shared, "\ud800", object(), lambda: None):
            assert marks(Request(URL, meta={"v": value})) != NO_MARKS
        assert marks(Request(URL, meta={"v": object()})) == marks(
            Request(URL, meta={"v": object()})
        )


class TestIdentities:
    def test_named(self) -> None:
        """meta["redisq_id"] stands for marks and order."""

        def named(number: int, **more: Any) -> Request:
            return Request(URL, meta={"redisq_id": number, **more})

        repeats = Repeats()
        assert of_start(b"f", named(7), repeats) == of_start(b"f", named(7, other=1), repeats)
        assert of_start(b"f", named(7), repeats) != of_start(b"f", named(8), repeats)
        assert of_child(b"p", b"f", named(7), repeats) == of_child(b"p", b"f", named(7), repeats)
        assert of_nowhere(b"f", named(7)) == of_nowhere(b"f", named(7, other=1))
        assert len({of_nowhere(f, named(n)) for f in (b"f", b"g") for n in (7, 8)}) == 4


# The protocol


def entries(worker: Worker, number: int = 100) -> list[str]:
    return sorted(lease.entry.decode() for lease in worker.claim(number))


class TestUnfiltered:
    @pytest.mark.parametrize("asked", [calls.STARTS, calls.RECENT])
    def test_identity_is_asked_about(self, client: redis.Redis, asked: int) -> None:
        """What goes ahead of its page, or has none, is added once for each identity."""
        worker, other = member(client), member(client)
        for one in (worker, other, worker):
            for identity in (b"1" * 16, b"2" * 16, b"f" * 20):
                one.enqueue("a", filtered=False, identity=identity, asked=asked)
            one.exchange()
        assert entries(worker) == ["a"] * 3
        # One set does not know of the other.
        asked = calls.STARTS + calls.RECENT - asked
        worker.enqueue("b", filtered=False, identity=b"1" * 16, asked=asked)
        worker.exchange()
        assert entries(worker) == ["b"]

    def test_recent_is_bounded(self, client: redis.Redis) -> None:
        """The older of two sets goes when the newer is full; what came last is known."""
        prefix = key_prefix(NAME, 0) + "seen:recent:"
        worker = member(client)
        worker.enqueue("old", filtered=False, identity=b"o" * 16, asked=calls.RECENT)
        worker.exchange()
        fill = "for i = 1, 499999 do redis.call('SADD', KEYS[1], i) end"
        client.eval(fill, 1, prefix + "0")
        for identity, expected in ((b"n" * 16, 1), (b"m" * 16, 1), (b"n" * 16, 0), (b"o" * 16, 0)):
            worker.enqueue("x", filtered=False, identity=identity, asked=calls.RECENT)
            assert len(ask(worker, 0).accepted) == expected
        assert client.scard(prefix + "1") == 1


def test_one_letter_for_each(client: redis.Redis) -> None:
    """A request that cannot be kept is one dead letter, whoever says so and how often. There is
    nothing in it to be fetched by a requeue, and it stays."""
    for worker in (member(client), member(client)):
        for identity in (b"1" * 16, b"2" * 16, b"1" * 16):
            worker.sessions[0].add(Letter("host", 0, identity, "too_large", "it is", "error", 0))
        worker.exchange()
    assert execute(client, admin.requeue(NAME, 0, as_stored(client))) == 0
    real = read_shard(client, NAME, 0)
    real.check()
    assert (real.count("dead"), real.count("created"), real.count("finished")) == (2, 2, 2)
    assert real.letters == {"1", "2"}


# Crawls


def answers(path: str) -> Answer:
    return Answer("<html></html>")


EACH = Counter({("user", "0"): 1, ("user", "1"): 1, ("jar", 0): 1, ("jar", 1): 1, ("", ""): 2})
EACH.update([("key", "0"), ("key", "1"), ("login", "0"), ("login", "1")])


def served(items: list[dict[str, Any]]) -> Counter[tuple[str, Any]]:
    def difference(item: dict[str, Any]) -> tuple[str, Any]:
        for name in ("user", "jar", "key", "login"):
            if item[name] not in (None, ""):
                return name, item[name]
        return "", ""

    return Counter(map(difference, items))


def test_alike_of_start(crawl: Run) -> None:
    """Start requests that differ in anything but their fingerprint are each fetched once, and the
    URL itself as well, for which a link may ask."""
    with Site(answers) as site:
        workers = crawl.fleet(2, "alike", site, shuffled=1, plain=1)
        finish(workers)
        items = [item for worker in workers for item in worker.items()]
        assert served(items) == EACH + Counter([("", "")])
        assert all(item["is_start"] is True for item in items)
        assert site.counts() == {"/alike": 11}


def test_start_of_each_worker(crawl: Run) -> None:
    """With REDISQ_SAME_START = False each of two workers fetches its own."""
    with Site(answers) as site:
        workers = crawl.fleet(2, "alike", site, {"REDISQ_SAME_START": False})
        finish(workers)
        items = [item for worker in workers for item in worker.items()]
        assert served(items) == EACH + EACH


def test_alike_of_a_page(crawl: Run) -> None:
    """The same of a page that is fetched again, because its worker was killed when they had gone
    ahead of its end. The site fails once then, and gives a cookie that the page's request has from
    then on."""

    def page(path: str) -> Answer:
        fails = path == "/page" and site.counts()["/page"] == 2
        return Answer("", 500, {"Set-Cookie": "n=1"}) if fails else answers(path)

    with Site(page) as site:
        settings = {"REDISQ_LEASE_TTL": 1, "REDISQ_SAME_ARGUMENTS": False}
        killed = crawl("alike", site, settings, source="page", seconds=4)
        wait_until(lambda: "/alike" in site.counts(), 20, "they have gone ahead")
        killed.kill()
        worker = crawl("alike", site, settings, source="page", shuffled=1)
        assert worker.wait().reason == "finished"
        # Those that the killed worker had given out are fetched again.
        each = EACH + Counter([("", "")])
        assert served(worker.items()) | each == each
        assert site.counts()["/page"] == 3


def test_large_start_requests_starve_nobody(crawl: Run) -> None:
    """``start()`` waits while too much may have to be sent again; pages go on."""
    with Site(lambda path: Answer("", delay=0.05)) as site:
        few = constants({"scrapy_redisq.frontier.run_session.MAX_KEPT_BYTES": 10_000_000})
        worker = crawl("heavy_start", site, {"CONCURRENT_REQUESTS": 1, **few})
        for number in range(1, 16):
            wait_until(lambda n=number: len(site.hits) >= n, 20, f"page {number} of 15")
        worker.kill()
