"""Spiders whose requests cannot be stored."""

import threading

import scrapy
from scrapy.utils.engine import get_engine_status


class Odd(scrapy.Spider):
    """A page that asks for requests with a lock in their meta."""

    async def start(self):
        yield scrapy.Request(f"{self.site}/list")

    def parse_leaf(self, response):
        yield {"url": response.url}

    def odd(self, path, callback, **kwargs):
        return scrapy.Request(
            f"{self.site}{path}", callback, meta={"lock": threading.Lock()}, **kwargs
        )


class SameAgain:
    """Returns each request itself in the place of its first response, as with another proxy."""

    def process_response(self, request, response, spider=None):
        if "again" in request.meta or "lock" not in request.meta:
            return response
        request.meta["again"] = True
        return request


class OddAgain(Odd):
    """Four requests that cannot be stored, each as one object: of a page, of start(), yielded twice
    in a row, and once more by its own callback."""

    name = "odd_again"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {SameAgain: 1}}

    async def start(self):
        async for request in super().start():
            yield request
        yield self.odd("/page/0", self.parse_leaf, dont_filter=True)

    def parse(self, response):
        yield self.odd("/page/1", self.parse_leaf, dont_filter=True)
        twice = self.odd("/page/2", self.parse_leaf, dont_filter=True)
        yield twice
        yield twice
        yield self.odd("/page/3", self.parse_twice, dont_filter=True)

    def parse_twice(self, response):
        yield {"url": response.url}
        if not response.meta.get("yielded"):
            response.request.meta["yielded"] = True
            yield response.request


class Tools(Odd):
    """Yields what Scrapy's engine status says, and has requests that share a list."""

    name = "tools"
    custom_settings = {"CONCURRENT_REQUESTS": 1}

    def parse(self, response):
        rows = []
        for number in range(20):
            path = f"/page/{number}"
            yield scrapy.Request(f"{self.site}{path}", self.parse_status, meta={"rows": rows})
            yield self.odd(f"{path}/odd", self.parse_status)

    def parse_status(self, response):
        status = dict(get_engine_status(self.crawler.engine))
        scheduler = self.crawler.engine._slot.scheduler
        waiting = len(scheduler.dqs), len(scheduler.mqs)
        assert scheduler
        assert len(scheduler) == sum(waiting)
        assert status["engine.spider_is_idle()"] is False
        yield {"status": waiting}
