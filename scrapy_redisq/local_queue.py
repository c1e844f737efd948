"""Requests that cannot be shared: they stay in this process, as in Scrapy's memory queue."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from scrapy.http import Request


class LocalQueue:
    """Requests by priority, then first in, first out; duplicates are kept out.

    While there are some, waiting or in progress, this worker may still add to the frontier, so
    the run is not complete.
    """

    def __init__(self, fingerprint: Callable[[Request], bytes]) -> None:
        self._fingerprint = fingerprint
        self._heap: list[tuple[int, int, Request]] = []
        self._arrivals = itertools.count()
        self._in_progress: set[Request] = set()
        self._seen: set[bytes] = set()

    def __len__(self) -> int:
        """Requests waiting or in progress."""
        return len(self._heap) + len(self._in_progress)

    @property
    def waiting(self) -> int:
        """Requests not started."""
        return len(self._heap)

    def push(self, request: Request) -> bool:
        """Take a request; False if it is a duplicate of one taken before."""
        if not request.dont_filter:
            fingerprint = self._fingerprint(request)
            if fingerprint in self._seen:
                return False
            self._seen.add(fingerprint)
        heapq.heappush(self._heap, (-request.priority, next(self._arrivals), request))
        return True

    def pop(self) -> Request | None:
        """The next request, which is then in progress."""
        if not self._heap:
            return None
        _, _, request = heapq.heappop(self._heap)
        self._in_progress.add(request)
        return request

    def settle(self, working_on: set[Request]) -> None:
        """Forget what has ended: what is no longer among ``working_on``."""
        self._in_progress &= working_on
