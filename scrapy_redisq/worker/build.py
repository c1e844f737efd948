"""Makes the parts that a worker needs to start, and puts them together."""

from __future__ import annotations

import dataclasses
import logging
import math

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request, Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from scrapy_redisq._scrapy.crawl import spare_what_stays, spider_with_limits, stop_at_hangup
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.errors import SettingError
from scrapy_redisq.feed_exports import warn_of_shared_feeds
from scrapy_redisq.frontier.limits import limit_of
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.value_classes import ValueClasses
from scrapy_redisq.serialization.value_classes import find as find_classes
from scrapy_redisq.settings.arguments import Arguments
from scrapy_redisq.settings.scrapy_redis import kept_lines
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.settings.start_urls import feeds_of, max_idle_of
from scrapy_redisq.worker.connect import WorkerConnection
from scrapy_redisq.worker.feeder import Feeder, open_sources
from scrapy_redisq.worker.origin import digest_of, release_of
from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)


async def build(crawler: Crawler, spider: Spider, engine: Engine, started: float) -> Worker:
    """A worker that has joined its run and exchanges. ``started``: when the crawl was, by
    time.monotonic(). Raises `RedisqError`; `RunOver` if there is nothing to do."""
    settings = RedisqSettings.read(crawler.settings, spider_with_limits(spider))
    feeds = feeds_of(spider, settings, crawler.settings)
    max_idle = max_idle_of(spider, crawler.settings)
    if feeds:
        of_spider = {"keep_alive": True, "feeds": {feed.key: {"url": feed.url} for feed in feeds}}
        settings = dataclasses.replace(settings, values={**settings.values, **of_spider})
    _check_slots(crawler, settings)
    _warn(crawler)
    stop_at_hangup()
    serializer = Serializer(
        spider,
        max_bytes=settings.max_entry_bytes,
        schemes=settings.schemes,
        request_classes=settings.request_classes,
        value_classes=ValueClasses(settings.value_classes, find_classes(spider)),
        meta_keys=settings.meta_keys,
    )
    dupefilter = make_dupefilter(crawler)
    if settings.seen_ttl and not isinstance(dupefilter, RedisqDupeFilter):
        takes = "0 with another DUPEFILTER_CLASS than BloomDupeFilter or ExactDupeFilter"
        raise SettingError(RedisqSettings.seen_ttl.name, settings.seen_ttl, takes)
    # A dupefilter of this package works inside the exchange and is never asked itself.
    kind = dupefilter.kind if isinstance(dupefilter, RedisqDupeFilter) else None
    if not kind and (opening := dupefilter.open()):
        await maybe_deferred_to_future(opening)
    arguments = Arguments.of_crawl(crawler)
    config = settings.frontier_config(
        dupefilter=kind or global_object_name(type(dupefilter)),
        backend="" if kind == "bloom" else "exact",
        fingerprinter=global_object_name(type(crawler.request_fingerprinter)),
        spider=spider.name,
        arguments=arguments.to_text() if arguments and settings.same_arguments else "",
    )
    connection = WorkerConnection(settings)
    try:
        run_session = await connection.open(
            settings.frontier_name(spider.name, arguments),
            config,
            started=started,
            release=release_of(type(spider)),
            digest=digest_of(crawler.settings),
        )
        worker = Worker(crawler, settings, engine, connection, run_session, serializer, dupefilter)
        if feeds:
            sources = await open_sources(feeds, settings, connection.closes)
            worker.feeder = Feeder(worker, sources, max_idle)
        _watch(worker)
        worker.start()
        if settings.progress:
            # Here, as rich takes its time.
            from scrapy_redisq.worker.progress_line import Progress  # noqa: PLC0415

            progress = Progress(worker)
            progress.start()
            crawler.signals.connect(progress.stop, signals.spider_closed, weak=False)
        return worker
    except BaseException:
        await connection.abandon()
        if closing := dupefilter.close("finished"):
            await maybe_deferred_to_future(closing)
        raise


def _watch(worker: Worker) -> None:
    """Have Scrapy tell what becomes of requests and items, and begin no download unasked."""
    engine, gate, settings = worker.engine, worker.gate, worker.settings
    in_progress = worker.in_progress
    throttle = settings.throttle
    if throttle or settings.fleet_limits:
        at_least = math.ceil(throttle.target) if throttle else 1
        limits = settings.limits()

        def allowed(slot: str) -> int | None:
            state = gate.turns.of(name := slot_name(slot))
            is_free = state.ends is None and state.tokens is None and gate.knows(name)
            if is_free and (throttle or limit_of(limits, name).delay):
                return None  # another worker has taken the limits away
            return state.tokens or 0

        engine.downloads.lift_limits(allowed, at_least=at_least)
    engine.downloads.gate_by(gate.begin)
    engine.downloads.follow(in_progress.asking, gate.turns.is_done)

    def arrived(request: Request, response: Response) -> None:
        in_progress.arrived(request, response)
        gate.arrived(request)

    engine.watch_pages(
        failed=in_progress.download_failed,
        arrived=arrived,
        raised=in_progress.raised,
    )
    engine.watch_retries(in_progress.gave_up)
    connect = worker.crawler.signals.connect
    connect(in_progress.item_error, signals.item_error)
    connect(in_progress.item_scraped, signals.item_scraped)
    if worker.crawler.settings.getbool("COOKIES_ENABLED"):
        connect(in_progress.response_downloaded, signals.response_downloaded)
    # Not before: to find the crawl's arguments, the collector is asked who knows the crawler.
    connect(spare_what_stays, signals.engine_started)
    # Scrapy waits for the spider that it stops, unless that is being closed already.
    connect(engine.until_closed, signals.engine_stopped)


def _check_slots(crawler: Crawler, settings: RedisqSettings) -> None:
    """Raise `SettingError` where Scrapy's slots are addresses, as its own queue by slots does. A
    request would change its slot, and its limits, when its host is looked up."""
    name = "CONCURRENT_REQUESTS_PER_IP"
    if settings.scheduling != "priority" and (number := crawler.settings.getint(name)):
        takes = f"0, or any number with {RedisqSettings.scheduling.name} = 'priority'"
        raise SettingError(name, number, takes)


def _warn(crawler: Crawler) -> None:
    """Warn of settings for one process that several processes would each obey by themselves."""
    job = vars(crawler.spider).get("_job", "")  # the argument that scrapyd gives
    warn_of_shared_feeds(crawler.settings, crawler.spidercls, str(job))
    for kept in kept_lines(crawler.settings, crawler.spidercls):
        logger.warning("%s. %s. Write %s", kept.what, kept.why, kept.write)
    if crawler.settings["JOBDIR"]:
        logger.warning(
            "JOBDIR is of no use here: requests are kept in Redis, and a crawl that was "
            "stopped goes on from there. What extensions keep in it (SpiderState) two workers "
            "would overwrite for each other"
        )


def make_dupefilter(crawler: Crawler) -> BaseDupeFilter:
    """DUPEFILTER_CLASS, or a Bloom filter where the project does not say."""
    path = crawler.settings["DUPEFILTER_CLASS"]
    if crawler.settings.getpriority("DUPEFILTER_CLASS") == 0:  # Scrapy's own default
        path = "scrapy_redisq.BloomDupeFilter"
    dupefilter: BaseDupeFilter = build_from_crawler(load_object(path), crawler)
    return dupefilter
