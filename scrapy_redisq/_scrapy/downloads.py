"""Scrapy's downloader: its downloads, which page asked for each, and a gate before each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from scrapy.http import Request
from twisted.internet.defer import maybeDeferred

from scrapy_redisq._scrapy.output import current_item, current_page, dealing_with, uncancelled
from scrapy_redisq.errors import RedisqError

UNLIMITED = 1_000_000
"""Stands for any number of downloads: CONCURRENT_REQUESTS = 0."""


Gate = Callable[[Request, str], Awaitable[Callable[[Any], None]]]
"""Returns when the download of a request of a slot may begin. The result is a function that is
called with the response or the exception at the end."""


class Downloads:
    """Scrapy's downloader while a spider is open."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._downloader: Any = engine.downloader
        self._in_middlewares: dict[Request, str] = {}
        """Requests that were handed to Scrapy and are not yet among their slot's, by slot."""
        self._askers: dict[Request, tuple[Request | None, bool]] = {}
        self._slots: dict[Request, str] = {}
        """The slots of requests that Scrapy has: see `slot_of`."""

    @property
    def free(self) -> int:
        """Requests that Scrapy would take now: 0 while all downloads are busy, or more responses
        wait for their callbacks than it wants to hold."""
        scraper_slot = self._engine.scraper.slot  # None until the spider is open
        if scraper_slot is not None and scraper_slot.needs_backout():
            return 0
        return max(0, self.places - len(self._downloader.active))

    @property
    def places(self) -> int:
        """How many requests Scrapy downloads at a time."""
        return int(self._downloader.total_concurrency) or UNLIMITED

    @property
    def number(self) -> int:
        """Requests that are being downloaded, or wait for that in Scrapy."""
        return len(self._downloader.active)

    def slot_of(self, request: Request) -> str:
        """The slot that a request was handed out with, else its download slot:
        ``meta["download_slot"]`` or its host. A ``download_slot`` of a downloader middleware counts
        for Scrapy's own limits alone."""
        return self._slots.get(request) or str(self._downloader.get_slot_key(request))

    def handed_out(self, request: Request, slot: str) -> None:
        """Scrapy is about to start ``request``."""
        self._in_middlewares[request] = slot

    def by_slot(self) -> Callable[[str], int | None]:
        """A function of a slot, to be used at once: how many requests of the slot the downloader
        has, or None if it should get no more now. In half of its spare places some may wait, so
        that a download starts the moment another one ends."""
        downloader = self._downloader
        # A request is among its slot's only when the downloader middlewares have let it through.
        in_middlewares: dict[str, int] = {}
        for request, slot in list(self._in_middlewares.items()):
            named = request.meta.get(downloader.DOWNLOAD_SLOT) == slot
            downloads = downloader.slots.get(slot) if named else None
            if downloads and request in downloads.active:
                del self._in_middlewares[request]
            else:
                in_middlewares[slot] = in_middlewares.get(slot, 0) + 1
        spare = downloader.total_concurrency - len(downloader.active)  # a total of 0: no limit

        def downloading(slot: str) -> int | None:
            downloads = downloader.slots.get(slot)
            number = in_middlewares.get(slot, 0) + (len(downloads.active) if downloads else 0)
            if downloads is None or number < downloads.concurrency + max(1, spare // 2):
                return number
            return None

        return downloading

    def gate_by(self, gate: Gate) -> None:
        """Let no download begin before ``gate`` has returned."""
        handlers = self._downloader.handlers
        download = handlers.download_request_async

        async def gated(request: Request) -> Any:
            ended = await gate(request, self.slot_of(request))
            try:
                response = await uncancelled(download(request))
            except BaseException as error:
                ended(error)
                raise
            ended(response)
            return response

        handlers.download_request_async = gated

    def follow(
        self, is_page: Callable[[Request], object], fetched: Callable[[Request], None]
    ) -> None:
        """Remember for whom each download is made, see `asker`. ``is_page``: whether a request was
        handed out by the scheduler. ``fetched(request)``: the downloader is done with it. Redirects
        and retries lose the download slot that the downloader gave to their request."""
        fetch, slot_key = self._downloader.fetch, self._downloader.DOWNLOAD_SLOT

        def over(result: Any, request: Request, given: Any) -> Any:
            self._askers.pop(request, None)
            self._slots.pop(request, None)
            self._in_middlewares.pop(request, None)
            fetched(request)
            if isinstance(result, Request):
                slot = result.meta.get(slot_key)
                if slot is not None and slot == request.meta.get(slot_key):  # copied
                    result.meta[slot_key] = given
                    if given is None:
                        del result.meta[slot_key]
            return result

        def followed(request: Request, *spider: Any) -> Any:
            # A request of the scheduler's is started in the context of whatever woke the engine.
            page = request if is_page(request) else current_page.get()
            item = current_item.get()
            in_pipeline = page is not request and item is not None and item[0] is page
            self._askers[request] = page, in_pipeline
            given = request.meta.get(slot_key)
            self._slots[request] = self._in_middlewares.get(request) or self.slot_of(request)
            with dealing_with(page, downloading=True):
                # A downloader of the project's own may answer at once, or raise.
                return maybeDeferred(fetch, request, *spider).addBoth(over, request, given)

        self._downloader.fetch = followed

    def asker(self, request: Request) -> tuple[Request | None, bool]:
        """The page for which a request is being downloaded, if one is known, and whether an item
        pipeline has asked for it."""
        return self._askers.get(request, (None, False))

    def lift_limits(self, allowed: Callable[[str], int | None], *, at_least: int) -> None:
        """Let the downloader hold up nothing that is limited elsewhere: a slot has no delay, and
        ``allowed(slot)`` downloads at a time (0: any number; None: Scrapy's own limits hold),
        and ``at_least`` so many. Raises `RedisqError` if the downloader is not Scrapy's."""
        downloader = self._downloader
        if not hasattr(downloader, "_get_slot"):
            raise RedisqError(
                f"REDISQ_FLEET_LIMITS and REDISQ_AUTOTHROTTLE need Scrapy's own downloader, not "
                f"{type(downloader).__qualname__} (DOWNLOADER)"
            )
        get_slot = downloader._get_slot
        own: dict[str, tuple[int, float]] = {}

        def lifted_slot(request: Request, *spider: Any) -> tuple[str, Any]:
            known = downloader.get_slot_key(request) in downloader.slots
            key, slot = get_slot(request, *spider)
            if not known:
                for forgotten in own.keys() - downloader.slots.keys():
                    del own[forgotten]
                own[key] = slot.concurrency, slot.delay
            concurrency, delay = own[key]
            number = allowed(self.slot_of(request))
            slot.concurrency = max(concurrency, number or 0, at_least)
            slot.delay = delay if number is None else 0.0
            return key, slot

        downloader._get_slot = lifted_slot
