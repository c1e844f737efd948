"""Spiders of the tests. ``site`` is the base URL of the site to crawl."""

import asyncio
import itertools
import os
import time

import scrapy
from scrapy import signals
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler


class Pages(scrapy.Spider):
    """An item for each page, whose links it does not follow."""

    def parse(self, response):
        yield {"url": response.url}


class Follow(scrapy.Spider):
    """Follows every link of the site; an item for each page."""

    name = "follow"
    first = "/0"

    def __init__(self, site="", **kwargs):
        super().__init__(**kwargs)
        self.site = site
        self.start_urls = [f"{site}{path}" for path in self.first.split()]

    def parse(self, response):
        yield {"url": response.url, "pid": os.getpid()}
        for href in response.css("a::attr(href)").getall():
            if not href.startswith(("mailto:", "http://", "https://", "#")):
                yield response.follow(href)


class StartsSlowly(Follow):
    """A handler of its takes a while until the engine runs."""

    name = "starts_slowly"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.begin, signals.engine_started)
        return spider

    async def begin(self):
        self.logger.info("begins")
        await asyncio.sleep(0.5)


class OnSite(Follow):
    """Without start requests. Keeps to one host, and each page links to one request that stays in
    its process."""

    name = "on_site"
    first = ""
    allowed_domains = ["127.0.0.1"]

    def parse(self, response):
        yield scrapy.Request(f"{self.site}/kept", lambda response: None)

    def parse_broken(self, response):
        raise ValueError("broken")


class Sessions(Follow):
    """Without start requests. The session of a page that is pushed has all links of its pages, and
    begins a second one, which stays in its process, for a link to ``/account``."""

    name = "sessions"
    first = ""

    def parse(self, response):
        yield {"url": response.url, "session": response.meta.get("redisq_session")}
        for href in response.css("a::attr(href)").getall():
            meta = {"redisq_session": response.meta.get("redisq_session")}
            callback = self.parse
            if href == "/account":
                meta["redisq_session"] = "account"
                callback = lambda response: self.parse(response)  # noqa: E731
            yield response.follow(href, callback, meta=meta)


class Losing(Sessions):
    """Says by its path what becomes of a session whose worker has died."""

    name = "losing"

    def session_lost(self, request):
        if request.url.endswith("/raises"):
            raise ValueError("no more accounts")
        if request.url.endswith("/other"):
            return request.replace(url=request.url + "?again")
        if request.url.endswith("/renewed"):
            return request.replace(headers={"Begun": "anew"})
        return None


class Aging(Follow):
    """Each page that is no leaf asks for leaves that may be fetched again, and for two that come
    again; each leaf for its picture and for one that comes again, unfiltered."""

    name = "aging"
    first = ""

    def parse(self, response):
        yield response.follow("/leaf", self.parse_leaf)
        yield response.follow("/soon", self.parse_leaf, meta={"redisq_seen_ttl": "1s"})
        yield response.follow("/bad", self.parse_leaf, meta={"redisq_seen_ttl": "7x"})
        yield response.follow("/again", self.parse_leaf, meta={"redisq_every": 1})
        yield response.follow(
            "/daily", self.parse_leaf, dont_filter=True, meta={"redisq_every": "1d"}
        )

    def parse_leaf(self, response):
        if response.url.endswith(("/leaf", "/soon")):
            yield response.follow(
                "/picture-" + response.url[-4:], self.parse_leaf, dont_filter=True
            )
            yield response.follow(
                "/steady", self.parse_leaf, dont_filter=True, meta={"redisq_every": "1h"}
            )


class Later(Follow):
    """Asks for the page ``last``, as a start request like any other, when the first was parsed."""

    name = "later"

    def __init__(self, last="", **kwargs):
        super().__init__(**kwargs)
        self.last, self.parsed = last, asyncio.Event()

    async def start(self):
        async for request in super().start():
            yield request
        if self.last:
            await self.parsed.wait()
            yield scrapy.Request(f"{self.site}{self.last}")

    def parse(self, response):
        yield from super().parse(response)
        self.parsed.set()


class Many(Follow):
    """Has many start requests, four of them twice."""

    name = "many"
    first = "/0 /1 /2 /3 /4 /5 /6 /7 /0 /1 /2 /3"


class Faulty(Follow):
    """Raises on pages that end in 3 or 4."""

    name = "faulty"

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith(("3", "4")):
            raise ValueError("a page that ends in 3 or 4")


class Huge(Follow):
    """One request of more than a mebibyte on page 1, lambdas on page 2, a file on page 3."""

    name = "huge"

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/1"):
            yield scrapy.Request(f"{self.site}/5?huge", method="POST", body=b"x" * 2_000_000)
        if response.url.endswith("/3"):
            yield scrapy.Request(f"file://{__file__}")
        if response.url.endswith("/2"):
            for n in range(10):
                yield scrapy.Request(
                    f"{self.site}/6?local={n}", callback=lambda r: self.local(r), meta={"n": n}
                )

    def local(self, response):
        yield {"url": response.url, "local": True}


class Ordered(Pages):
    """Has no start requests of its own: it is fed by push."""

    name = "ordered"


class Stamped(HTTP11DownloadHandler):
    """Scrapy's own, which writes into each request when it was told to download it."""

    async def download_request(self, request):
        request.headers["X-Started"] = repr(time.monotonic())
        return await super().download_request(request)


class Hosts(Pages):
    """Follows page by page on several hosts at once, each host a slot."""

    name = "hosts"
    custom_settings = {"DOWNLOAD_HANDLERS": {"http": Stamped}}

    def __init__(self, sites="", pages=20, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{site}/{n}" for site in sites.split() for n in range(int(pages))]


class Proxies:
    """Has each download made by a proxy of its own, as middlewares that rotate them do."""

    def __init__(self):
        self.numbers = itertools.count()

    def process_request(self, request, spider=None):
        request.meta["download_slot"] = f"proxy {next(self.numbers)}"


class Rotated(Hosts):
    """By other proxies each."""

    name = "rotated"
    custom_settings = {**Hosts.custom_settings, "DOWNLOADER_MIDDLEWARES": {Proxies: 750}}


class Triple(Follow):
    """Three items a page, which differ in their position only, and items of `start()`."""

    name = "triple"

    async def start(self):
        yield {"url": "start/0", "number": -1}
        async for request in super().start():
            yield request

    def parse(self, response):
        for number in range(3):
            yield {"url": response.url, "number": number}
        yield from response.follow_all(css="a")


class Late(Follow):
    """Says that it reads its start requests."""

    name = "late"

    async def start(self):
        self.logger.info("start() was read")
        async for request in super().start():
            yield request
