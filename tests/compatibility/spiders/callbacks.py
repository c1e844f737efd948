"""Callbacks, rules, `start()` and signals as people write them."""

import asyncio

import scrapy
from scrapy import signals
from scrapy.exceptions import StopDownload
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.compatibility.compared import Compared, links


class Raising(Compared):
    """Callbacks that raise: at once, after something, and in a coroutine."""

    name = "raising"
    pages = {"/": links("/1", "/2"), "/1": "one", "/2": "two", "/3": "three"}

    def parse(self, response):
        yield {"url": response.url}
        yield response.follow("/1", self.parse_half)
        yield response.follow("/2", self.parse_late)
        yield response.follow("/3", self.parse_nothing)
        yield "neither an item nor a request"
        raise ValueError("at the end")

    def parse_half(self, response):
        yield {"half": response.url}
        raise RuntimeError("half-way")

    async def parse_late(self, response):
        await asyncio.sleep(0.01)
        raise OSError("late")

    def parse_nothing(self, response):
        return None


class StartItems(Compared):
    """Items and requests of `start()`, the same request twice, and with the dupefilter."""

    name = "start_items"
    pages = {"/": "begin", "/1": links("/2"), "/2": "two"}

    async def start(self):
        yield {"of": "start()"}
        yield scrapy.Request(f"{self.site}/", dont_filter=True)
        yield scrapy.Request(f"{self.site}/", dont_filter=True)
        yield scrapy.Request(f"{self.site}/1")
        yield scrapy.Request(f"{self.site}/1")


class Signals(Compared):
    """Is told of signals, keeps stats of its own, and stops a download half-way."""

    name = "signals"
    pages = {"/": links("/1", "/large"), "/1": "one", "/large": "x" * 300_000}

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        for name in (
            "item_scraped",
            "response_received",
            "request_scheduled",
            "request_dropped",
            "request_reached_downloader",
            "request_left_downloader",
            "response_downloaded",
            "spider_opened",
            "spider_closed",
        ):
            signal = getattr(signals, name)
            crawler.signals.connect(spider.counter(f"signals/{name}"), signal, weak=False)
        crawler.signals.connect(spider.stop, signals.bytes_received)
        return spider

    def counter(self, name):
        return lambda: self.crawler.stats.inc_value(name)

    def stop(self, data, request, spider):
        if request.url.endswith("/large"):
            raise StopDownload(fail=False)

    def parse(self, response):
        yield {"url": response.url, "stopped": "download_stopped" in response.flags}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
            yield response.follow(href)


class Observe:
    """A spider middleware that marks, drops, adds, and deals with exceptions."""

    async def process_start(self, start):
        async for each in start:
            yield each.replace(meta={**each.meta, "of_start": True})

    def process_spider_input(self, response, spider=None):
        if response.url.endswith("/refused"):
            raise ValueError("refused by a spider middleware")

    async def process_spider_output(self, response, result, spider=None):
        async for each in result:
            if isinstance(each, scrapy.Request) and each.url.endswith("/dropped"):
                continue
            yield each
        if response.url.endswith("/1"):
            yield {"added": response.url}

    def process_spider_exception(self, response, exception, spider=None):
        if isinstance(exception, LookupError):
            return [{"rescued": response.url}]
        return None


class Observed(Compared):
    """Is crawled with a spider middleware that does all that one may do."""

    name = "observed"
    custom_settings = {"SPIDER_MIDDLEWARES": {Observe: 543}}
    pages = {
        "/": links("/1", "/dropped", "/refused", "/raises"),
        "/1": "one",
        "/refused": "not",
        "/raises": "raises",
    }

    def parse(self, response):
        if response.url.endswith("/raises"):
            raise LookupError("dealt with by a spider middleware")
        yield {"url": response.url, "of_start": response.meta.get("of_start", False)}
        yield from response.follow_all(css="a")


class Rules(Compared, CrawlSpider):
    """Rules with callbacks by name, arguments, errbacks, and requests that they change."""

    name = "rules"
    pages = {
        "/": links("/list/1", "/list/2", "/item/1", "/item/gone", "/never", "mailto:x@y"),
        "/list/1": links("/list/2", "/item/1", "/item/2?b=2&a=1", "/item/2?a=1&b=2"),
        "/list/2": links("/list/1", "/item/3#part"),
        **{f"/item/{n}": f"<title>{n}</title>" for n in range(5)},
        "/item/2?b=2&a=1": "two",
        "/item/2?a=1&b=2": "two",
    }
    rules = (
        Rule(LinkExtractor(allow=r"/list/"), follow=True, process_links="last_first"),
        Rule(
            LinkExtractor(allow=r"/item/", canonicalize=True),
            callback="parse_item",
            errback="failed",
            cb_kwargs={"given": 1},
            process_request="mark",
        ),
    )
    parse = CrawlSpider.parse

    def last_first(self, found):
        return found[::-1]

    def mark(self, request, response):
        return request.replace(meta={**request.meta, "found_on": response.url})

    def parse_item(self, response, given):
        yield {"url": response.url, "given": given, "rule": response.meta["rule"]}

    def failed(self, failure):
        yield {"failed": failure.value.response.url}
