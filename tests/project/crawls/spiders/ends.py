"""Spiders whose pages end before they are done: what is cancelled, spiders closed."""

import asyncio

import scrapy
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.logformatter import LogFormatter
from scrapy.pipelines.files import FilesPipeline
from scrapy.utils.defer import deferred_from_coro

from crawls.spiders.follow import Follow, Hosts, Pages


async def download(spider, request):
    return await spider.crawler.engine.download_async(request)


class ClosingMiddleware:
    """Raises in the place that the setting WHERE names."""

    @classmethod
    def from_crawler(cls, crawler):
        middleware = cls()
        middleware.where = crawler.settings["WHERE"]
        return middleware

    def process_spider_input(self, response, spider=None):
        if self.where == "input":
            raise CloseSpider("enough")

    async def process_spider_output(self, response, result, spider=None):
        async for one in result:
            yield one
        if self.where == "output":
            raise CloseSpider("enough")


class Closes(scrapy.Spider):
    """Raises CloseSpider where the setting WHERE says."""

    name = "closes"
    custom_settings = {"SPIDER_MIDDLEWARES": {ClosingMiddleware: 1}}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.all_fetched = asyncio.Event()

    async def start(self):
        if self.where == "errback":
            yield scrapy.Request(f"{self.site}/404?errback", errback=self.failed)
        elif self.where != "nowhere":
            yield scrapy.Request(f"{self.site}/0?{self.where}")
        if self.where == "start":
            await self.all_fetched.wait()
            raise CloseSpider("enough")

    @property
    def where(self):
        return self.settings["WHERE"]

    def parse(self, response):
        if self.where == "callback":
            raise CloseSpider("enough")
        return self.output(response)

    def output(self, response):
        yield {"url": response.url}
        yield response.follow(f"/1?{self.where}", callback=self.last)
        if self.where == "generator":
            raise CloseSpider("enough")

    def last(self, response):
        self.all_fetched.set()

    def failed(self, failure):
        if self.where == "errback":
            raise CloseSpider("enough")


class MostRequests:
    """Stops the crawl after four requests, and ignores what Scrapy has begun, as plugins do."""

    def __init__(self, crawler):
        self.crawler, self.requests = crawler, 0

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request, spider=None):
        self.requests += 1
        if self.requests > 4:
            deferred_from_coro(self.crawler.engine.close_spider_async(reason="enough"))
            raise IgnoreRequest("four are enough")


class Ignored(Pages):
    """Asks for ten pages."""

    name = "ignored"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {MostRequests: 1}}

    async def start(self):
        for n in range(10):
            yield scrapy.Request(f"{self.site}/{n}")


class Files(FilesPipeline):
    """The files of an item."""

    def get_media_requests(self, item, info):
        return map(scrapy.Request, item["file_urls"])


class WithFiles(Follow):
    """A file of its own for each page, and one on the last site that all share.

    ``sites``: their base URLs.
    """

    name = "with_files"

    def __init__(self, sites="", **kwargs):
        super().__init__(**kwargs)
        self.sites = sites.split()

    async def start(self):
        for site in self.sites[1:]:
            yield scrapy.Request(f"{site}/10")
        for n in range(10):
            yield scrapy.Request(f"{self.sites[0]}/{n}")

    def parse(self, response):
        urls = [f"{response.url}/file", f"{self.sites[-1]}/shared"]
        yield {"url": response.url, "file_urls": urls, "files": []}


class SideWays(Hosts):
    """Start requests that cannot be stored, and a file on the last site for each of them."""

    name = "sideways"
    custom_settings = {**Hosts.custom_settings, "ITEM_PIPELINES": {Files: 1}}

    async def start(self):
        last = self.start_urls.pop()
        for n, url in enumerate(self.start_urls):
            item = {"url": url, "file_urls": [f"{last}/{n}"], "files": []}
            yield scrapy.Request(url, callback=lambda response, item=item: item)


class OnlyHere(Follow):
    """Items that no page of the frontier stands for: of start(), and of a callback that cannot be
    shared."""

    name = "only_here"

    async def start(self):
        for n in range(int(getattr(self, "items", 0))):
            self.crawler.stats.inc_value("yielded")
            yield {"url": f"start/{n}", n: "a key that is no text", None: {2: "x", "2": "y"}}
        yield scrapy.Request(f"{self.site}/3", callback=lambda response: {"url": response.url})


class Relay:
    """Downloads each page by another request; one answer stands for all pages called same."""

    @classmethod
    def from_crawler(cls, crawler):
        relay = cls()
        relay.crawler = crawler
        relay.same = scrapy.http.TextResponse("http://same.example/", body=b"")
        return relay

    async def process_request(self, request, spider=None):
        if "relayed" in request.meta:
            return None
        if "same" in request.url:
            return self.same
        other = request.replace(meta={**request.meta, "relayed": True})
        return await download(self, other)


class NoItems:
    def process_item(self, item, spider=None):
        raise ValueError("no items, please")


class Relayed(Follow):
    """Its pages fail after they came as responses to other requests."""

    name = "relayed"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Relay: 1000}, "ITEM_PIPELINES": {NoItems: 1}}

    async def start(self):
        for name in ("raises", "item", "fine", "same/1", "same/2", "same/3"):
            yield scrapy.Request(f"{self.site}/{name}")

    async def parse(self, response):
        await asyncio.sleep(0.1)
        if response.url.endswith("raises"):
            raise KeyError("x")
        if not response.url.endswith("fine"):
            yield {"url": response.url}


class Unread(Follow):
    """Its start() ends without an exception when it is cancelled."""

    name = "unread"

    async def start(self):
        yield scrapy.Request(f"{self.site}/0")
        if "all" not in self.settings["WHERE"]:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return
        yield scrapy.Request(f"{self.site}/1")


async def never():
    """Awaits what is then cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(600))
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    await task


class CancelledDownloads:
    """Downloads nothing."""

    lazy = False

    async def download_request(self, request):
        await never()

    async def close(self):
        pass


class CancelledItems:
    async def process_item(self, item, spider=None):
        if item["url"].endswith("/of_items"):
            await never()
        return item


class Speechless(LogFormatter):
    """Raises for all but what has gone well, or where it is asked to."""

    def scraped(self, item, response, spider):
        if item["url"].endswith("/not_told"):
            raise ValueError("not told")
        return super().scraped(item, response, spider)

    def spider_error(self, failure, request, response, spider):
        raise ValueError("not told")


class Cancelled(Pages):
    """What its callbacks, and Scrapy for them, await is then cancelled; what Scrapy would log of
    it raises."""

    name = "cancelled"
    custom_settings = {
        "DOWNLOAD_HANDLERS": {"data": CancelledDownloads},
        "ITEM_PIPELINES": {CancelledItems: 1},
        "LOG_FORMATTER": Speechless,
    }

    async def start(self):
        for callback in (self.coroutine, self.async_generator, self.generator, self.of_items):
            yield scrapy.Request(f"{self.site}/{callback.__name__}", callback=callback)
        yield scrapy.Request(f"{self.site}/not_told")
        yield scrapy.Request(f"{self.site}/fine")
        yield scrapy.Request("data:,of_handler")
        await never()

    async def coroutine(self, response):
        await never()

    async def async_generator(self, response):
        yield {"url": response.url}
        await never()

    def generator(self, response):
        yield {"url": response.url}
        raise ValueError("which is not told")

    def of_items(self, response):
        for _ in range(150):  # more than Scrapy processes at a time
            yield {"url": response.url}


class Refers(scrapy.Spider):
    """The item of each even page refers to that of the next one, the last one's to none."""

    name = "refers"

    async def start(self):
        for number in range(13):
            yield scrapy.Request(f"{self.site}/{number}", cb_kwargs={"number": number})

    def parse(self, response, number):
        yield {"url": str(number), "of": str(number + 1) if number % 2 == 0 else None}


class GivesUp(Follow):
    """Each callback and errback asks for a retry of its page, and gets none."""

    name = "gives_up"

    async def start(self):
        for name in ("plain", "generator", "coroutine", "async_generator", "on_the_side", "fine"):
            yield scrapy.Request(f"{self.site}/{name}", callback=getattr(self, name))
        for name in ("plain", "generator"):
            yield scrapy.Request(
                f"{self.site}/404?{name}", errback=getattr(self, f"{name}_errback")
            )
        yield scrapy.Request(f"{self.site}/local", callback=lambda response: self.plain(response))

    def retry(self, request):
        return get_retry_request(
            request, spider=self, max_retry_times=0, reason="empty", stats_base_key="mine"
        )

    def plain(self, response):
        return self.retry(response.request)

    def generator(self, response):
        yield {"url": response.url}
        yield self.retry(response.request)

    async def coroutine(self, response):
        await asyncio.sleep(0)
        return self.retry(response.request)

    async def async_generator(self, response):
        await asyncio.sleep(0)
        yield self.retry(response.request)

    async def on_the_side(self, response):
        """Its page is done, although what it downloads has failed for good."""
        side = await download(self, scrapy.Request(f"{self.site}/503"))
        yield {"url": side.url}

    def fine(self, response):
        self.crawler.stats.inc_value("paging/max_reached")  # of its own
        yield {"url": response.url}

    def plain_errback(self, failure):
        return self.retry(failure.request)

    def generator_errback(self, failure):
        yield self.retry(failure.request)


class LogsIn(scrapy.Spider):
    """Sends forms: on the side, without a look at cookies, and twice as its pages do."""

    name = "logs_in"

    async def start(self):
        await download(self, scrapy.FormRequest(f"{self.site}/side", formdata={"user": "me"}))
        yield scrapy.Request(f"{self.site}/0")

    def parse(self, response):
        meta = {"dont_merge_cookies": True}
        yield response.follow("/1", self.form, method="POST", meta=meta)

    def form(self, response):
        for name in ("login", "again"):
            yield scrapy.FormRequest(f"{self.site}/{name}", self.logged_in, formdata={"user": "me"})

    def logged_in(self, response):
        yield {"url": response.url}
