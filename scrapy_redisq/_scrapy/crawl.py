"""A crawl as a whole: its command, its event loop, its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any
from weakref import WeakSet

from scrapy import Spider, signals
from scrapy.core import downloader as scrapys_downloader
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.defer import Deferred

from scrapy_redisq.errors import RedisqError, with_causes
from scrapy_redisq.reasons import CloseReason

logger = logging.getLogger(__name__)

STARTING_POLL = 0.05
"""Seconds between looks at whether an engine that has been started runs."""

JOINING = 5.0
"""Seconds that the end of the process waits for a worker that is joining, to leave again."""


def require_asyncio() -> None:
    """Raise `RedisqError` unless Scrapy runs on an asyncio event loop."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return
    from scrapy.utils.reactor import is_asyncio_reactor_installed  # noqa: PLC0415

    installed = False
    with contextlib.suppress(RuntimeError):  # no reactor at all
        installed = is_asyncio_reactor_installed()
    if not installed:
        raise RedisqError(
            "scrapy-redisq needs asyncio. Remove TWISTED_REACTOR from the settings, or set it to "
            "'twisted.internet.asyncioreactor.AsyncioSelectorReactor' (Scrapy's default)"
        )


def running_command() -> tuple[str, object] | None:
    """Name and object of the ``scrapy`` command that runs in this process, if one does. Its call
    lasts until its crawl has ended, in this thread or, as for the shell, in the main one."""
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


def spare_what_stays() -> None:
    """In a process of one crawl, keep Python's garbage collector from all that is there by now:
    modules, Scrapy, the crawl. It stays to the end, and each full collection would look at it:
    about a tenth of a crawl's time. A process of several crawls would keep the garbage of each, so
    this is done once."""
    _, command = running_command() or ("", None)
    if type(command).__module__ in {"scrapy.commands.crawl", "scrapy.commands.runspider"}:
        _freeze()


@functools.cache
def _freeze() -> None:
    gc.freeze()
    atexit.register(gc.unfreeze)  # then files that nobody has closed are written to the end


def spider_arguments(crawler: Crawler) -> dict[str, Any] | None:
    """The arguments of the spider, positional ones by their number; None if they are not known. The
    call of ``crawl()`` or ``crawl_async()`` has them, which lasts as long as the crawl."""
    for frame in _frames_around(crawler):
        if (
            frame.f_code.co_name in {"crawl", "crawl_async"}
            and frame.f_globals.get("__name__") == Crawler.__module__
            and frame.f_locals.get("self") is crawler
        ):
            given = frame.f_locals
            return {**{str(n): one for n, one in enumerate(given["args"])}, **given["kwargs"]}
    return None


def _frames_around(crawler: Crawler) -> Iterator[FrameType]:
    """Frames of this stack, then frames that wait somewhere and know the crawler."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
    for holder in gc.get_referrers(crawler):
        # Before Python 3.11 the frame itself.
        frame = getattr(holder, "gi_frame", None) or getattr(holder, "cr_frame", holder)
        if isinstance(frame, FrameType):
            yield frame


_unopened: WeakSet[Spider] = WeakSet()
"""Spiders that `cannot_start` has told of."""


def cannot_start(crawler: Crawler, error: RedisqError, logger: logging.Logger) -> None:
    """Log why a spider is not opened, where ``error`` is about to be raised for it: in one line
    after everything else. Its traceback, and what Scrapy says of it, are logged at DEBUG."""
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


class _Quiet(logging.Filter):
    """Lowers what Scrapy, asyncio and Twisted say of an error that has been told."""

    OF = ("scrapy.core.engine", "scrapy.utils.signal", "asyncio", "twisted")

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is None:
            return True
        known = any(getattr(one, "told", False) for one in with_causes(error))
        if known and record.name in ("asyncio", "twisted"):
            return False
        # A handler of spider_closed that has never seen spider_opened.
        spider = getattr(record, "spider", None)
        if known or (isinstance(spider, Spider) and spider in _unopened):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True


_quiet = _Quiet()


def stop_at_hangup() -> None:
    """Have SIGHUP, as of a terminal that is closed, stop Scrapy as SIGTERM does, unless it is
    ignored (nohup), or somebody else deals with it."""

    def hung_up(number: int, frame: Any) -> None:
        # The shell sends it as well as the kernel, and at a second SIGTERM Scrapy drops everything.
        # The second one may interrupt this before anything of it has run.
        if signal.signal(number, signal.SIG_IGN) == hung_up:
            os.kill(os.getpid(), signal.SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hung_up)


@contextlib.contextmanager
def heed_an_early_stop(crawler: Crawler) -> Iterator[None]:
    """Stop a crawl that is asked to stop before its engine runs. Its spider is opened within, which
    may take as long as Redis is away. Scrapy would start the crawl, take it for stopped, and never
    end it.

    SIGTERM ends the reactor, and the process, at once: a join on its way would leave a worker
    behind, for which others wait. So the reactor waits for the crawl's end, `JOINING` at most.
    Whoever ends a reactor of their own (`CrawlerRunner`) tells no crawl of it.
    """
    engine: Any = crawler.engine
    tasks: list[asyncio.Task[None]] = []  # the loop alone would forget it
    over = asyncio.Event()
    trigger: Any = None
    reactor_ends = is_closed = False

    async def until_running() -> None:
        while not engine.running:
            if is_closed:  # by a handler of spider_opened
                over.set()
                return
            await asyncio.sleep(STARTING_POLL)
        forget()
        if reactor_ends or not crawler.crawling:
            crawler.crawling = True
            await crawler.stop_async()
        over.set()

    def started() -> None:
        # It does not run yet: other handlers of the signal may wait.
        tasks.append(asyncio.ensure_future(until_running()))

    def closed() -> None:
        nonlocal is_closed
        is_closed = True
        forget()

    async def until_over() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), JOINING)

    def shutting_down() -> Deferred[None]:
        nonlocal trigger, reactor_ends
        trigger, reactor_ends = None, True
        engine.pause()  # a page that began now could keep it from leaving in time
        return deferred_from_coro(until_over())

    def forget() -> None:
        nonlocal trigger
        if trigger is not None:
            reactor.removeSystemEventTrigger(trigger)
            trigger = None

    crawler.signals.connect(started, signals.engine_started, weak=False)
    crawler.signals.connect(closed, signals.spider_closed, weak=False)
    if is_reactor_installed():
        from twisted.internet import reactor as installed  # noqa: PLC0415

        reactor: Any = installed
        trigger = reactor.addSystemEventTrigger("before", "shutdown", shutting_down)
    try:
        yield
    except BaseException:
        over.set()
        forget()
        raise


def stop(crawler: Crawler) -> None:
    """Stop a crawl whose engine runs, as SIGTERM does, without waiting for it."""
    deferred_from_coro(crawler.stop_async())


def spider_with_limits(spider: Spider) -> Spider | None:
    """The spider, if this Scrapy heeds its ``download_delay`` and ``max_concurrent_requests``."""
    return spider if hasattr(scrapys_downloader, "_get_concurrency_delay") else None


def scheduler_of(crawler: Crawler) -> Any:
    """The scheduler of a spider that is open."""
    engine: Any = crawler.engine
    return engine._slot.scheduler


def is_closing(crawler: Crawler) -> bool:
    """The spider is being closed."""
    engine: Any = crawler.engine
    return engine._slot is None or engine._slot.closing is not None


def has_pending_requests(crawler: Crawler) -> bool:
    """Requests wait in Scrapy's scheduler, or in that of a project."""
    engine: Any = crawler.engine
    scheduler = engine._slot and engine._slot.scheduler
    return scheduler is not None and bool(scheduler.has_pending_requests())


def close_spider(crawler: Crawler, reason: CloseReason, *, failed: bool = False) -> None:
    """Close the spider for ``reason``, without waiting for it. If the worker has ``failed``,
    `scrapy crawl` exits with 1. Otherwise a supervisor would take the crawl for finished."""
    engine: Any = crawler.engine
    if failed and (running := running_command()) is not None:
        command: Any = running[1]
        command.exitcode = 1
    deferred_from_coro(engine.close_spider_async(reason=reason))
