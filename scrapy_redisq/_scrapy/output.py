"""Which page a request or an item comes from, while callbacks and pipelines deal with them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Iterator
from contextvars import ContextVar
from typing import Any

from scrapy.crawler import Crawler
from scrapy.http import Request

current_page: ContextVar[Request | None] = ContextVar("current_page", default=None)
"""The request that is being downloaded in this context, whose callback or errback runs, or whose
output (of those, or of a downloader middleware) is being processed."""

in_download: ContextVar[bool] = ContextVar("in_download", default=False)
"""This context is the downloader's and its middlewares', which `current_page` asked to download."""

current_item: ContextVar[tuple[Request, int] | None] = ContextVar("current_item", default=None)
"""The page that the item which is being processed in this context comes from, and its position
among the page's items; None if it comes from no page."""

_numbers: ContextVar[Iterator[int] | None] = ContextVar("_numbers", default=None)


class dealing_with:  # noqa: N801 - a context manager
    """In here `current_page` is ``request``, and it is being downloaded if ``downloading``."""

    # Not by contextlib, for it is entered several times for each page.
    __slots__ = ("_before", "_downloading", "_page", "_request")

    def __init__(self, request: Request | None, *, downloading: bool = False) -> None:
        self._request, self._downloading = request, downloading

    def __enter__(self) -> None:
        self._page = current_page.set(self._request)
        self._before = in_download.set(self._downloading)

    def __exit__(self, *raised: object) -> None:
        in_download.reset(self._before)
        current_page.reset(self._page)


def watch_output(crawler: Crawler) -> None:
    """Have `current_page` and `current_item` tell where requests and items come from. May be called
    by several."""
    engine: Any = crawler.engine
    scraper = engine.scraper
    if getattr(scraper, "_redisq_watched", False):
        return
    scraper._redisq_watched = True
    handle_output = scraper.handle_spider_output_async
    # Items are passed to it in the order in which the callback yields them.
    start_itemproc = scraper.start_itemproc_async

    async def watched_handle_output(result: Any, request: Request, response: Any) -> None:
        numbers = _numbers.set(itertools.count())
        try:
            with dealing_with(request):
                await handle_output(result, request, response)
        finally:
            _numbers.reset(numbers)

    def watched_start_itemproc(item: Any, *, response: Any) -> Any:
        # An item of start() has no response, but may run in the context of a page.
        page, numbers = current_page.get(), _numbers.get()
        comes_from_page = response is not None and page is not None and numbers is not None
        current_item.set((page, next(numbers)) if comes_from_page else None)  # type: ignore
        processed = start_itemproc(item, response=response)
        return processed if response is not None else then_close(processed)

    # Scrapy closes a spider when the last response has been dealt with; an item of start() that was
    # still in the pipelines then would keep it open for ever.
    async def then_close(processed: Awaitable[None]) -> None:
        try:
            await processed
        finally:
            closing = scraper.slot and scraper.slot.closing
            if closing and not closing.called:
                scraper._check_if_closing()

    scraper.handle_spider_output_async = watched_handle_output
    scraper.start_itemproc_async = watched_start_itemproc
