"""Kept requests, which cannot be stored and stay in this process: claimed, tried, settled.

See `Page` for what they are to the page that asked for them, and ``shared/kept.lua`` for what the
frontier knows of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from scrapy.http import Request

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.operations import Claim, GoesOn, Letter, Settle
from scrapy_redisq.serialization.identity import Repeats, of_refused
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.local_queue import LocalQueue
from scrapy_redisq.worker.page import Page, Problem

logger = logging.getLogger(__name__)

TRY_AGAIN = 2.0
"""Seconds after which one is tried again whose slot was in trouble; each time so much longer."""


class LocalRequests:
    """Takes care of them until they are over.

    ``most``: of those that no page stands for, how many the worker claims ahead.
    """

    def __init__(
        self,
        engine: Engine,
        exchange_loop: ExchangeLoop,
        in_progress: InProgress,
        queue: LocalQueue,
        stats: Any,
        *,
        most: int,
    ) -> None:
        self._engine = engine
        self._exchange_loop = exchange_loop
        self._in_progress = in_progress
        self._queue = queue
        self._stats = stats
        self._most = most
        self._stored: WeakKeyDictionary[Request, Page] = WeakKeyDictionary()
        """What comes of these and can be stored, until it is known whether that is new."""
        self.gave_back = False
        """Whether start requests were left to whoever reads ``start()`` next: it counts as not
        read to its end."""
        self.lost = 0
        """Those that nothing asks for again, and that were given up."""

    def __contains__(self, request: Request) -> bool:
        return request in self._queue

    def take(
        self, request: Request, page: Page, asking: Page | None, delay: float, claim: Claim | None
    ) -> None:
        """Take a request that comes of ``asking``, whose identity is known; None: of ``start()`` or
        of nowhere. To be tried after ``delay`` seconds, or so long after ``claim`` was granted."""
        root = asking and (asking.root or asking)
        if root is not None and root.is_void and page.comes_again:
            return
        if asking is not None:
            page.root = root
            # Where there is nothing to settle, nothing need wait: a request that asks for itself
            # again and again would hold all that were before it.
            page.asker = asking if asking.claim or asking.asker is None else asking.asker
            page.asker.unwritten += 1
        if claim is not None:
            claim = replace(claim, tag=request)
            if root is not None:
                assert root.identity is not None
                claim = replace(claim, lease=root.lease.id, page=root.identity)
                self._send(claim, asking)
        self._queue.take(request, page, delay, claim)
        if claim is None:
            self._will_run(delay)
        elif root is None:
            self.ask()

    def _send(self, operation: Claim | Settle, page: Page | None) -> None:
        session = self._exchange_loop.enqueue(operation)
        if page is not None:
            page.ends_after(session)

    def _will_run(self, delay: float) -> None:
        self._stats.inc_value("scheduler/enqueued/memory")
        self._stats.inc_value("scheduler/enqueued")
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, self._engine.wake)
        else:
            self._engine.wake()

    # What the frontier says of claims

    def granted(self, claim: Claim, *, is_new: bool = False) -> None:
        """The request is this worker's; ``is_new``: no other worker had it before."""
        assert isinstance(claim.tag, Request)
        known = self._queue.granted(claim.tag)
        if known is None:
            if claim.tag not in self._queue:  # else it was begun before this worker joined again
                self._exchange_loop.enqueue(Settle(claim, done=False))
            return
        page, delay = known
        page.claim = claim
        if is_new:
            self._goes_on(page.root)
        self._queue.push(claim.tag, delay)
        self._will_run(delay)

    def stored(self, request: Request, root: Page) -> None:
        """A request that can be stored, and comes of one that cannot, is sent."""
        self._stored[request] = root

    def accepted(self, request: Request) -> None:
        """A request that was sent is new."""
        if root := self._stored.pop(request, None):
            self._goes_on(root)

    def _goes_on(self, root: Page | None) -> None:
        """Something new came of ``root``: a request, or the end of one. Once in the life of a
        worker is enough, that its death may count again."""
        if root is None or root.gone_on or root.is_void:
            return
        root.gone_on = True
        if root.lease.id and root.lease.deliveries:
            root.session.add(GoesOn(lease=root.lease.id))
        elif root.claim is not None:
            root.session.add(GoesOn(root.claim))

    def bury_claimed(self, claim: Claim) -> None:
        """So many workers have died with it that it may be what they died of: it is not tried."""
        assert isinstance(claim.tag, Request)
        page = self._queue.refused(claim.tag)
        if page is None:
            self.granted(claim)
            return
        deaths = self._exchange_loop.run_session.terms.max_deliveries
        page.claim = claim
        detail = f"{claim.tag!s:.300}, which stayed in its process: its worker died {deaths} times"
        page.problem = Problem("deliveries", detail)
        logger.warning("A request became a dead letter (deliveries): %s", detail)
        self._end(claim.tag, page)

    def refused(self, claim: Claim) -> bool:
        """The request is a duplicate. -> False if it was begun before this worker joined again."""
        assert isinstance(claim.tag, Request)
        if page := self._queue.refused(claim.tag):
            self._end(claim.tag, page)
            return True
        self._lose(claim.tag)
        return False

    def is_with_another(self, claim: Claim) -> None:
        """Another worker has the request, and may die before it has dealt with it."""
        assert isinstance(claim.tag, Request)
        if not self._queue.is_with_another(claim):
            self._lose(claim.tag)

    def _lose(self, request: Request) -> None:
        """Whoever has it by now asks for all that comes of it; else both went on side by side."""
        page = self._queue.get(request)
        if page is not None and page.root is None:
            page.lost = True

    def ask(self) -> None:
        """Ask about what no page stands for, as far as this worker may have more of it."""
        for claim in self._queue.to_ask(self._most):
            self._exchange_loop.enqueue(claim)

    def next(
        self, downloading: Callable[[str], int | None], others: Callable[[str], int | None]
    ) -> tuple[Request, Page] | None:
        """The next request to start, see `LocalQueue.pop`, but none that is another worker's."""
        while (popped := self._queue.pop(downloading, others)) is not None:
            request, page = popped
            root = page.root
            if not (page.lost or (root is not None and root.is_void and page.comes_again)):
                return popped
            self._queue.forget(request)
            self._end(request, page)
        return None

    def rejoined(self) -> None:
        """All claims are void: other workers fetch the pages again, and ask for what they asked
        for. What no page stands for is claimed again, also what has begun: what comes of it may be
        the whole crawl."""
        for _, page in self._queue.in_progress():
            page.gone_on = False
            if page.claim is not None and not (page.root or page).is_void:
                self._exchange_loop.enqueue(page.claim)
        for request, page, asked, delay in self._queue.forget_waiting(asked=True):
            if page.root is not None and page.root.is_void:
                self._in_progress.end_of(page)
                if page.comes_again:
                    continue
                page.root = page.asker = None
            claim, page.claim = asked or page.claim, None
            self._queue.take(request, page, delay, claim)
            if claim is None and delay > 0:
                asyncio.get_running_loop().call_later(delay, self._engine.wake)
            if claim is not None and page.root is not None:
                self._exchange_loop.enqueue(claim)
        self.ask()
        self._engine.wake()

    # Ends

    def collect_ended(self) -> None:
        """Settle what is over. What was sent back is tried again here."""
        closing = self._engine.closing
        if closing:
            for request, page, asked, _ in self._queue.forget_waiting():
                page.given_back = True
                self.lost += page.root is None and not page.comes_again and asked is None
                self._end(request, page)
        for request, page in self._in_progress.end_kept(self._engine.in_progress):
            if page.given_back and not closing:
                page.given_back = False
                # The next try is another one, as that of a stored request would be.
                page.problem = page.exhausted = None
                page.status, page.repeats = 0, Repeats()
                pause = page.delay or TRY_AGAIN * max(1, page.sent_back)
                page.delay = 0.0
                self._queue.push(request, pause)
                asyncio.get_running_loop().call_later(pause, self._engine.wake)
                continue
            self._queue.forget(request)
            self.lost += page.given_back and page.root is None and not page.comes_again
            self._end(request, page)

    def _end(self, request: Request, page: Page) -> None:
        """It is over, with all that came of it, or was given up."""
        is_lost = page.root is not None and page.root.lost
        dealt_with = page.problem is None and not (page.given_back or is_lost)
        self.gave_back |= page.root is None and (page.given_back or page.lost) and page.comes_again
        if page.lost:
            if not self._engine.closing:  # whoever has it may die
                again = Page(
                    page.lease,
                    page.session,
                    grouped=page.grouped,
                    identity=page.identity,
                    comes_again=page.comes_again,
                )
                self._queue.take(request, again, 0.0, page.claim)
            return
        if page.root is None and page.problem is not None and not page.given_back:
            self.bury(request, page.lease.slot, page.problem)
            dealt_with = True
        # With a void root it is asked for again by whoever has that page by now.
        if page.claim is not None and (is_lost or not (page.root and page.root.is_void)):
            settle = Settle(page.claim, dealt_with)
            if dealt_with:
                self._goes_on(page.root)
                session = self._exchange_loop.run_session.shard_of(settle.slot)
                run_session = self._exchange_loop.run_session
                run_session.finish(session, settle, page.sent, page.links)
            else:  # before the page that asks for it again can be somebody else's
                self._send(settle, page)
        if page.problem is not None and page.asker and page.asker is page.root:
            text = f"{request!s:.300}, which stayed in its process: {page.problem.detail}"
            page.problem = replace(page.problem, detail=text)
        self._in_progress.end_of(page)

    def bury(self, request: Request, slot: str, problem: Problem) -> None:
        """Make a dead letter of a request that no page stands for."""
        self._stats.inc_value(f"redisq/dead/{problem.reason}")
        self._exchange_loop.enqueue(
            Letter(
                slot,
                0,
                of_refused(request),
                problem.reason,
                problem.text,
                error=problem.error,
                status=problem.status,
            )
        )
