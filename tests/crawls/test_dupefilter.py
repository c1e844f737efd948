"""The dupefilters by themselves, as DUPEFILTER_CLASS under Scrapy's own scheduler."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from lab.launcher import fork
from lab.servers import RedisServer
from lab.site import Site, folder_pages
from scrapy_redisq.dupefilter import BloomDupeFilter, ExactDupeFilter, RedisqDupeFilter
from scrapy_redisq.errors import ServerUnreachable, SettingError

both = pytest.mark.parametrize("kind", [BloomDupeFilter, ExactDupeFilter])


class BooksSpider(Spider):
    name = "books"


class HostFingerprinter:
    """A custom fingerprinter: all pages of a host are the same."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.split("/")[2].encode()


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


class LossyProxy:
    """Passes bytes to a Redis server; ``lose`` replies are dropped with their connection."""

    def __init__(self, port: int) -> None:
        self.lose = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            # Whoever speaks is passed on: a request may come in pieces.
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is server and self.lose:
                        self.lose -= 1
                        return
                    (server if source is client else client).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


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
        assert one.status().count == 2
        prefix = f"redisq:{{books:0}}:seen:alone:{one._seen.name}"
        assert {key.decode()[: len(prefix)] for key in client.scan_iter()} == {prefix}


@both
def test_what_makes_a_request(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """Method and body tell requests apart; the order of query arguments does not."""
    with opened(kind, redis_server.url) as dupefilter:
        assert not dupefilter.request_seen(Request("http://a/?x=1&y=2"))
        assert dupefilter.request_seen(Request("http://a/?y=2&x=1"))
        assert not dupefilter.request_seen(Request("http://a/?x=1&y=2", method="POST"))
        assert not dupefilter.request_seen(Request("http://a/?x=1&y=2", method="POST", body="b"))
        assert not dupefilter.request_seen(Request("http://a/?x=1&y=2", method="POST", body="c"))
        assert dupefilter.request_seen(Request("http://a/?x=1&y=2", method="POST", body="b"))


@both
def test_custom_fingerprinter(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """REQUEST_FINGERPRINTER_CLASS decides; fingerprints may have any length."""
    with opened(
        kind, redis_server.url, REQUEST_FINGERPRINTER_CLASS=HostFingerprinter
    ) as dupefilter:
        assert not dupefilter.request_seen(Request("http://a/1"))
        assert dupefilter.request_seen(Request("http://a/2"))
        assert not dupefilter.request_seen(Request("http://b/1"))


@both
def test_kept_between_runs(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """What a run has seen is seen in the next one, and by other frontier names it is not."""
    with opened(kind, redis_server.url) as dupefilter:
        dupefilter.request_seen(Request("http://a/1"))
    with opened(kind, redis_server.url) as dupefilter:
        assert dupefilter.request_seen(Request("http://a/1"))
    with opened(kind, redis_server.url, REDISQ_FRONTIER="other") as dupefilter:
        assert not dupefilter.request_seen(Request("http://a/1"))


@both
def test_constructing_does_not_connect(kind: type[RedisqDupeFilter]) -> None:
    """Under scrapy_redisq.Scheduler the filter is made, asked for its kind, and never opened."""
    dupefilter = build(kind, "redis://127.0.0.1:1/0", REDISQ_CONNECT_TIMEOUT=0.1)
    assert dupefilter.kind == ("bloom" if kind is BloomDupeFilter else "exact")
    dupefilter.close("finished")
    with pytest.raises(ServerUnreachable, match="REDISQ_CONNECT_TIMEOUT"):
        dupefilter.open()


def test_wrong_setting() -> None:
    """A setting that cannot be is named when the filter is opened."""
    dupefilter = build(BloomDupeFilter, "redis://127.0.0.1:1/0", REDISQ_DUPEFILTER_ERROR_RATE=2)
    with pytest.raises(SettingError, match="REDISQ_DUPEFILTER_ERROR_RATE"):
        dupefilter.open()


@pytest.mark.servers("ends")
def test_backend_is_kept_and_logged(
    each_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter begun with bitmaps goes on with them where RedisBloom is there by now."""
    caplog.set_level(logging.INFO, "scrapy_redisq")
    with each_server.client() as client:
        client.hset("redisq:{books:0}:seen:alone:bitmap", "total", 0)
    with opened(BloomDupeFilter, each_server.url) as dupefilter:
        assert dupefilter._seen.name == "bitmap"
        assert not dupefilter.request_seen(Request("http://a/1"))
    messages = [record.getMessage() for record in caplog.records if "backend" in record.msg]
    assert len(messages) == 1
    assert "backend bitmap" in messages[0]


@both
def test_lost_reply(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """A new URL whose first answer was lost on the way is new all the same, and recorded."""
    proxy = LossyProxy(redis_server.port)
    try:
        with opened(kind, proxy.url) as dupefilter:
            dupefilter.request_seen(Request("http://a/0"))
            proxy.lose = 1
            assert dupefilter.request_seen(Request("http://a/1")) is False
            assert proxy.lose == 0
            assert dupefilter.request_seen(Request("http://a/1")) is True
            assert stat(dupefilter, "dupefilter/redis_errors") == 0
        with opened(kind, redis_server.url) as another:
            assert another.request_seen(Request("http://a/1")) is True
    finally:
        proxy.close()


@both
def test_outage(
    redis_server: RedisServer, kind: type[RedisqDupeFilter], caplog: pytest.LogCaptureFixture
) -> None:
    """Without Redis nothing is lost: what this process has not met is new; one warning a second."""
    proxy = LossyProxy(redis_server.port)
    try:
        with opened(kind, proxy.url) as dupefilter:
            assert dupefilter.request_seen(Request("http://a/0")) is False
            proxy.lose = 2
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
    finally:
        proxy.close()


@both
def test_foreign_key(redis_server: RedisServer, kind: type[RedisqDupeFilter]) -> None:
    """A key of another type in the filter's place is an error in the log, not in the crawl."""
    with opened(kind, redis_server.url) as dupefilter, redis_server.client() as client:
        client.rpush(f"redisq:{{books:0}}:seen:alone:{dupefilter._seen.name}", "foreign")
        assert dupefilter.request_seen(Request("http://a/1")) is False
        assert stat(dupefilter, "dupefilter/redis_errors") == 1


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


SPIDER = """
import scrapy

class Site(scrapy.Spider):
    name = "site"
    custom_settings = {custom}

    async def start(self):
        yield scrapy.Request({url!r}, dont_filter=True)

    def parse(self, response):
        yield {{"url": response.url}}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A site of 20 pages, each of which links to all."""
    folder = tmp_path / "site"
    folder.mkdir()
    links = "".join(f'<a href="/{number}.html">page</a>' for number in range(20))
    for number in range(20):
        (folder / f"{number}.html").write_text(links)
    with Site(folder_pages(folder)) as served:
        yield f"{served.url}/0.html"


def test_under_scrapys_scheduler(redis_server: RedisServer, site: str, tmp_path: Path) -> None:
    """`scrapy runspider` with only DUPEFILTER_CLASS set: each page once, in the next run none."""
    custom = {
        "DUPEFILTER_CLASS": "scrapy_redisq.BloomDupeFilter",
        "REDISQ_URL": redis_server.url,
    }
    (tmp_path / "site_spider.py").write_text(SPIDER.format(custom=custom, url=site))
    urls = []
    for run in ("first", "second"):
        log = tmp_path / f"{run}.log"
        command = ["runspider", "site_spider.py", "-O", f"{run}.jsonl"]
        environment = {**os.environ, "SCRAPY_SETTINGS_MODULE": ""}
        assert fork("scrapy", command, tmp_path, log, environment).wait(100) == 0
        assert "Traceback" not in log.read_text()
        assert "DeprecationWarning" not in log.read_text()
        lines = (tmp_path / f"{run}.jsonl").read_text().splitlines()
        urls.append(sorted(json.loads(line)["url"] for line in lines))
    # The start request is not filtered, so the page behind it comes once more by a link.
    assert len(urls[0]) == 21
    assert len(set(urls[0])) == 20
    assert urls[1] == [site]
