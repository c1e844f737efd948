"""Writes the rows that wait, many at once, whatever it takes.

::

    add ──► waiting ──► write(rows) ──► committed: the page may be finished
                          │
                          ├─ the sink says that it is away: tried again, and nothing is claimed
                          ├─ anything else is raised: halved, other rows tell whose fault it is
                          ├─ the sink refuses some rows: found by halving, dead letters
                          └─ the sink says that it does not fit: the crawl ends

While one batch is being written the next one gathers, so a batch is as large as the sink is slow.
There is no timer, unless the sink asks for one (`BatchPipeline.batch_seconds`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from scrapy_redisq._scrapy.crawl import close_spider, has_pending_requests, is_closing, stop
from scrapy_redisq.errors import (
    BatchTooLarge,
    ConnectionLost,
    ReferenceMissing,
    RowLocked,
    RowRefused,
    SinkMismatch,
    SinkUnavailable,
    WriteFailed,
    message_of,
)
from scrapy_redisq.pipelines import doubt
from scrapy_redisq.pipelines.doubt import Doubts
from scrapy_redisq.pipelines.row_key import Row
from scrapy_redisq.pipelines.thread import Calls
from scrapy_redisq.pipelines.waiting import Endings, Waiting
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from scrapy_redisq.pipelines.batch import BatchPipeline

logger = logging.getLogger(__name__)

CLOSING_GRACE = 1.0
"""Seconds that a write which is cancelled may take to clean up, and then `BatchPipeline.close`."""

RETRY_FIRST, RETRY_LAST = 0.05, 2.0
"""Seconds between attempts while a sink is away; each pause is twice the one before."""

HELD = 100
"""So many rows that are set aside do not keep Scrapy from working on other pages."""

AWAY_AFTER = 3
"""Attempts in a row that fail before the sink is said to be away: a deadlock is not worth it."""

LOSSES = 3
"""So often in a row the connection is lost with the same rows, or a lock is not given, before they
may be the reason."""

REFERENCE_DELAYS = (3.0, 10.0, 30.0, 100.0, 300.0)
"""A row refers to one that is not there: seconds after which its page is fetched again, each time.
After that it is refused."""

ELSEWHERE = (3.0,) * 1000
"""The same for a page of which this worker cannot tell whether it is at fault."""


class _Unknown(WriteFailed):
    """Raised in the place of what says nothing about whose fault it is: all but `SinkError`."""

    def __init__(self, why: BaseException) -> None:
        self.why = why
        super().__init__(f"{global_object_name(type(why))}: {message_of(why)}")


class Writer:
    """Writes the rows of a pipeline that wait.

    ``failed`` is there once nothing of the kind can be written any more.
    """

    def __init__(
        self, pipeline: BatchPipeline, calls: Calls, endings: Endings, worker: Worker | None
    ) -> None:
        self.failed: SinkMismatch | None = None
        self.doubts = Doubts(lambda waiting: pipeline.kind(waiting.row))
        self._pipeline = pipeline
        self._calls = calls
        self._crawler = pipeline.crawler
        self._endings = endings
        self._worker = worker
        self._waiting: deque[Waiting] = deque()
        self._told_of_doubt = False
        self._added_at = 0.0
        """When (time.monotonic()) the last row came."""
        self._most_rows = 0
        """Most rows of a batch after one that took too long; 0: as the pipeline says."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._closing = False
        self._closing_since = 0.0
        self._answered_at = 0.0
        """When (time.monotonic()) the sink last took or refused a row."""
        self._away = False
        self._told_away = False
        self._writing = asyncio.ensure_future(self._write_until_closed())

    def add(self, row: Row, page: Any, written: asyncio.Future[None] | None) -> None:
        """Have a row written. It is given back if nothing is written any more, see `close`."""
        waiting = Waiting(row, page, time.monotonic(), written)
        if self._writing.done():
            # `start()` may go on when the pipelines have been closed.
            self._endings.give_back(waiting)
            return
        self._waiting.append(waiting)
        self._added_at = waiting.since
        self._changed.set()

    async def room(self) -> None:
        """Returns when no more rows wait than two batches."""
        while len(self._waiting) + len(self.doubts) >= 2 * self._pipeline.batch_rows:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> bool:
        """Returns when nothing waits any more -> whether the sink answers."""
        self._closing = True
        self._changed.set()
        await self._writing
        return not self._patience_ended()

    def fail(self, error: SinkMismatch) -> None:
        """End the crawl."""
        if self.failed is None:
            self.failed = error
            logger.error("Closing (sink_failed): %s", error)
            close_spider(self._crawler, "sink_failed", failed=True)

    # Batches

    async def _write_until_closed(self) -> None:
        while self._waiting or self.doubts or not self._closing:
            await self._until_due()
            self._end_doubts()
            most = self._batch_rows()
            fresh = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            # Rows that are due have a second try: the connection may have ended unused.
            for batch, losses in ((fresh, 0), (self.doubts.take_due(), LOSSES - 2)):
                self._room.set()
                if not batch:
                    continue
                self._pipeline.batches += 1
                try:
                    await self._commit(batch, losses)
                except Exception as error:  # a fault of this class must not stall the crawl
                    logger.exception("The item pipeline failed in an unexpected way")
                    self.fail(SinkMismatch(message_of(error)))
                    self._give_back(batch)
            self._end_doubts()
            if not self.doubts:
                self._told_of_doubt = False

    def _end_doubts(self) -> None:
        """Give back what is in doubt once there is no time to learn more of it."""
        patience = self._pipeline.settings.close_timeout
        no_time = self._is_closing() and time.monotonic() > self._closing_since + patience
        if self.doubts and (self.failed is not None or no_time):
            self._give_back(self.doubts.clear())
            self._room.set()

    def _batch_rows(self) -> int:
        most = self._pipeline.batch_rows
        return min(most, self._most_rows) if self._most_rows else most

    async def _until_due(self) -> None:
        while True:
            self._changed.clear()
            dues = [due for due in (self.doubts.due_at(),) if due is not None]
            if self._waiting:
                if self._closing or len(self._waiting) >= self._batch_rows():
                    return
                dues.append(self._waiting[0].since + self._pipeline.batch_seconds)
            elif self._closing and not dues:
                return
            pause = min(dues) - time.monotonic() if dues else None
            if pause is not None and pause <= 0:
                return
            if self.doubts:
                pause = min(pause or 0.0, RETRY_LAST)  # the patience may have ended then
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except asyncio.TimeoutError:
                return

    async def _commit(self, batch: list[Waiting], losses: int = 0) -> None:
        """Write the batch, whatever it takes, but for rows that are set aside.

        ``losses``: how often the connection has been lost with it.
        """
        attempts = 0
        pieces = [batch]
        while pieces:
            if self.failed is not None or self._patience_ended():
                for piece in pieces:
                    self._give_back(piece)
                return
            piece = pieces.pop()
            try:
                await self._timed_write([waiting.row for waiting in piece])
            except SinkMismatch as error:
                self.fail(error)
                pieces.append(piece)
            except SinkUnavailable as error:
                attempts += 1
                self._endings.count("retries", 1)
                losses = losses + 1 if isinstance(error, (ConnectionLost, RowLocked)) else 0
                if losses < LOSSES and not isinstance(error, (BatchTooLarge, WriteFailed)):
                    pieces.append(piece)
                    if not self._patience_ended():
                        await self._pause(attempts, error)
                    continue
                if len(piece) > 1:
                    self.doubts.failed_together(piece)
                    if isinstance(error, BatchTooLarge):
                        self._most_rows = len(piece) // 2
                    # While all fail, one is enough to know when that has ended.
                    at = 1 if self.doubts.all_fail else len(piece) // 2
                    pieces += [piece[at:], piece[:at]]
                else:
                    await self._weigh(piece[0], error)
                if self.doubts.all_fail and not self._patience_ended():
                    await self._pause(AWAY_AFTER + attempts, error)
            except RowRefused as error:
                self._is_back()
                attempts = 0
                named = {id(row) for row in error.rows}
                if refused := [waiting for waiting in piece if id(waiting.row) in named]:
                    rest = [waiting for waiting in piece if waiting not in refused]
                    pieces += [rest] if rest else []
                    self._refuse(refused, error)
                elif len(piece) > 1:
                    at = len(piece) // 2
                    pieces += [piece[at:], piece[:at]]
                elif not (
                    isinstance(error, ReferenceMissing)
                    and self._endings.give_back_later(piece[0], REFERENCE_DELAYS)
                ):
                    self._refuse(piece, error)
            else:
                attempts = 0
                self._written(piece)

    def _written(self, batch: list[Waiting]) -> None:
        self._is_back()
        self.doubts.passed(batch)
        if self._most_rows and len(batch) >= self._most_rows:
            self._most_rows += 1
        self._endings.count("rows", len(batch))
        self._endings.count("batches", 1)
        for waiting in batch:
            self._endings.written(waiting)

    def _refuse(self, rows: Sequence[Waiting], error: BaseException) -> None:
        for waiting in rows:
            self.doubts.forget(waiting)
            self._endings.refuse(waiting, error)
        self._endings.count("refused", len(rows))

    def _give_back(self, rows: Sequence[Waiting]) -> None:
        for waiting in rows:
            self.doubts.forget(waiting)
            self._endings.give_back(waiting)

    async def _timed_write(self, rows: list[Row]) -> None:
        began = time.monotonic()
        patience = self._pipeline.silent_seconds
        silent = f"no answer for {patience:g} s"
        warning = asyncio.get_running_loop().call_later(patience, self._is_away, silent)
        try:
            await self._patient(self._pipeline.write, rows)
        finally:
            warning.cancel()
            seconds = time.monotonic() - began
            stats: Any = self._crawler.stats
            stats.inc_value("redisq/sink/seconds", seconds)
            if self._worker:
                self._worker.sink_counted("us", int(seconds * 1e6))

    # Rows that fail alone

    async def _weigh(self, waiting: Waiting, error: SinkUnavailable) -> None:
        """A row has failed alone, or took too long, and it is not known why."""
        slow = isinstance(error, (BatchTooLarge, RowLocked))
        if not isinstance(error, RowLocked):
            at_end, others = self._is_at_end(), self.doubts.others(waiting)
            proof = self.doubts.failed(waiting, slow=slow)
            counts = at_end or waiting.compared
            if not proof and (counts or (self.doubts.many_fail and not self.doubts.answers)):
                takes = await self._takes(others, waiting, error)
                self.doubts.answers = bool(takes)
                proof = self.doubts.answers and counts
                # It cannot be asked without rows: another worker may have written some.
                elsewhere = at_end and takes is False and not others
                if elsewhere and self._endings.give_back_later(waiting, ELSEWHERE):
                    self.doubts.forget(waiting)
                    return
            if proof and self.doubts.proved(waiting):
                self._refuse([waiting], error.why if isinstance(error, _Unknown) else error)
                return
        self.doubts.set_aside(waiting, slow=slow or isinstance(error, ConnectionLost))
        # Others may come that tell, where it is one of all that Scrapy may work on.
        if len(self.doubts) <= HELD:
            self._endings.hold(waiting)
        if not self.doubts.all_fail:
            # Nothing is claimed while a sink is away, and then there is nothing to compare with.
            self._is_back(known=False)
            if not self._told_of_doubt:
                self._told_of_doubt = True
                logger.warning(
                    "%s could not write a row, and does not know whether the row or the sink is at "
                    "fault: it waits with its page, is tried again, and is refused if the sink "
                    "takes other rows meanwhile: %s",
                    *(type(self._pipeline).__name__, error),
                )

    def _is_at_end(self) -> bool:
        """No row has come for minutes, and this worker finds no request that might bring one."""
        if time.monotonic() < self._added_at + doubt.END:
            return False
        if self._worker is None:
            return not has_pending_requests(self._crawler)
        return self._worker.finds_nothing()

    async def _takes(
        self, others: list[Waiting], waiting: Waiting, error: SinkUnavailable
    ) -> bool | None:
        """Whether the sink takes rows at this moment that it has taken before; False: or cannot be
        asked; None: it fails when it is asked, and would for another worker, too."""
        if error.at_commit:
            return False  # it answers; the rows below are not committed
        rows = [other.row for other in others]
        try:
            return bool(await self._patient(self._pipeline.takes_others, waiting.row, rows))
        except Exception as problem:
            logger.debug("%s takes no other rows: %r", type(self._pipeline).__name__, problem)
            return None

    # A sink that is away, and how long a crawl that ends waits for it

    async def _patient(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call and wait until the patience ends: a call that hangs must not keep the worker.

        Raises `SinkError` alone.
        """
        calling = asyncio.ensure_future(self._call(method, *arguments))
        least = time.monotonic() + CLOSING_GRACE
        while not calling.done() and not (self._patience_ended() and time.monotonic() > least):
            await asyncio.wait([calling], timeout=0.25)
        if not calling.done():
            calling.cancel()
            await asyncio.wait([calling], timeout=CLOSING_GRACE)
            if not calling.done() or calling.cancelled():
                raise SinkUnavailable("no answer")
        if calling.cancelled():  # by the sink itself
            raise _Unknown(asyncio.CancelledError())
        return calling.result()

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._calls.call(method, *arguments)
        except (SinkUnavailable, RowRefused, SinkMismatch):
            raise
        except asyncio.CancelledError:
            raise  # `_patient` knows whether the call was to end
        except BaseException as error:  # SystemExit, for one, would end asyncio's loop
            if isinstance(error, KeyboardInterrupt):
                stop(self._crawler)  # where Scrapy handles no signals, it is Ctrl-C
            raise _Unknown(error) from error

    async def _pause(self, attempts: int, error: SinkUnavailable) -> None:
        if attempts >= AWAY_AFTER:
            self._is_away(str(error) or type(error).__name__)
        # Workers that met in a deadlock must not meet again.
        longest = min(RETRY_FIRST * 2 ** min(attempts, 10), RETRY_LAST)
        await asyncio.sleep(random.uniform(longest / 2, longest))

    def _is_away(self, why: str) -> None:
        if not self._told_away:
            self._told_away = True
            logger.warning(
                "%s cannot write, keeps its items and claims nothing until it can: %s",
                type(self._pipeline).__name__,
                why,
            )
        if not self._away:
            self._away = True
            if self._worker:
                self._worker.sink_is_away(True)

    def _is_back(self, *, known: bool = True) -> None:
        if known:
            self._answered_at = time.monotonic()
            if self._told_away:
                self._told_away = False
                logger.warning("%s writes again; the crawl goes on", type(self._pipeline).__name__)
        if self._away:
            self._away = False
            if self._worker:
                self._worker.sink_is_away(False)

    def _patience_ended(self) -> bool:
        """The crawl is being closed, and the sink has been away for REDISQ_CLOSE_TIMEOUT since."""
        if not self._is_closing():
            return False
        patience = self._pipeline.settings.close_timeout
        return time.monotonic() > max(self._closing_since, self._answered_at) + patience

    def _is_closing(self) -> bool:
        if not self._closing_since and (self._closing or is_closing(self._crawler)):
            self._closing_since = time.monotonic()
        return self._closing_since > 0
