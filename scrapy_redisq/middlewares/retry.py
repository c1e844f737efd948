"""Retries that wait in the frontier, in the place of Scrapy's, which are sent back at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.http import Request, Response

from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.serialization.meta import DELAY_KEY
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self


class RedisqRetryMiddleware(RetryMiddleware):
    """Scrapy's RetryMiddleware, with pauses, and with dead letters for what has failed for good.

    Settings, meta keys and stats are Scrapy's. The pause (``REDISQ_RETRY_DELAYS``, Retry-After) is
    kept in the frontier, so any worker takes the retry, and none has to stay alive for it. With
    another scheduler, and for requests that no scheduler gave out, it does what Scrapy's does.
    """

    _worker: Worker | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        middleware = super().from_crawler(crawler)

        def spider_opened() -> None:
            middleware._worker = worker = Scheduler.of(crawler)
            if worker is not None:
                worker.outbox.retry_pauses = worker.retry_pauses

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
        # What is downloaded on the side (engine.download) is retried on the side, at once.
        if self._worker is not None and self._worker.in_progress.has_given_out(request):
            pauses, number = self._worker.retry_pauses, retry.meta["retry_times"]
            pause = pauses.before(number) if response is None else pauses.after(response, number)
            retry.meta[DELAY_KEY] = pause
