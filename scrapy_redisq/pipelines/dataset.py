"""Items of all workers as one file of JSON Lines or CSV."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapy_redisq.errors import RedisqError, SettingError
from scrapy_redisq.pipelines.encoding import encode_row, unwritable
from scrapy_redisq.pipelines.file_batch import FilePipeline
from scrapy_redisq.pipelines.row_key import Row, key_by_fields
from scrapy_redisq.pipelines.thread import Calls
from scrapy_redisq.scheduler import Scheduler

if TYPE_CHECKING:
    from scrapy_redisq.files.dataset import Dataset

logger = logging.getLogger(__name__)

LINES = "redisq/dataset/lines"
"""The stat of the lines in parts."""

SHOWN_AFTER, LOOK = 60.0, 1.0
"""Seconds until NFS shows a file to other hosts, at most (``acdirmax``); and between looks."""

LINE = "line"
"""Where a row has its line of a part."""


class DatasetPipeline(FilePipeline):
    """Makes REDISQ_DATASET of the items of all workers, each item once.

    Each worker writes parts beside it, as `ParquetPipeline` writes files. The worker that is the
    last to leave the run puts all parts together: those of former runs, too. If it dies meanwhile,
    this is done by the worker that begins the next run, by one that finds the run complete
    (REDISQ_RUN), or by ``scrapy redisq dataset``.
    """

    key_fields: tuple[str, ...] = ()
    """Fields by which two items of a class are one. (): each place in a page has an item."""

    _dataset: Dataset
    _part = _run = ""

    async def open(self) -> None:
        """Check that files can be written, and do what a worker of the run before did not."""
        await super().open()
        self.crawler.signals.connect(self._spider_closed, signals.spider_closed)
        if (worker := Scheduler.of(self.crawler)) is not None:
            worker.sees_the_end = True
            self._run = worker.run_session.joined.run
            if worker.run_session.joined.new:
                await self._put_together(unless_current=True)

    def _open(self) -> None:
        try:
            # Not above: it is an extra.
            from scrapy_redisq.files import dataset  # noqa: PLC0415
        except ImportError as error:
            raise SettingError(
                "ITEM_PIPELINES",
                "scrapy_redisq.pipelines.DatasetPipeline",
                f"what `pip install scrapy-redisq[files]` brings ({error})",
            ) from None
        self._line, self._new_name = dataset.line, dataset.new_name
        self._dataset = dataset.Dataset(self.settings, self.spider_name, self.crawler.settings)
        self._dataset.check()

    def row(self, item: Any, key: str) -> Row:
        """Raises `RowRefused` for an item that JSON cannot hold, or that lacks its key."""
        row = Row(item, key)
        if self.key_fields:
            for name in self.key_fields:
                if row.get(name) is None:
                    raise unwritable(name, "it is in key_fields, and the item has no value for it")
            values = [row[name] for name in self.key_fields]
            key = key_by_fields(self.spider_name, item, values)
        return Row(item, key, {LINE: self._line(key, encode_row(row))})

    async def write(self, rows: list[Row]) -> None:
        """One part."""
        await super().write(rows)
        self._part = ""
        stats: Any = self.crawler.stats
        stats.inc_value(LINES, len(rows))

    def _write(self, rows: list[Row]) -> None:
        # The first time it is tried: the item that was written last counts.
        self._part = self._part or self._new_name(self._run, self._prefix, self._number)
        self._dataset.write_part(self._part, [row[LINE] for row in rows])

    async def _spider_closed(self) -> None:
        worker = Scheduler.of(self.crawler)
        if worker is None or worker.completed_run:
            # Without a worker: this crawl shares no frontier, or came when its run was complete.
            fleet = worker.run_session.fleet_stats if worker else None
            written = (fleet or {}).get(LINES, 0)
            await self._put_together(unless_current=worker is None, written=written)

    async def _put_together(self, *, unless_current: bool, written: int = 0) -> None:
        """``written``: at least so many lines have all workers of this run written."""
        # Those of the pipeline end when it is closed.
        calls = Calls("redisq-dataset")
        until = time.monotonic() + SHOWN_AFTER
        try:
            if unless_current and await calls.call(self._dataset.is_current):
                return
            together = await calls.call(self._dataset.put_together, self._run)
            while together.lines < written and time.monotonic() < until:
                await asyncio.sleep(LOOK)
                if not await calls.call(self._dataset.is_current):
                    together = await calls.call(self._dataset.put_together, self._run)
        except RedisqError as error:
            logger.error(
                "%s is not put together, and stays as it was. The items are in its parts: "
                "'scrapy redisq dataset' puts them together. %s",
                *(self._dataset.address, error),
            )
            return
        finally:
            calls.end()
        stats: Any = self.crawler.stats
        stats.set_value("redisq/dataset/items", together.items)
        logger.info(
            "%s has %d items of %d parts", self._dataset.address, together.items, together.parts
        )
        if together.lines < written:
            logger.error(
                "%s lacks items: the workers have written %d lines, and %d are here. The folder of "
                "REDISQ_DATASET must be one for all hosts. Copy the parts of the others to it, and "
                "call 'scrapy redisq dataset'",
                *(self._dataset.address, written, together.lines),
            )
        if together.missing:
            logger.warning(
                "FEED_EXPORT_FIELDS: no item has the field %s", ", ".join(together.missing)
            )
