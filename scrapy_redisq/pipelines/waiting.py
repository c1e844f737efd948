"""Rows that wait to be written, and how each of them ends: once, and whoever must know is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.http import Request
from scrapy.utils.python import global_object_name

from scrapy_redisq.errors import SinkError, message_of
from scrapy_redisq.pipelines.row_key import Row
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.page import Problem
from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)


class ItemRefused(DropItem):
    """Raised by `BatchPipeline.process_item` when the sink cannot take the item: a dead letter."""


class ItemReturned(DropItem):
    """Raised by `BatchPipeline.process_item` when the crawl ends before the sink took the item.

    Its page goes back to the frontier.
    """


@dataclass(eq=False)
class Waiting:
    """A row that is not written yet; ``written`` is there if Scrapy waits for it."""

    row: Row
    page: Request | None
    since: float
    written: asyncio.Future[None] | None
    ended: bool = False
    """Whether it is written, or will not be: all that is to come of that has come."""

    # What is known of it if it fails alone, see `Doubts`.
    proofs: int = 0
    """How often it failed while other rows passed."""
    compared: bool = False
    """Whether new rows of its kind have passed since it first failed."""
    tries: int = 0
    due: float = 0.0
    """When it is to be tried again (time.monotonic())."""
    passed: int | None = None
    """How many batches with rows of its kind had passed when it failed."""


class Endings:
    """How rows end: each leaves a word to Scrapy, and either to the frontier or in the log.

    ``worker`` is None under another one than this package's.
    """

    def __init__(self, crawler: Crawler, worker: Worker | None) -> None:
        self._crawler = crawler
        self._worker = worker

    @property
    def pages(self) -> InProgress | None:
        """The requests in progress."""
        return self._worker.in_progress if self._worker else None

    def hold(self, waiting: Waiting) -> None:
        """Scrapy does not wait for it any more, its page does."""
        if waiting.written is None or self.pages is None or not self.pages.has(waiting.page):
            return
        self.pages.wait_for_item(waiting.page)
        if not waiting.written.done():
            waiting.written.set_result(None)
        waiting.written = None

    def written(self, waiting: Waiting) -> None:
        """It is in the sink."""
        self._end(waiting, None)

    def refuse(self, waiting: Waiting, error: BaseException) -> None:
        """The sink cannot take it: its page becomes a dead letter."""
        self._end(waiting, lambda: self.refused(waiting.page, error))

    def give_back(self, waiting: Waiting) -> None:
        """The crawl ends before: its page goes back."""
        self._end(waiting, lambda: self.returned(waiting.page))

    def give_back_later(self, waiting: Waiting, delays: Sequence[float]) -> bool:
        """It may be written later: its page is fetched again, after the seconds of ``delays``.

        -> False if there is no page, or if that has been done so often; nothing has ended then.
        """
        if self.pages is None or not self.pages.give_back_later(waiting.page, delays):
            return False
        words = "it cannot be written yet; its page is fetched again later"
        self._end(waiting, lambda: ItemReturned(words, log_level=self._told(waiting.page)))
        return True

    def refused(self, page: Request | None, error: BaseException) -> ItemRefused:
        """An item of ``page`` cannot be written: tell the frontier; -> the error for Scrapy."""
        name = global_object_name(type(error))
        words = str(error) if isinstance(error, SinkError) else f"{name}: {message_of(error)}"
        if self.pages is not None:
            self.pages.refuse(page, Problem("sink", words, name))
        return ItemRefused(words, log_level=self._told(page))

    def returned(self, page: Request | None) -> ItemReturned:
        """An item of ``page`` will not be written: tell the frontier; -> the error for Scrapy."""
        if self.pages is not None:
            self.pages.give_back(page)
        words = "not written before the crawl ended"
        if self._comes_again(page):
            words += "; its page stays in the frontier"
        return ItemReturned(words, log_level=self._told(page))

    def count(self, name: str, by: int) -> None:
        """Add to a count of this worker, and of all of them."""
        stats: Any = self._crawler.stats
        stats.inc_value(f"redisq/sink/{name}", by)
        if self._worker:
            self._worker.sink_counted(name, by)

    def _end(self, waiting: Waiting, dropped: Callable[[], DropItem] | None) -> None:
        # A second time its page would be let go for a row that is not written yet.
        if waiting.ended:
            return
        waiting.ended = True
        error = dropped() if dropped else None
        if waiting.written is None:
            if error is not None and not self._comes_again(waiting.page):
                # As Scrapy does with what it waits for.
                logger.error("Dropped: %s\n%.1000s", error, waiting.row.item)
            if self.pages is not None:
                self.pages.item_ended(waiting.page)
        elif not waiting.written.done():
            if error is None:
                waiting.written.set_result(None)
            else:
                waiting.written.set_exception(error)

    def _comes_again(self, page: Request | None) -> bool:
        """Whether the frontier has the item's page, which then goes back or is a dead letter."""
        return self.pages is not None and self.pages.has(page)

    def _told(self, page: Request | None) -> str:
        """The level of the line about an item that is not written. The worker tells of its page; an
        item without a page is counted here."""
        if self._comes_again(page):
            return "DEBUG"
        stats: Any = self._crawler.stats
        stats.inc_value("redisq/sink/lost")
        return "ERROR"
