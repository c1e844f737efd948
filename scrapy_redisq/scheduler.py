"""Scrapy's scheduler interface over a frontier in Redis. Once it is open, nothing here waits for
the network."""

from __future__ import annotations

import logging
from collections.abc import Sized
from typing import Any

from scrapy import Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapysScheduler
from scrapy.crawler import Crawler
from scrapy.http import Request
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from scrapy_redisq._scrapy.crawl import (
    cannot_start,
    heed_an_early_stop,
    require_asyncio,
    scheduler_of,
)
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.errors import RedisqError, RunOver
from scrapy_redisq.participation import why_alone
from scrapy_redisq.worker.build import build
from scrapy_redisq.worker.origin import crawl_began
from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)


class Scheduler(BaseScheduler):
    """A scheduler by which any number of ``scrapy crawl`` processes share one frontier."""

    worker: Worker | None = None
    """Is there from `open` on, unless the run was over."""

    is_over = False
    """The run that this worker belongs to is complete: there is nothing to do."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._started = crawl_began()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """A scheduler of this class, or Scrapy's own for a crawl that joins no frontier."""
        if reason := why_alone(crawler.settings):
            logger.info("%s", reason)
            return ScrapysScheduler.from_crawler(crawler)
        return cls(crawler)

    @staticmethod
    def of(crawler: Crawler) -> Worker | None:
        """The worker of a crawl whose spider is open; None under another scheduler, and where the
        run was over."""
        scheduler = scheduler_of(crawler)
        # isinstance() takes any scheduler for one of any class: BaseScheduler compares methods.
        return scheduler.worker if Scheduler in type(scheduler).__mro__ else None

    def open(self, spider: Spider) -> Deferred[None]:
        """Connect, join the run, begin to exchange. Raises `RedisqError` if that cannot be."""
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        try:
            require_asyncio()
            engine = Engine(self.crawler)
            with heed_an_early_stop(self.crawler):
                self.worker = await build(self.crawler, spider, engine, self._started)
        except RunOver as over:
            # Nothing is fetched, and Scrapy closes the spider with "finished" for it is idle.
            logger.info("Nothing to do: %s", over)
            self.is_over = True
            engine.skip_start()
        except RedisqError as error:
            cannot_start(self.crawler, error, logger)
            raise

    def close(self, reason: str) -> Deferred[None]:
        """Send what is buffered, give back what was not started, leave the run."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        if self.worker is not None:
            await self.worker.close(reason)

    def has_pending_requests(self) -> bool:
        """False only when the whole frontier is finished, for all workers."""
        if self.worker is None:
            return not self.is_over  # it is not known yet
        return self.worker.has_pending_requests()

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; False if it is already known to be a duplicate or cannot be taken.

        A duplicate that only Redis knows of is reported later, by ``request_dropped``. Never
        raises: an exception here would stall the page for ever.
        """
        return self.worker is not None and self.worker.take(request)

    def next_request(self) -> Request | None:
        """The next request to start, or None if there is none at the moment."""
        return None if self.worker is None else self.worker.next_request()

    # Scrapy and its tests count these

    def __len__(self) -> int:
        """Requests that wait, as far as the last exchange has told."""
        return len(self.dqs) + len(self.mqs)

    def __bool__(self) -> bool:
        return True  # also when nothing waits

    @property
    def dqs(self) -> Sized:
        """Requests that wait in the frontier."""
        return range(self.worker.queued() if self.worker else 0)

    @property
    def mqs(self) -> Sized:
        """Requests that wait in this process."""
        return range(self.worker.kept.waiting if self.worker else 0)
