"""The spider of the fault suite: every link of the site, an item a page into the sink."""

import asyncio
import os
import time
from datetime import datetime, timezone

from scrapy import signals

from crawls.items import Fact, Page
from crawls.spiders.follow import Follow


class LoopWatch:
    """The longest time that the event loop stood still, in seconds, as the stat
    ``fault/longest_block``."""

    @classmethod
    def from_crawler(cls, crawler):
        watch = cls()
        crawler.signals.connect(watch.start, signals.engine_started)
        crawler.signals.connect(watch.stop, signals.spider_closed)
        watch.stats, watch.longest = crawler.stats, 0.0
        return watch

    def start(self):
        self.task = asyncio.ensure_future(self.watch())

    async def watch(self):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.longest = max(self.longest, time.monotonic() - began - 0.05)

    def stop(self):
        self.task.cancel()
        self.stats.set_value("fault/longest_block", self.longest)


class Fault(Follow):
    """``poison``: the page whose callback ends the process. ``block``: seconds for which page 7
    blocks the event loop."""

    name = "fault"
    custom_settings = {
        "ITEM_PIPELINES": {"crawls.sink.SQLiteSink": 1},
        "EXTENSIONS": {
            "crawls.spiders.fault.LoopWatch": 2,
            "crawls.lateness.Starved": 3,
        },
    }

    def __init__(self, site="", poison="", block=0, **kwargs):
        super().__init__(site, **kwargs)
        self.poison, self.block = poison, float(block)

    def parse(self, response):
        page = response.url.rpartition("/")[2]
        if page == self.poison:
            os._exit(137)
        if page == "7" and self.block:
            time.sleep(self.block)
        yield {"url": response.url, "page": page}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)


class Fed(Fault):
    """Has no start requests of its own, and a callback that only its own entries may name."""

    name = "fed"
    first = ""


class Stored(Fault):
    """A page and ``facts`` facts on it, into a database."""

    name = "stored"
    custom_settings = {
        **Fault.custom_settings,
        "ITEM_PIPELINES": {"scrapy_redisq.pipelines.DatabasePipeline": 300},
        "REDISQ_FRONTIER": "fault",
        "REDISQ_TABLES": {
            "crawls.items.Page": {"table": "pages", "key": ["url"], "version": "fetched_at"},
        },
    }

    def __init__(self, site="", facts=2, **kwargs):
        super().__init__(site, **kwargs)
        self.facts = int(facts)

    def parse(self, response):
        page = int(response.url.rpartition("/")[2])
        yield Page(response.url, page, datetime.now(timezone.utc))
        for number in range(self.facts):
            yield Fact(page, number)
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
