"""Scrapy's scheduler interface over a frontier in Redis.

Nothing here waits for the network: `Scheduler.enqueue_request` appends to an outbox and
`Scheduler.next_request` pops from an inbox of leased requests; the courier of
`scrapy_redisq.frontier.courier` carries both to Redis and back.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis.asyncio
from scrapy import Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request, Response
from scrapy.utils.conf import closest_scrapy_cfg
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_redisq._scrapy import Engine, current_page, require_asyncio
from scrapy_redisq.connection import Server, open_server
from scrapy_redisq.errors import EntryTooLarge, FrontierLost, Undecodable, Unserializable
from scrapy_redisq.frontier.config import PRIORITY_SLOT, FrontierConfig
from scrapy_redisq.frontier.courier import NOTHING, Courier, Demand, Terms
from scrapy_redisq.frontier.membership import (
    MAX_OPERATIONS,
    Enqueue,
    Finish,
    Lease,
    Membership,
    Reply,
)
from scrapy_redisq.frontier.seen import probe_async
from scrapy_redisq.inbox import Inbox
from scrapy_redisq.seeds import slot_name
from scrapy_redisq.seen_cache import SeenCache
from scrapy_redisq.serializer import Serializer
from scrapy_redisq.settings import RedisqSettings

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

DETAIL_FRAMES = 5
"""Last frames of a traceback that a dead letter keeps."""

DETAIL_LENGTH = 4_000
"""Most characters of a dead letter's detail."""


class _Page:
    """A request in progress and how it will have ended: done unless something goes wrong."""

    __slots__ = ("lease", "membership", "problem")

    def __init__(self, lease: Lease, membership: Membership) -> None:
        self.lease = lease
        self.membership = membership
        self.problem: tuple[str, str] | None = None


class Scheduler(BaseScheduler):
    """A scheduler by which any number of ``scrapy crawl`` processes share one frontier."""

    def __init__(self, crawler: Crawler) -> None:
        require_asyncio()
        self.crawler = crawler
        self.settings = RedisqSettings.read(crawler.settings)
        self.pages = 0
        self.items = 0
        self.stats: Any = crawler.stats
        self.dupefilter: BaseDupeFilter = self._make_dupefilter(crawler)
        self._own_filter: str | None = getattr(self.dupefilter, "kind", None)
        concurrency = crawler.settings.getint("CONCURRENT_REQUESTS")
        self.max_leases = self.settings.max_leases or 2 * max(1, concurrency)
        per_slot = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") or concurrency
        if crawler.settings.getfloat("DOWNLOAD_DELAY") > 0:
            per_slot = 1
        self.inbox: Inbox[Membership] = Inbox(
            min(per_slot, max(1, concurrency)),
            self.max_leases,
            by_slot=self.settings.scheduling == "slot",
        )
        self._one_slot = self.settings.scheduling == "priority"
        self._local: list[tuple[int, int, Request]] = []
        self._local_arrivals = itertools.count()
        self._local_in_progress: set[Request] = set()
        self._local_seen: set[bytes] = set()
        self._warned_local = False
        self._in_progress: dict[Request, _Page] = {}
        self._seen_cache = SeenCache()
        self._server: Server | None = None
        self._client: redis.asyncio.Redis | None = None
        self._lost = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    @staticmethod
    def _make_dupefilter(crawler: Crawler) -> BaseDupeFilter:
        path = crawler.settings["DUPEFILTER_CLASS"]
        if crawler.settings.getpriority("DUPEFILTER_CLASS") == 0:  # Scrapy's own default
            path = "scrapy_redisq.BloomDupeFilter"
        dupefilter: BaseDupeFilter = build_from_crawler(load_object(path), crawler)
        return dupefilter

    # Opening and closing

    def open(self, spider: Spider) -> Deferred[None]:
        """Connect, join the run, begin to exchange. Raises `RedisqError` if that cannot be."""
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        self.spider = spider
        self.engine = Engine(self.crawler)
        self.serializer = Serializer(
            spider,
            max_bytes=self.settings.max_entry_bytes,
            request_classes=self.settings.request_classes,
        )
        fingerprinter: Any = self.crawler.request_fingerprinter
        self._fingerprint: Callable[[Request], bytes] = fingerprinter.fingerprint
        self._cacheable = type(fingerprinter) is RequestFingerprinter
        if self._own_filter is None and (opening := self.dupefilter.open()):
            await maybe_deferred_to_future(opening)
        name = self.settings.frontier_name(spider.name)
        try:
            await self._connect(name, spider, fingerprinter)
        except BaseException:
            await self._disconnect()
            raise
        self.engine.watch_pages(self._download_failed)
        connect = self.crawler.signals.connect
        connect(self._spider_error, signals.spider_error)
        connect(self._item_error, signals.item_error)
        connect(self._item_scraped, signals.item_scraped)
        self.courier.start()

    async def _connect(self, name: str, spider: Spider, fingerprinter: object) -> None:
        project = closest_scrapy_cfg()
        self._server = server = await asyncio.to_thread(
            open_server,
            self.settings.url,
            project_dir=Path(project).parent if project else None,
            binary=self.settings.server,
            connect_timeout=self.settings.connect_timeout,
            socket_timeout=self.settings.socket_timeout,
        )
        await server.wait_async()
        await server.check_async()
        self._client = server.async_client()
        config = FrontierConfig(
            dupefilter=self._own_filter or global_object_name(type(self.dupefilter)),
            backend=await self._backend(),
            error_rate=self.settings.dupefilter_error_rate,
            capacity=self.settings.dupefilter_capacity,
            scheduling=self.settings.scheduling,
            order=self.settings.order,
            shards=self.settings.shards,
            fingerprinter=global_object_name(type(fingerprinter)),
            spider=spider.name,
        )
        terms = Terms(
            name,
            config,
            spider.name,
            lease_ttl=self.settings.lease_ttl,
            max_deliveries=self.settings.max_deliveries,
            dead_max=self.settings.dead_max,
            resume=self.settings.resume,
            keep_seen=self.settings.keep_seen,
        )
        self.courier = Courier(self._client, terms, self, revive=server.revive)
        joined = await self.courier.join()
        logger.info(
            "%s run %s of frontier %r on %s; dupefilter: %s",
            "Began" if joined.began else "Joined",
            joined.run,
            name,
            server.address,
            {
                "redisbloom": "Bloom filter of RedisBloom",
                "bitmap": "Bloom filter on bitmaps (the server has no RedisBloom)",
                "exact": "exact",
            }[joined.config.backend],
        )

    async def _backend(self) -> str:
        if self._own_filter != "bloom":
            return "exact"
        assert self._client is not None
        return "redisbloom" if await probe_async(self._client) else "bitmap"

    def close(self, reason: str) -> Deferred[None]:
        """Send what is buffered, give back what was not started, leave the run."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        try:
            await asyncio.wait_for(self._leave(), self.settings.close_timeout)
        except asyncio.TimeoutError:
            logger.error(
                "Redis did not answer within REDISQ_CLOSE_TIMEOUT (%g s): %d requests and "
                "finishes were not sent. Others take over this worker's pages after "
                "REDISQ_LEASE_TTL; they will be fetched again",
                self.settings.close_timeout,
                self.courier.waiting(),
            )
            self.stats.set_value("redisq/unsent", self.courier.waiting())
        finally:
            if self._local:
                logger.warning(
                    "%d requests that cannot be serialised were only in this process and are "
                    "lost (see stat scheduler/unserializable)",
                    len(self._local),
                )
            self.stats.set_value("redisq/exchanges", self.courier.exchanges)
            await self._disconnect()
            if self._own_filter is None and (closing := self.dupefilter.close(reason)):
                await maybe_deferred_to_future(closing)

    async def _leave(self) -> None:
        await self.courier.stop()
        if not self._lost and await self.courier.leave():
            logger.info("The run is complete: this was the last worker to leave")

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None

    # Scrapy asks

    def has_pending_requests(self) -> bool:
        """False only when the whole frontier is finished, for all workers."""
        return (
            not self.courier.complete
            or self.settings.keep_alive
            or self._lost
            or bool(self._local or self._local_in_progress or self.inbox)
            or self.courier.waiting() > 0
        )

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; False if it is already known to be a duplicate or cannot be taken.

        A duplicate that only Redis knows of is reported later, by ``request_dropped``. Never
        raises: on Scrapy 2.14 and newer an exception here would stall the page for ever.
        """
        try:
            return self._enqueue(request)
        except Exception as error:
            logger.exception("Could not enqueue %s", request)
            self._refuse(request, "refused", error)
            return False

    def _enqueue(self, request: Request) -> bool:
        # A start request is known by `True`; what comes back from Redis has 1 there instead, so
        # that redirects and retries, which copy meta, are not taken for start requests again.
        is_start = request.meta.get("is_start_request") is True
        filtered = not request.dont_filter
        if self._own_filter is None and (filtered or is_start):
            # It is told of start requests, but cannot refuse them: the frontier does that.
            if self.dupefilter.request_seen(request) and not is_start:
                self.dupefilter.log(request, self.spider)
                return False
            filtered = False
        cacheable = (
            filtered
            and self._cacheable
            and request.method == "GET"
            and not request.body
            and "verbatim_url" not in request.meta
        )
        if cacheable and request.url in self._seen_cache:
            self.dupefilter.log(request, self.spider)
            self.courier.memberships[0].local_duplicates += 1
            return False
        try:
            entry = self.serializer.dumps(request)
        except Unserializable as error:
            return self._enqueue_local(request, error)
        except EntryTooLarge as error:
            self._refuse(request, "too_large", error)
            return False
        fingerprint = None
        if filtered or is_start:
            fingerprint = self.courier.encode_fingerprint(self._fingerprint(request))
        slot = PRIORITY_SLOT if self._one_slot else slot_name(self.engine.slot_of(request))
        page = current_page.get()
        parent = self._in_progress.get(page) if page is not None else None
        self.courier.enqueue(
            Enqueue(
                slot,
                request.priority,
                entry,
                fingerprint,
                page=parent.lease.id if parent else None,
                tag=request,
            )
        )
        if cacheable:
            self._seen_cache.add(request.url)
        return True

    def _enqueue_local(self, request: Request, error: Unserializable) -> bool:
        """Keep in this process what no other could run, as Scrapy's own scheduler does."""
        if not request.dont_filter:
            fingerprint = self._fingerprint(request)
            if fingerprint in self._local_seen:
                self.dupefilter.log(request, self.spider)
                return False
            self._local_seen.add(fingerprint)
        if not self._warned_local:
            self._warned_local = True
            logger.warning(
                "%s cannot be shared and stays in this process: %s (more are only counted, in "
                "the stat scheduler/unserializable)",
                request,
                error,
            )
        self.stats.inc_value("scheduler/unserializable")
        heapq.heappush(self._local, (-request.priority, next(self._local_arrivals), request))
        return True

    def _refuse(self, request: Request, reason: str, error: Exception) -> None:
        """A request that cannot be kept at all: its page is not done, it is dead."""
        self.stats.inc_value(f"redisq/refused/{reason}")
        logger.warning("Refused %.200s: %s", request, error)
        page = current_page.get()
        if page is not None:
            self._spoil(page, reason, f"{str(request)[:500]}: {error}")

    def next_request(self) -> Request | None:
        """The next request to start, or None if there is none at the moment."""
        if self._lost or self.courier.waiting() > self.settings.max_outbox:
            return None
        if self._local:
            _, _, request = heapq.heappop(self._local)
            self._local_in_progress.add(request)
            self.stats.inc_value("scheduler/dequeued/memory")
            self.stats.inc_value("scheduler/dequeued")
            return request
        while (popped := self.inbox.pop(self.engine.downloading)) is not None:
            lease, membership = popped
            try:
                request = self.serializer.loads(lease.entry)
            except Undecodable as error:
                self._bury(lease, membership, "undecodable", str(error))
                continue
            if request.meta.get("is_start_request") is True:
                request.meta["is_start_request"] = 1  # see _enqueue
            self._in_progress[request] = _Page(lease, membership)
            self.stats.inc_value("scheduler/dequeued/redis")
            self.stats.inc_value("scheduler/dequeued")
            if self.inbox.is_low(self._capacity()):
                self.courier.poke()
            return request
        self.settle()
        self.courier.poke()
        return None

    # The courier asks (see scrapy_redisq.frontier.courier.Worker)

    def _capacity(self) -> int:
        return self.max_leases - len(self._in_progress)

    def demand(self) -> Demand:
        capacity = self._capacity()
        waiting = self.courier.waiting()
        if (
            self._lost
            or self.engine.closing
            or capacity <= len(self.inbox)
            or waiting > self.settings.max_outbox
        ):
            return NOTHING
        return Demand(
            self.inbox.is_low(capacity),
            # With more finishes than one exchange carries, leases would exceed the limit.
            capacity - len(self.inbox) if waiting < MAX_OPERATIONS else 0,
            self.inbox.slot_limit,
            self.inbox.room(),
        )

    def in_progress(self) -> bool:
        return bool(self._in_progress or self._local_in_progress or self.inbox)

    def starting(self) -> tuple[bool, bool]:
        starting = self.engine.starting and not self.engine.closing
        own = bool(self._local or self._local_in_progress)
        return starting or own, not (self.engine.starting or self.engine.start_failed)

    def settle(self) -> None:
        working_on = self.engine.in_progress
        ended = [request for request in self._in_progress if request not in working_on]
        for request in ended:
            page = self._in_progress.pop(request)
            self.pages += 1
            if page.problem is None:
                self.courier.finish(page.membership, Finish(page.lease.id, "done"))
            else:
                self._bury(page.lease, page.membership, *page.problem)
        self._local_in_progress &= working_on
        if self.engine.closing:
            for lease, membership in self.inbox.clear():
                self.courier.finish(membership, Finish(lease.id, "released"))

    def received(self, membership: Membership, reply: Reply) -> None:
        if reply.accepted:
            self.stats.inc_value("scheduler/enqueued/redis", len(reply.accepted))
            self.stats.inc_value("scheduler/enqueued", len(reply.accepted))
        for enqueue in reply.duplicates:
            request = enqueue.tag
            assert isinstance(request, Request)
            self.dupefilter.log(request, self.spider)
            self.crawler.signals.send_catch_log(
                signal=signals.request_dropped, request=request, spider=self.spider
            )
        for lease in reply.leases:
            self.inbox.add(lease, membership)
        if reply.leases:
            self.engine.wake()

    def completed(self) -> None:
        self.engine.wake()

    def forgotten(self, membership: Membership) -> None:
        # Pages in progress go on; the frontier counts their ends as stale.
        lost = len(membership.held)
        self.inbox.clear(lambda source: source is membership)
        self._seen_cache.clear()
        self.stats.inc_value("redisq/leases_lost", lost)

    def lost(self, error: Exception) -> None:
        self._lost = True
        reason = "frontier_lost" if isinstance(error, FrontierLost) else "redisq_failed"
        logger.error("Closing (%s): %s", reason, error)
        self.engine.close_spider(reason)

    # How a page ended

    def _bury(self, lease: Lease, membership: Membership, reason: str, detail: str) -> None:
        self.stats.inc_value(f"redisq/dead/{reason}")
        logger.warning("A request of %s became a dead letter (%s): %s", lease.slot, reason, detail)
        detail = detail.encode("utf-8", "replace").decode()[:DETAIL_LENGTH]
        self.courier.finish(membership, Finish(lease.id, "dead", reason, detail))

    def _spoil(self, request: Request | None, reason: str, detail: str) -> None:
        page = self._in_progress.get(request) if request is not None else None
        if page is not None and page.problem is None:
            page.problem = (reason, detail)

    def _download_failed(self, request: Request, failure: Failure | None) -> None:
        if failure is not None:
            self._spoil(request, "download", describe(failure))
        elif (page := self._in_progress.get(request)) is not None:
            page.problem = None  # the request's errback has dealt with it

    def _spider_error(self, failure: Failure, response: Response | Failure | None) -> None:
        self._spoil(getattr(response, "request", None), "spider_error", describe(failure))

    def _item_error(self, response: Response | Failure | None, failure: Failure) -> None:
        self._spoil(getattr(response, "request", None), "item_error", describe(failure))

    def _item_scraped(self) -> None:
        self.items += 1


def describe(failure: Failure) -> str:
    """An exception for a dead letter: its type, its message and the last frames."""
    error = failure.value
    trace = failure.tb or (error.__traceback__ if error else None)
    frames = traceback.format_tb(trace)[-DETAIL_FRAMES:]
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}\n{''.join(frames)}"
