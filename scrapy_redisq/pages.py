"""What becomes of the requests in progress: done, unless something went wrong with them.

Scrapy tells neither: that a request has been dealt with is seen from the engine, and how it ended
is pieced together from signals and from what `scrapy_redisq._scrapy` watches.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from scrapy.http import Request, Response
from twisted.python.failure import Failure

from scrapy_redisq.entries import back_offs, with_back_offs
from scrapy_redisq.frontier.membership import Finish, Lease, Membership

SLOT_KEY = "download_slot"
"""In a request's meta: its download slot, by the spider, or by Scrapy when it is downloaded."""

DETAIL_FRAMES = 5
"""Last frames of a traceback that a dead letter keeps."""

DETAIL_LENGTH = 4_000
"""Most characters of a dead letter's detail."""

_SETTLED_BY_SPIDER = ("download", "retries")
"""Reasons that no longer count once the spider has dealt with the failure or the response."""


@dataclass(frozen=True)
class Problem:
    """Why a request becomes a dead letter.

    ``error`` is the type of the exception or "", ``status`` that of the response or 0.
    """

    reason: str
    detail: str
    error: str = ""
    status: int = 0

    @classmethod
    def of(cls, reason: str, failure: Failure, status: int = 0) -> Problem:
        """What an exception says."""
        return cls(reason, describe(failure), error_type(failure), status)

    def finish(self, lease: str) -> Finish:
        """The end of the lease, with text that Redis can hold."""
        detail = self.detail.encode("utf-8", "replace").decode()[:DETAIL_LENGTH]
        return Finish(lease, "dead", self.reason, detail, error=self.error, status=self.status)


@dataclass
class Page:
    """A request in progress. ``problem`` is there once something went wrong. ``exhausted`` is the
    status (0: it was an exception) after which no further retry was made; that is a problem only
    if the spider is not given the response. ``unwritten`` are items that Scrapy is done with and
    whose sink is not. A page that is ``given_back`` goes to whoever claims it next, with
    ``entry`` in the place of its own if its slot was in trouble. It is ``grouped`` if it came with
    a download slot, which else Scrapy has put into its meta."""

    lease: Lease
    membership: Membership
    problem: Problem | None = None
    exhausted: int | None = None
    unwritten: int = 0
    given_back: bool = False
    entry: bytes | None = None
    grouped: bool = True

    def finish(self) -> Finish:
        """How its lease ends if it is no dead letter."""
        if self.entry is not None:
            return Finish(self.lease.id, "backed_off", entry=self.entry)
        return Finish(self.lease.id, "released" if self.given_back else "done")


class Pages:
    """The requests in progress. They are told apart by identity, never by what they hold:
    redirects and retries copy ``meta``."""

    def __init__(self) -> None:
        self._pages: dict[Request, Page] = {}
        self._unwritten: dict[Request, Page] = {}
        """Pages that Scrapy is done with and a sink is not."""

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, request: Request) -> bool:
        return request in self._pages

    def begin(self, request: Request, page: Page) -> None:
        """``request`` is handed to the engine."""
        self._pages[request] = page

    def end(self, working_on: set[Request]) -> list[Page]:
        """Remove and return the pages that are no longer among ``working_on``, and all of whose
        items are written."""
        for request in [request for request in self._pages if request not in working_on]:
            self._unwritten[request] = self._pages.pop(request)
        ended = [request for request, page in self._unwritten.items() if not page.unwritten]
        return [self._unwritten.pop(request) for request in ended]

    def unwritten(self) -> bool:
        """Whether pages wait for nothing but their sink."""
        return bool(self._unwritten)

    def lease_of(self, request: Request | None) -> str | None:
        """The lease of a request in progress."""
        page = self._pages.get(request) if request is not None else None
        return page.lease.id if page else None

    def of_slot(self, slot: str) -> bool:
        """Whether a request of ``slot`` is in progress."""
        return any(page.lease.slot == slot for page in self._pages.values())

    def slot_of(self, request: Request) -> str:
        """The slot of a request in progress, "" for others."""
        page = self._pages.get(request)
        return page.lease.slot if page else ""

    def is_grouped(self, request: Request) -> bool:
        """Whether the download slot of a request in progress was given by the spider."""
        page = self._pages.get(request)
        return page is None or page.grouped

    def back_offs(self, request: Request | None) -> int:
        """How often a request in progress has been sent back because its slot was in trouble."""
        page = self._pages.get(request) if request is not None else None
        return back_offs(page.lease.entry) if page else 0

    def send_back(self, request: Request, *, counted: bool, most: int = 0) -> bool:
        """Scrapy will be done with the request without the spider: others, or this worker later,
        may try it. ``counted``: it has been tried, and may be sent back ``most`` times so.

        -> False if it may not be sent back.
        """
        page = self._pages.get(request)
        if page is None or (counted and self.back_offs(request) >= most):
            return False
        if counted:
            page.entry = with_back_offs(page.lease.entry, self.back_offs(request) + 1)
        page.given_back = True
        return True

    def is_sent_back(self, request: Request) -> bool:
        """Whether `send_back` was called for it."""
        page = self._pages.get(request)
        return page is not None and page.given_back

    def spoil(self, request: Request | None, problem: Problem) -> None:
        """Its page will be a dead letter; the first reason counts.

        But an errback that raises says more than the failure that it was called with.
        """
        page = self._pages.get(request) if request is not None else None
        if page is not None and (page.problem is None or page.problem.reason in _SETTLED_BY_SPIDER):
            page.problem = problem

    def retries_exhausted(self, request: Request, status: int) -> None:
        """There will be no further retry. What becomes of it is not known yet: the response may
        be replaced by another middleware, or be one that the spider handles."""
        if request in self._pages:
            self._pages[request].exhausted = status

    def arrived(self, request: Request, response: Response) -> None:
        """The response has passed the downloader middlewares."""
        page = self._pages.get(request)
        if page is not None and page.exhausted == response.status:
            text = f"status {response.status} from {response.url:.500}"
            self.spoil(request, Problem("retries", text, status=response.status))

    def download_failed(self, request: Request, failure: Failure | None) -> None:
        """The download failed for good; with None: the spider deals with it."""
        page = self._pages.get(request)
        if page is None:
            return
        if failure is not None:
            reason = "download" if page.exhausted is None else "retries"
            self.spoil(request, Problem.of(reason, failure))
        elif page.problem and page.problem.reason in _SETTLED_BY_SPIDER:
            page.problem = None

    # What becomes of items

    def _find(self, request: Request | None) -> Page | None:
        if request is None:
            return None
        return self._pages.get(request) or self._unwritten.get(request)

    def hold(self, request: Request | None) -> None:
        """The page is not finished before `let_go` is called as often as this was."""
        if page := self._find(request):
            page.unwritten += 1

    def let_go(self, request: Request | None) -> None:
        """An item for which the page was held is written, or never will be."""
        if page := self._find(request):
            page.unwritten -= 1

    def refuse(self, request: Request | None, problem: Problem) -> None:
        """An item of the page cannot be written."""
        if (page := self._find(request)) and page.problem is None:
            page.problem = problem

    def give_back(self, request: Request | None) -> None:
        """Items of the page can be written later, or by others: it is to be fetched again."""
        if page := self._find(request):
            page.given_back = True

    # Handlers of Scrapy's signals of these names

    def spider_error(self, failure: Failure, response: Response | Failure | None) -> None:
        self._raised("spider_error", failure, response)

    def item_error(self, response: Response | Failure | None, failure: Failure) -> None:
        self._raised("item_error", failure, response)

    def _raised(self, reason: str, failure: Failure, response: Response | Failure | None) -> None:
        status = response.status if isinstance(response, Response) else 0
        self.spoil(getattr(response, "request", None), Problem.of(reason, failure, status))


def error_type(failure: Failure) -> str:
    """``module.Class`` of an exception."""
    kind = type(failure.value)
    return f"{kind.__module__}.{kind.__qualname__}"


def describe(failure: Failure) -> str:
    """An exception for a dead letter: its type, its message and the last frames."""
    error = failure.value
    trace = failure.tb or (error.__traceback__ if error else None)
    frames = traceback.format_tb(trace)[-DETAIL_FRAMES:]
    return f"{error_type(failure)}: {error!s:.1000}\n{''.join(frames)}"
