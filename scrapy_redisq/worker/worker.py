"""One crawl process at work on a frontier: `Worker` answers Scrapy, its run session, and the
middlewares and pipelines of this package. Nothing in it waits for the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace
from redis.exceptions import RedisError
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request

from scrapy_redisq._scrapy.crawl import close_spider
from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.errors import (
    ForeignEntry,
    FrontierCorrupt,
    FrontierLost,
    RedisqError,
    ScriptFailed,
    Undecodable,
)
from scrapy_redisq.frontier.operations import Finish, Reply, TurnReport
from scrapy_redisq.frontier.pace import FLUSH
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import Demand
from scrapy_redisq.reasons import CloseReason
from scrapy_redisq.serialization.meta import SESSION_KEY
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.back_pressure import LOOK, BackPressure
from scrapy_redisq.worker.connect import WorkerConnection
from scrapy_redisq.worker.feeder import Feeder
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.inbox import PATIENCE, Inbox
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.leaving import leave
from scrapy_redisq.worker.outbox import Outbox
from scrapy_redisq.worker.page import KeptPage, Page, Problem, record_of
from scrapy_redisq.worker.politeness.gate import DownloadGate
from scrapy_redisq.worker.politeness.judge import Judge
from scrapy_redisq.worker.report import Orders, Reporter

logger = logging.getLogger(__name__)

ENOUGH_QUEUED = 1_000
"""Requests in the frontier from which on no feed is read while some of them can be claimed."""


class Worker:
    """Takes requests, hands them out, and sees to it that each ends once."""

    def __init__(
        self,
        crawler: Crawler,
        settings: RedisqSettings,
        engine: Engine,
        connection: WorkerConnection,
        run_session: RunSession,
        serializer: Serializer,
        dupefilter: BaseDupeFilter,
    ) -> None:
        self.crawler = crawler
        self.spider: Any = crawler.spider
        self.settings = settings
        self.engine = engine
        self.connection = connection
        self.feeder: Feeder | None = None
        self.run_session = run_session
        self.serializer = serializer
        self.dupefilter = dupefilter
        self.stats: Any = crawler.stats
        fingerprinter: Any = crawler.request_fingerprinter
        self.in_progress = InProgress(fingerprinter.fingerprint)
        self.inbox: Inbox[ShardSession] = Inbox.of(crawler, settings)
        self.kept = KeptRequests(engine, run_session, crawler.stats)
        self.gate = DownloadGate(
            engine,
            self.inbox,
            self.kept,
            self.in_progress,
            Judge.of(crawler, settings),
            run_session,
            download_timeout=crawler.settings.getfloat("DOWNLOAD_TIMEOUT"),
        )
        self.outbox = Outbox(
            crawler,
            settings,
            engine=engine,
            serializer=serializer,
            dupefilter=dupefilter,
            in_progress=self.in_progress,
            run_session=run_session,
            kept=self.kept,
        )
        self.back_pressure = BackPressure(
            settings.growth_limit(),
            unfinished=run_session.unfinished,
            closing=lambda: engine.closing,
        )
        self.pages = 0
        self.is_lost = False
        """The frontier is gone, or cannot be worked on."""
        self.sees_the_end = False
        """Something is to be done when the run is complete, by the worker that completes it."""
        self.completed_run = False
        """The run is complete since this worker has left it; or perhaps since another one has."""
        self.sinks_away = 0
        """Sinks that take no items now."""
        self._one_slot = settings.scheduling == "priority"
        self._session_lost = getattr(crawler.spider, "session_lost", None)
        self._held_up = False
        self._kept_at = 0.0
        """When (time.monotonic()) the last kept request was begun; 0.0 if a stored one was looked
        for since."""
        self._wants_nothing = False
        self.orders = Orders(engine, self._orders_changed, paused=run_session.joined.paused)
        self.gate.crawl_paused = self.orders.paused
        self.reporter = Reporter(self)
        # Questions of its run session that a part of it answers.
        self.turns, self.announced = self.gate.report, self.gate.announced
        self.rejoined, self.report = self.outbox.forgotten, self.reporter.report

    def start(self) -> None:
        """Begin to exchange, and to read the spider's ``start()`` as there is room."""
        first, joined = self.run_session.sessions[0].shard, self.run_session.joined
        self.back_pressure.heard(first, full=joined.full, news=False)
        self.run_session.start(self)
        self.engine.pace_start(self.room_for_start)
        self.run_session.run_beside(self.reporter.watch)
        if self.settings.max_memory:
            self.run_session.run_beside(self._watch_memory)
        if self.feeder is not None:
            self.run_session.run_beside(self.feeder.run)

    async def close(self, reason: str) -> None:
        """Send what is buffered, give back what was not started, leave the run."""
        await leave(self, reason)

    @property
    def items(self) -> int:
        """Items that are through the pipelines."""
        return self.in_progress.items

    # Scrapy asks, by way of the scheduler

    def queued(self) -> int:
        """Requests that wait in the frontier, as far as the last exchange has told."""
        return max(0, self.run_session.unfinished() - len(self.in_progress))

    def finds_nothing(self) -> bool:
        """Whether nothing is queued, as far as this worker can tell: the last replies say so, or it
        has room for more and gets none. Other workers and ``start()`` may bring requests yet."""
        if self.inbox or self.kept:
            return False
        has_room = len(self.in_progress) < self.inbox.most and self._free() > 0
        return self.queued() == 0 or has_room

    def has_pending_requests(self) -> bool:
        """False only when the whole frontier is finished, for all workers."""
        return (
            not self.run_session.complete
            or self.run_session.terms.run.keep_alive
            or self.is_lost
            or bool(self.kept or self.inbox)
            or self.run_session.waiting() > 0
        )

    def take(self, request: Request) -> bool:
        """Take a request; False if it is already known to be a duplicate or cannot be taken."""
        if self.in_progress.is_sent_back(request):
            return True  # by its lease
        return self.outbox.take(request)

    def next_request(self) -> Request | None:
        """The next request to start, or None if there is none at the moment."""
        working = self.in_progress.any_of(self.engine.in_progress)
        if not (self._may_start() and self.back_pressure.may_start(working)) or self.orders.paused:
            self._held_up = True
            return None
        request, source = self._next_from_memory(), "memory"
        if request is None:
            request, source = self._next_from_inbox(), "redis"
        if request is not None:
            self.stats.inc_value(f"scheduler/dequeued/{source}")
            self.stats.inc_value("scheduler/dequeued")
        return request

    def _next_from_memory(self) -> Request | None:
        if not self.kept.waiting:
            return None
        stored = self.inbox.first(self.gate.downloading())
        if stored and stored[0] < (self._kept_at > 0) and not self._one_slot:
            self._kept_at = 0.0  # a stored one takes its turn
            return None
        downloading = (lambda slot: 0) if self._one_slot else self.gate.downloading_kept()

        def fewest(slot: str) -> int | None:
            number = downloading(slot)
            if number is None or self._one_slot or not stored:
                return number
            return number if number + (self._kept_at > 0) <= stored[0] else None

        page = self.kept.next(fewest, self.inbox.highest)
        self._kept_at = time.monotonic() if page is not None else 0.0
        if page is None:
            return None
        request = self._begin(page)
        self.gate.turns.handed_out(request, page.lease.slot)
        return request

    def _begin(self, page: Page) -> Request:
        self.in_progress.begin(page)
        self.engine.downloads.handed_out(page.request, page.lease.slot)
        return page.request

    async def room_for_start(self) -> None:
        """Wait until the next request of ``start()`` may be taken, or the next lines of a feed."""
        # Half of it, so that start() does not keep pages from being started.
        while (
            max(self.run_session.waiting(), self.kept.waiting) > self.settings.max_outbox // 2
            or self.run_session.keeps_too_much()
        ) and not self.engine.closing:
            await asyncio.sleep(FLUSH)
        await self.back_pressure.start_may_go_on(self.is_busy)
        # Scrapy reads on without a pause while its downloader is busy, and nothing else has a turn.
        await asyncio.sleep(0)

    async def _watch_memory(self) -> None:
        while True:
            with contextlib.suppress(*TROUBLE, RedisError, RedisqError):
                self.back_pressure.filled(await self.run_session.fills())
            await asyncio.sleep(LOOK)

    def _next_from_inbox(self) -> Request | None:
        downloading = self.gate.downloading()
        while (popped := self.inbox.pop(downloading)) is not None:
            lease, session = popped
            try:
                page = Page(self.serializer.loads(lease.entry), lease, session)
            except (Undecodable, ValueError) as error:  # or its interval was none
                foreign = isinstance(error, (ForeignEntry, ValueError))
                problem = Problem(
                    "undecodable", str(error), type_name(type(error)), foreign=foreign
                )
                problem.tell_of_death(self.stats, f"a request of {lease.slot}")
                session.finish(problem.finish(lease.id))
                continue
            if lease.deliveries and SESSION_KEY in page.request.meta and self._session_lost:
                self.in_progress.begin_session_anew(page, self._session_lost)
                if page.problem is not None:
                    self._page_ended(page)
                    continue
            request = self._begin(page)
            self.gate.turns.handed_out(request, lease.slot)
            if self._is_low(self._want(downloading), downloading):
                self.run_session.wake()
            return request
        self.collect_ended()
        self.gate.wake_at_next_start()
        self.run_session.wake()
        return None

    # Middlewares and item pipelines ask, and tell

    def sink_is_away(self, away: bool) -> None:
        """Nothing is claimed or started while a sink takes no items."""
        self.sinks_away += 1 if away else -1
        self.engine.wake()
        self.run_session.wake()

    def sink_counted(self, name: str, by: int) -> None:
        """Add to a count that all workers share."""
        self.run_session.count(f"sink_{name}", by)

    # The run session asks (see scrapy_redisq.frontier.terms)

    def _may_start(self) -> bool:
        return not (
            self.is_lost
            or self.sinks_away
            or self.engine.paused
            or self.back_pressure.pauses
            or self.run_session.waiting() > self.settings.max_outbox
        )

    def _free(self) -> int:
        """Requests that could be started at once."""
        return self.engine.downloads.free if self._may_start() else 0

    def _want(self, downloading: Callable[[str], int | None]) -> int:
        """How many more leases are worth having. ``downloading``: see `DownloadGate`."""
        inbox = self.inbox
        startable = len(inbox) - inbox.held_up(downloading)
        free = self._free()
        # Without a stored request here, kept ones would take each place that becomes free.
        if not inbox and time.monotonic() - self._kept_at < PATIENCE and self._may_start():
            free = max(1, free)
        worth = inbox.worth(free) - startable
        want = max(0, min(worth, inbox.most - len(self.in_progress) - len(inbox)))
        if want and self._wants_nothing:
            self._wants_nothing = False
            self.run_session.found_more()
        elif worth <= 0:
            self._wants_nothing = True
        return want

    def _is_low(self, want: int, downloading: Callable[[str], int | None]) -> bool:
        """Whether what it has will soon be started; ``want``: as many may come."""
        return want > 0 and self.inbox.is_low(len(self.inbox) + want, downloading)

    def could_use_more(self) -> bool:
        """Whether this worker would soon start more than the frontier has: feeds are read then."""
        held_up = self.inbox.held_up(self.gate.downloading())
        if len(self.inbox) > held_up or not self.demand().want:
            return False
        return self.queued() < ENOUGH_QUEUED or self.run_session.nothing_is_due()

    def demand(self) -> Demand:
        within, urgent = self.gate.needed_within(), self.gate.turns.urgent
        quiet = self.orders.quiet or self.orders.paused or self.back_pressure.pauses
        nothing = Demand(False, 0, 0, {}, within=within, urgent=urgent, rests=quiet)
        if (
            quiet
            or not self._may_start()
            or self.engine.closing
            or self.kept.waiting > self.settings.max_outbox
            # Pages go on while start() waits for room: start() fills it, and pages seldom do.
            or self.run_session.keeps_too_much(times=2)
        ):
            return nothing
        downloading = self.gate.downloading()
        want = self._want(downloading)
        if not want:
            return nothing
        return Demand(
            low=self._is_low(want, downloading),
            want=want,
            slot_limit=self.inbox.slot_limit,
            room=self.inbox.room(),
            # The sink itself bounds the pages that wait for nothing else.
            most=self.inbox.most + self.in_progress.unwritten,
            within=within,
            urgent=urgent,
        )

    def _orders_changed(self) -> None:
        self.gate.crawl_paused = self.orders.paused
        self.reporter.soon()
        self.run_session.found_more()
        self.engine.wake()

    def is_busy(self) -> bool:
        works = self.in_progress or self.in_progress.unwritten or self.kept or self.inbox
        return bool(works) or self.back_pressure.pauses  # it looks often whether there is room

    def starting(self) -> tuple[bool, bool]:
        starting = self.engine.starting and not self.engine.closing
        all_added = not (self.engine.starting or self.engine.start_failed or self.kept.left_start)
        return starting or self.kept.own > 0, all_added

    def held_back(self) -> bool:
        return self.back_pressure.holds_back

    def collect_ended(self) -> None:
        self.kept.drop()
        kept_ended = True
        while kept_ended:  # then the page that held it may have ended, too
            kept_ended = False
            for page in self.in_progress.end(self.engine.in_progress, closing=self.engine.closing):
                if isinstance(page, KeptPage):
                    self.kept.ended(page)
                    kept_ended = True
                else:
                    self._page_ended(page)
        self.reporter.count_work()
        if self.engine.closing or self.back_pressure.pauses:  # others may go on with them
            to_release = self.inbox.clear()
        else:
            stuck = self.inbox.stuck
            to_release = self.gate.remove_stuck(full=not self._free())
            if self.inbox.stuck < stuck:
                self.run_session.found_more()
        for lease, session in to_release:
            session.finish(Finish(lease.id, "released"))

    def _page_ended(self, page: Page) -> None:
        self.pages += not page.given_back
        if comes_again := page.every is not None and not page.given_back and page.retry is None:
            self._comes_again(page)
        elif page.problem is not None and not page.given_back:
            page.problem.tell_of_death(self.stats, page)
        finish = page.finish()
        if self.settings.history:
            identity = self.in_progress.identity_of_page(page)
            finish = replace(finish, record=record_of(page, identity, finish))
        done = finish.ending == "done" or (comes_again and page.problem is None)
        # With its first page a session is over: the page may come again, here or elsewhere.
        done = done and page.is_held and SESSION_KEY not in page.request.meta
        self.kept.page_ended(page, done=done)
        page.session.finish(finish, page.output.links)

    def _comes_again(self, page: Page) -> None:
        seconds = page.come_again(self.in_progress.identity_of_page(page))
        if (problem := page.problem) is not None:
            self.stats.inc_value(f"redisq/every_failed/{problem.reason}")
            logger.warning(
                "%.500s has failed (%s: %s), and comes again in %.0f s",
                page.request,
                problem.reason,
                problem.detail.partition("\n")[0],
                seconds,
            )

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        if self.back_pressure.heard(session.shard, full=reply.full, news=bool(reply.accepted)):
            self.run_session.found_more()
            self.engine.wake()
        for lease, owner in self.gate.received(session, reply, told, sent_at):
            owner.finish(Finish(lease.id, "released"))
        # Without a tag: sent again, and counted the first time.
        accepted = 0
        for one in reply.accepted:
            if isinstance(one.tag, Request):
                accepted += 1
                if one.page is None and one.fingerprint is not None:
                    self.outbox.acknowledged(one.tag)
        if accepted:
            self.stats.inc_value("scheduler/enqueued/redis", accepted)
            self.stats.inc_value("scheduler/enqueued", accepted)
        for one in reply.duplicates:
            if isinstance(one.tag, Request):
                if one.page is None:
                    self.outbox.acknowledged(one.tag)
                self.outbox.duplicate(one.tag)
                self.crawler.signals.send_catch_log(
                    signal=signals.request_dropped, request=one.tag, spider=self.spider
                )
        for lease in reply.leases:
            self.inbox.add(lease, session)
        if session.shard == 0:
            self.orders.heed(reply.told)
        if reply.leases or reply.duplicates or self._held_up:
            self._held_up = False
            self.engine.wake()

    def stuck(self, seconds: int) -> None:
        stays = self.settings.keep_alive and not (self.feeder is not None and self.feeder.ends)
        patient = seconds < self.settings.set_aside_wait or stays
        if patient or self.engine.closing or self.orders.paused:
            return
        name = shlex.quote(self.run_session.terms.name)
        logger.error(
            "Closing (slots_set_aside): for %d s (REDISQ_SET_ASIDE_WAIT) nothing has been left but "
            "requests of slots that do not answer. They are kept: see them with scrapy redisq "
            "slots %s, go on with them by starting the crawl again",
            seconds,
            name,
        )
        close_spider(self.crawler, "slots_set_aside")

    def completed(self, missing: int) -> None:
        if missing:
            logger.error(
                "Closing (frontier_corrupt): nothing is left to do, and %d requests are missing: "
                "something else than scrapy-redisq has deleted or changed keys of the frontier",
                missing,
            )
            close_spider(self.crawler, "frontier_corrupt")
        self.engine.wake()

    def forgotten(self, sessions: Sequence[ShardSession]) -> None:
        # Pages in progress go on; the frontier counts their ends as stale.
        self.stats.inc_value("redisq/leases_lost", sum(len(session.held) for session in sessions))
        self.inbox.clear(sessions)
        self.gate.forgotten(sessions)
        self.outbox.forgotten()
        self.kept.forgotten()

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        reason: CloseReason = "redisq_failed"
        if isinstance(error, FrontierLost):
            reason = "frontier_lost"
        elif isinstance(error, FrontierCorrupt) and not isinstance(error, ScriptFailed):
            reason = "frontier_corrupt"
        logger.error("Closing (%s): %s", reason, error)
        close_spider(self.crawler, reason, failed=True)
