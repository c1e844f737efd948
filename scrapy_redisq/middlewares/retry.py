"""Requests that failed: they go back to the frontier, or are tried again later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.http import Request, Response

from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.serialization.meta import DELAY_KEY
from scrapy_redisq.worker.politeness.retry_pause import retry_pause
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self


class RedisqRetryMiddleware(RetryMiddleware):
    """Scrapy's RetryMiddleware, with pauses (``REDISQ_RETRY_DELAYS``, Retry-After) which requests
    spend in the frontier, and with dead letters for what has failed for good. With another
    scheduler, and for requests that no scheduler gave out, it does what Scrapy's does."""

    _worker: Worker | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        middleware = super().from_crawler(crawler)

        def spider_opened() -> None:
            middleware._worker = worker = Scheduler.of(crawler)
            if worker is not None:
                worker.outbox.pauses_retries = True

        crawler.signals.connect(spider_opened, signals.spider_opened, weak=False)
        return middleware

    # A subclass may pass a spider on, as to middlewares of Scrapy itself.

    def process_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Request | Response:
        """The response, or a retry that waits."""
        result = super().process_response(request, response, *args, **kwargs)
        if isinstance(result, Request):
            self._pause(request, result, response)
        elif response.status in self.retry_http_codes:
            self._exhausted(request, response.status)
        return result

    def process_exception(
        self, request: Request, exception: Exception, *args: Any, **kwargs: Any
    ) -> Request | Response | None:
        """None, or a retry that waits."""
        result = super().process_exception(request, exception, *args, **kwargs)
        if isinstance(result, Request):
            self._pause(request, result, None)
        elif isinstance(exception, self.exceptions_to_retry):
            self._exhausted(request, 0)
        return result

    def _exhausted(self, request: Request, status: int) -> None:
        if self._worker is not None and not request.meta.get("dont_retry"):
            self._worker.in_progress.retries_exhausted(request, status)

    def _pause(self, request: Request, retry: Request, response: Response | None) -> None:
        # A download on the side (engine.download) is retried on the side, at once.
        if self._worker is not None and self._worker.in_progress.asking(request):
            delays = self._worker.settings.retry_delays
            pause = retry_pause(delays, retry.meta["retry_times"], response)
            retry.meta[DELAY_KEY] = pause


class RedisqBackOffMiddleware:
    """Sends back requests that were answered by one of ``REDISQ_BACKOFF_CODES``, or not at all.

    They go to the front of their slot, which the whole fleet leaves alone for a while, and lose no
    retry. Stands nearest to the downloader, so that no cache keeps such answers.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._worker: Worker | None = None
        crawler.signals.connect(self._spider_opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _spider_opened(self) -> None:
        self._worker = Scheduler.of(self._crawler)
        if self._worker is not None:
            self._worker.gate.sends_back = True

    # A subclass may pass a spider on, as to middlewares of Scrapy itself.

    def process_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Request | Response:
        """The response, or the request itself, which the scheduler knows to be sent back."""
        return request if self._sends_back(request, response) else response

    def process_exception(
        self, request: Request, exception: Exception, *args: Any, **kwargs: Any
    ) -> Request | None:
        """None, or the request itself."""
        return request if self._sends_back(request, exception) else None

    def _sends_back(self, request: Request, result: Response | Exception) -> bool:
        if self._worker is None or not self._worker.gate.send_back(request, result):
            return False
        stats: Any = self._crawler.stats
        stats.inc_value("redisq/sent_back")
        if isinstance(result, Response):
            stats.inc_value(f"redisq/sent_back/{result.status}")
        return True
