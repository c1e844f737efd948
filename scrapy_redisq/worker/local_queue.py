"""Kept requests in order: they cannot be stored, and stay here as in Scrapy's memory queue.

So that nothing is lost with the process, what asked for them is not ended before them, and so that
no other worker fetches them too, they are claimed in the frontier first.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable

from scrapy.http import Request

from scrapy_redisq.frontier.operations import Claim
from scrapy_redisq.worker.page import Page

ASK_AGAIN = 1.0
"""Seconds after which it is asked again whether another worker has dealt with a request."""


class LocalQueue:
    """Requests of this process by priority, then first in, first out; some wait for their time, and
    some for the frontier's answer.

    While there are some, waiting or in progress, this worker may still add to the frontier, so
    the run is not complete.
    """

    def __init__(self) -> None:
        self._ready: dict[str, list[tuple[int, int, Request]]] = {}
        self._delayed: list[tuple[float, int, Request]] = []
        self._asked: dict[Request, tuple[Claim, float]] = {}
        """What the frontier is asked about, and seconds that it waits then."""
        self._new: deque[Claim] = deque()
        """Of these what it has not been asked about yet."""
        self._others: deque[Claim] = deque()
        """And what another worker has."""
        self._ask_at = 0.0
        self._ahead: set[Hashable] = set()
        """What no page stands for, was asked about, and was not started."""
        self._pages: dict[Request, Page] = {}
        self._in_progress: set[Request] = set()
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        """Requests waiting or in progress."""
        return len(self._pages)

    @property
    def waiting(self) -> int:
        """Requests not started."""
        return len(self._pages) - len(self._in_progress)

    def __contains__(self, request: Request) -> bool:
        return request in self._pages

    def get(self, request: Request) -> Page | None:
        """The page of a request that is here."""
        return self._pages.get(request)

    def in_progress(self) -> list[tuple[Request, Page]]:
        """Requests that were started and are not over, in the order in which they came."""
        return [item for item in self._pages.items() if item[0] in self._in_progress]

    def take(self, request: Request, page: Page, delay: float, claim: Claim | None) -> None:
        """Take a request, for ``delay`` seconds from now, or from when ``claim`` is granted. One
        that no page stands for is among what `to_ask` returns."""
        self._pages[request] = page
        if claim is None:
            self.push(request, delay)
            return
        self._asked[request] = claim, delay
        if page.root is None:
            self._new.append(claim)

    def push(self, request: Request, delay: float = 0.0) -> None:
        """Have a request started after ``delay`` seconds."""
        self._in_progress.discard(request)
        number = next(self._arrivals)
        if delay > 0:
            self._ahead.discard(request)
            heapq.heappush(self._delayed, (time.monotonic() + delay, number, request))
        else:
            waiting = self._ready.setdefault(self._pages[request].lease.slot, [])
            heapq.heappush(waiting, (-self._pages[request].lease.priority, number, request))

    def pop(
        self, downloading: Callable[[str], int | None], others: Callable[[str], int | None]
    ) -> tuple[Request, Page] | None:
        """The next request, which is then in progress, and its page.

        ``downloading(slot)``: None if the slot takes no more now; ``others(slot)``: the priority of
        what else waits of it, which goes first if that is higher.
        """
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, request = heapq.heappop(self._delayed)
            self.push(request)
        best: str | None = None
        for slot, waiting in self._ready.items():
            other = others(slot)
            if downloading(slot) is None or (other is not None and other > -waiting[0][0]):
                continue
            if best is None or waiting[0] < self._ready[best][0]:
                best = slot
        if best is None:
            return None
        _, _, request = heapq.heappop(self._ready[best])
        if not self._ready[best]:
            del self._ready[best]
        self._in_progress.add(request)
        self._ahead.discard(request)
        return request, self._pages[request]

    # What the frontier says of claims

    def granted(self, request: Request) -> tuple[Page, float] | None:
        """A claim was granted; -> the request's page and delay, None if it is no longer wanted."""
        claim = self._asked.pop(request, None)
        return None if claim is None else (self._pages[request], claim[1])

    def refused(self, request: Request) -> Page | None:
        """It is a duplicate; -> its page, None if it is no longer asked about."""
        return self.forget(request) if request in self._asked else None

    def is_with_another(self, claim: Claim) -> bool:
        """Another worker has it, and may die before it has dealt with it. -> False if it is not
        asked about."""
        if claim.tag not in self._asked:
            return False
        self._ahead.discard(claim.tag)
        self._others.append(claim)
        self._ask_at = time.monotonic() + ASK_AGAIN
        return True

    def to_ask(self, most: int) -> list[Claim]:
        """What no page stands for and the frontier has to be asked about now.

        All workers have these, from ``start()``: no more than ``most`` are claimed before they are
        started, so that each gets its part. What other workers had is asked about again after
        `ASK_AGAIN`.
        """
        room = most - len(self._ahead)
        waiting = [self._new]
        if time.monotonic() >= self._ask_at:
            waiting.append(self._others)
        asked: list[Claim] = []
        for claims in waiting:
            while claims and len(asked) < room:
                asked.append(claims.popleft())
        self._ahead.update(claim.tag for claim in asked)
        return asked

    # Ends

    def forget(self, request: Request) -> Page | None:
        """The request has ended; -> its page, if it was here."""
        self._asked.pop(request, None)
        self._in_progress.discard(request)
        self._ahead.discard(request)
        return self._pages.pop(request, None)

    def forget_waiting(
        self, *, asked: bool = False
    ) -> list[tuple[Request, Page, Claim | None, float]]:
        """Forget what was not started, but for what the frontier is being asked about, unless
        ``asked``; -> that, with claims that were not granted, and seconds that it is to wait."""
        not_asked = {claim.tag for claims in (self._new, self._others) for claim in claims}
        kept = set() if asked else self._asked.keys() - not_asked
        now = time.monotonic()
        waits = {request: (None, max(0.0, due - now)) for due, _, request in self._delayed}
        gone = [
            (request, page, *self._asked.get(request, waits.get(request, (None, 0.0))))
            for request, page in self._pages.items()
            if request not in self._in_progress and request not in kept
        ]
        self._ready, self._delayed = {}, []
        self._new.clear()
        self._others.clear()
        for request, *_ in gone:
            self.forget(request)
        return gone
