"""Item pipelines that write many items at once, and a page's last word only after its items.

Scrapy knows `BatchPipeline`, and a sink of your own derives from it. ``row_key`` has the rows and
their keys, ``writer`` writes them, ``waiting`` ends each row, ``doubt`` judges rows that fail
alone."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from scrapy.crawler import Crawler
from scrapy.http import Request

from scrapy_redisq._scrapy.crawl import cannot_start
from scrapy_redisq._scrapy.output import current_item, watch_output
from scrapy_redisq.errors import RedisqError, RowRefused, SinkMismatch, SinkUnavailable
from scrapy_redisq.participation import tool_command
from scrapy_redisq.pipelines.row_key import Row, key_by_content, key_by_place
from scrapy_redisq.pipelines.thread import Calls
from scrapy_redisq.pipelines.waiting import Endings, ItemRefused, ItemReturned
from scrapy_redisq.pipelines.writer import CLOSING_GRACE, Writer
from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BatchPipeline", "ItemRefused", "ItemReturned", "Row"]

logger = logging.getLogger(__name__)


class BatchPipeline:
    """Base of the item pipelines of this package, and of your own.

    A pipeline of your own is one method, `write`. Scrapy awaits `process_item`, so a page is
    finished in the frontier only after its items are written; if the process dies before that, the
    page is fetched again, and the same rows come with the same keys.
    """

    batch_rows: int = 500
    """Most rows of one `write`."""

    batch_seconds: float = 0.0
    """How long a row may wait for others. 0: a batch goes as soon as the one before is written.

    Otherwise Scrapy does not wait for the item, so that it does not hold the response; the page's
    lease is kept until the item is written. A row that could not be written and is tried again is
    not waited for either.
    """

    silent_seconds: float = 5.0
    """How long one `write` may take before the sink counts as away, and nothing more is claimed."""

    batches: int = 0
    """Batches begun so far."""

    settings: RedisqSettings
    """All settings of this package; there from `open` on, as are the two names."""
    spider_name: str
    frontier_name: str

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        # The only other name, so that those of a subclass are free.
        self._batches = _Batches(self)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    # What a sink of your own may define

    async def open(self) -> None:
        """Connect. If this raises, the crawl does not start.

        Called when the spider is opened; under `scrapy parse` and other tools, which have no items
        as a rule, when the first item comes.
        """

    async def write(self, rows: list[Row]) -> None:
        """Write all rows, or none and raise.

        Without ``async def`` it is called in a thread, as are `open` and `close` then. Cancelled
        when the crawl is being closed and REDISQ_CLOSE_TIMEOUT has passed.

        Whatever it raises, the rows are tried again. A row becomes a dead letter if it fails while
        others of its `kind` pass. These errors say more:

        - `SinkUnavailable`: no row is at fault.
        - `RowRefused`: the rows that it names are at fault, or the one that halving finds.
        - `ReferenceMissing`: the same, but the row's page is fetched again first.
        - `ConnectionLost`: a row is at fault if this happens with it each time.
        - `BatchTooLarge`: the rows are tried again in smaller batches.
        - `SinkMismatch`: the crawl ends.

        Rows may come twice, and must then be there once: use `Row.key` or a key of the item.
        """
        raise NotImplementedError

    def row(self, item: Any, key: str) -> Row:
        """The row of an item for `write`; made at once, because items may be changed later.

        May raise `RowRefused` or `SinkMismatch`.
        """
        return Row(item, key)

    def kind(self, row: Row) -> object:
        """The kind of a row, such as its table: a row that fails is compared with its kind."""
        return type(row.item)

    async def takes_others(self, row: Row, others: list[Row]) -> bool:
        """Whether the sink works although it does not take ``row``: it takes others.

        ``others`` have been written before, the last one of its `kind` if there is one. They are
        written once more; a sink that can undo that should. With none of them, False says that the
        sink cannot be asked. An exception means that it is away.
        """
        if others:
            await self._batches.call(self.write, others)
        return bool(others)

    async def close(self) -> None:
        """Disconnect; everything has been written."""

    # Scrapy asks. A subclass may pass a spider on, as to pipelines of Scrapy itself.

    async def open_spider(self, spider: Any = None) -> None:
        await self._batches.open()

    async def close_spider(self, spider: Any = None) -> None:
        await self._batches.close()

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        """Returns when the item is written, see `batch_seconds`. Raises `DropItem` if it is not."""
        await self._batches.take(item)
        return item


class _Batches:
    """Stands between Scrapy and the `Writer`: finds the page and the key of each item."""

    _endings: Endings

    def __init__(self, pipeline: BatchPipeline) -> None:
        self._pipeline = pipeline
        self._crawler = pipeline.crawler
        self._worker: Worker | None = None
        self._opening: asyncio.Future[None] | None = None
        self._calls = Calls(f"redisq-{type(pipeline).__name__}")
        self.call = self._calls.call
        self.writer: Writer | None = None
        """There from the moment at which the sink is open."""

    async def open(self) -> None:
        watch_output(self._crawler)
        self._worker = Scheduler.of(self._crawler)
        self._endings = Endings(self._crawler, self._worker)
        # `scrapy shell` and the like have no items, `scrapy parse --pipelines` has.
        if not tool_command():
            await self._opened()

    async def _opened(self) -> Writer:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await self._opening
        assert self.writer is not None
        return self.writer

    async def _open(self) -> None:
        pipeline = self._pipeline
        spider: Any = self._crawler.spider
        try:
            pipeline.settings = RedisqSettings.read(self._crawler.settings)
            pipeline.spider_name = spider.name
            pipeline.frontier_name = pipeline.settings.frontier_name(spider.name, self._crawler)
            try:
                await self._calls.call(pipeline.open)
            except asyncio.CancelledError:
                name = type(pipeline).__name__
                raise SinkUnavailable(f"no answer to {name}.open() before the end") from None
        except RedisqError as error:
            if tool_command():  # the crawl has begun
                logger.error("Items cannot be written: %s", error)
            else:
                cannot_start(self._crawler, error, logger)
            raise
        self.writer = Writer(pipeline, self._calls, self._endings, self._worker)

    async def close(self) -> None:
        """Write what waits."""
        if self._opening is None:
            return
        # Of which those who wait for it have been told, if it fails.
        await asyncio.wait([self._opening], timeout=self._patience())
        answers = self._opening.done()
        if not answers:
            self._opening.cancel()
        if self.writer is not None:
            answers = await self.writer.close()
        try:
            patience = self._patience() if answers else CLOSING_GRACE
            await asyncio.wait_for(self._calls.call(self._pipeline.close), patience)
        except asyncio.TimeoutError:
            logger.warning("%s is left as it is: no answer", type(self._pipeline).__name__)
        finally:
            self._calls.end()

    def _patience(self) -> float:
        """Seconds for opening and closing once the crawl is to end."""
        settings = getattr(self._pipeline, "settings", None)  # none, if they are wrong
        return max(settings.close_timeout if settings else 0.0, CLOSING_GRACE)

    async def take(self, item: Any) -> None:
        """Have an item written."""
        writer, pages = self.writer or await self._opened(), self._endings.pages
        found = current_item.get()
        page = found[0] if found else None
        # An item that lacks files comes again, complete. Written now it might stay ("ignore").
        if writer.failed is not None or (pages is not None and pages.lacks_files(page)):
            raise self._endings.returned(page)
        try:
            row = self._pipeline.row(item, self._key(item, found))
        except RowRefused as error:
            self._endings.count("refused", 1)
            raise self._endings.refused(page, error) from error
        except SinkMismatch as error:
            writer.fail(error)
            raise self._endings.returned(page) from error
        if not self._pipeline.batch_seconds:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            writer.add(row, page, written)
            await written
            return
        await writer.room()
        if pages is not None:
            pages.wait_for_item(page)
        writer.add(row, page, None)

    def _key(self, item: Any, found: tuple[Request, int] | None) -> str:
        spider = self._pipeline.spider_name
        if found is None:
            return key_by_content(spider, item)
        request, number = found
        identity = self._worker.in_progress.identity_of(request) if self._worker else None
        if identity is None:
            fingerprinter: Any = self._crawler.request_fingerprinter
            identity = fingerprinter.fingerprint(request)
        return key_by_place(spider, identity, request, number)
