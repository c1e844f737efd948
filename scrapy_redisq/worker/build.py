"""What a worker needs to start: every part of it, made and put together here.

Nothing else in the package makes a `Worker`, and no part looks for another: each is given what it
needs when it is made.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request, Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from scrapy_redisq._scrapy.crawl import spider_with_limits, stop_at_hangup
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.errors import SettingError
from scrapy_redisq.feeds import warn_of_shared_feeds
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.value_classes import ValueClasses
from scrapy_redisq.serialization.value_classes import find as find_classes
from scrapy_redisq.settings.arguments import Arguments
from scrapy_redisq.settings.scrapy_redis import kept_lines
from scrapy_redisq.settings.scrapys_limits import downloads_at_once
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.back_pressure import BackPressure
from scrapy_redisq.worker.connect import WorkerConnection
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.outbox import Outbox
from scrapy_redisq.worker.parts import Parts
from scrapy_redisq.worker.politeness.gate import DownloadGate
from scrapy_redisq.worker.politeness.judge import Judge
from scrapy_redisq.worker.politeness.retry_pauses import RetryPauses
from scrapy_redisq.worker.release import digest_of, release_of
from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)


async def build(crawler: Crawler, spider: Spider, engine: Engine, started: float) -> Worker:
    """A worker that has joined its run and exchanges. ``started``: when the crawl was, by
    time.monotonic(). Raises `RedisqError`; `RunOver` if there is nothing to do."""
    settings = RedisqSettings.read(crawler.settings, spider_with_limits(spider))
    _check_slots(crawler, settings)
    _warn(crawler)
    stop_at_hangup()
    serializer = Serializer(
        spider,
        max_bytes=settings.max_entry_bytes,
        schemes=settings.schemes,
        request_classes=settings.request_classes,
        value_classes=ValueClasses(settings.value_classes, find_classes(spider, crawler.settings)),
        meta_keys=settings.meta_keys,
    )
    fingerprinter: Any = crawler.request_fingerprinter
    dupefilter = make_dupefilter(crawler)
    # A dupefilter of this package works inside the exchange and is never asked itself.
    kind = dupefilter.kind if isinstance(dupefilter, RedisqDupeFilter) else None
    foreign_filter = None if kind else dupefilter
    if foreign_filter and (opening := foreign_filter.open()):
        await maybe_deferred_to_future(opening)
    arguments = Arguments.of_crawl(crawler)
    session = WorkerConnection(settings)
    try:
        run_session, server = await session.open(
            settings.frontier_name(spider.name, arguments),
            dupefilter=kind or global_object_name(type(dupefilter)),
            fingerprinter=global_object_name(type(fingerprinter)),
            spider=spider.name,
            arguments=arguments.to_text() if arguments and settings.same_arguments else "",
            started=started,
            release=release_of(type(spider)),
            digest=digest_of(crawler.settings),
        )
        exchange_loop = ExchangeLoop(run_session, server)
        in_progress = InProgress(fingerprinter.fingerprint)
        inbox = make_inbox(crawler, settings)
        retry_pauses = RetryPauses(settings.retry_delays)
        gate = DownloadGate(
            engine,
            inbox,
            in_progress,
            make_judge(crawler, settings),
            run_session.sessions,
            exchange_loop.wake,
            lease_ttl=settings.lease_ttl,
            download_timeout=crawler.settings.getfloat("DOWNLOAD_TIMEOUT"),
            throttles=bool(settings.throttle),
            retries=crawler.settings.getbool("RETRY_ENABLED"),
        )
        kept = KeptRequests(engine, exchange_loop, in_progress, crawler.stats)
        outbox = Outbox(
            crawler,
            settings,
            engine=engine,
            serializer=serializer,
            dupefilter=dupefilter,
            in_progress=in_progress,
            kept=kept,
            exchange_loop=exchange_loop,
        )
        worker = Worker(
            Parts(
                crawler,
                spider,
                settings,
                engine,
                session,
                exchange_loop,
                serializer,
                foreign_filter,
                inbox,
                in_progress,
                kept,
                outbox,
                gate,
                retry_pauses,
                BackPressure(
                    settings.growth_limit(),
                    unfinished=exchange_loop.unfinished,
                    closing=lambda: engine.closing,
                ),
            )
        )
        _watch(worker, in_progress)
        worker.start()
        if settings.progress:
            # Here, as rich takes its time.
            from scrapy_redisq.worker.progress import Progress  # noqa: PLC0415

            progress = Progress(worker)
            progress.start()
            crawler.signals.connect(progress.stop, signals.spider_closed, weak=False)
        return worker
    except BaseException:
        await session.abandon()
        if foreign_filter and (closing := foreign_filter.close("finished")):
            await maybe_deferred_to_future(closing)
        raise


def _watch(worker: Worker, in_progress: InProgress) -> None:
    """Have Scrapy tell what becomes of requests and items, and begin no download unasked."""
    engine, gate, settings = worker.engine, worker.gate, worker.settings
    throttle = settings.throttle
    if throttle or settings.fleet_limits:
        at_least = math.ceil(throttle.target) if throttle else 1
        engine.downloads.lift_limits(gate.allowed_at_once, at_least=at_least)
    engine.downloads.gate_by(gate)
    engine.downloads.follow(worker.gave_out, gate.fetched)

    def arrived(request: Request, response: Response) -> None:
        in_progress.arrived(request, response)
        gate.arrived(request)

    engine.watch_pages(
        failed=in_progress.download_failed,
        arrived=arrived,
        raised=in_progress.raised,
        item_failed=in_progress.item_failed,
    )
    engine.watch_retries(in_progress.gave_up)
    connect = worker.crawler.signals.connect
    connect(in_progress.item_error, signals.item_error)
    if worker.crawler.settings.getbool("COOKIES_ENABLED"):
        connect(in_progress.response_downloaded, signals.response_downloaded)
    connect(worker.item_scraped, signals.item_scraped)
    # Scrapy waits for the spider that it stops, unless that is being closed already.
    connect(engine.until_closed, signals.engine_stopped)


def _check_slots(crawler: Crawler, settings: RedisqSettings) -> None:
    """Raise `SettingError` where Scrapy's slots are addresses, as its own queue by slots does: a
    request would change its slot, and with it its limits, when its host is looked up."""
    name = "CONCURRENT_REQUESTS_PER_IP"
    if settings.scheduling != "priority" and (number := crawler.settings.getint(name)):
        takes = f"0, or any number with {RedisqSettings.scheduling.name} = 'priority'"
        raise SettingError(name, number, takes)


def _warn(crawler: Crawler) -> None:
    """Of what a project sets for one process, and several would do each for itself."""
    job = vars(crawler.spider).get("_job", "")  # the argument that scrapyd gives
    warn_of_shared_feeds(crawler.settings, crawler.spidercls, str(job))
    for kept in kept_lines(crawler.settings):
        logger.warning("%s. %s. Write %s", kept.what, kept.why, kept.write)
    if crawler.settings["JOBDIR"]:
        logger.warning(
            "JOBDIR is of no use here: requests are kept in Redis, and a crawl that was "
            "stopped goes on from there. What extensions keep in it (SpiderState) two workers "
            "would overwrite for each other"
        )


def make_inbox(crawler: Crawler, settings: RedisqSettings) -> Inbox[ShardSession]:
    """For twice the requests that Scrapy downloads at a time, or REDISQ_MAX_LEASES."""
    concurrency = downloads_at_once(crawler.settings)
    per_slot = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") or concurrency
    lifted = settings.fleet_limits or settings.autothrottle
    if crawler.settings.getfloat("DOWNLOAD_DELAY") > 0 and not lifted:
        per_slot = 1
    return Inbox(
        min(per_slot, concurrency),
        settings.max_leases or 2 * concurrency,
        by_slot=settings.scheduling != "priority",
    )


def make_judge(crawler: Crawler, settings: RedisqSettings) -> Judge | None:
    """Of how downloads end. None: without slots there is nothing to judge."""
    if settings.scheduling == "priority":
        return None
    codes = settings.backoff_codes
    exceptions = crawler.settings.getlist("RETRY_EXCEPTIONS") if codes else []
    return Judge(codes, tuple(map(load_object, exceptions)))


def make_dupefilter(crawler: Crawler) -> BaseDupeFilter:
    """DUPEFILTER_CLASS, or a Bloom filter where the project does not say."""
    path = crawler.settings["DUPEFILTER_CLASS"]
    if crawler.settings.getpriority("DUPEFILTER_CLASS") == 0:  # Scrapy's own default
        path = "scrapy_redisq.BloomDupeFilter"
    dupefilter: BaseDupeFilter = build_from_crawler(load_object(path), crawler)
    return dupefilter
