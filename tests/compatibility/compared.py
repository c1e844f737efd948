"""What all spiders of the comparison have in common: their site, of which each has two hosts of its
own, and what many crawls in a process need."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import scrapy
from scrapy.exceptions import NotConfigured

from lab.site import Answer, Hit, Site

Page = str | Answer | Callable[[Hit, int], "Answer | str | None"]
"""The function is given a hit, and how often this page has been asked for, from 1."""

Pages = Mapping[str, Page]


def links(*targets: str) -> str:
    """A page that links to these."""
    anchors = "".join(f'<a href="{target}">{target}</a>' for target in targets)
    return f"<html><title>{len(targets)}</title><body>{anchors}</body></html>"


def redirect(target: str, status: int = 302) -> Answer:
    return Answer(status=status, headers={"Location": target})


def echo(*headers: str) -> Page:
    """A page of some of the headers that it was asked for with."""

    def page(hit: Hit, visit: int) -> str:
        told = [hit.headers.get(name.lower(), "") for name in headers]
        told = ["; ".join(sorted(value.split("; "))) for value in told]  # cookies come in any order
        return "; ".join(f"{name}={value}" for name, value in zip(headers, told, strict=True))

    return page


def posted(hit: Hit, visit: int) -> str:
    """A page of what was sent to it."""
    return f"{hit.method} {hit.headers.get('content-type', '')} {hit.body.decode()}"


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
        yield from response.follow_all(css="a")


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


class Hosts(Site):
    """The hosts of all spiders: of each by its number one for its pages, and another one."""

    def __init__(self, pages: list[Pages]) -> None:
        super().__init__(lambda path: None, hosts=2 * len(pages))
        self._pages = pages
        self._visits: Counter[tuple[str, str]] = Counter()

    def main(self, number: int) -> str:
        return f"http://127.0.0.{2 * number + 1}:{self.port}"

    def other(self, number: int) -> str:
        return f"http://127.0.0.{2 * number + 2}:{self.port}"

    def answer(self, hit: Hit) -> Answer | str | None:
        number = int(hit.host.partition(":")[0].rpartition(".")[2]) - 1
        self._visits[hit.host, hit.path] += 1
        page = self._pages[number // 2].get(hit.path)
        return page(hit, self._visits[hit.host, hit.path]) if callable(page) else page

    def fetched(self, number: int) -> Counter[str]:
        """How often each page of a spider was fetched, and with what."""
        names = {self.main(number): "", self.other(number): "other:"}
        return Counter(
            " ".join(filter(None, [hit.method, names[url] + hit.path, hit.body.decode("latin-1")]))
            for hit in self.hits
            if (url := f"http://{hit.host}") in names
        )
