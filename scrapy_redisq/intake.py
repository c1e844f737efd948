"""What becomes of a request that Scrapy hands in: sent, kept here, a duplicate, or refused."""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha1
from typing import Any

from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_redisq._scrapy import Engine, current_page
from scrapy_redisq.delays import (
    DELAY_KEY,
    RetryPauses,
    delay_of,
    milliseconds,
    retry_times,
    without_delay,
)
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.entries import with_back_offs
from scrapy_redisq.errors import EntryTooLarge, Unserializable
from scrapy_redisq.frontier.config import PRIORITY_SLOT
from scrapy_redisq.frontier.courier import Courier
from scrapy_redisq.frontier.membership import Enqueue
from scrapy_redisq.local_queue import LocalQueue
from scrapy_redisq.pages import SLOT_KEY, Pages, Problem
from scrapy_redisq.seeds import slot_name
from scrapy_redisq.seen_cache import SeenCache
from scrapy_redisq.serializer import Serializer
from scrapy_redisq.settings import RedisqSettings
from scrapy_redisq.values import type_name

logger = logging.getLogger(__name__)

_FOLLOWED = ("redirect_times", "retry_times")
"""In meta: what Scrapy's middlewares count up in a request that they make of another."""


class Intake:
    """Takes requests in while a spider is open.

    ``retry_pauses``: how long retries wait that a callback asks for, or None if they do not.
    """

    retry_pauses: RetryPauses | None = None

    def __init__(
        self,
        crawler: Crawler,
        settings: RedisqSettings,
        *,
        engine: Engine,
        serializer: Serializer,
        dupefilter: BaseDupeFilter,
        pages: Pages,
        local: LocalQueue,
        courier: Courier,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._serializer = serializer
        self._dupefilter = dupefilter
        self._courier = courier
        self._stats: Any = crawler.stats
        self._spider: Any = crawler.spider
        fingerprinter: Any = crawler.request_fingerprinter
        self._fingerprint = fingerprinter.fingerprint
        # Only Scrapy's own is known to look at nothing but method, URL and body.
        self._cacheable = type(fingerprinter) is RequestFingerprinter
        self._foreign_filter = None if isinstance(dupefilter, RedisqDupeFilter) else dupefilter
        self._one_slot = settings.scheduling == "priority"
        self._pages = pages
        self._local = local
        self._seen_cache = SeenCache()
        self._warned_local = False
        self._warned_delay = False

    def take(self, request: Request) -> bool:
        """Take a request; False if it is known to be a duplicate or cannot be taken."""
        try:
            return self._take(request)
        except EntryTooLarge as error:
            self._refuse(request, "too_large", error)
        except Exception as error:
            logger.exception("Could not enqueue %s", request)
            self._refuse(request, "refused", error)
        return False

    def _delay(self, request: Request) -> tuple[Request, float]:
        """The request as it is kept, and the seconds that it waits."""
        if DELAY_KEY in request.meta:
            delay = 0.0
            try:
                delay = delay_of(request.meta)
            except ValueError as error:
                self._stats.inc_value("redisq/bad_delay")
                if not self._warned_delay:
                    self._warned_delay = True
                    logger.error(
                        "%s is not delayed: %s (more are only counted, in the stat "
                        "redisq/bad_delay)",
                        request,
                        error,
                    )
            return without_delay(request), delay
        page = current_page.get()
        if self.retry_pauses and page is not None and "retry_times" in request.meta:
            # get_retry_request() in a callback: other requests count no more than their page.
            times, before = (retry_times(some.meta) for some in (request, page))
            if times > before:
                return request, self.retry_pauses.before(times)
        return request, 0.0

    def _ungrouped(self, request: Request) -> Request:
        """Without the download slot that a redirect or a retry copied from meta where Scrapy, not
        the spider, has put it: another host has its own slot, and its own limits."""
        page = current_page.get()
        if page is None or SLOT_KEY not in request.meta or self._pages.is_grouped(page):
            return request
        if any(retry_times(request.meta, key) > retry_times(page.meta, key) for key in _FOLLOWED):
            return request.replace(
                meta={name: value for name, value in request.meta.items() if name != SLOT_KEY}
            )
        return request

    def _take(self, request: Request) -> bool:
        given = request
        request, delay = self._delay(given)
        request = self._ungrouped(request)
        # A start request is known by `True`; what comes back from Redis has 1 there instead, so
        # that redirects and retries, which copy meta, are not taken for start requests again.
        is_start = request.meta.get("is_start_request") is True
        filtered = not request.dont_filter
        if self._foreign_filter is not None and (filtered or is_start):
            # It is told of start requests, but cannot refuse them: the frontier does that.
            if self._foreign_filter.request_seen(request) and not is_start:
                return self.duplicate(request)
            filtered = False
        cacheable = (
            filtered
            and self._cacheable
            and request.method == "GET"
            and not request.body
            and "verbatim_url" not in request.meta
        )
        # Fingerprints leave the fragment out, and real pages link to many.
        url = request.url.partition("#")[0] if cacheable else ""
        if cacheable and url in self._seen_cache:
            self._courier.roster.memberships[0].local_duplicates += 1
            return self.duplicate(request)
        try:
            entry = self._serializer.dumps(request)
        except Unserializable as error:
            return self._keep(request, delay, error)
        if "retry_times" in request.meta:
            # A retry of a request that was sent back often is still the same request.
            entry = self._as_often_sent_back(request, entry)
        fingerprint = also = None
        if filtered or is_start:
            roster = self._courier.roster
            own = self._fingerprint(request)
            fingerprint = roster.seen.encode(own)
            if is_start and self._settings.keep_seen:
                # Start requests are fetched once in each run, whatever earlier runs have seen.
                also = fingerprint
                fingerprint = roster.seen.encode(sha1(roster.joined.run.encode() + own).digest())
        self._courier.enqueue(
            Enqueue(
                PRIORITY_SLOT if self._one_slot else slot_name(self._engine.slot_of(request)),
                request.priority,
                entry,
                fingerprint,
                delay=milliseconds(delay),
                also=also,
                page=self._pages.lease_of(current_page.get()),
                tag=given,
            )
        )
        if delay > 0:
            self._stats.inc_value("redisq/delayed")
        if cacheable:
            self._seen_cache.add(url)
        return True

    def _as_often_sent_back(self, request: Request, entry: bytes) -> bytes:
        page = current_page.get()
        if page is None or retry_times(request.meta) <= retry_times(page.meta):
            return entry
        return with_back_offs(entry, self._pages.back_offs(page))

    def duplicate(self, request: Request) -> bool:
        """Report a duplicate; -> False."""
        self._dupefilter.log(request, self._spider)
        return False

    def _keep(self, request: Request, delay: float, error: Unserializable) -> bool:
        """Keep in this process what no other could run, as Scrapy's own scheduler does."""
        if not self._local.push(request, delay):
            return self.duplicate(request)
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, self._engine.wake)
        if not self._warned_local:
            self._warned_local = True
            logger.warning(
                "%s cannot be shared and stays in this process: %s (more are only counted, in "
                "the stat scheduler/unserializable)",
                request,
                error,
            )
        self._stats.inc_value("scheduler/unserializable")
        return True

    def _refuse(self, request: Request, reason: str, error: Exception) -> None:
        """A request that cannot be kept at all: its page is not done, it is dead."""
        self._stats.inc_value(f"redisq/refused/{reason}")
        logger.warning("Refused %.200s: %s", request, error)
        self._pages.spoil(
            current_page.get(),
            Problem(reason, f"{request!s:.500}: {error}", type_name(type(error))),
        )

    def count_filtered(self) -> None:
        """Bring the stats about duplicates up to date."""
        if isinstance(self._dupefilter, RedisqDupeFilter):
            self._dupefilter.count_filtered()

    def forget(self) -> None:
        """What was seen lately may be unknown to the frontier."""
        self._seen_cache.clear()
