"""The dupefilters by themselves, as DUPEFILTER_CLASS under Scrapy's own scheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from lab.proxy import Proxy
from lab.servers import RedisServer
from lab.site import Site
from scrapy_redisq.dupefilter import BloomDupeFilter, ExactDupeFilter, RedisqDupeFilter
from scrapy_redisq.errors import ServerUnreachable, SettingError
from tests.harness.crawl import Run

both = pytest.mark.parametrize("kind", [BloomDupeFilter, ExactDupeFilter])


class BooksSpider(Spider):
    name = "books"


def build(kind: type[RedisqDupeFilter], url: str, **settings: Any) -> RedisqDupeFilter:
    crawler = get_crawler(BooksSpider, {"REDISQ_URL": url, **settings})
    crawler.spider = crawler._create_spider(BooksSpider.name)
    return kind.from_crawler(crawler)


@contextmanager
def opened(kind: type[RedisqDupeFilter], url: str, **settings: Any) -> Iterator[RedisqDupeFilter]:
    dupefilter = build(kind, url, **settings)
    dupefilter.open()
    try:
        yield dupefilter
    finally:
        dupefilter.close("finished")


def stat(dupefilter: RedisqDupeFilter, name: str) -> int:
    return int(dupefilter._crawler.stats.get_value(name, 0))  # type: ignore[union-attr]


@pytest.mark.servers("ends")
@both
def test_seen_by_any_process(each_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """A request is new once, for all processes together; the keys are where the docs say."""
    with (
        opened(kind, each_server.url) as one,
        opened(kind, each_server.url) as two,
        each_server.client() as client,
    ):
        assert one.request_seen(Request("http://a/1")) is False
        assert one.request_seen(Request("http://a/1")) is True
        assert two.request_seen(Request("http://a/1")) is True
        assert two.request_seen(Request("http://a/2")) is False
        assert one.request_seen(Request("http://a/2")) is True
        prefix = f"redisq:{{books:0}}:seen:alone:{one._seen.name}"
        assert {key.decode()[: len(prefix)] for key in client.scan_iter()} == {prefix}


@both
def test_constructing_does_not_connect(kind: type[RedisqDupeFilter]) -> None:
    """Under scrapy_redisq.Scheduler the filter is made, asked for its kind, and never opened."""
    dupefilter = build(kind, "redis://127.0.0.1:1/0", REDISQ_CONNECT_TIMEOUT=0.1)
    assert dupefilter.kind == ("bloom" if kind is BloomDupeFilter else "exact")
    dupefilter.close("finished")
    with pytest.raises(ServerUnreachable, match="REDISQ_CONNECT_TIMEOUT"):
        dupefilter.open()


@pytest.mark.parametrize("wrong", [{"DUPEFILTER_ERROR_RATE": 2}, {"SEEN_TTL": "7d"}])
def test_wrong_setting(wrong: dict[str, Any]) -> None:
    """What cannot be, here or at all, is named when the filter is opened."""
    ((name, value),) = wrong.items()
    dupefilter = build(BloomDupeFilter, "redis://127.0.0.1:1/0", **{f"REDISQ_{name}": value})
    with pytest.raises(SettingError, match=f"REDISQ_{name}"):
        dupefilter.open()


@both
def test_lost_reply(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """A new URL whose first answer was lost on the way is new all the same, and recorded."""
    with (
        Proxy(redis_server.port) as proxy,
        opened(kind, redis_server.url_through(proxy.port)) as dupefilter,
        opened(kind, redis_server.url) as another,
    ):
        dupefilter.request_seen(Request("http://a/0"))
        proxy.drop_next = 1
        assert dupefilter.request_seen(Request("http://a/1")) is False
        assert proxy.dropped == 1
        assert dupefilter.request_seen(Request("http://a/1")) is True
        assert stat(dupefilter, "dupefilter/redis_errors") == 0
        assert another.request_seen(Request("http://a/1")) is True


@both
def test_outage(
    redis_server: RedisServer, kind: type[RedisqDupeFilter], caplog: pytest.LogCaptureFixture
) -> None:
    """Without Redis nothing is lost: what this process has not met is new; one warning a second."""
    with (
        Proxy(redis_server.port) as proxy,
        opened(kind, redis_server.url_through(proxy.port)) as dupefilter,
    ):
        assert dupefilter.request_seen(Request("http://a/0")) is False
        proxy.drop_next = 2
        for number in range(1, 20):
            assert dupefilter.request_seen(Request(f"http://a/{number}")) is False
            assert dupefilter.request_seen(Request(f"http://a/{number}")) is True
        assert stat(dupefilter, "dupefilter/redis_errors") == 19
        warnings = [r for r in caplog.records if "Redis cannot be used" in r.getMessage()]
        assert len(warnings) == 1
        dupefilter._paused_until = 0.0
        assert dupefilter.request_seen(Request("http://a/0")) is True
        assert dupefilter.request_seen(Request("http://a/20")) is False
        assert stat(dupefilter, "dupefilter/redis_errors") == 19


@pytest.mark.parametrize("debug", [False, True])
def test_log(redis_server: RedisServer, caplog: pytest.LogCaptureFixture, debug: bool) -> None:
    """Filtered requests are counted; the first is logged, all of them with DUPEFILTER_DEBUG."""
    caplog.set_level(logging.DEBUG, "scrapy_redisq.dupefilter")
    dupefilter = build(ExactDupeFilter, redis_server.url, DUPEFILTER_DEBUG=debug)
    spider = dupefilter._crawler.spider
    assert spider is not None
    for number in range(3):
        dupefilter.log(Request(f"http://a/{number}"), spider)
    dupefilter.count_filtered()
    dupefilter.count_filtered()
    assert stat(dupefilter, "dupefilter/filtered") == 3
    messages = [r.getMessage() for r in caplog.records if "Filtered" in r.getMessage()]
    assert len(messages) == (3 if debug else 1)
    assert "no more duplicates" in messages[0] or debug


def test_under_scrapys_scheduler(crawl: Run) -> None:
    """With only DUPEFILTER_CLASS set: each page once, in the next run none."""
    settings = {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_redisq.BloomDupeFilter"}
    links = "".join(f'<a href="/{number}">page</a>' for number in range(20))
    urls = []
    with Site(lambda path: links) as site:
        for _ in range(2):
            worker = crawl("follow", site, settings).wait()
            assert worker.reason == "finished"
            assert "Traceback" not in worker.log
            assert "DeprecationWarning" not in worker.log
            urls.append(sorted(item["url"] for item in worker.items()))
    # The start request is not filtered, so the page behind it comes once more by a link.
    assert len(urls[0]) == 21
    assert len(set(urls[0])) == 20
    assert urls[1] == [f"{site.url}/0"]
