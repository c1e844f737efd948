"""Callbacks, `start()` and signals as people write them."""

import asyncio
from dataclasses import dataclass
from functools import partial

import scrapy
from scrapy import signals
from scrapy.exceptions import StopDownload

from lab.site import Answer
from tests.compatibility.compared import Compared
from tests.compatibility.pages import links


class Aside(Compared):
    """Downloads on the side: of pages, of what is not there, of where nobody listens."""

    name = "aside"
    pages = {"/": links("/1", "/2"), **{f"/{n}": links() for n in (1, 2)}, "/side": "side"}

    async def parse(self, response):
        side = await self.crawler.engine.download_async(scrapy.Request(f"{self.site}/side"))
        gone = await self.crawler.engine.download_async(scrapy.Request(f"{self.site}/gone"))
        yield {"url": response.url, "side": side.text, "gone": gone.status}
        try:
            nobody = scrapy.Request("http://127.0.0.1:9/", meta={"dont_retry": True})
            await self.crawler.engine.download_async(nobody)
        except Exception as error:
            yield {"url": response.url, "error": type(error).__name__}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)


class Errbacks(Compared):
    """Errbacks that yield items and requests, return nothing, and raise."""

    name = "errbacks"
    custom_settings = {"RETRY_ENABLED": False}
    pages = {
        "/": "begin",
        "/500": Answer("no", status=500),
        "/slow": Answer("late", delay=30),
        "/after": "after",
    }

    def parse(self, response):
        for path in ("/404", "/500"):
            yield response.follow(path, self.parse_end, errback=self.goes_on)
        yield response.follow("/410", self.parse_end, errback=self.says_nothing)
        yield response.follow("/raises", self.parse_end, errback=self.raises)
        yield response.follow("/nobody", self.parse_end)
        # Long enough to be asked for at all, in a process in which so many crawls begin.
        meta = {"download_timeout": 5}
        yield response.follow("/slow", self.parse_end, errback=self.goes_on, meta=meta)

    def parse_end(self, response):
        yield {"url": response.url}

    def goes_on(self, failure):
        yield {"failed": failure.request.url, "by": failure.type.__name__}
        yield scrapy.Request(f"{self.site}/after", self.parse_end)

    async def says_nothing(self, failure):
        await asyncio.sleep(0)

    def raises(self, failure):
        raise KeyError("in an errback")


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


class Values(Compared):
    """Passes values on: in cb_kwargs, in meta, with the page's own meta and without."""

    name = "values"
    pages = {"/": "begin", **{f"/{n}": f"page {n}" for n in range(4)}}

    def parse(self, response):
        deep = {"list": [1, 2.5, None, True], "text": "ä", "bytes": b"\0\xff", "nested": {"a": {}}}
        for n in range(4):
            yield response.follow(f"/{n}", self.parse_page, cb_kwargs={"n": n, "deep": deep})
        yield response.follow("/1?other", self.parse_meta, meta={"deep": deep, (1, 2): {3, 4}})

    def parse_page(self, response, n, deep=None, absent="default"):
        yield {"n": n, "deep": repr(deep), "absent": absent}
        meta = {**response.meta, "n": n}
        yield response.follow("/3?last", self.parse_meta, meta=meta, dont_filter=True)

    def parse_meta(self, response):
        kept = {repr(key): repr(value) for key, value in response.meta.items()}
        for name in ("'download_latency'", "'download_slot'"):
            kept.pop(name, None)
        yield kept


class Product(scrapy.Item):
    url = scrapy.Field()
    text = scrapy.Field()


@dataclass
class Offer:
    url: str
    text: str = ""


class Unfinished(Compared):
    """An item that is begun on one page and completed on the next."""

    name = "unfinished"
    pages = {"/": links(*(f"/{n}" for n in range(6))), **{f"/{n}": "page" for n in range(6)}}
    pages |= {f"/{n}/more": f"more of {n}" for n in range(6)}

    def parse(self, response):
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href, self.parse_page)

    def parse_page(self, response):
        kind = Product if int(response.url[-1]) % 2 else Offer
        item = kind(url=response.url)
        more = f"{response.url}/more"
        yield scrapy.Request(more, self.parse_more, meta={"item": item})
        yield scrapy.Request(more, self.parse_more, cb_kwargs={"item": item})

    def parse_more(self, response, item=None):
        item = response.meta["item"] if item is None else item
        if isinstance(item, Product):
            item["text"] = response.text
        else:
            item.text = response.text
        yield item


class Local(Compared):
    """Lambdas, partials and inner functions as callbacks."""

    name = "local"
    pages = {"/": "begin", **{f"/{n}": f"page {n}" for n in range(6)}}

    def parse(self, response):
        def inner(response):
            yield {"inner": response.url}

        yield response.follow("/1", lambda response: {"lambda": response.url})
        yield response.follow("/1", lambda response: {"lambda": response.url})
        yield response.follow("/2", inner)
        yield response.follow("/3", partial(self.parse_given, word="given"))
        yield response.follow("/4", self.parse_given, errback=lambda failure: None)

    def parse_given(self, response, word="none"):
        yield {"url": response.url, "word": word}


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
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
