"""Spiders of the tests of retries, delays and dead letters."""

import itertools

import scrapy
from scrapy.downloadermiddlewares.retry import get_retry_request

from crawls.spiders.follow import Follow


class Delayed(Follow):
    """Delays what page 0 links to; what comes from those pages copies their meta."""

    name = "delayed"
    seconds = "1"

    def parse(self, response):
        yield {"url": response.url, "delay_left": "redisq_delay" in response.meta}
        for href in response.css("a::attr(href)").getall():
            meta = dict(response.meta)
            if response.url.endswith("/0"):
                meta["redisq_delay"] = eval(self.seconds)
            yield response.follow(href, meta=meta)


class Again(Follow):
    """Asks for something and for a retry from its callback while a page is empty."""

    name = "again"

    def parse(self, response):
        if not response.text:
            yield scrapy.Request(f"{self.site}/mend", callback=self.mended, dont_filter=True)
            yield get_retry_request(response.request, spider=self, reason="empty")
            return
        retries, slot = response.meta.get("retry_times", 0), response.meta["download_slot"]
        yield {"url": response.url, "retries": retries, "slot": slot}

    def mended(self, response): ...


class Copies(Again):
    """Gives the meta of its page to a link, whose callback asks for a leaf and fails."""

    name = "copies"

    def parse(self, response):
        if not response.text:
            yield get_retry_request(response.request, spider=self, reason="empty")
            return
        yield scrapy.Request(f"{self.site}/link", self.fails, meta=response.meta)

    def fails(self, response):
        yield scrapy.Request(f"{self.site}/leaf", self.mended, dont_filter=True)
        raise ValueError


class Ends(Follow):
    """Each page of `/` + word ends in its own way."""

    name = "ends"

    async def start(self):
        def request(word, **options):
            return scrapy.Request(f"{self.site}/{word}", **options)

        yield request("503")
        yield request("503?handled", meta={"handle_httpstatus_list": [503]})
        yield request("503?errback", errback=self.dealt_with)
        yield request("503?dont_retry", meta={"dont_retry": True})
        yield request("503?never", meta={"max_retry_times": 0})
        yield request("404")
        yield request("raises", callback=self.raises)
        yield request("404?errback", errback=self.raises)
        yield scrapy.Request("http://127.0.0.1:9/refused")
        yield scrapy.Request("http://127.0.0.1:9/dealt-with", errback=self.dealt_with)
        yield scrapy.Request("http://127.0.0.1:9/errback", errback=self.raises)

    def parse(self, response):
        yield {"url": response.url, "status": response.status}
        if response.url.endswith("?handled"):
            # Not at the start: Scrapy 2.19 heeds robots.txt only for the first of several requests
            # that wait for it.
            yield scrapy.Request(f"{self.site}/forbidden")

    def dealt_with(self, failure):
        yield {"url": failure.request.url, "dealt_with": True}

    def raises(self, _):
        raise KeyError("no such thing")


class Inline(Follow):
    """Downloads a page on the side, from a callback."""

    name = "inline"

    async def parse(self, response):
        request = scrapy.Request(f"{self.site}/side")
        side = await self.crawler.engine.download_async(request)
        yield {"url": side.url, "meta": "redisq_delay" in side.request.meta}


class Flood(Follow):
    """Has more start requests than anybody could keep in memory."""

    name = "flood"

    async def start(self):
        for n in itertools.count():
            yield scrapy.Request(f"{self.site}/{n}")
