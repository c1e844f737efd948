"""The spider that every variant runs: takes each page's title and follows all its links.

``scrapy runspider follow.py -a start_url=… -a hosts=… -a report=…``
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy import signals
from scrapy.crawler import Crawler


class Report:
    """Writes what happened between the first response and the close of the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.first: tuple[float, float] | None = None
        crawler.signals.connect(self.received, signals.response_received)
        crawler.signals.connect(self.closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Report:
        return cls(crawler)

    def received(self) -> None:
        if self.first is None:
            self.first = (time.time(), time.process_time())
            self.crawler.signals.disconnect(self.received, signals.response_received)

    def closed(self, spider: Follow, reason: str) -> None:
        now, cpu = time.time(), time.process_time()
        first, cpu_before = self.first or (now, cpu)
        assert self.crawler.stats is not None
        stats = self.crawler.stats.get_stats()
        figures = {
            "reason": reason,
            "seconds": now - first,
            "cpu": cpu - cpu_before,
            "pages": stats.get("response_received_count", 0),
            "items": stats.get("item_scraped_count", 0),
            "errors": stats.get("log_count/ERROR", 0),
            "exchanges": stats.get("redisq/exchanges", 0),
            **{name: value for name, value in stats.items() if name.startswith("redisq/sink/")},
        }
        Path(spider.report).write_text(json.dumps(figures, default=str))


class Follow(scrapy.Spider):
    """``start_url``: where to begin, if not by a push; ``report``: the file for the figures;
    ``go``: a file that is waited for before the first request, so that several workers begin
    together; ``hosts``: those whose links are followed."""

    name = "follow"
    start_url = ""
    report = ""
    go = ""
    hosts = ""
    custom_settings = {  # noqa: RUF012 - as spiders are written
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "EXTENSIONS": {Report: 0},
    }

    async def start(self) -> AsyncIterator[Any]:
        self.allowed_domains = self.hosts.split()
        while self.go and not Path(self.go).exists():
            await asyncio.sleep(0.02)
        if self.start_url:
            yield scrapy.Request(self.start_url)

    def parse(self, response: Any) -> Iterator[Any]:
        yield {"url": response.url, "title": response.css("title::text").get()}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link)
