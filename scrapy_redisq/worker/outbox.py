"""Requests that Scrapy hands in: each is sent, kept here, a duplicate, or refused."""

from __future__ import annotations

import contextlib
import logging
import secrets
from typing import Any

from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq._scrapy.output import current_page
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.errors import EntryTooLarge, SchemeRefused, Unserializable, message_of
from scrapy_redisq.frontier.config import PRIORITY_SLOT
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.frontier.operations import OVER_BUDGET, Enqueue, Finish, Lease
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.seen import SeenCache
from scrapy_redisq.reasons import DeadReason
from scrapy_redisq.serialization.entry_format import identity_in, with_back_offs
from scrapy_redisq.serialization.identity import of_refused
from scrapy_redisq.serialization.meta import DELAY_KEY, WANTED_KEY, milliseconds, retry_times
from scrapy_redisq.serialization.recurrence import EVERY_KEY, SEEN_TTL_KEY, read_wishes
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.asked import (
    Asked,
    KnownBy,
    is_tried_again,
    known_by,
    telling_url,
)
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.page import KeptPage, Output, Page, Problem
from scrapy_redisq.worker.politeness.retry_pause import retry_pause

logger = logging.getLogger(__name__)

BAD = {
    DELAY_KEY: "redisq/bad_delay",
    EVERY_KEY: "redisq/bad_every",
    SEEN_TTL_KEY: "redisq/bad_seen_ttl",
}
"""The stat of what a key of meta does not take."""

MOST_EXPLAINED = 20
"""Reasons why requests stay in this process that are logged: keys of meta may be without end."""


class Outbox:
    """Takes requests in while a spider is open."""

    pauses_retries = False
    """Retries that a callback asks for wait: `RedisqRetryMiddleware` is there."""

    def __init__(
        self,
        crawler: Crawler,
        settings: RedisqSettings,
        *,
        engine: Engine,
        serializer: Serializer,
        dupefilter: BaseDupeFilter,
        in_progress: InProgress,
        run_session: RunSession,
        kept: KeptRequests,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._serializer = serializer
        self._dupefilter = dupefilter
        self._run_session = run_session
        self._stats: Any = crawler.stats
        self._spider: Any = crawler.spider
        fingerprinter: Any = crawler.request_fingerprinter
        self._fingerprint = fingerprinter.fingerprint
        self._foreign_filter = None if isinstance(dupefilter, RedisqDupeFilter) else dupefilter
        # Only Scrapy's own fingerprints are known to be of nothing but method, URL and body.
        tells = type(fingerprinter) is RequestFingerprinter and self._foreign_filter is None
        self._telling_url = telling_url if tells else lambda request: ""
        self._one_slot = settings.scheduling == "priority"
        self._in_progress = in_progress
        self._kept = kept
        self._seen_cache = SeenCache(ttl=settings.seen_ttl)
        self._explained: set[tuple[str, str]] = set()
        self._warned_shared = False
        self._warned_of: set[str] = set()
        self._start = Output()
        self._worker = secrets.token_bytes(16)

    def take(self, request: Request) -> bool:
        """Take a request; False if it is known to be a duplicate or cannot be taken."""
        try:
            return self._take(request)
        except EntryTooLarge as error:
            self._refuse(request, "too_large", error)
        except SchemeRefused as error:
            self._refuse(request, "scheme", error)
        except Exception as error:
            logger.exception("Could not enqueue %s", request)
            self._refuse(request, "refused", error)
        return False

    def take_fed(self, request: Request, identity: bytes) -> None:
        """Take a request of a feed, whose line gives it an ``identity``. Raises what is wrong with
        it: the line stays when this worker has gone, so that nothing of it is kept here."""
        self._take(request, identity)

    def _take(self, given: Request, fed: bytes | None = None) -> bool:
        # Before all else: most links of a page are known.
        of_start = self._engine.is_of_start(given)
        again = self._engine.is_returned(given) and self._is_of_next_time()
        url = "" if again else self._telling_url(given)
        # With REDISQ_KEEP_SEEN the cache may know it from a link that was seen in a former run.
        if url and url in self._seen_cache and not (self._settings.keep_seen and of_start):
            self._run_session.count("duplicates", 1)
            return self.duplicate(given)
        one = self._asked(given, of_start, again, fed)
        if one is None:
            return self.duplicate(given)
        page = one.page if one.page is not None and self._is_page_again(one, one.page) else None
        if page is not None:
            self._as_again(one, page)
        if page is not None and not page.is_kept and page.retry is None:
            taken = self._take_retry(one, page)
        else:
            taken = self._send_or_keep(one, url)
        if taken and one.delay > 0:
            self._stats.inc_value("redisq/delayed")
        holds_any = bool(one.request.meta or one.request.cb_kwargs)
        if taken and holds_any and not self._warned_shared and one.request not in self._kept:
            self._note_shared(one)
        return taken

    def _asked(
        self, given: Request, of_start: bool, again: bool, fed: bytes | None
    ) -> Asked | None:
        """What is known of it, None if a foreign dupefilter has seen it. ``again``: it takes the
        place of a page that comes again."""
        page = self._asking_page()
        request, wishes = read_wishes(given, self._refuse_wish)
        self._check_body(request)
        filtered, let_through = not (request.dont_filter or again), True
        if self._foreign_filter is not None:
            # It is told of start requests, but cannot refuse them: the frontier does that.
            asked = filtered or of_start
            if asked and self._foreign_filter.request_seen(request) and not of_start:
                return None
            # It may not let the request through for another fetch of the page.
            filtered, let_through = False, given.dont_filter or of_start
        by_all = of_start and (filtered or self._settings.same_start)
        return Asked(
            given,
            request,
            wishes,
            page,
            page.output if page is not None else self._start,
            self._slot(request),
            self._fingerprint(request),
            filtered,
            of_start,
            asked_again=let_through and (by_all if page is None else page.asked_again),
            delay=wishes.get(DELAY_KEY, self._retry_pause(request, page)),
            fed=fed,
        )

    def _check_body(self, request: Request) -> None:
        """Raise `EntryTooLarge` before a fingerprint is made, for which Scrapy copies the body six
        times."""
        if len(request.body) > self._settings.max_entry_bytes:
            with contextlib.suppress(Unserializable):  # it stays in this process
                self._serializer.dumps(request)

    def _refuse_wish(self, request: Request, key: str, error: ValueError) -> None:
        self._stats.inc_value(BAD[key])
        if key not in self._warned_of:
            logger.error("%s goes on without what cannot be: %s (told once)", request, error)
        self._warned_of.add(key)

    def _retry_pause(self, request: Request, page: Page | None) -> float:
        """Seconds that get_retry_request() in a callback waits: other requests count no more than
        their page."""
        if self.pauses_retries and page is not None and is_tried_again(request, page):
            return retry_pause(self._settings.retry_delays, retry_times(request.meta))
        return 0.0

    def _is_of_next_time(self) -> bool:
        """Whether a page that comes again, or what it was redirected to, is redirected. What to
        may be filtered by Scrapy, but not as seen: so it was the time before."""
        page = self._asking_page()
        return (
            page is not None
            and (page.every is not None or self._foreign_filter is None)
            and bool(page.lease.entry)
            and identity_in(page.lease.entry) is not None
        )

    def acknowledged(self, request: Request) -> None:
        """Redis has a request without a page, or had it before."""
        if url := self._telling_url(request):
            self._seen_cache.add(url)

    def _note_shared(self, one: Asked) -> None:
        if place := one.output.shared(one.request):
            self._warned_shared = True
            logger.warning(
                "%s holds an object in %s that another request of its page holds, too. Each gets a "
                "copy, as with a JOBDIR: what one callback changes in it no other sees. Hand "
                "results on from request to request, or yield parts with a common key and join "
                "them in an item pipeline (told once)",
                one.request,
                place,
            )

    def _send_or_keep(self, one: Asked, url: str) -> bool:
        """Have it sent to Redis, or keep it here. ``url``: later links to it are duplicates."""
        every = one.page.every if one.page is not None else None
        if every is not None and self._engine.is_returned(one.given):
            for name in every.headers:  # of the page that was redirected, and not of this one
                one.request.headers.pop(name, None)
        identity_of_page = self._in_progress.identity_of_page
        known = known_by(one, self._settings, self._run_session, identity_of_page, self._worker)
        if self._foreign_filter is not None:
            known = known._replace(also=None)  # nobody would ask for it
        identity = None if one.filtered else known.identity
        if one.shares_session(one.page):
            self._serializer.check_scheme(one.request.url)
            return self._keep(one, identity)
        try:
            entry = self._serializer.dumps(one.request, None if identity == one.own else identity)
        except Unserializable as error:
            if one.fed:
                raise
            return self._keep(one, identity, error)
        self._send(one, known, entry)
        # Another page that links to the URL may end before the request is sent, so this page has to
        # stand for it; a void page does not. Without a page the URL is known when it is
        # `acknowledged`.
        if url and one.holder is not None and one.holder.is_held:
            self._seen_cache.add(url)
        return True

    def _send(self, one: Asked, known: KnownBy, entry: bytes) -> None:
        holder, page, link, delay = one.holder, None, None, milliseconds(one.delay)
        if holder is not None and (most := self._settings.page_budget):
            holder.output.asked += 1
            delay = OVER_BUDGET if holder.output.asked > most else delay
        if holder is not None and holder.is_held:
            page = holder.lease.id if one.asked_again else None
            link = self._run_session.link_to(one.slot, holder.session)
        enqueue = Enqueue(
            one.slot,
            int(one.request.priority),  # True and members of an enum are numbers
            entry,
            **known._asdict(),
            delay=delay,
            page=page,
            tag=one.given,
            link=link,
        )
        self._run_session.enqueue(enqueue)
        if holder is not None and link is not None:
            holder.output.keep_link(enqueue)

    def _as_again(self, one: Asked, page: Page) -> None:
        """Let ``one`` be known as the page is when that is tried again."""
        stored, meta = page.stored, dict(one.request.meta)
        if wanted := stored.wanted + (not self._engine.is_returned(one.given)):
            meta[WANTED_KEY] = wanted
        if _is_slot_of(one.request, page.request):  # what it is redirected to has another one
            meta["download_slot"] = stored.download_slot
            if stored.download_slot is None:
                del meta["download_slot"]
        # Retries are unfiltered, and what they are redirected to would be so, too: it would be
        # another request than a link to it, with rows of its own.
        dont_filter = stored.dont_filter if page.retry is None else one.request.dont_filter
        one.request = one.request.replace(meta=meta, dont_filter=dont_filter)
        one.slot = page.lease.slot

    def _is_page_again(self, one: Asked, page: Page) -> bool:
        """Whether it is the request of the page once more."""
        return (
            not one.filtered
            and (one.slot == page.lease.slot or _is_slot_of(one.request, page.request))
            # One that comes again is what it was, and not what it was redirected to.
            and (
                (self._engine.is_returned(one.given) and page.every is None)
                or is_tried_again(one.request, page)
            )
            and bool(one.own == self._fingerprint(page.request))
        )

    def _take_retry(self, one: Asked, page: Page) -> bool:
        request, identity = page.as_itself(one.request), identity_in(page.lease.entry)
        try:
            entry = self._serializer.dumps(request, identity)
        except Unserializable as error:
            return self._keep(one, identity, error)
        if is_tried_again(request, page):
            # A retry of a request that was sent back often is still the same request.
            entry = with_back_offs(entry, page.tries)
        delay, priority = milliseconds(one.delay), int(request.priority)
        page.retry = Finish(page.lease.id, "retried", entry=entry, priority=priority, delay=delay)
        self._stats.inc_value("scheduler/enqueued/redis")
        self._stats.inc_value("scheduler/enqueued")
        return True

    def _slot(self, request: Request) -> str:
        if self._one_slot:
            return PRIORITY_SLOT
        return slot_name(self._engine.downloads.slot_of(request))

    def _asking_page(self) -> Page | None:
        """The page that asks for the request being taken in. Code that runs in its context after
        its end asks for no page."""
        asking = current_page.get()
        if asking is None or asking not in self._engine.in_progress:
            return None
        return self._in_progress.asking(asking)

    def duplicate(self, request: Request) -> bool:
        """Report a duplicate; -> False."""
        self._dupefilter.log(request, self._spider)
        return False

    def _keep(
        self, one: Asked, identity: bytes | None, error: Unserializable | None = None
    ) -> bool:
        """Keep a request in this process; ``error``: it cannot be stored. ``identity``: of one that
        is not filtered."""
        asking, holder, request = one.page, one.holder, one.request
        in_session = one.filtered and one.shares_session(holder)
        if in_session and holder is not None and one.own == self._fingerprint(holder.request):
            return self.duplicate(one.given)  # the first page of the session
        known = request in self._kept or request in self._engine.in_progress
        if known or self._in_progress.has(request):
            request = request.copy()  # each has a page of its own, which is known by the object
        if isinstance(asking, KeptPage) and self._is_page_again(one, asking):
            identity = asking.identity  # rows of a page are the same without a retry
        if one.asked_again and holder is not None and (holder.given_back or not holder.is_held):
            return True  # the worker that has the page asks for it
        page = KeptPage(
            request,
            Lease("", one.slot, int(request.priority), 0, b""),
            self._run_session.shard_of(one.slot),
            identity=identity or one.known_here or one.own,
            holder=holder,
            asked_again=one.asked_again,
        )
        if not self._kept.take(page, one.delay, one.known_here):
            return self.duplicate(request)
        if error is not None:
            self._explain(request, error)
            self._stats.inc_value("scheduler/unserializable")
        if one.comes_again:
            logger.warning("%s stays in this process, and does not come again", request)
        return True

    def _explain(self, request: Request, error: Unserializable) -> None:
        """Say why a request stays here, once for each reason and callback."""
        callback = getattr(request.callback, "func", request.callback)  # of a partial
        name = getattr(callback, "__name__", "parse")
        told = (str(error), name)
        if told in self._explained or len(self._explained) >= MOST_EXPLAINED:
            return
        self._explained.add(told)
        logger.warning(
            "%s for %s cannot be shared and stays in this process: %s%s (more of this kind are "
            "only counted, in the stat scheduler/unserializable)",
            request,
            name,
            error,
            f"; to share it, {error.cure}" if error.cure else "",
        )

    def forgotten(self) -> None:
        """All leases are void, and what is cached of them."""
        self._seen_cache.clear()

    def _refuse(self, request: Request, reason: DeadReason, error: Exception) -> None:
        """A request that cannot be kept at all makes its page a dead letter. Where no page stands
        for it, it is a dead letter itself."""
        self._stats.inc_value(f"redisq/refused/{reason}")
        text = message_of(error)
        logger.warning("Refused %.200s: %s", request, text)
        problem = Problem(reason, f"{request!s:.500}: {text}", type_name(type(error)))
        if self._asking_page() is not None:
            self._in_progress.mark_failed(current_page.get(), problem)
            return
        try:
            slot = self._slot(request)
        except Exception:  # the slot may be what is wrong with it
            slot = ""
        self._stats.inc_value(f"redisq/dead/{reason}")
        self._run_session.enqueue(problem.letter(slot, of_refused(request)))


def _is_slot_of(request: Request, page: Request) -> bool:
    """Whether the request has copied the slot that a middleware has chosen for the page, as those
    of proxies do."""
    slot = request.meta.get("download_slot")
    return slot is not None and bool(slot == page.meta.get("download_slot"))
