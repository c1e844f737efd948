"""For Scrapy's tools."""

import asyncio
import gc
import os
from pathlib import Path

import scrapy
from scrapy.http import TextResponse

from crawls.spiders import follow


class Contracted(follow.Follow):
    """Has a contract for ``scrapy check``."""

    name = "contracted"

    def parse(self, response):
        """A page of the site.

        @url data:text/html,<a href="/1">one</a>
        @returns items 1 1
        """
        yield {"url": response.url, "pid": os.getpid()}


class AnsweredAtOnce(follow.Follow):
    """Twenty pages that `Answers` answers."""

    name = "answered_at_once"

    async def start(self):
        for number in range(20):
            yield scrapy.Request(f"{self.site}/{number}")

    def parse(self, response):
        yield {"at_once": int(response.text)}


class Looked(scrapy.Spider):
    """Fails at its end unless Python's garbage collector looks at it if it is ``LOOKED`` at."""

    name = "looked"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.unclosed = Path(crawler.settings["UNCLOSED"]).open("w")  # noqa: SIM115
        spider.unclosed.write("written at the exit")
        return spider

    def closed(self, reason):
        looked = any(one is self for one in gc.get_objects())
        assert looked == self.settings.getbool("LOOKED")


class Proxies(follow.Proxies):
    """Tries again what has failed, too."""

    def process_response(self, request, response):
        if response.status < 500:
            return response
        request.dont_filter = True
        return request


class Answers:
    """A downloader middleware with a client of its own: nothing is downloaded."""

    at_once = 0

    async def process_request(self, request):
        self.at_once += 1
        number = self.at_once
        await asyncio.sleep(0.05)
        self.at_once -= 1
        return TextResponse(request.url, body=str(number).encode(), encoding="utf-8")
