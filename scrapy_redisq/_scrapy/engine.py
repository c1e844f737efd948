"""Scrapy's engine: requests in progress, how pages end, and when it asks for more."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import Any

import scrapy
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.http import Request, Response
from twisted.python.failure import Failure

from scrapy_redisq._scrapy.crawl import stop
from scrapy_redisq._scrapy.downloads import Downloads
from scrapy_redisq._scrapy.output import (
    Cancelled,
    current_page,
    dealing_with,
    in_download,
    uncancelled,
    watch_output,
)
from scrapy_redisq.errors import RedisqError

logger = logging.getLogger(__name__)

CLOSING_POLL = 0.05
"""Seconds between looks at whether a spider that is being closed is closed."""


def _is_of_get_retry_request() -> bool:
    """Whether it is Scrapy's function that counts in a stat, and not the project."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):  # an extension may have a function of its own around `inc_value`
        if frame is not None and frame.f_code is get_retry_request.__code__:
            return True
        frame = frame and frame.f_back
    return False


class Engine:
    """Scrapy's engine, for a worker, while a spider is open."""

    def __init__(self, crawler: Crawler) -> None:
        engine = crawler.engine
        self._crawler = crawler
        self._engine: Any = engine
        slot = getattr(engine, "_slot", None)
        needed = ("_slot", "_start", "_handle_downloader_output", "scraper")
        missing = [f"engine.{name}" for name in needed if not hasattr(engine, name)]
        missing += [
            f"engine._slot.{name}" for name in ("inprogress", "nextcall") if not hasattr(slot, name)
        ]
        if missing:
            raise RedisqError(
                f"Scrapy {scrapy.__version__} has no {', '.join(missing)}: this release of "
                f"scrapy-redisq works with Scrapy 2.14.2 to 2.19"
            )
        self._slot: Any = slot
        self.downloads = Downloads(engine)
        self.start_failed = False
        """``start()`` raised, be it `CloseSpider`, or ended while the spider was being closed: it
        may have more requests."""
        self._of_start: Any = None
        self._returned: Request | None = None
        self._copy_what_is_in_progress()

    @property
    def in_progress(self) -> set[Request]:
        """Requests taken from the scheduler that have not left the engine yet."""
        requests: set[Request] = self._slot.inprogress
        return requests

    @property
    def starting(self) -> bool:
        """The spider's ``start()`` has not been read to its end."""
        return self._engine._start is not None

    @property
    def closing(self) -> bool:
        """The spider is being closed: requests in progress end, no others are started."""
        return self._slot.closing is not None

    @property
    def paused(self) -> bool:
        """Nothing is started before somebody unpauses the engine, as by the telnet console."""
        return bool(self._engine.paused)

    def is_of_start(self, request: Request) -> bool:
        """The request is the one that ``start()`` has just yielded."""
        return request is self._of_start

    def is_returned(self, request: Request) -> bool:
        """A downloader middleware has just returned the request in the place of a response."""
        return request is self._returned

    def pace_start(self, room: Callable[[], Awaitable[None]]) -> None:
        """Read no more of the spider's ``start()`` than there is ``room`` for. That is awaited
        after each request. While the spider is being closed, nothing is read. Items wait while as
        many are in the pipelines as Scrapy lets a page have there (CONCURRENT_ITEMS)."""

        async def paced(start: AsyncIterator[Any]) -> AsyncIterator[Any]:
            try:
                async for output in start:
                    self._of_start = output
                    yield output
                    self._of_start = None
                    await room()
                    if not isinstance(output, Request):
                        await self._room_for_items()
                    # Not ended before it is closed: it would look as if all had been read. Scrapy
                    # cancels this.
                    while self.closing:
                        await asyncio.sleep(CLOSING_POLL)
                        if self._closed:
                            return
                # Scrapy cancels start() when it stops. A start() that catches that is not over.
                self.start_failed = self.start_failed or self.closing
            except asyncio.CancelledError as error:
                if self.closing or not self._engine.running:
                    raise
                self.start_failed = True
                # Scrapy would take it for its own, and wait for the rest of start() for ever.
                raise Cancelled("what start() awaited has been cancelled") from error
            except Exception:
                self.start_failed = True
                raise

        if self._engine._start is not None:
            self._engine._start = paced(self._engine._start)

    async def _room_for_items(self) -> None:
        scraper = self._engine.scraper
        while scraper.slot and scraper.slot.itemproc_size >= scraper.concurrent_items:
            if self.closing:
                return
            await asyncio.sleep(CLOSING_POLL)

    def skip_start(self) -> None:
        """Read nothing of the spider's ``start()``."""
        self._engine._start = None

    def wake(self) -> None:
        """Make the engine ask for requests soon. Only from the loop's thread."""
        if not self.closing:
            self._slot.nextcall.schedule()

    def _copy_what_is_in_progress(self) -> None:
        """Let a page stay in progress that downloads its own request again, on the side. Scrapy
        takes a request for done when any of its downloads has ended."""
        download = self._engine.download_async

        def download_another(request: Request) -> Any:
            return download(request.copy() if request in self.in_progress else request)

        self._engine.download_async = download_another

    def watch_retries(self, gave_up: Callable[[Request, str], None]) -> None:
        """``gave_up(page, stat)`` is called when ``get_retry_request()`` returns None to a callback
        or an errback. Scrapy tells of that by nothing but a stat."""
        stats: Any = self._crawler.stats
        inc_value = stats.inc_value

        def watched_inc_value(key: Any, *args: Any, **kwargs: Any) -> None:
            inc_value(key, *args, **kwargs)
            if isinstance(key, str) and key.endswith("/max_reached") and not in_download.get():
                page = current_page.get()
                if page is not None and _is_of_get_retry_request():
                    gave_up(page, key)

        stats.inc_value = watched_inc_value
        # Scrapy keeps under this name what it calls in its place: the same with a check of the
        # arguments, which `inc_value` has.
        stats._cached_inc_value = watched_inc_value

    def stop(self) -> bool:
        """Stop the crawl as SIGTERM does, without waiting for it; -> False: it has not begun."""
        if self._engine.running:
            stop(self._crawler)
        return bool(self._engine.running)

    async def until_closed(self) -> None:
        """Wait until the spider is closed."""
        while not self._closed:
            await asyncio.sleep(CLOSING_POLL)

    @property
    def _closed(self) -> bool:
        return self._engine.spider is None

    def watch_pages(
        self,
        failed: Callable[[Request, Failure | None], None],
        arrived: Callable[[Request, Response], None],
        raised: Callable[[Request, Failure], bool],
    ) -> None:
        """Follow each page through the engine and the scraper.

        ``failed(request, failure)``: a download failed for good. ``failed(request, None)``: the
        spider deals with it, by its errback, or by its callback with the response.
        ``arrived(request, response)``: a response has passed the downloader middlewares.
        ``raised(request, failure)``: a callback, an errback or a spider middleware raised; ->
        whether that is no error. `current_page` is the request meanwhile.
        """
        scraper = self._engine.scraper
        handle_downloader_output = self._engine._handle_downloader_output
        enqueue_scrape = scraper.enqueue_scrape
        call_spider = scraper.call_spider_async
        handle_spider_error = scraper.handle_spider_error

        def watched_enqueue_scrape(result: Any, request: Request, *args: Any) -> Any:
            if isinstance(result, Failure):
                failed(request, result)
            elif isinstance(result, Response):
                arrived(request, result)
            return enqueue_scrape(result, request, *args)

        async def watched_call_spider(result: Any, request: Request, *args: Any) -> Any:
            if isinstance(result, Response):
                failed(request, None)
            with dealing_with(request):
                output = await uncancelled(call_spider(result, request, *args))
            if isinstance(result, Failure):
                failed(request, None)
            return output

        def watched_spider_error(failure: Failure, request: Request, *args: Any) -> None:
            if not raised(request, failure):
                try:
                    handle_spider_error(failure, request, *args)
                except Exception:  # Scrapy would wait for the page for ever
                    logger.exception("The log formatter cannot tell of %s", request)

        def watched_downloader_output(result: Any, request: Request) -> Any:
            if not isinstance(result, Request):
                return handle_downloader_output(result, request)
            self._returned = result
            try:
                with dealing_with(request):
                    return handle_downloader_output(result, request)
            finally:
                self._returned = None

        self._engine._handle_downloader_output = watched_downloader_output
        scraper.enqueue_scrape = watched_enqueue_scrape
        scraper.call_spider_async = watched_call_spider
        scraper.handle_spider_error = watched_spider_error
        watch_output(self._crawler)
