"""Requests whose slot is in trouble go back to the frontier, before anything else sees why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.http import Request, Response

from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self


class RedisqBackOffMiddleware:
    """Sends back requests that were answered by one of ``REDISQ_BACKOFF_CODES``, or not at all.

    They go to the front of their slot, which the whole fleet leaves alone for a while, and lose no
    retry. A request that has been sent back often, and no other has been the reason, is left to
    the retry middleware. Stands nearest to the downloader, so that no cache keeps such answers.
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
