"""The one place that touches Scrapy's private names. Checked with Scrapy 2.13 to 2.19.

Scrapy tells a scheduler neither when a request has been dealt with nor how it ended, nor which
page a new request comes from. All of it can be read from the engine and the scraper.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakSet

import scrapy
from scrapy import Spider, signals
from scrapy.core import downloader as scrapys_downloader
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Request, Response
from scrapy.pipelines import ItemPipelineManager
from scrapy.robotstxt import RobotParser
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from scrapy_redisq.errors import RedisqError

logger = logging.getLogger(__name__)

CLOSING_POLL = 0.05
"""Seconds between looks at whether a spider that is being closed is closed."""

UNLIMITED = 1_000_000
"""Stands for any number of downloads: CONCURRENT_REQUESTS = 0."""

current_page: ContextVar[Request | None] = ContextVar("current_page", default=None)
"""The request that is being downloaded in this context, whose callback or errback runs, or whose
output (of those, or of a downloader middleware) is being processed."""

_in_download: ContextVar[bool] = ContextVar("_in_download", default=False)
"""This context is the downloader's and its middlewares', which `current_page` asked to download."""

current_item: ContextVar[tuple[Request, int] | None] = ContextVar("current_item", default=None)
"""The page that the item which is being processed in this context comes from, and its position
among the page's items; None if it comes from no page."""

_numbers: ContextVar[Iterator[int] | None] = ContextVar("_numbers", default=None)


def require_asyncio() -> None:
    """Raise `RedisqError` unless Scrapy runs on an asyncio event loop."""
    try:
        asyncio.get_running_loop()
        return
    except RuntimeError:
        pass
    from scrapy.utils.reactor import is_asyncio_reactor_installed  # noqa: PLC0415

    try:
        installed = is_asyncio_reactor_installed()
    except RuntimeError:  # no reactor at all, and no loop
        installed = False
    if not installed:
        raise RedisqError(
            "scrapy-redisq needs asyncio. Remove TWISTED_REACTOR from the settings, or set it to "
            "'twisted.internet.asyncioreactor.AsyncioSelectorReactor' (Scrapy's default)"
        )


def running_command() -> tuple[str, object] | None:
    """Name and object of the ``scrapy`` command that is being run in this process, if one is.

    Scrapy tells nobody, and takes the name out of ``sys.argv``. But a command's call lasts until
    its crawl has ended: in this thread or, as the shell's crawler has its own, in the main one.
    """
    main = threading.main_thread().ident
    for innermost in (sys._getframe(), sys._current_frames().get(main or 0)):
        frame = innermost
        while frame is not None:
            module = getattr(frame.f_globals.get("__spec__"), "name", None)
            if frame.f_code.co_name == "execute" and module == "scrapy.cmdline":
                called = frame.f_locals
                return str(called.get("cmdname")), called.get("cmd")
            frame = frame.f_back
    return None


def cannot_start(crawler: Crawler, error: RedisqError, logger: logging.Logger) -> None:
    """Log why a spider is not opened, where ``error`` is about to be raised for it: in one line
    after everything else, and with its traceback at DEBUG. Scrapy's own tracebacks, some 75 lines
    for the same, are logged at DEBUG or, where they would come later, left out."""
    logger.debug("The crawl cannot start", exc_info=error)
    engine: Any = crawler.engine
    closed = getattr(engine, "_spider_closed_callback", None)

    def told(*args: Any) -> Any:
        logger.error("The crawl cannot start: %s", error)
        return closed(*args) if closed else None

    if closed is None:
        told()
        return
    engine._spider_closed_callback = told
    error.told = True
    if crawler.spider is not None:
        _unopened.add(crawler.spider)
    for name in _Quiet.OF:
        logging.getLogger(name).addFilter(_quiet)


_unopened: WeakSet[Spider] = WeakSet()
"""Those that `cannot_start` has told of."""


class _Quiet(logging.Filter):
    """Lowers what Scrapy, asyncio and Twisted say of an error that has been told."""

    OF = ("scrapy.core.engine", "scrapy.utils.signal", "asyncio", "twisted")

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is None:
            return True
        known = any(getattr(one, "told", False) for one in _with_contexts(error))
        if known and record.name in ("asyncio", "twisted"):
            return False
        # A handler of spider_closed that has never seen spider_opened.
        spider = getattr(record, "spider", None)
        if known or (isinstance(spider, Spider) and spider in _unopened):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True


_quiet = _Quiet()


def _with_contexts(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def stop_at_hangup() -> None:
    """Have SIGHUP, as of a terminal that is closed, stop Scrapy as SIGTERM does. Unless it is
    ignored (nohup), or somebody else deals with it."""
    main = threading.current_thread() is threading.main_thread()
    if (
        not main
        or not hasattr(signal, "SIGHUP")
        or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
    ):
        return

    def hung_up(number: int, frame: Any) -> None:
        # The shell sends it as well as the kernel, and at a second SIGTERM Scrapy drops everything.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stop = signal.getsignal(signal.SIGTERM)
        if callable(stop):
            stop(number, frame)
        elif stop != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGHUP)

    signal.signal(signal.SIGHUP, hung_up)


def spider_with_limits(spider: Spider) -> Spider | None:
    """The spider, if this Scrapy heeds its ``download_delay`` and ``max_concurrent_requests``."""
    return spider if hasattr(scrapys_downloader, "_get_concurrency_delay") else None


def scheduler_of(crawler: Crawler) -> Any:
    """The scheduler of a spider that is open."""
    engine: Any = crawler.engine
    return engine._slot.scheduler


def awaited(coroutine: Coroutine[Any, Any, None]) -> Any:
    """What ``open_spider`` and ``close_spider`` of a pipeline return to be awaited."""
    if hasattr(ItemPipelineManager, "open_spider_async"):  # 2.14
        return coroutine
    return deferred_from_coro(coroutine)


def is_closing(crawler: Crawler) -> bool:
    """The spider is being closed."""
    engine: Any = crawler.engine
    return engine._slot is None or engine._slot.closing is not None


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider for ``reason``, without waiting for it."""
    engine: Any = crawler.engine
    if hasattr(engine, "close_spider_async"):  # 2.14
        deferred_from_coro(engine.close_spider_async(reason=reason))
    else:
        engine.close_spider(crawler.spider, reason)


async def download(crawler: Crawler, request: Request) -> Response:
    """The response to a request on the side, through the downloader middlewares."""
    engine: Any = crawler.engine
    if hasattr(engine, "download_async"):  # 2.14
        response: Response = await engine.download_async(request)
    else:
        response = await maybe_deferred_to_future(engine.download(request))
    return response


async def robots_parsed(crawler: Crawler, parser: RobotParser, request: Request) -> None:
    """Send the signal of this name, if there is one."""
    if signal := getattr(signals, "robots_parsed", None):  # 2.18
        await crawler.signals.send_catch_log_async(
            signal=signal, robotparser=parser, request=request
        )


def asked_delays(parser: RobotParser, agent: str) -> list[float | None]:
    """Seconds between requests that a robots.txt asks ``agent`` for, by Crawl-delay and by
    Request-rate; None, or nothing, where it does not or the parser cannot tell."""
    rules: Any = getattr(parser, "rp", None)  # of all of Scrapy's own
    delays: list[float | None] = []
    for source, method in (
        (parser, "crawl_delay"),  # 2.18
        (rules, "crawl_delay"),
        (rules, "get_crawl_delay"),
        (rules, "request_rate"),
    ):
        try:
            asked: Any = getattr(source, method)(agent)
            if method == "request_rate" and asked is not None:
                asked = asked.seconds / asked.requests
            delays.append(None if asked is None else float(asked))
        except (AttributeError, TypeError, ValueError, ArithmeticError):
            continue
    return delays


@contextlib.contextmanager
def _dealing_with(request: Request | None, *, downloading: bool = False) -> Iterator[None]:
    page, in_download = current_page.set(request), _in_download.set(downloading)
    try:
        yield
    finally:
        _in_download.reset(in_download)
        current_page.reset(page)


class Cancelled(Exception):
    """Raised in the place of asyncio's CancelledError, where something was awaited that has been
    cancelled: Scrapy takes that for no error, and waits for ever, or loses an item."""


@contextlib.contextmanager
def cancellation_is_an_error() -> Iterator[None]:
    """Raise `Cancelled` in the place of asyncio's CancelledError."""
    try:
        yield
    except asyncio.CancelledError as error:
        raise Cancelled("what was awaited has been cancelled") from error


def _uncancelled(output: Iterable[Any]) -> Iterator[Any]:
    with cancellation_is_an_error():
        yield from output


async def _uncancelled_async(output: AsyncIterator[Any]) -> AsyncIterator[Any]:
    with cancellation_is_an_error():
        async for one in output:
            yield one


def _made(request: Request, output: Iterable[Any]) -> Iterator[Any]:
    iterator = iter(output)
    while True:
        with _dealing_with(request):
            try:
                one = next(iterator)
            except StopIteration:
                return
        yield one


async def _made_async(request: Request, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        with _dealing_with(request):
            try:
                one = await output.__anext__()
            except StopAsyncIteration:
                return
        yield one


ItemFailed = Callable[["Request | None", Failure], None]


def watch_output(crawler: Crawler, item_failed: ItemFailed | None = None) -> None:
    """Have `current_page` and `current_item` tell where requests and items come from.

    ``item_failed(page, failure)`` is called when Scrapy was not done with an item of a page, or of
    none, and would tell nobody: a pipeline was cancelled, or the log formatter raised.
    May be called by several; the first one's ``item_failed`` counts.
    """
    engine: Any = crawler.engine
    scraper = engine.scraper
    if getattr(scraper, "_redisq_watched", False):
        return
    scraper._redisq_watched = True
    handle_output = scraper.handle_spider_output_async
    # Items are passed to it in the order in which the callback yields them.
    start_name = (
        "start_itemproc_async" if hasattr(scraper, "start_itemproc_async") else "start_itemproc"
    )
    start_itemproc = getattr(scraper, start_name)

    contexts: dict[int, contextvars.Context] = {}
    # Before 2.14 what a callback yields is made, and processed, in the context of whichever page
    # made Twisted's cooperator run.
    own_context = hasattr(scraper, "_process_spidermw_output_async")

    def output_of(request: Request, result: Any) -> Any:
        is_async = isinstance(result, AsyncIterator)
        result = (_uncancelled_async if is_async else _uncancelled)(result)
        if own_context:
            return result
        return (_made_async if is_async else _made)(request, result)

    async def watched_handle_output(result: Any, request: Request, response: Any) -> None:
        numbers = _numbers.set(itertools.count())
        try:
            with _dealing_with(request):
                contexts[id(response)] = contextvars.copy_context()
                await handle_output(output_of(request, result), request, response)
        finally:
            # A downloader middleware may have given one response to several requests.
            contexts.pop(id(response), None)
            _numbers.reset(numbers)

    def watched_start_itemproc(item: Any, *, response: Any) -> Any:
        # An item of start() has no response, but may run in the context of a page.
        page, numbers = current_page.get(), _numbers.get()
        comes_from_page = response is not None and page is not None and numbers is not None
        current_item.set((page, next(numbers)) if comes_from_page else None)  # type: ignore
        processed = start_itemproc(item, response=response)
        if not isinstance(processed, Deferred):
            return dealt_with(processed, page, is_of_start=response is None)
        processed = maybe_deferred_to_future(processed)  # before 2.14
        return deferred_from_coro(dealt_with(processed, page, is_of_start=response is None))

    # Scrapy closes a spider when the last response has been dealt with; an item of start() that was
    # still in the pipelines then would keep it open for ever.
    def close_if_idle() -> None:
        closing = scraper.slot and scraper.slot.closing
        if closing and not closing.called:
            scraper._check_if_closing()

    async def dealt_with(
        processed: Awaitable[None], page: Request | None, *, is_of_start: bool
    ) -> None:
        try:
            with cancellation_is_an_error():
                await processed
        except Exception:
            if item_failed is None:
                raise
            item_failed(page, Failure())  # type: ignore[no-untyped-call]
        finally:
            if is_of_start:
                close_if_idle()

    scraper.handle_spider_output_async = watched_handle_output
    if not own_context:
        process_output = scraper._process_spidermw_output

        def watched_process_output(output: Any, response: Any) -> Any:
            context = contexts.get(id(response))
            if context is None:
                return process_output(output, response)
            return context.copy().run(process_output, output, response)

        scraper._process_spidermw_output = watched_process_output
        # Likewise a pipeline after one that returns a Deferred, as media pipelines do.
        itemproc: Any = scraper.itemproc
        is_scrapys = type(itemproc) is ItemPipelineManager

        async def process_item(item: Any, spider: Spider) -> Any:
            for process in itemproc.methods["process_item"]:
                item = await maybe_deferred_to_future(maybeDeferred(process, item, spider))
            return item

        if is_scrapys:
            itemproc.process_item = lambda item, spider: deferred_from_coro(
                process_item(item, spider)
            )
    setattr(scraper, start_name, watched_start_itemproc)


class Gate(Protocol):
    """What every download passes."""

    async def begin(self, request: Request, slot: str) -> Callable[[Any], None]:
        """Returns when the download may begin, with what is called with the response or the
        exception that it ends with."""


class Engine:
    """What the scheduler needs of Scrapy's engine while a spider is open."""

    def __init__(self, crawler: Crawler) -> None:
        engine = crawler.engine
        self._crawler = crawler
        self._engine: Any = engine
        slot = getattr(engine, "_slot", None)
        missing = [
            name
            for name, present in (
                ("engine._slot.inprogress", isinstance(getattr(slot, "inprogress", None), set)),
                ("engine._slot.nextcall", hasattr(slot, "nextcall")),
                ("engine._start", hasattr(engine, "_start")),
                (
                    "engine._handle_downloader_output",
                    hasattr(engine, "_handle_downloader_output"),
                ),
                ("engine.scraper", hasattr(engine, "scraper")),
            )
            if not present
        ]
        if missing:
            raise RedisqError(
                f"Scrapy {scrapy.__version__} has no {', '.join(missing)}: this release of "
                f"scrapy-redisq works with Scrapy 2.13 to 2.19"
            )
        self._slot: Any = slot
        self._downloader: Any = self._engine.downloader
        self._on_the_way: dict[Request, str] = {}
        self._askers: dict[Request, tuple[Request | None, bool]] = {}
        self._start_raised = False
        self._of_start: Any = None
        self._returned: Request | None = None
        self._copy_what_is_in_progress()

    @property
    def in_progress(self) -> set[Request]:
        """Requests taken from the scheduler that have not left the engine yet."""
        requests: set[Request] = self._slot.inprogress
        return requests

    @property
    def starting(self) -> bool:
        """The spider's ``start()`` has not been read to its end."""
        return self._engine._start is not None

    @property
    def start_failed(self) -> bool:
        """``start()`` raised, be it `CloseSpider`, or ended while the spider was being closed: it
        may have more requests."""
        return self._start_raised

    @property
    def closing(self) -> bool:
        """The spider is being closed: requests in progress end, no others are started."""
        return self._slot.closing is not None

    def is_of_start(self, request: Request) -> bool:
        """The request is the one that ``start()`` has just yielded."""
        return request is self._of_start

    def is_returned(self, request: Request) -> bool:
        """A downloader middleware has just returned the request in the place of a response."""
        return request is self._returned

    @property
    def free(self) -> int:
        """Requests that Scrapy would take now: 0 while all downloads are busy, or more responses
        wait for their callbacks than it wants to hold."""
        scraper_slot = self._engine.scraper.slot  # None until the spider is open
        if scraper_slot is not None and scraper_slot.needs_backout():
            return 0
        total: int = self._downloader.total_concurrency
        return max(0, total - len(self._downloader.active)) if total > 0 else UNLIMITED

    def pace_start(self, room: Callable[[], Awaitable[None]]) -> None:
        """Read no more of the spider's ``start()`` than there is room for: await ``room`` after
        each of its requests, and read nothing while the spider is being closed. Items wait while
        as many are in the pipelines as Scrapy lets a page have there (CONCURRENT_ITEMS)."""

        async def paced(start: AsyncIterator[Any]) -> AsyncIterator[Any]:
            try:
                async for output in start:
                    self._of_start = output
                    yield output
                    self._of_start = None
                    await room()
                    if not isinstance(output, Request):
                        await self._room_for_items()
                    # Not ended before it is closed: it would look as if all had been read. Scrapy
                    # cancels this since 2.14.
                    while self.closing:
                        await asyncio.sleep(CLOSING_POLL)
                        if self._closed:
                            return
                # Scrapy cancels it as soon as it stops. What catches that has not read all.
                self._start_raised = self._start_raised or self.closing
            except Exception:
                self._start_raised = True
                raise

        if self._engine._start is not None:
            self._engine._start = paced(self._engine._start)

    async def _room_for_items(self) -> None:
        scraper = self._engine.scraper
        while scraper.slot and scraper.slot.itemproc_size >= scraper.concurrent_items:
            if self.closing:
                return
            await asyncio.sleep(CLOSING_POLL)

    def skip_start(self) -> None:
        """Read nothing of the spider's ``start()``."""
        self._engine._start = None

    def wake(self) -> None:
        """Make the engine ask for requests soon. Only from the loop's thread."""
        if not self.closing:
            self._slot.nextcall.schedule()

    def slot_of(self, request: Request) -> str:
        """The download slot of a request: ``meta["download_slot"]`` or its host."""
        return str(self._downloader.get_slot_key(request))

    def handed_out(self, request: Request, slot: str) -> None:
        """Scrapy is about to start ``request``."""
        self._on_the_way[request] = slot

    def downloads(self) -> Callable[[str], int | None]:
        """A function of a slot, to be used at once: how many requests of the slot the downloader
        has, or None if it should get no more now.

        A few may wait in the downloader, so that one starts the moment another ends, before the
        callbacks of what has arrived: they take half of what it has to spare, the other half is
        left to other slots.
        """
        downloader = self._downloader
        # A request is among its slot's only when the downloader middlewares have let it through.
        on_the_way: dict[str, int] = {}
        for request, slot in list(self._on_the_way.items()):
            try:
                downloads = downloader.slots.get(request.meta.get(downloader.DOWNLOAD_SLOT))
            except TypeError:  # a list or a dict, which the downloader refuses as well
                downloads = None
            if downloads and request in downloads.active:
                del self._on_the_way[request]
            else:
                on_the_way[slot] = on_the_way.get(slot, 0) + 1
        spare = downloader.total_concurrency - len(downloader.active)  # a total of 0: no limit

        def downloading(slot: str) -> int | None:
            downloads = downloader.slots.get(slot)
            number = on_the_way.get(slot, 0) + (len(downloads.active) if downloads else 0)
            if downloads is None or number < downloads.concurrency + max(1, spare // 2):
                return number
            return None

        return downloading

    def gate_downloads(self, gate: Gate) -> None:
        """Let no download begin before ``gate.begin()`` has returned."""
        handlers = self._downloader.handlers

        def slot_of(request: Request) -> str:
            return str(request.meta.get(self._downloader.DOWNLOAD_SLOT, ""))

        if hasattr(handlers, "download_request_async"):  # 2.14
            download_async = handlers.download_request_async

            async def gated_async(request: Request) -> Any:
                ended = await gate.begin(request, slot_of(request))
                try:
                    with cancellation_is_an_error():
                        response = await download_async(request)
                except BaseException as error:
                    ended(error)
                    raise
                ended(response)
                return response

            handlers.download_request_async = gated_async
            return

        download = handlers.download_request

        async def gated(request: Request, spider: Any) -> Any:
            ended = await gate.begin(request, slot_of(request))
            try:
                with cancellation_is_an_error():
                    response = await maybe_deferred_to_future(download(request, spider))
            except BaseException as error:
                ended(error)
                raise
            ended(response)
            return response

        handlers.download_request = lambda request, spider: deferred_from_coro(
            gated(request, spider)
        )

    def follow_downloads(
        self, is_page: Callable[[Request], bool], fetched: Callable[[Request], None]
    ) -> None:
        """Remember for whom each download is made, see `asker`. ``is_page``: whether a request was
        handed out by the scheduler. ``fetched(request)`` is called when the downloader and its
        middlewares are done with a request, whatever became of it."""
        fetch = self._downloader.fetch

        def over(result: Any, request: Request) -> Any:
            self._askers.pop(request, None)
            self._on_the_way.pop(request, None)
            fetched(request)
            return result

        def followed(request: Request, *spider: Any) -> Any:
            # A request of the scheduler's is started in the context of whatever woke the engine.
            page = request if is_page(request) else current_page.get()
            item = current_item.get()
            in_pipeline = page is not request and item is not None and item[0] is page
            self._askers[request] = page, in_pipeline
            with _dealing_with(page, downloading=True):
                # A downloader of the project's own may answer at once, or raise.
                return maybeDeferred(fetch, request, *spider).addBoth(over, request)

        self._downloader.fetch = followed

    def _copy_what_is_in_progress(self) -> None:
        """Let a page that downloads its own request again, on the side, go on being in progress:
        Scrapy takes a request for done when any of its downloads has ended."""
        engine = self._engine
        name = "download_async" if hasattr(engine, "download_async") else "download"  # 2.14
        download = getattr(engine, name)

        def download_another(request: Request) -> Any:
            return download(request.copy() if request in self.in_progress else request)

        setattr(engine, name, download_another)

    def asker(self, request: Request) -> tuple[Request | None, bool]:
        """The page for which a request is being downloaded, if one is known, and whether an item
        pipeline has asked for it."""
        return self._askers.get(request, (None, False))

    def watch_retries(self, gave_up: Callable[[Request, str], None]) -> None:
        """``gave_up(page, stat)`` is called when ``get_retry_request()`` returns None to a callback
        or an errback. Scrapy tells of that by nothing but a stat."""
        stats: Any = self._crawler.stats
        inc_value = stats.inc_value

        def watched_inc_value(key: Any, *args: Any, **kwargs: Any) -> None:
            inc_value(key, *args, **kwargs)
            if isinstance(key, str) and key.endswith("/max_reached") and not _in_download.get():
                page = current_page.get()
                if page is not None:
                    gave_up(page, key)

        stats.inc_value = watched_inc_value
        vars(stats).pop("_cached_inc_value", None)  # which Scrapy calls in its place since 2.14

    def lift_limits(self, lifts: Callable[[Request, str], int | None], *, at_least: int) -> None:
        """Let the downloader not hold up what is limited elsewhere.

        ``lifts(request, slot)`` is asked when it gets a request: -> how many downloads of the slot
        are allowed at a time, which are then possible, without any delay; None: the downloader's
        own limits hold. ``at_least`` are possible in any other case. Raises `RedisqError` if the
        downloader is not Scrapy's.
        """
        downloader = self._downloader
        if not hasattr(downloader, "_get_slot"):
            raise RedisqError(
                f"REDISQ_FLEET_LIMITS and REDISQ_AUTOTHROTTLE need Scrapy's own downloader, not "
                f"{type(downloader).__qualname__} (DOWNLOADER)"
            )
        get_slot = downloader._get_slot
        own_limits: dict[str, tuple[int, float]] = {}

        def lifted_slot(request: Request, *spider: Any) -> tuple[str, Any]:
            known = downloader.get_slot_key(request) in downloader.slots
            key, slot = get_slot(request, *spider)
            if not known:
                for forgotten in own_limits.keys() - downloader.slots.keys():
                    del own_limits[forgotten]
                own_limits[key] = slot.concurrency, slot.delay
            slot.concurrency, slot.delay = own_limits[key]
            if (allowed := lifts(request, key)) is not None:
                slot.concurrency = max(slot.concurrency, allowed, at_least)
                slot.delay = 0.0
            return key, slot

        downloader._get_slot = lifted_slot

    def close_spider(self, reason: str) -> None:
        """Close the spider for ``reason``, without waiting for it."""
        close_spider(self._crawler, reason)

    async def until_closed(self) -> None:
        """Wait until the spider is closed."""
        while not self._closed:
            await asyncio.sleep(CLOSING_POLL)

    @property
    def _closed(self) -> bool:
        return self._engine.spider is None  # Scrapy 2.13 keeps its slot

    def watch_pages(
        self,
        failed: Callable[[Request, Failure | None], None],
        arrived: Callable[[Request, Response], None],
        raised: Callable[[Request, Failure], bool],
        item_failed: ItemFailed,
    ) -> None:
        """Follow each page through the engine and the scraper.

        ``failed(request, failure)`` is called when a download failed for good, and
        ``failed(request, None)`` when the spider deals with it: its errback has run, or its
        callback is given the response. ``arrived(request, response)`` is called when a response
        has passed the downloader middlewares. ``raised(request, failure)`` when its callback,
        errback, or a spider middleware raised: -> whether that is no error. ``item_failed``: see
        `watch_output`. While they run, their output is processed, or a request that a downloader
        middleware returned, `current_page` is the request that it comes from.
        """
        scraper = self._engine.scraper
        handle_downloader_output = self._engine._handle_downloader_output
        enqueue_scrape = scraper.enqueue_scrape
        call_spider = scraper.call_spider_async
        handle_spider_error = scraper.handle_spider_error
        scrape = scraper._scrape

        def watched_enqueue_scrape(result: Any, request: Request, *args: Any) -> Any:
            if isinstance(result, Failure) and not isinstance(result.value, IgnoreRequest):
                failed(request, result)
            elif isinstance(result, Response):
                arrived(request, result)
            return enqueue_scrape(result, request, *args)

        async def watched_call_spider(result: Any, request: Request, *args: Any) -> Any:
            if isinstance(result, Response):
                failed(request, None)
            with _dealing_with(request):
                output = await call_spider(result, request, *args)
            if isinstance(result, Failure):
                failed(request, None)
            return output

        def watched_spider_error(failure: Failure, request: Request, *args: Any) -> None:
            if raised(request, failure):
                return
            try:
                handle_spider_error(failure, request, *args)
            except Exception:  # Scrapy would wait for the page for ever
                logger.exception("The log formatter cannot tell of %s", request)

        async def watched_scrape(result: Any, request: Request) -> None:
            try:
                scraped = scrape(result, request)
                if isinstance(scraped, Deferred):  # before 2.14
                    scraped = maybe_deferred_to_future(scraped)
                with cancellation_is_an_error():
                    await scraped
            except Exception:
                failure = Failure()  # type: ignore[no-untyped-call]
                watched_spider_error(failure, request, result)

        def watched_downloader_output(result: Any, request: Request) -> Any:
            if not isinstance(result, Request):
                return handle_downloader_output(result, request)
            self._returned = result
            try:
                with _dealing_with(request):
                    return handle_downloader_output(result, request)
            finally:
                self._returned = None

        self._engine._handle_downloader_output = watched_downloader_output
        scraper.enqueue_scrape = watched_enqueue_scrape
        scraper.call_spider_async = watched_call_spider
        scraper.handle_spider_error = watched_spider_error
        scraper._scrape = (
            watched_scrape
            if hasattr(scraper, "_wait_for_processing")  # 2.14
            else lambda *args: deferred_from_coro(watched_scrape(*args))
        )
        watch_output(self._crawler, item_failed)
