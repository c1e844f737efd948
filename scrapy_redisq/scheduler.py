"""Scrapy's scheduler interface over a frontier in Redis.

Nothing here waits for the network: `Scheduler.enqueue_request` appends to an outbox and
`Scheduler.next_request` pops from an inbox of leased requests; the courier of
`scrapy_redisq.frontier.loop` carries both to Redis and back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
import time
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import Any

from scrapy import Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapysScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred

from scrapy_redisq._scrapy import (
    Engine,
    cannot_start,
    require_asyncio,
    spider_with_limits,
    stop_at_hangup,
)
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.errors import (
    ForeignEntry,
    FrontierLost,
    RedisqError,
    RunOver,
    Undecodable,
)
from scrapy_redisq.feeds import warn_of_shared_feeds
from scrapy_redisq.frontier.loop import NOTHING, Courier, Demand
from scrapy_redisq.frontier.pace import FLUSH
from scrapy_redisq.frontier.shard_session import (
    MAX_KEPT_BYTES,
    Claim,
    Finish,
    Lease,
    Membership,
    Reply,
)
from scrapy_redisq.participation import why_alone
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.value_classes import ValueClasses
from scrapy_redisq.serialization.value_classes import find as find_classes
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.age import crawl_began
from scrapy_redisq.worker.connect import Session
from scrapy_redisq.worker.in_progress import SLOT_KEY, Page, Pages, Problem
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.local_queue import LocalQueue
from scrapy_redisq.worker.outbox import Intake
from scrapy_redisq.worker.politeness.gate import Slots
from scrapy_redisq.worker.politeness.judge import Judge
from scrapy_redisq.worker.politeness.retry_pauses import RetryPauses

logger = logging.getLogger(__name__)

Downloading = Callable[[str], "int | None"]
"""How many requests of a slot are being downloaded; None: no more should be started now."""


OUTCOMES_WAIT, OUTCOMES_POLL = 5.0, 0.02
"""Seconds: see `Scheduler.outcomes_told`."""


class Scheduler(BaseScheduler):
    """A scheduler by which any number of ``scrapy crawl`` processes share one frontier."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.stats: Any = crawler.stats
        self.pages = 0
        self.items = 0
        fingerprinter: Any = crawler.request_fingerprinter
        self._in_progress = Pages(fingerprinter.fingerprint)
        self._local = LocalQueue()
        self._unfinished: dict[int, int] = {}
        self._held_up = False
        self._sinks_away = 0
        self._started = crawl_began()
        self._open = False
        self._lost = False
        self._wants_nothing = False
        self.is_over = False
        """The run that this worker belongs to is complete: there is nothing to do."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """A scheduler of this class, or Scrapy's own for a crawl that joins no frontier."""
        if reason := why_alone(crawler.settings):
            logger.info("%s", reason)
            return ScrapysScheduler.from_crawler(crawler)
        return cls(crawler)

    # Opening and closing

    def open(self, spider: Spider) -> Deferred[None]:
        """Connect, join the run, begin to exchange. Raises `RedisqError` if that cannot be."""
        return deferred_from_coro(self._open_or_explain(spider))

    async def _open_or_explain(self, spider: Spider) -> None:
        try:
            require_asyncio()
            await self._set_up(spider)
        except RunOver as over:
            # Nothing is fetched, and Scrapy closes the spider with "finished" for it is idle.
            logger.info("Nothing to do: %s", over)
            self.is_over = True
            self.engine.skip_start()
        except RedisqError as error:
            cannot_start(self.crawler, error, logger)
            raise

    async def _set_up(self, spider: Spider) -> None:
        self.spider = spider
        self.settings = RedisqSettings.read(self.crawler.settings, spider_with_limits(spider))
        warn_of_shared_feeds(self.crawler.settings)
        stop_at_hangup()
        if self.crawler.settings["JOBDIR"]:
            logger.warning(
                "JOBDIR is of no use here: requests are kept in Redis, and a crawl that was "
                "stopped goes on from there. What extensions keep in it (SpiderState) two workers "
                "would overwrite for each other"
            )
        self._one_slot = self.settings.scheduling == "priority"
        self.retry_pauses = RetryPauses(
            self.settings.retry_delays,
            self.settings.retry_base,
            self.settings.retry_cap,
            self.settings.retry_after_max,
        )
        self._limit_leases()
        self.engine = Engine(self.crawler)
        self.serializer = Serializer(
            spider,
            max_bytes=self.settings.max_entry_bytes,
            schemes=self.settings.schemes,
            request_classes=self.settings.request_classes,
            value_classes=ValueClasses(
                self.settings.value_classes, find_classes(spider, self.crawler.settings)
            ),
        )
        fingerprinter: Any = self.crawler.request_fingerprinter
        self.dupefilter = self._make_dupefilter()
        # A dupefilter of this package works inside the exchange and is never asked itself.
        kind = self.dupefilter.kind if isinstance(self.dupefilter, RedisqDupeFilter) else None
        self._foreign_filter = None if kind else self.dupefilter
        if self._foreign_filter and (opening := self._foreign_filter.open()):
            await maybe_deferred_to_future(opening)
        throttle = self.settings.throttle
        self.slots = Slots(
            self.engine,
            self.inbox,
            self._in_progress,
            self._judge(),
            lease_ttl=self.settings.lease_ttl,
            download_timeout=self.crawler.settings.getfloat("DOWNLOAD_TIMEOUT"),
            throttles=bool(throttle),
        )
        if throttle or self.settings.fleet_limits:
            self.engine.lift_limits(
                self.slots.lifts, at_least=math.ceil(throttle.target) if throttle else 1
            )
        self._session = Session(self.settings)
        await self._session.open(
            self.settings.frontier_name(spider.name),
            self,
            dupefilter=kind or global_object_name(type(self.dupefilter)),
            fingerprinter=global_object_name(type(fingerprinter)),
            spider=spider.name,
            started=self._started,
        )
        self.courier: Courier = self._session.courier
        pages = self._in_progress
        self._intake = Intake(
            self.crawler,
            self.settings,
            engine=self.engine,
            serializer=self.serializer,
            dupefilter=self.dupefilter,
            pages=pages,
            local=self._local,
            courier=self.courier,
        )
        self.slots.joined(self.courier.roster.memberships, self.courier.poke)
        self.engine.gate_downloads(self.slots)
        self.engine.follow_downloads(self.gave_out, self.slots.fetched)
        self.engine.watch_pages(
            failed=pages.download_failed,
            arrived=pages.arrived,
            raised=pages.raised,
            item_failed=pages.item_failed,
        )
        self.engine.watch_retries(pages.gave_up)
        connect = self.crawler.signals.connect
        connect(self._in_progress.item_error, signals.item_error)
        connect(self._item_scraped, signals.item_scraped)
        # Scrapy waits for the spider that it stops, unless that is being closed already.
        connect(self.engine.until_closed, signals.engine_stopped)
        self._open = True
        self.courier.start()
        self.engine.pace_start(self._room_in_outbox)

    def _limit_leases(self) -> None:
        settings = self.crawler.settings
        concurrency = max(1, settings.getint("CONCURRENT_REQUESTS"))
        per_slot = settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") or concurrency
        lifted = self.settings.fleet_limits or self.settings.autothrottle
        if settings.getfloat("DOWNLOAD_DELAY") > 0 and not lifted:
            per_slot = 1
        self.max_leases = self.settings.max_leases or 2 * concurrency
        self.inbox: Inbox[Membership] = Inbox(
            min(per_slot, concurrency), self.max_leases, by_slot=not self._one_slot
        )

    def _judge(self) -> Judge | None:
        """Of how downloads end. None: without slots there is nothing to judge."""
        if self._one_slot:
            return None
        codes = self.settings.backoff_codes
        exceptions = self.crawler.settings.getlist("RETRY_EXCEPTIONS") if codes else []
        return Judge(
            codes,
            tuple(map(load_object, exceptions)),
            retry_after_max=self.settings.retry_after_max,
            repeat=self.settings.slot_ttl / 2,
        )

    def _make_dupefilter(self) -> BaseDupeFilter:
        path = self.crawler.settings["DUPEFILTER_CLASS"]
        if self.crawler.settings.getpriority("DUPEFILTER_CLASS") == 0:  # Scrapy's own default
            path = "scrapy_redisq.BloomDupeFilter"
        dupefilter: BaseDupeFilter = build_from_crawler(load_object(path), self.crawler)
        return dupefilter

    def close(self, reason: str) -> Deferred[None]:
        """Send what is buffered, give back what was not started, leave the run."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        if not self._open:
            if self.is_over:
                await self._close_foreign_filter(reason)
            return
        try:
            await asyncio.wait_for(self._leave(reason), self.settings.close_timeout)
        except asyncio.TimeoutError:
            logger.error(
                "Redis did not answer within REDISQ_CLOSE_TIMEOUT (%g s): %d requests and "
                "finishes were not sent. Others take over this worker's pages after "
                "REDISQ_LEASE_TTL; they will be fetched again",
                self.settings.close_timeout,
                self.courier.waiting(),
            )
            self.stats.set_value("redisq/unsent", self.courier.waiting())
        except RedisqError as error:
            logger.error("Could not leave the frontier as it should be left: %s", error)
        finally:
            if self._intake.lost:
                logger.warning(
                    "%d requests that cannot be serialised were only in this process and are "
                    "lost (see stat scheduler/unserializable)",
                    self._intake.lost,
                )
            self._intake.count_filtered()
            self.stats.set_value("redisq/exchanges", self.courier.exchanges)
            if not self._lost:
                self._report_dead()
            await self._session.close()
            await self._close_foreign_filter(reason)

    async def _close_foreign_filter(self, reason: str) -> None:
        if self._foreign_filter and (closing := self._foreign_filter.close(reason)):
            await maybe_deferred_to_future(closing)

    async def _leave(self, reason: str) -> None:
        await self.courier.stop()
        if self._lost:
            return
        if await self.courier.leave():
            logger.info("The run is complete: this was the last worker to leave")
        elif reason == "finished" and (waiting := await self.courier.roster.left_waiting()):
            # Scrapy cannot be told to go on.
            logger.warning(
                "%d requests came in when this worker had decided to end, and no worker is left: "
                "they wait until the crawl is started again",
                waiting,
            )

    def _report_dead(self) -> None:
        roster = self.courier.roster
        if roster.given_up:
            self.stats.inc_value("redisq/dead/deliveries", roster.given_up)
        name = roster.terms.name
        if dead := sum(membership.dead for membership in roster.memberships):
            logger.warning(
                "Frontier %r has %d dead letter%s, requests that failed for good. See them: "
                "scrapy redisq dead list %s",
                name,
                dead,
                "" if dead == 1 else "s",
                shlex.quote(name),
            )
        else:
            logger.info("Frontier %r has 0 dead letters (scrapy redisq dead list)", name)

    # Scrapy asks

    def __len__(self) -> int:
        """Requests that wait: of the frontier's, as far as the last exchange has told, and of those
        that stay in this process."""
        return len(self.dqs) + len(self.mqs)

    def __bool__(self) -> bool:
        return True  # also when nothing waits

    @property
    def dqs(self) -> Sized:
        """What waits in the frontier, under the name that Scrapy's tools count it by."""
        in_progress = len(self._in_progress)
        return range(max(0, sum(self._unfinished.values()) - in_progress))

    @property
    def mqs(self) -> Sized:
        """What waits in this process, likewise."""
        return range(self._local.waiting)

    def has_pending_requests(self) -> bool:
        """False only when the whole frontier is finished, for all workers."""
        if self.is_over:
            return False
        if not self._open:
            return True  # it is not known yet
        return (
            not self.courier.complete
            or self.settings.keep_alive
            or self._lost
            or bool(self._local or self.inbox)
            or self.courier.waiting() > 0
        )

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; False if it is already known to be a duplicate or cannot be taken.

        A duplicate that only Redis knows of is reported later, by ``request_dropped``. Never
        raises: on Scrapy 2.14 and newer an exception here would stall the page for ever.
        """
        if self.is_over:
            return False
        if self._in_progress.is_sent_back(request):
            return True  # by its lease
        return self._intake.take(request)

    def identity_of(self, request: Request) -> bytes | None:
        """What a request that this scheduler gave out is known by, until its items are written;
        None for others."""
        return self._in_progress.identity_of(request)

    # The retry middleware asks

    def let_retries_wait(self) -> None:
        """Retries that a callback asks for wait too."""
        if self._open:
            self._intake.retry_pauses = self.retry_pauses

    def gave_out(self, request: Request) -> bool:
        """Whether the engine works on ``request`` because this scheduler gave it out."""
        return self._in_progress.asking(request) is not None

    def retries_exhausted(self, request: Request, status: int) -> None:
        """The request failed as often as it may, at last with this status (0: an exception)."""
        self._in_progress.retries_exhausted(request, status)

    # Item pipelines tell (see scrapy_redisq.pipelines.batch)

    @property
    def sink_pages(self) -> Pages:
        """The requests in progress, which items are of."""
        return self._in_progress

    async def outcomes_told(self, slot: str) -> None:
        """Returns when the frontier knows how this worker's downloads of ``slot`` have ended, or
        cannot be told for `OUTCOMES_WAIT`."""
        until = time.monotonic() + OUTCOMES_WAIT
        membership = self.courier.roster.shard_of(slot)
        while membership.has_outcomes(slot) and time.monotonic() < until:
            self.courier.poke()
            await asyncio.sleep(OUTCOMES_POLL)

    def sink_is_away(self, away: bool) -> None:
        """Nothing is claimed or started while a sink takes no items."""
        self._sinks_away += 1 if away else -1
        if self._open:
            self.engine.wake()
            self.courier.poke()

    def sink_counted(self, name: str, by: int) -> None:
        """Add to a count that all workers share."""
        self.courier.count(f"sink_{name}", by)

    # Scrapy asks for work

    def next_request(self) -> Request | None:
        """The next request to start, or None if there is none at the moment."""
        if self.is_over:
            return None
        if self._lost or self._outbox_is_full():
            self._held_up = True
            return None
        request, source = self._next_from_memory(), "memory"
        if request is None and not self._sinks_away:
            request, source = self._next_from_inbox(), "redis"
        if request is not None:
            self.stats.inc_value(f"scheduler/dequeued/{source}")
            self.stats.inc_value("scheduler/dequeued")
        return request

    def _next_from_memory(self) -> Request | None:
        if not self._local.waiting:
            return None
        # Not by turns: what is limited gets its own when it waits for its download.
        downloading = (lambda slot: 0) if self._one_slot else self.engine.downloads()
        popped = self._local.pop(downloading, self.inbox.highest)
        if popped is None:
            return None
        request, page = popped
        self._in_progress.keep(request, page)
        self.engine.handed_out(request, page.lease.slot)
        return request

    def _outbox_is_full(self) -> bool:
        return self.courier.waiting() > self.settings.max_outbox

    async def _room_in_outbox(self) -> None:
        # Half of it, so that start() does not keep pages from being started.
        while (
            max(self.courier.waiting(), self._local.waiting) > self.settings.max_outbox // 2
            or self.courier.roster.keeps_too_much()
        ) and not self.engine.closing:
            await asyncio.sleep(FLUSH)
        # Scrapy reads on without a pause while its downloader is busy, and nothing else has a turn.
        await asyncio.sleep(0)

    def _next_from_inbox(self) -> Request | None:
        downloading = self.slots.downloading()
        while (popped := self.inbox.pop(downloading)) is not None:
            lease, membership = popped
            try:
                request = self.serializer.loads(lease.entry)
            except Undecodable as error:
                foreign = isinstance(error, ForeignEntry)
                problem = Problem(
                    "undecodable", str(error), type_name(type(error)), foreign=foreign
                )
                self._tell_of_death(lease, problem)
                self.courier.finish(membership, problem.finish(lease.id))
                continue
            page = Page(lease, membership, grouped=SLOT_KEY in request.meta)
            self._in_progress.begin(request, page)
            self.engine.handed_out(request, lease.slot)
            self.slots.handed_out(request, lease.slot)
            if self._is_hungry(self._want(downloading), downloading):
                self.courier.poke()
            return request
        self.settle()
        self.slots.wake_at_next_start()
        self.courier.poke()
        return None

    # The courier asks (see scrapy_redisq.frontier.loop.Worker)

    def _capacity(self) -> int:
        return self.max_leases - len(self._in_progress)

    def _free(self) -> int:
        """Requests that could be started at once."""
        if self._lost or self._sinks_away or self._outbox_is_full():
            return 0
        return self.engine.free

    def _want(self, downloading: Downloading) -> int:
        """How many more leases are worth having."""
        startable = len(self.inbox) - self.inbox.held_up(downloading)
        worth = self.inbox.worth(self._free()) - startable
        want = max(0, min(worth, self._capacity() - len(self.inbox)))
        if want and self._wants_nothing:
            self._wants_nothing = False
            self.courier.found_more()
        elif worth <= 0:
            self._wants_nothing = True
        return want

    def _is_hungry(self, want: int, downloading: Downloading) -> bool:
        return want > 0 and self.inbox.is_low(len(self.inbox) + want, downloading)

    def demand(self) -> Demand:
        nothing = replace(NOTHING, within=self.slots.needed_within(), urgent=self.slots.urgent)
        if (
            self._lost
            or self._sinks_away
            or self.engine.closing
            or self._outbox_is_full()
            or self._local.waiting > self.settings.max_outbox
            # Pages go on while start() waits for room: it is seldom they that fill it.
            or self.courier.roster.keeps_too_much(2 * MAX_KEPT_BYTES)
        ):
            return nothing
        downloading = self.slots.downloading()
        want = self._want(downloading)
        if not want:
            return nothing
        return replace(
            nothing,
            hungry=self._is_hungry(want, downloading),
            want=want,
            slot_limit=self.inbox.slot_limit,
            room=self.inbox.room(),
            # What waits for nothing but its sink is bounded by the sink.
            most=self.max_leases + self._in_progress.unwritten_pages(),
        )

    def turns(self, membership: Membership) -> list[list[Any]]:
        return self.slots.report(membership)

    def in_progress(self) -> bool:
        return bool(self._in_progress or self._in_progress.unwritten() or self._local or self.inbox)

    def starting(self) -> tuple[bool, bool]:
        starting = self.engine.starting and not self.engine.closing
        all_added = not (self.engine.starting or self.engine.start_failed)
        return starting or bool(self._local), all_added

    def settle(self) -> None:
        working_on = self.engine.in_progress
        self._intake.send_late_children()
        self._intake.send_again()
        self._intake.end_kept()
        for page in self._in_progress.end(working_on):
            self.pages += 1
            if page.problem is not None and not page.given_back:
                self._tell_of_death(page.lease, page.problem)
            finish = self._intake.settle_claims(page, page.finish())
            self.courier.finish(page.membership, finish, page.sent)
        self._intake.count_filtered()
        if self.engine.closing:
            given_up = self.inbox.clear()
        else:
            stuck = self.inbox.stuck
            given_up = self.slots.give_up(full=not self._free())
            if self.inbox.stuck < stuck:
                self.courier.found_more()
        for lease, membership in given_up:
            self.courier.finish(membership, Finish(lease.id, "released"))

    def _tell_of_death(self, lease: Lease, problem: Problem) -> None:
        self.stats.inc_value(f"redisq/dead/{problem.reason}")
        logger.warning(
            "A request of %s became a dead letter (%s): %s",
            lease.slot,
            problem.reason,
            problem.detail,
        )

    def received(
        self, membership: Membership, reply: Reply, told: list[list[Any]], sent_at: float
    ) -> None:
        for lease, owner in self.slots.received(reply, told, sent_at):
            self.courier.finish(owner, Finish(lease.id, "released"))
        # Without a tag: sent again, and counted the first time.
        accepted = sum(enqueue.tag is not None for enqueue in reply.accepted)
        if accepted:
            self.stats.inc_value("scheduler/enqueued/redis", accepted)
            self.stats.inc_value("scheduler/enqueued", accepted)
        for claim in reply.claimed:
            self._intake.granted(claim)
        for claim in reply.waits:
            self._local.is_with_another(claim)
        for enqueue in reply.duplicates:
            request = enqueue.tag
            if not isinstance(request, Request):
                continue
            if isinstance(enqueue, Claim):
                self._intake.refused(enqueue)
            self._intake.duplicate(request)
            self.crawler.signals.send_catch_log(
                signal=signals.request_dropped, request=request, spider=self.spider
            )
        for lease in reply.leases:
            self.inbox.add(lease, membership)
        # A handler of `spider_idle` that has asked for what others have is asked again at once.
        self._unfinished[membership.shard] = reply.created - reply.finished
        if reply.leases or reply.duplicates or (self._held_up and not self._outbox_is_full()):
            self._held_up = False
            self.engine.wake()

    def announced(self, slot: str, parked: float) -> None:
        self.slots.announced(slot, parked)

    def stuck(self, seconds: int) -> None:
        if (
            seconds < self.settings.set_aside_wait
            or self.settings.keep_alive
            or self.engine.closing
        ):
            return
        name = shlex.quote(self.courier.roster.terms.name)
        logger.error(
            "Closing (slots_set_aside): for %d s (REDISQ_SET_ASIDE_WAIT) nothing has been left but "
            "requests of slots that do not answer. They are kept: see them with scrapy redisq "
            "slots %s, go on with them by starting the crawl again",
            seconds,
            name,
        )
        self.engine.close_spider("slots_set_aside")

    def completed(self) -> None:
        self.engine.wake()

    def forgotten(self) -> None:
        # Pages in progress go on; the frontier counts their ends as stale.
        held = sum(len(membership.held) for membership in self.courier.roster.memberships)
        self.stats.inc_value("redisq/leases_lost", held)
        self.inbox.clear()
        self.slots.forgotten()
        self._intake.forgotten()

    def lost(self, error: Exception) -> None:
        self._lost = True
        reason = "frontier_lost" if isinstance(error, FrontierLost) else "redisq_failed"
        logger.error("Closing (%s): %s", reason, error)
        self.engine.close_spider(reason)

    def _item_scraped(self, response: Any) -> None:
        self.items += 1
        self._in_progress.item_scraped(response)
