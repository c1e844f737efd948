"""Item pipelines that write many items at once, and a page's last word only after its items.

::

    process_item ──► waiting ──► write(rows) ──► committed: the page may be finished
                                   │
                                   ├─ passing trouble: tried again, and nothing is claimed
                                   ├─ it fails, who knows why: halved, and what others do will tell
                                   ├─ some rows are refused: found by halving, dead letters
                                   └─ nothing of the kind can be written: the crawl ends

While one batch is being written the next one gathers, so a batch is as large as the sink is slow.
There is no timer, unless the sink asks for one (`BatchPipeline.batch_seconds`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from itemadapter import ItemAdapter
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.http import Request
from scrapy.utils.python import global_object_name

from scrapy_redisq._scrapy import (
    awaited,
    cannot_start,
    close_spider,
    current_item,
    is_closing,
    scheduler_of,
    watch_output,
)
from scrapy_redisq.errors import (
    BatchTooLarge,
    RedisqError,
    ReferenceMissing,
    RowRefused,
    SinkMismatch,
    SinkUnavailable,
    WriteFailed,
)
from scrapy_redisq.participation import is_tool
from scrapy_redisq.pipelines.doubt import Doubts
from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.in_progress import Problem

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
T = TypeVar("T")

CLOSING_POLL = 0.25
"""Seconds between looks at whether the patience with a write has ended."""

CLOSING_GRACE = 1.0
"""Seconds that a write which is cancelled may take to clean up, and then `BatchPipeline.close`."""

RETRY_FIRST, RETRY_LAST = 0.05, 2.0
"""Seconds between attempts while a sink is away; each pause is twice the one before."""

AWAY_AFTER = 3
"""Attempts in a row that fail before the sink is said to be away: a deadlock is not worth it."""


REFERENCE_TRIES = 4
"""So often a row that refers to one which is not there is tried again, within three seconds."""

REFERENCE_DELAYS = (3.0, 10.0, 30.0, 100.0, 300.0)
"""Seconds after which its page is then fetched again, each time; after that it is refused."""


class ItemRefused(DropItem):
    """Raised by `BatchPipeline.process_item` when the sink cannot take the item: a dead letter."""


class ItemReturned(DropItem):
    """Raised by `BatchPipeline.process_item` when the crawl ends before the sink took the item.

    Its page goes back to the frontier.
    """


class Row(dict[str, Any]):
    """An item's fields as plain values, as ``ItemAdapter.asdict()`` gives them.

    ``item`` is the item itself. ``key`` are 32 hexadecimal digits made of the spider's name, of
    what the request is known by (see `scrapy_redisq.serialization.identity`), of its callback
    and of the item's position among those that the page yields: the same when the page is fetched
    again. An item of ``start()``, which comes from no page, has a key made of its content.
    """

    __slots__ = ("item", "key")

    def __init__(self, item: Any, key: str, values: dict[str, Any] | None = None) -> None:
        super().__init__(ItemAdapter(item).asdict() if values is None else values)
        self.item = item
        self.key = key


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
    lease is kept until the item is written.
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

        Cancelled when the crawl is being closed and REDISQ_CLOSE_TIMEOUT has passed.
        `SinkUnavailable`, `OSError` and `TimeoutError`: tried again until it works. `RowRefused`
        and any other exception: one of the rows is at fault; those that it names, or the one that
        is found by halving, become dead letters, with `ReferenceMissing` later. `WriteFailed`: the
        same for a row that fails while others of its `kinds` pass. `BatchTooLarge`: tried again in
        smaller batches. `SinkMismatch`: the crawl ends.
        Rows may come twice, and must then be there once: use `Row.key` or a key of the item.
        """
        raise NotImplementedError

    def row(self, item: Any, key: str) -> Row:
        """What `write` is given for an item; made at once, because items may be changed later.

        May raise `RowRefused` or `SinkMismatch`.
        """
        return Row(item, key)

    def kinds(self, row: Row) -> Collection[object]:
        """What a row that fails is compared by: with others that have these, such as tables."""
        return (type(row.item),)

    async def probe(self, row: Row) -> bool:
        """Whether the sink would take at this moment what it has taken before, in the place of a
        row that fails. False: that is not known. Nothing of it is kept."""
        return False

    async def close(self) -> None:
        """Disconnect; everything has been written."""

    # Scrapy asks. Before 2.14 it passes the spider to each of these.

    def open_spider(self, spider: Any = None) -> Any:
        return awaited(self._batches.open())

    def close_spider(self, spider: Any = None) -> Any:
        return awaited(self._batches.close())

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        """Returns when the item is written, see `batch_seconds`. Raises `DropItem` if it is not."""
        await self._batches.take(item)
        return item


@dataclass(eq=False)
class _Waiting:
    """A row that is not written yet; ``written`` is there if Scrapy waits for it."""

    row: Row
    page: Request | None
    since: float
    written: asyncio.Future[None] | None


class _Batches:
    """What waits to be written by a pipeline, and how it is written."""

    def __init__(self, pipeline: BatchPipeline) -> None:
        self._pipeline = pipeline
        self._crawler = pipeline.crawler
        self._waiting: deque[_Waiting] = deque()
        self._doubts: Doubts[_Waiting] = Doubts(lambda waiting: pipeline.kinds(waiting.row))
        self._told_of_doubt = False
        self._most_rows = 0
        """Most rows of a batch after one that took too long; 0: as the pipeline says."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._scheduler: Scheduler | None = None
        self._opening: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._closing = False
        self._patient_until = 0.0
        self._away = False
        self._failed: SinkMismatch | None = None

    async def open(self) -> None:
        watch_output(self._crawler)
        scheduler = scheduler_of(self._crawler)
        # isinstance() takes any scheduler for one of any class: BaseScheduler compares methods.
        if Scheduler in type(scheduler).__mro__:
            self._scheduler = scheduler
        # `scrapy shell` and the like have no items, `scrapy parse --pipelines` has.
        if not is_tool(self._crawler.settings):
            await self._opened()

    async def _opened(self) -> None:
        """Returns when the sink is open."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await self._opening

    async def _open(self) -> None:
        pipeline = self._pipeline
        spider: Any = self._crawler.spider
        try:
            pipeline.settings = RedisqSettings.read(self._crawler.settings)
            pipeline.spider_name = spider.name
            pipeline.frontier_name = pipeline.settings.frontier_name(spider.name)
            await pipeline.open()
        except RedisqError as error:
            if is_tool(self._crawler.settings):  # the crawl has begun
                logger.error("Items cannot be written: %s", error)
            else:
                cannot_start(self._crawler, error, logger)
            raise
        self._writing = asyncio.ensure_future(self._write_until_closed())

    async def close(self) -> None:
        """Write what waits."""
        if self._opening is None:
            return
        with contextlib.suppress(Exception):  # those who wait for it have been told
            await self._opening
        if self._writing is not None:
            self._closing = True
            self._changed.set()
            await self._writing
        hangs = self._writing is not None and self._patience_ended()
        try:
            await asyncio.wait_for(self._pipeline.close(), CLOSING_GRACE if hangs else None)
        except asyncio.TimeoutError:
            logger.warning("%s is left as it is: no answer", type(self._pipeline).__name__)

    async def take(self, item: Any) -> None:
        """Have an item written."""
        if self._writing is None:
            await self._opened()
        found = current_item.get()
        page = found[0] if found else None
        if self._failed is not None:
            raise self._returned(page)
        # It will come again, complete; this one could stay for ever ("on_conflict": "ignore").
        if self._scheduler and self._scheduler.sink_pages.lacks_files(page):
            raise self._returned(page)
        try:
            row = self._pipeline.row(item, self._key(item, found))
        except RowRefused as error:
            self._count("refused", 1)
            raise self._refused(page, error) from error
        except SinkMismatch as error:
            self._fail(error)
            raise self._returned(page) from error
        if not self._pipeline.batch_seconds:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._add(row, page, written)
            await written
            return
        while len(self._waiting) + len(self._doubts) >= 2 * self._pipeline.batch_rows:
            self._room.clear()
            await self._room.wait()
        if self._scheduler:
            self._scheduler.sink_pages.hold(page)
        self._add(row, page, None)

    def _add(self, row: Row, page: Request | None, written: asyncio.Future[None] | None) -> None:
        self._waiting.append(_Waiting(row, page, time.monotonic(), written))
        self._changed.set()

    def _key(self, item: Any, found: tuple[Request, int] | None) -> str:
        if found is None:
            content = json.dumps(_in_order(ItemAdapter(item).asdict()), default=str)
            return _digest(self._pipeline.spider_name, global_object_name(type(item)), content)
        request, number = found
        identity = self._scheduler.identity_of(request) if self._scheduler else None
        if identity is None:
            fingerprinter: Any = self._crawler.request_fingerprinter
            identity = fingerprinter.fingerprint(request)
        # Two callbacks may read the same page.
        callback = getattr(request.callback, "__name__", "parse")
        return _digest(self._pipeline.spider_name, identity.hex(), callback, str(number))

    # Batches

    async def _write_until_closed(self) -> None:
        while self._waiting or self._doubts or not self._closing:
            await self._until_due()
            most = self._batch_rows()
            fresh = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            for batch in (fresh, self._doubts.take_due()):
                self._room.set()
                if not batch:
                    continue
                self._pipeline.batches += 1
                try:
                    await self._commit(batch)
                except Exception as error:  # a fault of this class must not stall the crawl
                    logger.exception("The item pipeline failed in an unexpected way")
                    self._fail(SinkMismatch(str(error)))
                    self._give_back(batch)
            if self._doubts and (self._failed is not None or self._patience_ended()):
                self._give_back(self._doubts.clear())

    def _batch_rows(self) -> int:
        most = self._pipeline.batch_rows
        return min(most, self._most_rows) if self._most_rows else most

    async def _until_due(self) -> None:
        while True:
            self._changed.clear()
            dues = [due for due in (self._doubts.due_at(),) if due is not None]
            if self._waiting:
                if self._closing or len(self._waiting) >= self._batch_rows():
                    return
                dues.append(self._waiting[0].since + self._pipeline.batch_seconds)
            elif self._closing and not dues:
                return
            pause = min(dues) - time.monotonic() if dues else None
            if pause is not None and pause <= 0:
                return
            if self._doubts:
                pause = min(pause or 0.0, RETRY_LAST)  # the patience may have ended then
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except asyncio.TimeoutError:
                return

    async def _commit(self, batch: list[_Waiting]) -> None:
        """Write the batch, whatever it takes, but for rows that are set aside."""
        attempts = 0
        pieces = [batch]
        while pieces:
            if self._failed is not None or self._patience_ended():
                for piece in pieces:
                    self._give_back(piece)
                return
            piece = pieces.pop()
            try:
                await self._timed_write([waiting.row for waiting in piece])
            except SinkMismatch as error:
                self._fail(error)
                pieces.append(piece)
            except (SinkUnavailable, OSError, asyncio.TimeoutError, TimeoutError) as error:
                attempts += 1
                self._count("retries", 1)
                if not isinstance(error, (BatchTooLarge, WriteFailed)):
                    pieces.append(piece)
                    if not self._patience_ended():
                        await self._pause(attempts, error)
                    continue
                if len(piece) > 1:
                    if isinstance(error, BatchTooLarge):
                        self._most_rows = len(piece) // 2
                    # While all fail, one is enough to know when that has ended.
                    pieces += _split(piece, 1 if self._doubts.all_fail else len(piece) // 2)
                elif isinstance(error, BatchTooLarge):
                    self._doubts.set_aside(piece[0], slow=True)
                else:
                    await self._weigh(piece[0], error)
                if self._doubts.all_fail and not self._patience_ended():
                    await self._pause(AWAY_AFTER + attempts, error)
            except Exception as error:
                self._is_back()
                attempts = 0
                refused = self._named_by(error, piece)
                if refused:
                    rest = [waiting for waiting in piece if waiting not in refused]
                    pieces += [rest] if rest else []
                    self._refuse(refused, error)
                elif len(piece) > 1:
                    pieces += _split(piece, len(piece) // 2)
                elif not isinstance(error, ReferenceMissing) or not self._try_later(piece[0]):
                    self._refuse(piece, error)
            else:
                attempts = 0
                self._written(piece)

    def _written(self, batch: list[_Waiting]) -> None:
        self._is_back()
        self._doubts.passed(batch)
        if self._most_rows and len(batch) >= self._most_rows:
            self._most_rows += 1
        self._count("rows", len(batch))
        self._count("batches", 1)
        for waiting in batch:
            self._settle(waiting, None)

    async def _weigh(self, waiting: _Waiting, error: WriteFailed) -> None:
        """A row has failed alone, and it is not known why."""
        others_pass = False
        if not error.at_commit:
            with contextlib.suppress(SinkUnavailable):
                others_pass = await self._patient(self._pipeline.probe(waiting.row))
        if self._doubts.failed(waiting, others_pass=others_pass):
            self._refuse([waiting], error)
            return
        self._doubts.set_aside(waiting)
        if not self._doubts.all_fail:
            # Nothing is claimed while a sink is away, and then there is nothing to compare with.
            self._is_back(known=False)
            if not self._told_of_doubt:
                self._told_of_doubt = True
                logger.warning(
                    "%s could not write a row, and does not know whether the row or the sink is at "
                    "fault; it is tried again while others are written: %s",
                    type(self._pipeline).__name__,
                    error,
                )

    def _try_later(self, waiting: _Waiting) -> bool:
        """The row that it refers to may come later, in this batch or of another page."""
        if self._doubts.of(waiting).tries < REFERENCE_TRIES:
            self._doubts.set_aside(waiting, together=True)
            return True
        pages = self._scheduler.sink_pages if self._scheduler else None
        if pages is None or not pages.give_back_later(waiting.page, REFERENCE_DELAYS):
            return False
        words = "what it refers to is not there yet; its page is fetched again later"
        self._settle(waiting, ItemReturned(words, log_level=self._told(waiting.page)))
        return True

    def _refuse(self, rows: list[_Waiting], error: Exception) -> None:
        for waiting in rows:
            self._settle(waiting, self._refused(waiting.page, error))
        self._count("refused", len(rows))

    async def _timed_write(self, rows: list[Row]) -> None:
        began = time.monotonic()
        patience = self._pipeline.silent_seconds
        silent = f"no answer for {patience:g} s"
        warning = asyncio.get_running_loop().call_later(patience, self._is_away, silent)
        try:
            await self._patient(self._pipeline.write(rows))
        finally:
            warning.cancel()
            seconds = time.monotonic() - began
            stats: Any = self._crawler.stats
            stats.inc_value("redisq/sink/seconds", seconds)
            if self._scheduler:
                self._scheduler.sink_counted("us", int(seconds * 1e6))

    async def _patient(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait until the patience ends: what hangs must not keep a worker that is to end."""
        writing = asyncio.ensure_future(call)
        while not writing.done() and not self._patience_ended():
            await asyncio.wait([writing], timeout=CLOSING_POLL)
        if not writing.done():
            writing.cancel()
            await asyncio.wait([writing], timeout=CLOSING_GRACE)
        if not writing.done() or writing.cancelled():
            raise SinkUnavailable("no answer")
        return writing.result()

    @staticmethod
    def _named_by(error: Exception, batch: list[_Waiting]) -> list[_Waiting]:
        named = {id(row) for row in error.rows} if isinstance(error, RowRefused) else set()
        return [waiting for waiting in batch if id(waiting.row) in named]

    def _settle(self, waiting: _Waiting, error: DropItem | None) -> None:
        """Scrapy, or the page's lease, need not wait for this row any more."""
        self._doubts.forget(waiting)
        if waiting.written is None:
            if error is not None and not self._comes_again(waiting.page):
                # As Scrapy does with what it waits for.
                logger.error("Dropped: %s\n%.1000s", error, waiting.row.item)
            if self._scheduler:
                self._scheduler.sink_pages.let_go(waiting.page)
        elif not waiting.written.done():
            if error is None:
                waiting.written.set_result(None)
            else:
                waiting.written.set_exception(error)

    # Trouble

    async def _pause(self, attempts: int, error: Exception) -> None:
        if attempts >= AWAY_AFTER:
            self._is_away(str(error) or type(error).__name__)
        # Workers that met in a deadlock must not meet again.
        longest = min(RETRY_FIRST * 2 ** min(attempts, 10), RETRY_LAST)
        await asyncio.sleep(random.uniform(longest / 2, longest))

    def _is_away(self, why: str) -> None:
        if not self._away:
            self._away = True
            logger.warning(
                "%s cannot write, keeps its items and claims nothing until it can: %s",
                type(self._pipeline).__name__,
                why,
            )
            if self._scheduler:
                self._scheduler.sink_is_away(True)

    def _is_back(self, *, known: bool = True) -> None:
        if known:
            self._patient_until = 0.0
        if self._away:
            self._away = False
            if known:
                logger.warning("%s writes again; the crawl goes on", type(self._pipeline).__name__)
            if self._scheduler:
                self._scheduler.sink_is_away(False)

    def _patience_ended(self) -> bool:
        """The crawl is being closed, and the sink has been away for REDISQ_CLOSE_TIMEOUT since."""
        if not (self._closing or is_closing(self._crawler)):
            return False
        now = time.monotonic()
        if not self._patient_until:
            self._patient_until = now + self._pipeline.settings.close_timeout
        return now > self._patient_until

    def _fail(self, error: SinkMismatch) -> None:
        if self._failed is None:
            self._failed = error
            logger.error("Closing (sink_failed): %s", error)
            close_spider(self._crawler, "sink_failed")

    def _refused(self, page: Request | None, error: Exception) -> ItemRefused:
        name = global_object_name(type(error))
        words = str(error) if isinstance(error, RowRefused) else f"{name}: {error}"
        if self._scheduler:
            self._scheduler.sink_pages.refuse(page, Problem("sink", words, name))
        return ItemRefused(words, log_level=self._told(page))

    def _give_back(self, batch: Sequence[_Waiting]) -> None:
        for waiting in batch:
            self._settle(waiting, self._returned(waiting.page))

    def _returned(self, page: Request | None) -> ItemReturned:
        if self._scheduler:
            self._scheduler.sink_pages.give_back(page)
        words = "not written before the crawl ended"
        if self._comes_again(page):
            words += "; its page stays in the frontier"
        return ItemReturned(words, log_level=self._told(page))

    def _comes_again(self, page: Request | None) -> bool:
        """Whether the frontier has the item's page, which then goes back or is a dead letter."""
        return self._scheduler is not None and self._scheduler.sink_pages.has(page)

    def _told(self, page: Request | None) -> str:
        """The level of the line about an item that is not written, which is counted if nothing else
        tells of it: the scheduler tells of pages."""
        if self._comes_again(page):
            return "DEBUG"
        stats: Any = self._crawler.stats
        stats.inc_value("redisq/sink/lost")
        return "ERROR"

    def _count(self, name: str, by: int) -> None:
        stats: Any = self._crawler.stats
        stats.inc_value(f"redisq/sink/{name}", by)
        if self._scheduler:
            self._scheduler.sink_counted(name, by)


def _split(batch: list[_Waiting], at: int) -> list[list[_Waiting]]:
    """Two parts, the first one last: what is taken from the end of a list."""
    return [batch[at:], batch[:at]]


def _in_order(value: Any) -> Any:
    """Mappings as lists of key, its type and value in an order of their own, which JSON gives to
    text keys only."""
    if isinstance(value, dict):
        pairs = ((str(key), type(key).__name__, _in_order(one)) for key, one in value.items())
        return sorted(pairs, key=lambda pair: pair[:2])
    if isinstance(value, (list, tuple)):
        return [_in_order(one) for one in value]
    return value


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
