"""The pages in progress, and their ends: done, unless something went wrong. Scrapy tells neither,
so both are pieced together from signals and from the calls that `_scrapy` watches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Request, Response
from twisted.python.failure import Failure

from scrapy_redisq._scrapy.output import current_item
from scrapy_redisq.errors import with_causes
from scrapy_redisq.frontier.operations import Finish
from scrapy_redisq.reasons import DeadReason
from scrapy_redisq.serialization.entry_format import identity_in
from scrapy_redisq.serialization.meta import SESSION_KEY
from scrapy_redisq.serialization.recurrence import Answer
from scrapy_redisq.worker.page import Page, Problem

logger = logging.getLogger(__name__)

MOST_TRIES = 30
"""How often a request that stays in its process is tried again because of its slot."""

PAUSED_DELAY = 10_000
"""Milliseconds after which it is looked whether its slot is still paused by a person."""


class Interrupted(IgnoreRequest):
    """Raised in the place of a download on the side, as the spider is being closed: the page that
    waits for it goes back."""


class InProgress:
    """The requests in progress. They are told apart by identity, never by what they hold:
    redirects and retries copy ``meta``."""

    def __init__(self, fingerprint: Callable[[Request], bytes]) -> None:
        self._fingerprint = fingerprint
        self._pages: dict[Request, Page] = {}
        """Those that Scrapy works on: they are looked through for each download."""
        self._left: dict[Request, Page] = {}
        """Those that Scrapy is done with, and a sink or a request that the page holds is not."""
        self._leases = 0
        self.unwritten = 0
        """Leases that are left."""
        self._files_missing = self._told_of_login = False
        self.items = self.errors = 0
        """Downloads that were given up, and what raised of callbacks, errbacks and pipelines."""

    def __len__(self) -> int:
        """Leases that Scrapy works on."""
        return self._leases

    def begin(self, page: Page) -> None:
        """Its request is handed to the engine."""
        self._pages[page.request] = page
        self._leases += not page.is_kept

    def begin_session_anew(
        self, page: Page, session_lost: Callable[[Request], Request | None]
    ) -> None:
        """A worker has died with the first request of a session: the spider's ``session_lost()``
        says by which request it begins again. None, or an exception, is a problem of the page."""
        try:
            known_by, request = self._fingerprint(page.request), session_lost(page.request)
            if request is None:
                page.problem = Problem("session_lost", "session_lost() has given it up")
                return
            if not isinstance(request, Request) or self._fingerprint(request) != known_by:
                takes = "the same request (URL, method and body), or None"
                raise ValueError(f"session_lost() returned {request!r:.500}: it takes {takes}")
        except Exception:  # the spider's own
            page.problem = Problem.of("session_lost", Failure())  # type: ignore[no-untyped-call]
        else:
            page.request = request.copy() if self.has(request) else request

    def asking(self, request: Request) -> Page | None:
        """The page of a request that Scrapy works on."""
        return self._pages.get(request)

    def any_of(self, working_on: set[Request]) -> bool:
        """Whether one of them is among ``working_on``."""
        return not working_on.isdisjoint(self._pages)

    def end(self, working_on: set[Request], *, closing: bool) -> list[Page]:
        """Remove and return the pages that are no longer among ``working_on``, and all of whose
        items are written. ``closing``: the spider is being closed, and ignored pages go back."""
        for request in [request for request in self._pages if request not in working_on]:
            page = self._left[request] = self._pages.pop(request)
            self._leases -= not page.is_kept
            self.unwritten += not page.is_kept
            # Perhaps for no other reason than that: middlewares that count stop a crawl so.
            if closing and page.download.ignored:
                page.give_back()
            if page.waits_for:  # nothing dies of it any more
                page.session.suspects.discard(page.lease.id)
        ended = [page for page in self._left.values() if not page.waits_for]
        for page in ended:
            del self._left[page.request]
            self.unwritten -= not page.is_kept
        return ended

    def identity_of(self, request: Request) -> bytes | None:
        """The identity or fingerprint of a request in progress, or one that waits for its sink."""
        page = self._find(request)
        return self.identity_of_page(page) if page is not None else None

    def identity_of_page(self, page: Page) -> bytes:
        """The same of a page, also when it is over."""
        if page.identity is None:
            page.identity = identity_in(page.lease.entry) or self._fingerprint(page.request)
        return page.identity

    def slots(self) -> list[str]:
        """The slot of each request that Scrapy works on."""
        return [page.lease.slot for page in self._pages.values()]

    def to_begin(self, slot: str) -> bool:
        """Whether the download of a lease of ``slot`` has yet to begin: it may wait in Scrapy for
        others'."""
        return any(
            page.lease.slot == slot and not (page.is_kept or page.download.began)
            for page in self._pages.values()
        )

    def send_back(
        self,
        request: Request,
        *,
        most: int = 0,
        paused: bool = False,
        others_first: bool = False,
    ) -> bool:
        """Scrapy will be done with the request without the spider: other workers, or this one
        later, may try it. -> False if it may not be sent back.

        ``most``: it has been tried, and may be sent back so many times; 0: it was not tried.
        ``paused``: a person has paused its slot, for as long as that person likes.
        ``others_first``: from the second failure of its slot on others are tried before it, as
        before one that was tried.
        """
        page = self.asking(request)
        if page is None or 0 < most <= page.tries:
            return False
        if page.is_kept and paused:
            page.back = Finish("", "released", delay=PAUSED_DELAY)
        elif page.is_kept and page.tries >= MOST_TRIES:
            self.mark_failed(request, Problem("download", "its slot was in trouble for too long"))
            return False
        elif most or page.is_kept:
            page.give_back_tried()
        elif others_first:
            page.back = Finish(page.lease.id, "backed_off", entry=page.lease.entry)
        else:
            page.give_back()
        return True

    def is_sent_back(self, request: Request) -> bool:
        """Whether `send_back` was called for it."""
        page = self._pages.get(request)  # for each link: without a call
        return page is not None and page.back is not None

    def mark_failed(self, request: Request | None, problem: Problem) -> None:
        """Its page will be a dead letter. The first reason counts, unless that is provisional."""
        self.errors += 1
        page = self.asking(request) if request is not None else None
        if page is not None and (page.problem is None or page.problem.provisional):
            page.problem = problem

    def retries_exhausted(self, request: Request, status: int) -> None:
        """There will be no further retry. The spider may yet handle the response."""
        if page := self.asking(request):
            page.download.exhausted = status

    def gave_up(self, request: Request, stat: str) -> None:
        """Its callback or errback has asked for a retry, and there will be none."""
        if page := self.asking(request):
            text = f"get_retry_request() gave up (stat {stat})"
            self.mark_failed(request, Problem("retries", text, status=page.download.status))

    def arrived(self, request: Request, response: Response) -> None:
        """The response has passed the downloader middlewares."""
        page = self.asking(request)
        if page is None:
            return
        page.download.status = status = response.status
        if page.every is not None and page.every.bounds is not None:
            page.download.answer = Answer.of(response)
        if page.download.exhausted == status:
            text = f"status {status} from {response.url:.500}"
            self.mark_failed(request, Problem("retries", text, status=status, provisional=True))

    def download_failed(self, request: Request, failure: Failure | None) -> None:
        """The download failed for good; with None: the spider deals with it."""
        page = self.asking(request)
        if page is None:
            return
        if failure is not None and isinstance(failure.value, IgnoreRequest):
            page.download.ignored = True
        elif failure is not None:
            is_first = page.download.exhausted is None
            reason: DeadReason = "download" if is_first else "retries"
            self.mark_failed(request, Problem.of(reason, failure, provisional=True))
        elif page.problem and page.problem.provisional:
            page.problem = None

    # What becomes of a page whose callback raised, or was interrupted

    def raised(self, request: Request, failure: Failure) -> bool:
        """The spider raised. -> True if that is no error, because the page goes back: the crawl is
        being closed, and interrupted what the callback waited for."""
        if isinstance(failure.value, CloseSpider):
            self.give_back(request)
            return False  # Scrapy closes the spider
        if not _is_interruption(failure.value):
            page = self.asking(request)
            status = page.download.status if page is not None else 0
            self.mark_failed(request, Problem.of("spider_error", failure, status))
            return False
        logger.info("The callback of %s was interrupted: the page is fetched again", request)
        self.give_back(request)
        return True

    def interrupt(self, request: Request | None, *, in_pipeline: bool) -> None:
        """A download that a page, or a pipeline that has an item of it, waits for is refused."""
        self.give_back(request)
        # Media pipelines fetch a file once for all items, and keep that it failed.
        self._files_missing = self._files_missing or in_pipeline

    def lacks_files(self, request: Request | None) -> bool:
        """Whether an item of the page may lack what a pipeline was to fetch for it."""
        page = self._find(request)
        return self._files_missing or (page is not None and page.given_back)

    # What becomes of items

    def _find(self, request: Request | None) -> Page | None:
        if request is None:
            return None
        return self._pages.get(request) or self._left.get(request)

    def has(self, request: Request | None) -> bool:
        """Whether the request is in progress, or waits for its sink."""
        return self._find(request) is not None

    def wait_for_item(self, request: Request | None) -> None:
        """The page is not finished before `item_ended` is called as often as this was."""
        if page := self._find(request):
            page.waits_for += 1

    def item_ended(self, request: Request | None) -> None:
        """An item for which the page was held is written, or never will be."""
        if page := self._find(request):
            page.waits_for -= 1

    def refuse(self, request: Request | None, problem: Problem) -> None:
        """An item of the page cannot be written."""
        if (page := self._find(request)) and page.problem is None:
            page.problem = problem

    def give_back(self, request: Request | None) -> None:
        """Its items can be written later, or by another worker: the page is to be fetched again."""
        if page := self._find(request):
            page.give_back()

    def give_back_later(self, request: Request | None, delays: Sequence[float]) -> bool:
        """An item of the page can perhaps be written later: it is to be fetched again, after the
        seconds that ``delays`` has for each time. -> False if it has gone back so often."""
        page = self._find(request)
        if page is None or page.tries >= len(delays):
            return False
        page.give_back_tried(delays[page.tries])
        return True

    # Handlers of Scrapy's signals of these names

    def response_downloaded(self, request: Request, response: Response) -> None:
        """Warn, once, of what may be a login: the worker that is given it alone is logged in. A
        login on the side is each worker's own, as it should be."""
        if (
            request.method == "POST"
            and b"Set-Cookie" in response.headers
            and not self._told_of_login
            and self.asking(request) is not None
            and not request.meta.get("dont_merge_cookies")
            and SESSION_KEY not in request.meta
        ):
            self._told_of_login = True
            logger.warning(
                "A POST to %.300s has been answered with a cookie, which other workers do not "
                "have. If it is a login, let each worker log in by itself, in a downloader "
                "middleware, keep what needs it together with meta['redisq_session'] "
                "(docs/howto/sessions.md for both), or hand the cookie on with each request "
                "(cookies=)",
                response.url,
            )

    def item_scraped(self, response: Response | Failure | None) -> None:
        self.items += 1
        if page := self._find(self._item_of(response)):
            page.output.items += 1
            if self._files_missing:
                page.give_back()

    def item_error(self, response: Response | Failure | None, failure: Failure) -> None:
        request = self._item_of(response)
        if _is_interruption(failure.value):
            self.give_back(request)
            return
        status = response.status if isinstance(response, Response) else 0
        self.mark_failed(request, Problem.of("item_error", failure, status))

    def _item_of(self, response: Response | Failure | None) -> Request | None:
        """The page that an item comes from, also where a middleware has given it the response to
        another request."""
        found = current_item.get()
        if response is not None and found is not None and self.asking(found[0]) is not None:
            return found[0]
        return getattr(response, "request", None)


def _is_interruption(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came of, is `Interrupted`."""
    return any(isinstance(one, Interrupted) for one in with_causes(error))
