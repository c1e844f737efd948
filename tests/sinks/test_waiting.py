"""The base of the item pipelines without a crawl: how rows end, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest
from scrapy import Request

from scrapy_redisq._scrapy.output import current_item
from scrapy_redisq.errors import BatchTooLarge, SettingError, SinkUnavailable, WriteFailed
from scrapy_redisq.pipelines import batch, doubt, writer
from scrapy_redisq.pipelines.batch import BatchPipeline, ItemReturned, Row
from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.worker.page import Problem
from tests.harness.in_loop import in_a_loop, results, until
from tests.harness.pipelines import in_a_crawl


class DriverError(Exception):
    """Raised by a driver that this package does not know."""


class Sink(BatchPipeline):
    """Keeps its rows by key; ``fault`` is asked before."""

    def __init__(self, crawler: Any) -> None:
        super().__init__(crawler)
        self.rows: dict[str, Row] = {}
        self.attempts = 0
        self.fault: Callable[[list[Row]], None] = lambda rows: None

    async def write(self, rows: list[Row]) -> None:
        self.attempts += 1
        await asyncio.sleep(0)
        self.fault(rows)
        self.rows.update((row.key, row) for row in rows)


class HeldPages:
    """How often each page is held and was let go, and what else is said of it."""

    def __init__(self) -> None:
        self.held: Counter[Request] = Counter()
        self.given_back: set[Request] = set()
        self.refused: dict[Request, str] = {}

    def lacks_files(self, page: Request) -> bool:
        return False

    def has(self, page: Request) -> bool:
        return True

    def wait_for_item(self, page: Request) -> None:
        self.held[page] += 1

    def item_ended(self, page: Request) -> None:
        self.held[page] -= 1

    def give_back(self, page: Request) -> None:
        self.given_back.add(page)

    def give_back_later(self, page: Request, delays: Any) -> bool:
        self.given_back.add(page)
        return True

    def refuse(self, page: Request, problem: Problem) -> None:
        self.refused[page] = problem.detail

    def identity_of(self, request: Request) -> bytes:
        return request.url.encode()


class Desk:
    """What a worker is for a sink."""

    def __init__(self, pages: HeldPages) -> None:
        self.in_progress = pages
        self.has_found_nothing = False

    def finds_nothing(self) -> bool:
        return self.has_found_nothing

    def sink_is_away(self, away: bool) -> None:
        pass

    def sink_counted(self, name: str, by: int) -> None:
        pass


pytestmark = pytest.mark.usefixtures("quick")


def opened(
    pages: HeldPages, kind: type[BatchPipeline] = Sink, *, close_timeout: float = 30
) -> AbstractAsyncContextManager[Any]:
    """An open sink of a worker that has these pages."""
    scheduler = object.__new__(Scheduler)
    scheduler.worker = cast(Any, Desk(pages))
    return in_a_crawl(kind, scheduler, REDISQ_CLOSE_TIMEOUT=close_timeout)


def put(sink: BatchPipeline, *numbers: int) -> list[asyncio.Task[Any]]:
    """One item of a page each."""
    tasks = []
    for number in numbers:
        current_item.set((Request(f"http://x/{number}"), 0))
        tasks.append(asyncio.ensure_future(sink.process_item({"n": number})))
    current_item.set(None)
    return tasks


def refusing(refused: Callable[[int], object], error: BaseException) -> Callable[[list[Row]], None]:
    """A fault of a sink by rows whose numbers are refused."""

    def fault(rows: list[Row]) -> None:
        if any(refused(row["n"]) for row in rows):
            raise error

    return fault


@in_a_loop
async def test_each_row_ends_once() -> None:
    """A sink that fails in an unexpected way when half of a batch is written and a row is set
    aside: each row lets its page go once, and only pages whose rows are not written go back."""
    pages = HeldPages()
    async with opened(pages) as sink:
        sink.batch_seconds, sink.batch_rows = 60, 4
        refused = {2}

        def fault(rows: list[Row]) -> None:
            if len(rows) > 2:
                raise BatchTooLarge("four are too many")
            if refused & {row["n"] for row in rows}:
                raise WriteFailed("nobody knows")

        def kind(row: Row) -> object:
            if row["n"] == 3 and sink.rows:
                raise RuntimeError("a fault of the sink's class")
            return dict

        sink.fault, sink.kind = fault, kind  # type: ignore[assignment, method-assign]
        await results(put(sink, 0, 1, 2, 3))
        assert set(pages.held.values()) == {1}
        await until(lambda: set(pages.held.values()) == {0}, "all are let go")
    assert len(pages.held) == 4
    assert set(pages.held.values()) == {0}
    assert {page.url for page in pages.given_back} == {"http://x/2", "http://x/3"}


@in_a_loop
async def test_batches_gather_while_one_is_written() -> None:
    """What comes while a batch is being written is the next one, of at most `batch_rows` rows."""
    sizes: list[int] = []
    async with opened(HeldPages()) as sink:
        sink.batch_rows = 5
        write, go_on = sink.write, asyncio.Event()

        async def slow(rows: list[Row]) -> None:
            sizes.append(len(rows))
            await go_on.wait()
            await write(rows)

        sink.write = slow  # type: ignore[method-assign]
        tasks = put(sink, 0)
        await until(lambda: sizes, "the first batch")
        tasks += put(sink, *range(1, 13))
        waiting: Any = sink._batches.writer
        await until(lambda: len(waiting._waiting) == 12, "all wait")
        go_on.set()
        assert await results(tasks) == [None] * 13
    assert sizes == [1, 5, 5, 2]


@in_a_loop
async def test_rows_that_only_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found also when they are the last of a crawl: what was written before is taken
    again, also that of another kind. Not before the crawl is at its end: no row has come for long,
    and none can be claimed."""
    monkeypatch.setattr(doubt, "END", 0.5)
    pages, count = HeldPages(), 7
    async with opened(pages) as sink:
        sink.kind = lambda row: row["n"] > 12  # type: ignore[method-assign]
        sink.fault = refusing(lambda n: n > 12, DriverError("no such number"))
        assert await results(put(sink, *range(13))) == [None] * 13
        tasks = put(sink, *range(13, 13 + count))
        began = asyncio.get_running_loop().time()
        await until(lambda: sink.attempts > 60, "it has been tried often")
        await until(lambda: asyncio.get_running_loop().time() > began + 1, "a second is over")
        assert await results(tasks) == [None] * count  # they keep nobody from claiming more
        assert not pages.refused
        sink.crawler.engine._slot.scheduler.worker.has_found_nothing = True  # type: ignore[union-attr]
        await until(lambda: len(pages.refused) == count, "all are refused")
        assert len(sink.rows) == 13
    assert all(text.endswith("DriverError: no such number") for text in pages.refused.values())


@in_a_loop
async def test_a_worker_that_has_written_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a crawl its page is for another worker, which may have rows to ask the sink
    with. Not while the sink has been asked without a row, and fails: it is away for all."""
    monkeypatch.setattr(doubt, "END", 0)
    pages, faults = HeldPages(), iter([1] * 9)
    async with opened(pages) as sink, opened(HeldPages()) as other:
        sink.crawler.engine._slot.scheduler.worker.has_found_nothing = True  # type: ignore[union-attr]
        sink.fault = refusing(lambda n: True, DriverError("away"))
        await results(put(sink, 1))
        await until(lambda: len(pages.given_back) == 1, "it goes back")
        other.fault = refusing(lambda n: True, DriverError("away"))
        monkeypatch.setattr(sink, "takes_others", lambda row, others: other.write([row]))
        sink.fault = refusing(lambda n: True, WriteFailed("refused", at_commit=True))
        await results(put(sink, 2))
        await until(lambda: len(pages.given_back) == 2, "it goes back")
        sink.fault = refusing(lambda n: next(faults, 0), DriverError("away"))
        await results(put(sink, 0))
        await until(lambda: sink.rows, "it is written")
    assert len(pages.given_back) == 2


class Panic(BaseException):
    """Raised by libraries in Rust: PyO3's panics are no `Exception`."""


@pytest.mark.parametrize(
    ("raised", "plain"),
    [
        (StopIteration(), False),
        (Panic("unwrap"), False),
        (asyncio.CancelledError(), False),
        (SettingError("SHOP_URL", "", "a URL"), False),
        (SystemExit(1), True),
    ],
    ids=lambda given: type(given).__name__,
)
@in_a_loop
async def test_whatever_write_raises(raised: BaseException, plain: bool) -> None:
    """What is no error of a sink's, but of the language, of libraries, of this package. While no
    row is written none is refused, and all are written when it has ended; one with which it is
    raised while others pass is refused; and a crawl that ends is not kept."""
    pages = HeldPages()
    async with opened(pages, close_timeout=0.3) as sink:

        def write(rows: list[Row]) -> None:
            sink.attempts += 1
            sink.fault(rows)
            sink.rows.update((row.key, row) for row in rows)

        sink.fault = refusing(lambda n: n in bad, raised)
        if plain:
            sink.write = write  # type: ignore[assignment, method-assign]
        bad = set()
        assert await results(put(sink, 0)) == [None]
        bad = set(range(100))
        tasks = put(sink, *range(1, 20))
        await until(lambda: sink.attempts > 60, "it has been tried often")
        assert not pages.refused
        bad = {7}
        assert set(await results(tasks)) == {None}
        await until(lambda: pages.refused, "one is refused")
        bad = set(range(100))
        tasks = put(sink, *range(20, 30))
        sink.crawler.engine._slot.closing = object()  # type: ignore[union-attr]
        await results(tasks)
        await until(lambda: len(pages.given_back) == 10, "all go back")
    assert {page.url for page in pages.refused} == {"http://x/7"}
    assert len(pages.given_back) == 10


@in_a_loop
async def test_a_sink_without_async_def() -> None:
    """Its methods are called in one thread, one after the other; each row is written once."""
    written: list[int] = []
    threads: set[str] = set()

    class Plain(BatchPipeline):
        def open(self) -> None:  # type: ignore[override]
            threads.add(threading.current_thread().name)

        def write(self, rows: list[Row]) -> None:  # type: ignore[override]
            threads.add(threading.current_thread().name)
            written.extend(row["n"] for row in rows)

        def close(self) -> None:  # type: ignore[override]
            threads.add(threading.current_thread().name)

    async with opened(HeldPages(), Plain) as sink:
        assert await results(put(sink, *range(9))) == [None] * 9
    assert sorted(written) == list(range(9))
    assert threads == {"redisq-Plain"}
    for thread in threading.enumerate():
        if thread.name == "redisq-Plain":
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["plain", "async"])
@in_a_loop
async def test_a_write_that_yields(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it would run: the crawl ends, and says why; no row counts as written."""
    pages = HeldPages()

    def plain(rows: list[Row]) -> Iterator[Row]:
        yield from rows

    async def asynchronous(rows: list[Row]) -> AsyncIterator[Row]:
        for row in rows:
            yield row

    async with opened(pages) as sink:
        sink.write = plain if kind == "plain" else asynchronous  # type: ignore[assignment, method-assign]
        assert await results(put(sink, *range(3))) == [ItemReturned] * 3
    assert "() must not contain 'yield'" in caplog.text
    assert len(pages.given_back) == 3


@in_a_loop
async def test_rows_in_doubt_keep_their_pages_and_not_scrapy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as may be: others can come that tell. Scrapy waits for those beyond."""
    monkeypatch.setattr(writer, "HELD", 3)
    pages = HeldPages()
    async with opened(pages) as sink:
        assert await results(put(sink, 0)) == [None]
        sink.fault = refusing(bool, ValueError("no number"))
        tasks = put(sink, *range(1, 6))
        await until(lambda: len(sink._batches.writer.doubts) == 5, "all are set aside")
        assert [task.done() for task in tasks] == [True] * 3 + [False] * 2
        assert sum(pages.held.values()) == 3
        sink.fault = lambda rows: None
        assert await results(tasks) == [None] * 5
        await until(lambda: not any(pages.held.values()), "all are let go")


@in_a_loop
async def test_a_sink_that_hangs_when_it_is_opened_or_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not keep a crawl from ending."""
    monkeypatch.setattr(batch, "CLOSING_GRACE", 0.05)

    async def hang() -> None:
        await asyncio.Event().wait()

    async with opened(HeldPages(), close_timeout=0.1) as sink:
        await asyncio.gather(*put(sink, 1))
        sink.close = hang  # type: ignore[method-assign]
        other = Sink(sink.crawler)
        other.open = hang  # type: ignore[method-assign]
        opening = asyncio.ensure_future(other.open_spider())
        await asyncio.sleep(0)
        await other.close_spider()
        with pytest.raises(SinkUnavailable, match="no answer"):
            await opening


@pytest.mark.parametrize("seconds", [0, 0.01])
@pytest.mark.parametrize("of_page", [True, False])
def test_an_item_after_the_end(
    seconds: float, of_page: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a `start()` that goes on when the pipelines have been closed: its page goes back, or
    the log tells of it, and a stat counts it."""
    pages = HeldPages()
    pages.has = lambda page: page is not None  # type: ignore[method-assign]

    async def crawl() -> int:
        async with opened(pages) as sink:
            sink.batch_seconds = seconds
            await sink.close_spider()
            current_item.set((Request("http://x/1"), 0) if of_page else None)
            (result,) = await results([asyncio.ensure_future(sink.process_item({"n": 1}))])
            assert result is (None if seconds else ItemReturned)
            stats: Any = sink.crawler.stats
            return int(stats.get_value("redisq/sink/lost", 0))

    assert asyncio.run(crawl()) == (not of_page)
    if of_page:
        assert len(pages.given_back) == 1
    elif seconds:
        assert "Dropped: not written before the crawl ended" in caplog.text
    assert not any(pages.held.values())


@in_a_loop
async def test_closed_while_rows_are_in_doubt() -> None:
    """They go back, and so does an item that waits for room."""
    pages = HeldPages()
    async with opened(pages, close_timeout=0.1) as sink:
        sink.batch_rows, sink.batch_seconds = 1, 0.01
        sink.fault = refusing(lambda n: True, WriteFailed("nobody knows"))
        await results(put(sink, 0, 1))
        await until(lambda: len(sink._batches.writer.doubts) == 2, "both are set aside")
        tasks, attempts = put(sink, 2), sink.attempts
    await results(tasks)
    assert sink.attempts > attempts + 2, "they were tried while there was time"
    assert len(pages.given_back) == 3
    assert not any(pages.held.values())
