"""Requests that cannot be shared: they stay in this process, as in Scrapy's memory queue."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from scrapy.http import Request

from scrapy_redisq.identity import Repeats


class LocalQueue:
    """Requests by priority, then first in, first out; duplicates are kept out, delays kept.

    While there are some, waiting or in progress, this worker may still add to the frontier, so
    the run is not complete.
    """

    def __init__(self, fingerprint: Callable[[Request], bytes]) -> None:
        self._fingerprint = fingerprint
        self._heap: list[tuple[int, int, Request]] = []
        self._delayed: list[tuple[float, int, Request]] = []
        self._arrivals = itertools.count()
        self._in_progress: set[Request] = set()
        self._identities: dict[Request, bytes] = {}
        self._repeats: dict[Request, Repeats] = {}
        self._seen: set[bytes] = set()

    def __len__(self) -> int:
        """Requests waiting or in progress."""
        return self.waiting + len(self._in_progress)

    @property
    def waiting(self) -> int:
        """Requests not started."""
        return len(self._heap) + len(self._delayed)

    def __contains__(self, request: Request) -> bool:
        """Whether ``request`` came from here and is in progress."""
        return request in self._in_progress

    def identity_of(self, request: Request) -> bytes | None:
        """What a request in progress from here is known by, if it is not its fingerprint."""
        return self._identities.get(request)

    def repeats_of(self, request: Request) -> Repeats:
        """Counts what a request in progress from here asks for."""
        return self._repeats.setdefault(request, Repeats())

    def push(self, request: Request, delay: float = 0.0, identity: bytes | None = None) -> bool:
        """Take a request for ``delay`` seconds from now; False if it is a duplicate."""
        if not request.dont_filter:
            fingerprint = self._fingerprint(request)
            if fingerprint in self._seen:
                return False
            self._seen.add(fingerprint)
        if identity is not None:
            self._identities[request] = identity
        if delay > 0:
            due = time.monotonic() + delay
            heapq.heappush(self._delayed, (due, next(self._arrivals), request))
        else:
            heapq.heappush(self._heap, (-request.priority, next(self._arrivals), request))
        return True

    def pop(self) -> Request | None:
        """The next request, which is then in progress."""
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, arrival, request = heapq.heappop(self._delayed)
            heapq.heappush(self._heap, (-request.priority, arrival, request))
        if not self._heap:
            return None
        _, _, request = heapq.heappop(self._heap)
        self._in_progress.add(request)
        return request

    def settle(self, working_on: set[Request]) -> None:
        """Forget what has ended: what is no longer among ``working_on``."""
        for request in self._in_progress - working_on:
            self._in_progress.discard(request)
            self._identities.pop(request, None)
            self._repeats.pop(request, None)
