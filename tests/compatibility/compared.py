"""What all spiders of the comparison have in common, and what many crawls in a process need."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import scrapy
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import NotConfigured

from tests.compatibility.pages import Pages


class Compared(scrapy.Spider):
    """Follows every link. Begins at ``first`` of its ``pages``; all others are 404."""

    pages: ClassVar[Pages] = {}
    first: ClassVar[str] = "/"

    def __init__(self, site: str = "", other: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site, self.other = site, other
        self.start_urls = [f"{site}{path}" for path in self.first.split()]

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {"url": response.url, "text": response.text}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)


class Gate:
    """Holds `start()` back until all workers have come to it: else one might do all the work."""

    def __init__(self, crawler: Any) -> None:
        if not crawler.settings["GATE"]:
            raise NotConfigured
        self.own, *self.all = map(Path, crawler.settings.getlist("GATE"))

    @classmethod
    def from_crawler(cls, crawler: Any) -> Gate:
        return cls(crawler)

    async def process_start(self, start: Any) -> Any:
        self.own.touch()
        while not all(file.exists() for file in self.all):
            await asyncio.sleep(0.01)
        async for each in start:
            yield each


class PatientHandler(HTTP11DownloadHandler):
    """Closes without Scrapy's own time limit of a second.

    If the crawls beside it keep the event loop for longer than that, its connections are closed
    and its time is over in one step of the loop, and Scrapy logs an AlreadyCalledError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._disconnect_timeout = 60
