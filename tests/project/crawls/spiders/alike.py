"""Spiders whose requests have one fingerprint and are different requests all the same."""

import asyncio
import enum
import itertools
import random

import scrapy


class Level(enum.IntEnum):
    LOW = -1


class Alike(scrapy.Spider):
    """Asks for ``/alike`` once for each way to differ, from ``start()`` or from a page.

    ``shuffled``: in an order that changes from process to process; ``plain``: and once more
    filtered, from ``start()``, as a link would. A page asks for a copy of its request, too. The
    item tells what each was asked for with.
    """

    name = "alike"

    source = "start"
    shuffled = plain = ""
    seconds = "0"

    def variants(self):
        url = f"{self.site}/alike"
        shared = {"callback": self.parse_alike, "dont_filter": True}
        requests = [
            *(scrapy.Request(url, cookies={"user": str(n)}, **shared) for n in range(2)),
            *(scrapy.Request(url, meta={"cookiejar": n}, **shared) for n in range(2)),
            *(scrapy.Request(url, headers={"X-Key": str(n)}, **shared) for n in range(2)),
            *(scrapy.Request(url, cb_kwargs={"login": str(n)}, **shared) for n in range(2)),
            *(scrapy.Request(url, priority=priority, **shared) for priority in (True, Level.LOW)),
        ]
        if self.shuffled:
            random.shuffle(requests)
        return requests

    async def start(self):
        if self.source == "start":
            for request in self.variants():
                yield request
            if self.plain:
                yield scrapy.Request(f"{self.site}/alike", callback=self.parse_alike)
        else:
            yield scrapy.Request(f"{self.site}/page", callback=self.parse_page)

    async def parse_page(self, response):
        for request in self.variants():
            yield request
        alike = {"url": f"{self.site}/alike", "callback": self.parse_alike, "dont_filter": True}
        yield response.request.replace(**alike)
        await asyncio.sleep(float(self.seconds))

    def parse_alike(self, response, login=""):
        request = response.request
        yield {
            "user": request.cookies.get("user") if request.cookies else None,
            "jar": request.meta.get("cookiejar"),
            "key": request.headers.get("X-Key", b"").decode(),
            "login": login,
            "is_start": request.meta.get("is_start_request"),
        }


class HeavyStart(scrapy.Spider):
    """``start()`` has no end, and its requests are large."""

    name = "heavy_start"

    async def start(self):
        for number in itertools.count():
            body = b"x" * 50_000
            yield scrapy.Request(f"{self.site}/{number}", body=body, dont_filter=True)

    def parse(self, response):
        pass
