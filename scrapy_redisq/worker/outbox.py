"""Requests that Scrapy hands in: each is sent, kept here, a duplicate, or refused."""

from __future__ import annotations

import contextlib
import logging
import secrets
from hashlib import sha1
from typing import Any

from msgspec import Struct
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq._scrapy.output import current_page
from scrapy_redisq.dupefilter import RedisqDupeFilter
from scrapy_redisq.errors import EntryTooLarge, SchemeRefused, Unserializable, message_of
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import PRIORITY_SLOT
from scrapy_redisq.frontier.operations import OVER_BUDGET, Enqueue, Finish, Lease
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.seen import SeenCache
from scrapy_redisq.frontier.slot_names import slot_name
from scrapy_redisq.reasons import DeadReason
from scrapy_redisq.serialization.entry_format import identity_in, with_back_offs
from scrapy_redisq.serialization.identity import (
    of_child,
    of_nowhere,
    of_recurring,
    of_refused,
)
from scrapy_redisq.serialization.identity import of_start as identity_of_start
from scrapy_redisq.serialization.meta import (
    DELAY_KEY,
    MAX_DELAY,
    SESSION_KEY,
    delay_of,
    milliseconds,
    retry_times,
    without_delay,
)
from scrapy_redisq.serialization.recurrence import (
    EVERY_KEY,
    SEEN_TTL_KEY,
    Recurrence,
    of_period,
    seen_ttl_of,
)
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.page import KeptPage, Output, Page, Problem
from scrapy_redisq.worker.politeness.retry_pause import retry_pause

logger = logging.getLogger(__name__)

MOST_EXPLAINED = 20
"""Reasons why requests stay in this process that are logged: keys of meta may be without end."""


_INTERVALS = (
    (EVERY_KEY, Recurrence.of, "redisq/bad_every", "does not come again"),
    (SEEN_TTL_KEY, seen_ttl_of, "redisq/bad_seen_ttl", "is filtered as others are"),
)
"""Keys of meta, their checks, the stats of bad values, and what becomes of requests with them."""


class _Asked(Struct):
    """A request that is taken in: as it was ``given``, and as it is stored.

    ``page`` asks for it; ``own`` is its fingerprint, ``delay`` in seconds. The rest is as in
    `Enqueue`; ``identity`` is None where the fingerprint takes its place.
    """

    given: Request
    request: Request
    delay: float
    page: Page | None
    slot: str
    own: bytes
    filtered: bool
    of_start: bool
    identity: bytes | None = None
    fingerprint: bytes | str | None = None
    also: bytes | str | None = None
    asked: int = 0
    fed: bytes | None = None
    """Its identity by the line of a feed that asks for it; None: it is of no feed."""

    @property
    def holder(self) -> Page | None:
        """The page of the frontier that asks for it, or for the kept request that asks for it."""
        return self.page.holder if isinstance(self.page, KeptPage) else self.page


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
        # Only Scrapy's own is known to look at nothing but method, URL and body.
        self._may_know_urls = (
            type(fingerprinter) is RequestFingerprinter and self._foreign_filter is None
        )
        self._one_slot = settings.scheduling == "priority"
        self._in_progress = in_progress
        self._kept = kept
        self._seen_cache = SeenCache(ttl=settings.seen_ttl)
        self._explained: set[tuple[str, str]] = set()
        self._warned_delay = self._warned_shared = False
        self._warned_of: set[str] = set()
        self._start = Output()
        self._own_start = secrets.token_bytes(16)

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
        page = self._asking_page()
        request, delay = self._delay(self._looked_at(given), page)
        self._check_body(request)
        filtered = not (request.dont_filter or again)
        if self._foreign_filter is not None:
            # It is told of start requests, but cannot refuse them: the frontier does that.
            asked = filtered or of_start
            if asked and self._foreign_filter.request_seen(request) and not of_start:
                return self.duplicate(request)
            filtered = False
        own, slot = self._fingerprint(request), self._slot(request)
        one = _Asked(given, request, delay, page, slot, own, filtered, of_start, fed=fed)
        taken = self._take_retry(one) if self._is_retry(one) else self._send(one, url)
        if taken and delay > 0:
            self._stats.inc_value("redisq/delayed")
        holds_any = bool(request.meta or request.cb_kwargs)
        if taken and holds_any and not self._warned_shared and request not in self._kept:
            self._note_shared(one)
        return taken

    def _check_body(self, request: Request) -> None:
        """Raise `EntryTooLarge` before a fingerprint is made, for which Scrapy copies the body six
        times."""
        if len(request.body) > self._settings.max_entry_bytes:
            with contextlib.suppress(Unserializable):  # it stays in this process
                self._serializer.dumps(request)

    def _delay(self, request: Request, page: Page | None) -> tuple[Request, float]:
        """The request as it is kept, and the seconds that it waits."""
        if DELAY_KEY in request.meta:
            delay, more = 0.0, "(more are only counted, in the stat redisq/bad_delay)"
            try:
                delay = delay_of(request.meta)
            except ValueError as error:
                self._stats.inc_value("redisq/bad_delay")
                if not self._warned_delay:
                    logger.error("%s is not delayed: %s %s", request, error, more)
                self._warned_delay = True
            return without_delay(request), delay
        # get_retry_request() in a callback: other requests count no more than their page.
        if self.pauses_retries and page is not None and _is_tried_again(request, page):
            return request, retry_pause(self._settings.retry_delays, retry_times(request.meta))
        return request, 0.0

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

    def _looked_at(self, request: Request) -> Request:
        """The request, without intervals in its meta that cannot be."""
        for key, check, stat, what in _INTERVALS:
            if key not in request.meta:
                continue
            try:
                check(request.meta[key])
            except ValueError as error:
                self._stats.inc_value(stat)
                if key not in self._warned_of:
                    logger.error("%s %s: %s (more are only counted)", request, what, error)
                self._warned_of.add(key)
                meta = {name: value for name, value in request.meta.items() if name != key}
                request = request.replace(meta=meta)
        return request

    def _telling_url(self, request: Request) -> str:
        """The URL if it says all that the fingerprint does, else ""."""
        tells = (
            self._may_know_urls
            and not request.dont_filter
            and request.method == "GET"
            and not request.body
            and request.meta.keys().isdisjoint(("verbatim_url", SESSION_KEY, SEEN_TTL_KEY))
        )
        # Fingerprints leave the fragment out, and real pages link to many.
        return request.url.partition("#")[0] if tells else ""

    def acknowledged(self, request: Request) -> None:
        """Redis has a request without a page, or had it before."""
        if url := self._telling_url(request):
            self._seen_cache.add(url)

    def _note_shared(self, one: _Asked) -> None:
        output = one.page.output if one.page is not None else self._start
        if place := output.shared(one.request):
            self._warned_shared = True
            logger.warning(
                "%s holds an object in %s that another request of the same page holds, too. Each "
                "gets a copy of its own, as with a JOBDIR: what one callback changes in it no "
                "other sees. Hand results on from request to request, one after the other, or "
                "yield parts with a common key and join them in an item pipeline (it is only told "
                "once)",
                one.request,
                place,
            )

    def _identify(self, one: _Asked) -> None:
        """Find what it is known by: its fingerprint if it is filtered, else its identity."""
        encode, own = self._run_session.seen.encode, one.own
        if one.filtered:
            known_by = own
            if one.of_start and self._settings.keep_seen:
                # Start requests are fetched once in each run, whatever earlier runs have seen.
                known_by = sha1(self._run_session.joined.run.encode() + own).digest()
            if SEEN_TTL_KEY in one.request.meta:
                known_by = of_period(known_by, seen_ttl_of(one.request.meta[SEEN_TTL_KEY]))
            one.fingerprint = encode(known_by)
            if known_by != own:
                one.also = encode(own)
            if EVERY_KEY in one.request.meta:
                one.asked, one.identity = calls.STARTS, of_recurring(own)
        elif one.of_start:
            alone = b"" if self._settings.same_start else self._own_start
            one.asked = calls.STARTS
            one.identity = identity_of_start(own, one.request, self._start.repeats, own=alone)
            # Links to it are duplicates, unless a foreign filter decides. A start request with
            # marks (cookies, say) hides no plain link to its URL.
            if one.identity == own and self._foreign_filter is None:
                one.also = encode(own)
        elif one.page is None:
            one.asked, one.identity = calls.RECENT, one.fed or of_nowhere(own, one.request)
        else:
            parent, retries = b"", 0
            one.asked = calls.STARTS
            # Of any page, or each fetch of its page would begin another series.
            if EVERY_KEY not in one.request.meta:
                one.asked, retries = calls.RECENT, retry_times(one.page.request.meta)
                parent = self._in_progress.identity_of_page(one.page)
                # What a page asks for is new each time that its URL may be fetched again.
                if ttl := self._seen_ttl(one.page):
                    parent = of_period(parent, ttl)
            one.identity = of_child(
                parent, own, one.request, one.page.output.repeats, retries=retries
            )

    def _seen_ttl(self, page: Page) -> float:
        """Seconds from which on the request of a page may be fetched again; 0: never."""
        ttl = self._settings.seen_ttl
        if SEEN_TTL_KEY in page.request.meta:
            with contextlib.suppress(ValueError):  # callbacks change meta
                ttl = min(ttl or MAX_DELAY, seen_ttl_of(page.request.meta[SEEN_TTL_KEY]))
        return ttl

    def _send(self, one: _Asked, url: str) -> bool:
        """Have it sent to Redis, or keep it here. ``url``: later links to it are duplicates."""
        every = one.page.every if one.page is not None else None
        if every is not None and self._engine.is_returned(one.given):
            for name in every.headers:  # of the page that was redirected, and not of this one
                one.request.headers.pop(name, None)
        self._identify(one)
        holder, identity = one.holder, None if one.filtered else one.identity
        session = one.request.meta.get(SESSION_KEY)
        page_session = one.page.request.meta.get(SESSION_KEY) if one.page is not None else None
        if session is not None and session == page_session:
            return self._keep_in_session(one, identity, session)
        try:
            entry = self._serializer.dumps(one.request, None if identity == one.own else identity)
        except Unserializable as error:
            if one.fed:
                raise
            return self._keep(one, error, identity)
        is_held = holder is not None and holder.is_held
        # A foreign dupefilter would not let it through again for another fetch of the page.
        stands = is_held and (self._foreign_filter is None or one.given.dont_filter)
        delay = milliseconds(one.delay)
        if holder is not None and (most := self._settings.page_budget):
            holder.output.asked += 1
            delay = OVER_BUDGET if holder.output.asked > most else delay
        enqueue = Enqueue(
            one.slot,
            int(one.request.priority),  # True and members of an enum are numbers
            entry,
            one.fingerprint,
            delay=delay,
            also=one.also,
            identity=one.identity,
            asked=one.asked,
            page=holder.lease.id if holder is not None and stands else None,
            tag=one.given,
            link=self._run_session.link_to(one.slot, holder.session)
            if holder is not None and is_held
            else None,
        )
        self._run_session.enqueue(enqueue)
        if holder is not None and enqueue.link is not None:
            holder.output.keep_link(enqueue)
        # Another page that links to the URL may end before the request is sent, so this page has to
        # stand for it; a void page does not. Without a page the URL is known when it is
        # `acknowledged`.
        if url and is_held:
            self._seen_cache.add(url)
        return True

    def _is_retry(self, one: _Asked) -> bool:
        """Whether it takes the place of the page."""
        page = one.page
        return (
            page is not None
            and not isinstance(page, KeptPage)
            and page.retry is None
            and self._is_page_again(one, page)
        )

    def _is_page_again(self, one: _Asked, page: Page) -> bool:
        """Whether it is the request of the page once more."""
        return (
            not one.filtered
            and one.slot == page.lease.slot
            # One that comes again is what it was, and not what it was redirected to.
            and (
                (self._engine.is_returned(one.given) and page.every is None)
                or _is_tried_again(one.request, page)
            )
            and bool(one.own == self._fingerprint(page.request))
        )

    def _take_retry(self, one: _Asked) -> bool:
        page, request = one.page, one.request
        assert page is not None
        if page.every is not None:  # which its meta does not say any more
            meta = {**request.meta, EVERY_KEY: page.every.stored()}
            # A retry's priority is another one, and would be that of all times to come.
            request = request.replace(meta=meta, priority=page.lease.priority)
        identity = identity_in(page.lease.entry)
        try:
            entry = self._serializer.dumps(request, identity)
        except Unserializable as error:
            return self._keep(one, error, identity)
        if _is_tried_again(request, page):
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

    def _keep_in_session(self, one: _Asked, identity: bytes | None, session: object) -> bool:
        """Keep a request where the page is that it shares a session with."""
        self._serializer.check_scheme(one.request.url)
        first = one.holder.request if one.holder is not None else None
        if (
            one.filtered
            and first is not None
            and first.meta.get(SESSION_KEY) == session
            and one.own == self._fingerprint(first)
        ):
            return self.duplicate(one.given)  # the first page of the session
        return self._keep(one, None, identity)

    def _keep(self, one: _Asked, error: Unserializable | None, identity: bytes | None) -> bool:
        """Keep a request in this process, as Scrapy's scheduler does. ``error``: why no other
        process could run it."""
        request, asking, holder, own = one.request, one.page, one.holder, one.own
        if (session := request.meta.get(SESSION_KEY)) is not None:
            # Another session may ask for the same URL, and have another answer.
            own = sha1(f"{session!r} ".encode() + own).digest()
        known = request in self._kept or request in self._engine.in_progress
        if known or self._in_progress.has(request):
            request = request.copy()  # each has a page of its own, which is known by the object
        if asking is None:
            asked_again = one.of_start and (one.filtered or self._settings.same_start)
        else:
            # A foreign dupefilter may not let it through for another fetch of the page.
            let_through = self._foreign_filter is None or request.dont_filter
            asked_again = asking.asked_again and let_through
            if isinstance(asking, KeptPage) and self._is_page_again(one, asking):
                identity = asking.identity  # rows of a page are the same without a retry
        if asked_again and holder is not None and (holder.is_void or holder.given_back):
            return True  # the worker that has the page asks for it
        page = KeptPage(
            request,
            Lease("", one.slot, int(request.priority), 0, b""),
            self._run_session.shard_of(one.slot),
            identity=identity or own,
            holder=holder,
            asked_again=asked_again,
        )
        if not self._kept.take(page, one.delay, own if one.filtered else None):
            return self.duplicate(request)
        if error is not None:
            self._explain(request, error)
            self._stats.inc_value("scheduler/unserializable")
        if request.meta.pop(EVERY_KEY, None) is not None:
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

    def count_filtered(self) -> None:
        """Bring the stats about duplicates up to date."""
        if isinstance(self._dupefilter, RedisqDupeFilter):
            self._dupefilter.count_filtered()


def _is_tried_again(request: Request, page: Page) -> bool:
    """Whether ``request`` is tried once more often than its page."""
    return retry_times(request.meta) > retry_times(page.request.meta)
