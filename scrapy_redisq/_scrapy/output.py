"""Which page a request or an item comes from, while callbacks and pipelines deal with them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.http import Request
from twisted.python.failure import Failure

logger = logging.getLogger(__name__)

T = TypeVar("T")

current_page: ContextVar[Request | None] = ContextVar("current_page", default=None)
"""The page of this context: its request is being downloaded, its callback or errback runs, or
output of these or of a downloader middleware is being processed."""

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


class Cancelled(Exception):
    """Takes the place of asyncio's CancelledError. A callback, a pipeline or a download has awaited
    a cancelled task, and Scrapy would wait for its page for ever."""


async def uncancelled(awaited: Awaitable[T]) -> T:
    """Await; raises `Cancelled` in the place of CancelledError."""
    try:
        return await awaited
    except asyncio.CancelledError as error:
        raise Cancelled("what was awaited has been cancelled") from error


async def _each_uncancelled(output: AsyncIterator[T]) -> AsyncIterator[T]:
    while True:
        try:
            one = await uncancelled(anext(output))
        except StopAsyncIteration:
            return
        yield one


def watch_output(crawler: Crawler) -> None:
    """Have `current_page` and `current_item` tell where requests and items come from, and see to it
    that each item ends. May be called by several."""
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
        if isinstance(result, AsyncIterator):
            result = _each_uncancelled(result)
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
        return dealt_with(item, response)

    async def dealt_with(item: Any, response: Any) -> None:
        try:
            await uncancelled(start_itemproc(item, response=response))
        except Exception as error:  # a log formatter's, or `Cancelled`: Scrapy tells nobody
            logger.exception("An item failed: %s", error)
            await crawler.signals.send_catch_log_async(
                signal=signals.item_error,
                item=item,
                response=response,
                spider=crawler.spider,
                failure=Failure(),  # type: ignore[no-untyped-call]
            )
        finally:
            # Scrapy closes a spider when the last response has been dealt with; an item of start()
            # that was still in the pipelines then would keep it open for ever.
            closing = response is None and scraper.slot and scraper.slot.closing
            if closing and not closing.called:
                scraper._check_if_closing()

    scraper.handle_spider_output_async = watched_handle_output
    scraper.start_itemproc_async = watched_start_itemproc
