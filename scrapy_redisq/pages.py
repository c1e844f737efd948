"""What becomes of the requests in progress: done, unless something went wrong with them.

Scrapy tells neither: that a request has been dealt with is seen from the engine, and how it ended
is pieced together from signals and from what `scrapy_redisq._scrapy` watches.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from scrapy.http import Request, Response
from twisted.python.failure import Failure

from scrapy_redisq.frontier.membership import Lease, Membership

DETAIL_FRAMES = 5
"""Last frames of a traceback that a dead letter keeps."""


@dataclass
class Page:
    """A request in progress. ``problem`` is (reason, detail) once something went wrong."""

    lease: Lease
    membership: Membership
    problem: tuple[str, str] | None = None


class Pages:
    """The requests in progress. They are told apart by identity, never by what they hold:
    redirects and retries copy ``meta``."""

    def __init__(self) -> None:
        self._pages: dict[Request, Page] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def begin(self, request: Request, page: Page) -> None:
        """``request`` is handed to the engine."""
        self._pages[request] = page

    def end(self, working_on: set[Request]) -> list[Page]:
        """Remove and return the pages that are no longer among ``working_on``."""
        ended = [request for request in self._pages if request not in working_on]
        return [self._pages.pop(request) for request in ended]

    def lease_of(self, request: Request | None) -> str | None:
        """The lease of a request in progress."""
        page = self._pages.get(request) if request is not None else None
        return page.lease.id if page else None

    def spoil(self, request: Request | None, reason: str, detail: str) -> None:
        """Its page will be a dead letter; the first reason counts."""
        page = self._pages.get(request) if request is not None else None
        if page is not None and page.problem is None:
            page.problem = (reason, detail)

    def download_failed(self, request: Request, failure: Failure | None) -> None:
        """The download failed for good; with None: the request's errback has dealt with it."""
        if failure is not None:
            self.spoil(request, "download", describe(failure))
        elif request in self._pages:
            self._pages[request].problem = None

    # Handlers of Scrapy's signals of these names

    def spider_error(self, failure: Failure, response: Response | Failure | None) -> None:
        self.spoil(getattr(response, "request", None), "spider_error", describe(failure))

    def item_error(self, response: Response | Failure | None, failure: Failure) -> None:
        self.spoil(getattr(response, "request", None), "item_error", describe(failure))


def describe(failure: Failure) -> str:
    """An exception for a dead letter: its type, its message and the last frames."""
    error = failure.value
    trace = failure.tb or (error.__traceback__ if error else None)
    frames = traceback.format_tb(trace)[-DETAIL_FRAMES:]
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}\n{''.join(frames)}"
