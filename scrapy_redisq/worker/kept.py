"""Kept requests: they cannot be stored, or share their page's session, and stay in this process.

The page that asks for a kept request holds it. The page is not finished before all its kept
requests are over, and requests of these count as the page's. If the page's lease is void, or the
page is given back, its kept requests that have not begun are dropped: the next fetch of the page
asks for them again. Kept requests of ``start()`` and of ``spider_idle`` have no holder: they are
each worker's own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from scrapy.http import Request

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.serialization.identity import of_refused
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.page import Download, KeptPage, Output, Page

TRY_AGAIN = 2.0
"""Seconds until a request whose slot was in trouble is tried again; each time so much longer."""


class KeptRequests:
    """The kept requests of a worker, in the order of Scrapy's memory queue: the slot with fewest
    downloads first, also among stored ones, of a slot by priority, then first in, first out."""

    def __init__(self, engine: Engine, run_session: RunSession, stats: Any) -> None:
        self._engine = engine
        self._run_session = run_session
        self._stats = stats
        self._waiting: dict[Request, KeptPage] = {}
        self._ready: Inbox[Request] = Inbox(1, 1, by_slot=True)
        """Those that are not in ``_waiting`` any more were dropped."""
        self._number = 0
        self.own = 0
        """Requests without a holder, waiting or in progress. While there are some, this worker may
        still add requests that no page of the frontier stands for."""
        self._holders: Counter[Page] = Counter()
        """Kept requests of each page."""
        self._known: set[bytes] = set()
        """Fingerprints of filtered requests, whose holders live or are done."""
        self._known_by: dict[Page, list[bytes]] = {}
        self.left_start = False
        """Start requests were left to the next worker that reads ``start()``."""
        self.lost = 0
        """Requests that were given up, and that nothing asks for again."""

    def __len__(self) -> int:
        """Requests waiting or in progress."""
        return self._number

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting

    @property
    def waiting(self) -> int:
        """Requests that were not started."""
        return len(self._waiting)

    def waits(self, slot: str) -> bool:
        """Whether kept requests of the slot wait whose delay is over."""
        return self._ready.highest(slot) is not None

    def take(self, page: KeptPage, delay: float, fingerprint: bytes | None) -> bool:
        """Take a request, for ``delay`` seconds from now. -> False if ``fingerprint`` is known."""
        if fingerprint is not None:
            if fingerprint in self._known:
                return False
            self._known.add(fingerprint)
            if page.holder is not None:
                self._known_by.setdefault(page.holder, []).append(fingerprint)
        if page.holder is not None:
            page.holder.waits_for += 1
            self._holders[page.holder] += 1
        self._number += 1
        self.own += page.holder is None
        self._push(page, delay)
        self._stats.inc_value("scheduler/enqueued/memory")
        self._stats.inc_value("scheduler/enqueued")
        return True

    def _push(self, page: KeptPage, delay: float) -> None:
        self._waiting[page.request] = page
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, self._make_ready, page)
        else:
            self._make_ready(page)

    def _make_ready(self, page: KeptPage) -> None:
        if page.request in self._waiting:
            self._ready.add(page.lease, page.request)
            self._engine.wake()

    def next(
        self, downloading: Callable[[str], int | None], others: Callable[[str], int | None]
    ) -> KeptPage | None:
        """The page of the next request to start. ``downloading(slot)``: None if the slot takes no
        more now; ``others(slot)``: the highest priority of its stored requests that wait here."""

        def goes_first(slot: str) -> int | None:
            other, own = others(slot), self._ready.highest(slot)
            return None if other is not None and other > (own or 0) else downloading(slot)

        while (popped := self._ready.pop(goes_first)) is not None:
            if (page := self._waiting.pop(popped[1], None)) is not None:
                return page
        return None

    # Ends

    def ended(self, page: KeptPage) -> None:
        """The page has ended. A request that was sent back is tried again here."""
        is_void = page.holder is not None and not page.holder.is_held
        if page.given_back and not (self._engine.closing or (is_void and page.asked_again)):
            self._try_again(page)
        else:
            self._end(page)

    def drop(self) -> None:
        """Drop requests that have not begun, and that another worker will ask for."""
        closing = self._engine.closing
        # One page may hold very many.
        anothers = {page for page in self._holders if page.given_back or not page.is_held}
        for request, page in list(self._waiting.items()) if closing or anothers else ():
            if closing or (page.holder in anothers and page.asked_again):
                del self._waiting[request]
                page.give_back()
                self._end(page)
        if not self._waiting:
            self._ready.clear()

    def _try_again(self, page: KeptPage) -> None:
        """Begin another try, as a stored request would have."""
        back = page.back
        assert back is not None
        page.tries += back.ending != "released"
        page.back = page.problem = None
        page.download, page.output = Download(), Output()
        self._push(page, back.delay / 1000 or TRY_AGAIN * max(1, page.tries))

    def _end(self, page: KeptPage) -> None:
        self._number -= 1
        holder, problem, request = page.holder, page.problem, page.request
        if holder is not None:
            holder.waits_for -= 1
            self._holders[holder] -= 1
            if not self._holders[holder]:
                del self._holders[holder]
            if page.given_back:
                holder.give_back()
            if problem is not None and holder.problem is None:
                text = f"{request!s:.300}, which stayed in its process: {problem.detail}"
                holder.problem = replace(problem, detail=text)
        else:
            self.own -= 1
        if page.given_back:
            self.lost += not page.asked_again
            self.left_start |= page.asked_again and holder is None
        elif holder is None and problem is not None:
            problem.tell_of_death(self._stats, page)
            self._run_session.enqueue(problem.letter(page.lease.slot, of_refused(request)))

    def page_ended(self, page: Page, *, done: bool) -> None:
        """A page of the frontier is over. Its kept requests stay known only if it is ``done``."""
        fingerprints = self._known_by.pop(page, ())
        if not done:
            self._known.difference_update(fingerprints)

    def forgotten(self) -> None:
        """Leases are void, and ends of pages may be lost: their pages ask again."""
        self._known.clear()
        self._known_by.clear()
