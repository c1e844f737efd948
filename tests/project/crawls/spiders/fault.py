"""The spider of the fault suite: every link of the site, an item a page into the sink."""

import asyncio
import os
import random
import time
from datetime import datetime, timezone

import scrapy
from scrapy import signals

from crawls.crash import reached
from crawls.items import Fact, Page
from crawls.spiders.follow import Follow


class Fault(Follow):
    """``poison``: the page whose callback ends the process. ``block``: seconds for which page 7
    blocks the event loop."""

    name = "fault"
    custom_settings = {
        "ITEM_PIPELINES": {"crawls.sink.SQLiteSink": 1},
        "EXTENSIONS": {
            "crawls.crash.CrashPoints": 1,
            "crawls.lateness.LoopWatch": 2,
            "crawls.lateness.Starved": 3,
        },
    }

    poison = ""
    block = "0"

    def parse(self, response):
        page = response.url.rpartition("/")[2]
        if page == self.poison:
            os._exit(137)
        if page == "7":
            time.sleep(float(self.block))
        yield {"url": response.url, "page": page}
        reached("yield")
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
            reached("yield")


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
            "crawls.items.Page": {"table": "pages", "key": ["url"], "version": "fetched_at"}
        },
    }

    facts = "2"

    def parse(self, response):
        page = int(response.url.rpartition("/")[2])
        yield Page(response.url, page, datetime.now(timezone.utc))
        for number in range(int(self.facts)):
            yield Fact(page, number)
            reached("yield")
        yield from response.follow_all(css="a")


class Chains(Fault):
    """``chains`` pages, of which each asks for the next one past the dupefilter, with values that
    change from fetch to fetch, and an id that does not."""

    name = "chains"
    custom_settings = {**Fault.custom_settings, "REDISQ_FRONTIER": "fault"}

    def __init__(self, chains=1, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{self.site}/{first}" for first in range(int(chains))]

    def parse(self, response, **drawn):
        yield {"url": response.url, "page": response.url.rpartition("/")[2]}
        reached("yield")
        for href in response.css("a::attr(href)").getall():
            drawn = {"drawn": random.random()}
            meta = {"redisq_id": href}
            yield response.follow(href, dont_filter=True, cb_kwargs=drawn, meta=meta)
            reached("yield")


class InSessions(Fault):
    """Each of the first ``sessions`` pages begins one, which has all that its pages link to. Its
    name stands in the keys of meta ``named``, and True in those that are ``on``."""

    name = "in_sessions"
    custom_settings = {**Fault.custom_settings, "REDISQ_FRONTIER": "fault"}

    sessions, named, on = "1", "cookiejar", ""

    def meta(self, session):
        named = dict.fromkeys(self.named.split(), f"session {session}")
        return {"redisq_session": session, **named, **dict.fromkeys(self.on.split(), True)}

    async def start(self):
        for number in range(int(self.sessions)):
            yield scrapy.Request(f"{self.site}/{number}", meta=self.meta(number))

    def session_lost(self, request):
        self.logger.info("Session lost: %s", request)
        return request.replace(headers={"Begun": "anew"})

    def parse(self, response):
        yield {"url": response.url, "page": response.url.rpartition("/")[2]}
        meta = self.meta(response.meta["redisq_session"])
        yield from response.follow_all(css="a", meta=meta)


class Seeds(Fault):
    """Pages without links: as many start requests, or as many from ``spider_idle``, ten at once."""

    name = "seeds"
    custom_settings = {**Fault.custom_settings, "REDISQ_FRONTIER": "fault"}

    seeds = idle = 0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.go_on, signals.spider_idle)
        return spider

    async def start(self):
        for number in range(int(self.seeds)):
            yield scrapy.Request(f"{self.site}/{number}", dont_filter=True)
            await asyncio.sleep(0.005)

    def go_on(self):
        self.idle = int(self.idle)
        for _ in range(min(10, self.idle)):
            self.idle -= 1
            request = scrapy.Request(f"{self.site}/{self.idle}", dont_filter=True)
            self.crawler.engine.crawl(request)

    def parse(self, response):
        yield {"url": response.url, "page": response.url.rpartition("/")[2]}
