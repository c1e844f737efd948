"""The spider of a plan, its downloads and its sink, each as a project would write it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Request, Response, TextResponse

from lab.simulation.clock import WORKER
from lab.simulation.plan import EVERY, PERIOD, RECURRING
from lab.simulation.site import LONGER_DELAY, RETRY_AFTER, RETRY_DELAY, Page
from scrapy_redisq._scrapy.crawl import is_closing
from scrapy_redisq.pipelines import BatchPipeline
from scrapy_redisq.scheduler import Scheduler

if TYPE_CHECKING:
    from lab.simulation.world import World

HEAVY = "x" * 900_000

SLOW = 0.7
"""Virtual seconds after each start request of a slow `start()`."""

OF_A_PAGE = {"retry_times", "download_slot", "redisq_session", "redisq_delay"}
"""Keys of meta that no link of the page is given."""

RIVALS = 16
"""Pages of another crawl."""

WORLD: list[World] = []
"""The one of this process."""


def world() -> World:
    return WORLD[0]


class SimulatedSpider(scrapy.Spider):
    """Does what its world's site says."""

    name = "sim"
    sessions: set[int]
    """Pages that began one in this worker."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **named: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **named)
        spider.sessions = set()
        if "idle" in world().plan.features:
            crawler.signals.connect(spider.idle, signals.spider_idle)
        return spider

    async def start(self) -> AsyncIterator[Any]:
        number = process.number if (process := WORKER.get()) else 0
        world().starting[number] = world().clock.now
        async for request in self.starts():
            yield request
        del world().starting[number]

    async def starts(self) -> AsyncIterator[Any]:
        site, features = world().site, world().plan.features
        for number in site.starts:
            yield Request(site.pages[number].url, dont_filter=True, errback=self._errback())
            if "slow_start" in features:
                await asyncio.sleep(SLOW)
        if "cookies" in features:
            for n in range(3):
                yield Request(
                    site.pages[0].url,
                    self.parse_start,
                    cookies={"n": str(n)},
                    cb_kwargs={"n": n},
                    dont_filter=True,
                )
        if "recurs" in features:
            yield self.recurring(0)
        if "own_starts" in features:
            yield Request(f"{site.pages[0].url}?own", lambda _: {"key": "own"})  # type: ignore[misc]

    def recurring(self, n: int) -> Request:
        """It comes again and again, until people end it. The second one is unfiltered, and asked
        for by the first page and each time by the first one."""
        return Request(
            f"{world().site.pages[0].url}?{RECURRING[n]}",
            self.parse_recurring,
            cb_kwargs={"n": n},
            meta={"redisq_every": EVERY},
            dont_filter=n > 0,
        )

    def parse_recurring(self, response: Response, n: int) -> Any:
        yield {"key": RECURRING[n]}
        if n == 0:
            yield self.recurring(1)
            if "periods" in world().plan.features:
                url = f"{world().site.pages[0].url}?period"
                yield Request(url, self.parse_period, meta={"redisq_seen_ttl": PERIOD})
        elif "raises" in world().plan.features:
            raise KeyError(n)  # it comes again all the same

    def parse_period(self, response: Response) -> Any:
        yield {"key": "period"}
        url, name = f"{world().site.pages[0].url}?in_period", {"key": "period.leaf"}
        yield Request(url, self.parse_key, cb_kwargs=name, dont_filter=True)

    def _errback(self) -> Any:
        return self.failed if "errbacks" in world().plan.features else None

    def failed(self, failure: Any) -> Any:
        number = failure.request.url.rpartition("/")[2]
        yield {"key": f"{number}.caught"}

    fed = 0

    def idle(self) -> None:
        if self.fed < 2:
            page = world().site.pages[0]
            number = process.number if (process := WORKER.get()) else 0
            key = f"idle{self.fed}.w{number}"
            scheduler: Any = self.crawler.engine.scheduler
            if not scheduler.is_over:  # else there is no run any more
                world().fed.append((number, key))
            self.crawler.engine.crawl(
                Request(
                    f"{page.url}?idle",
                    self.parse_key,
                    cb_kwargs={"key": key},
                    meta={"redisq_id": key},
                    dont_filter=True,
                )
            )
            self.fed += 1
            raise DontCloseSpider

    def parse_pushed(self, response: Response, n: int) -> Any:
        yield {"key": f"pushed{n}"}

    def parse_start(self, response: Response, n: int) -> Any:
        yield {"key": f"start{n}"}

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        page = world().site.pages[int(response.url.rpartition("/")[2])]
        if page.closes and not world().site.closed:
            world().site.closed = True
            raise CloseSpider("enough")
        request = response.request
        assert request is not None
        if (n := request.meta.get("retry_times", 0)) < page.tries:
            name = {"key": f"{page.number}.try{n}"}
            yield Request(page.url, self.parse_key, cb_kwargs=name, dont_filter=True)
            same = {"key": f"{page.number}.same"}  # each try has its own
            yield Request(page.url, self.parse_key, cb_kwargs=same, dont_filter=True)
            yield get_retry_request(request, spider=self)
            return
        half = len(page.links) // 2
        for link in page.links[:half]:
            yield self.link(request, page, link)
        if page.slow:
            await asyncio.sleep(page.slow)
        if page.side:
            await self.crawler.engine.download_async(Request(f"{page.url}?side"))
        yield {"key": str(page.number), "raises": page.item_raises, "refused": page.refused}
        for n in range(page.leaves):
            leaf = self.unfiltered(request, page, self.parse_leaf, n)
            if page.heavy:
                leaf.meta["heavy"] = HEAVY
            yield leaf
        if page.chain:
            yield self.unfiltered(request, page, self.parse_chain, 0)
        if "recurs" in world().plan.features and not page.number:
            yield self.recurring(1)
        for n in range(page.hidden):
            yield self.hidden_request(page, n, request)
        if page.shared is not None:
            url, shared = world().site.pages[0].url, f"shared{page.shared}"
            yield Request(f"{url}?{shared}", lambda _: {"key": shared})  # type: ignore[misc]
        for link in page.links[half:]:
            yield self.link(request, page, link)
        if page.raises:
            raise KeyError(page.number)

    def hidden_request(self, page: Page, n: int, asking: Request) -> Request:
        """It cannot be stored, or shares the session of a page that was reached by a link."""
        url, session = f"{page.url}?hidden{n}", asking.meta.get("redisq_session")
        if session != page.number:
            return Request(url, lambda _: self.hidden(page, n))  # type: ignore[misc]
        self.sessions.add(session)
        name = {"number": session, "n": n}
        return Request(url, self.in_session, meta={"redisq_session": session}, cb_kwargs=name)

    def in_session(self, response: Response, number: int, n: int) -> Any:
        if number not in self.sessions:
            world().problems.append(f"a request of the session {number} has left its worker")
        yield from self.hidden(world().site.pages[number], n)

    def session_lost(self, request: Request) -> Request:
        world().sessions_lost.append(world().clock.now)
        return request.replace(headers={"Begun": "anew"})

    def hidden(self, page: Page, n: int) -> Any:
        yield {"key": f"{page.number}.hidden{n}"}
        if page.deep:
            name = {"key": f"{page.number}.deep{n}"}
            yield Request(page.url, self.parse_key, cb_kwargs=name, dont_filter=True)
            deeper = f"{page.number}.deeper{n}"
            yield Request(f"{page.url}?deeper{n}", lambda _: {"key": deeper})  # type: ignore[misc]
        if page.hidden_fails:
            raise KeyError(page.number)

    def parse_key(self, response: Response, key: str) -> Any:
        yield {"key": key}

    def link(self, asking: Request, page: Page, link: int) -> Request:
        """Some spiders copy the meta of the page, with what others have put into it."""
        world().site.asked_for.setdefault(link, world().clock.now)
        copied = asking.meta.items() if "copies" in world().plan.features else ()
        request = Request(
            world().site.pages[link].url,
            self.parse,
            errback=self._errback(),
            priority=page.priorities.get(link, 0),
            meta={key: value for key, value in copied if key not in OF_A_PAGE},
        )
        if world().site.pages[link].session:
            request.meta["redisq_session"] = link
        if delay := page.delays.get(link):
            request.meta["redisq_delay"] = delay
        return request

    def unfiltered(self, asking: Request, page: Page, callback: Any, n: int) -> Request:
        """Some spiders copy the request of the page, with what middlewares have put into it."""
        if "copies" not in world().plan.features or page.session:
            return Request(page.url, callback, cb_kwargs={"n": n}, dont_filter=True)
        return asking.replace(url=page.url, callback=callback, cb_kwargs={"n": n}, dont_filter=True)

    def parse_leaf(self, response: Response, n: int) -> Any:
        yield {"key": f"{response.url.rpartition('/')[2]}.leaf{n}"}

    def parse_chain(self, response: Response, n: int) -> Any:
        page = world().site.pages[int(response.url.rpartition("/")[2])]
        yield {"key": f"{page.number}.chain{n}"}
        if n + 1 < page.chain:
            assert response.request is not None
            yield self.unfiltered(response.request, page, self.parse_chain, n + 1)


class Rival(scrapy.Spider):
    """Another crawl, which shares the limits of hosts."""

    name = "rival"
    custom_settings = {  # noqa: RUF012
        "REDISQ_FRONTIER": "rival",
        "REDISQ_FEEDS": {},
        "REDISQ_KEEP_ALIVE": False,
        "REDISQ_SET_ASIDE_WAIT": 0,
        "ITEM_PIPELINES": {},
    }

    async def start(self) -> AsyncIterator[Any]:
        for n in range(RIVALS):
            yield Request(f"http://h{n % world().plan.hosts}.sim/rival{n}")

    def parse(self, response: Response) -> None:
        """Nothing."""


class Downloads:
    """Scrapy's download handler: asks the site."""

    lazy = False

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Downloads:
        return cls(crawler)

    async def download_request(self, request: Request) -> Response:
        site = world().site
        process = WORKER.get()
        _, _, host, path = request.url.split("/", 3)
        plain = path.isdecimal() and not request.cb_kwargs
        if path.startswith("rival"):
            site.rivals[host].append(time.monotonic())
            return await self._answer(request, Page(-1, 0), path, False, host)
        name = path  # a leaf and a link of a chain have one URL, and one set of arguments
        if request.cb_kwargs:
            name += f"{getattr(request.callback, '__name__', '')}{json.dumps(request.cb_kwargs)}"
        number = process.number if process else 0
        # The frontier is not asked any more about a slot that a worker does not know.
        late = ("?side" in path or path == "robots.txt") and is_closing(self._crawler)
        site.asked(time.monotonic(), host, name, number, waits=not late)
        if "copies" in world().plan.features:
            request.headers["Cookie"] = f"session=w{number}"
        world().network.trace(f"w{number} fetches {name}")
        if path == "robots.txt":
            await asyncio.sleep(0.05)
            return TextResponse(request.url, body=b"User-agent: *\nCrawl-delay: 0.4\n")
        page = site.pages[int(path.partition("?")[0])]
        if page.kills and plain:
            await world().killed_by(process)
        with site.begin(name, number):
            return await self._answer(request, page, name, plain, host, waits=not late)

    async def _answer(
        self, request: Request, page: Page, name: str, plain: bool, host: str, *, waits: bool = True
    ) -> Response:
        """``waits``: see `Site.asked`."""
        site, process = world().site, WORKER.get()
        if waits:
            world().downloads(host)
        site.active[host, process.number if process else 0] += waits
        try:
            await asyncio.sleep(page.seconds)
        finally:
            site.active[host, process.number if process else 0] -= waits
        nth = site.hits[name] - 1
        fails = plain and nth < len(page.answers)
        if fails and page.answers[nth] in (500, 502) and host not in site.away:
            pause = LONGER_DELAY if page.waits_longer else RETRY_DELAY
            site.not_before[name] = time.monotonic() + pause * 0.9
        if host in site.away:
            site.away[host] = min(site.away[host], world().clock.now)
            world().voided += 1
            return TextResponse(request.url, 503, body=b"")
        if fails:
            status = page.answers[nth]
            if not status:
                raise scrapy.exceptions.DownloadTimeoutError
            headers = {}
            if page.retry_after:
                headers["Retry-After"] = str(RETRY_AFTER)
                site.sent_away.append((time.monotonic(), host))
            elif page.waits_longer and status in (500, 502):
                headers["Retry-After"] = str(LONGER_DELAY)
            return TextResponse(request.url, status, headers=headers, body=b"")
        if "kept_tries" in world().plan.features and "?hidden" in request.url:
            if request.url.endswith("0") and nth == 0:
                return TextResponse(request.url, 500, body=b"")
            if request.url.endswith("1"):
                moved = request.url.replace("hidden", "moved")
                return TextResponse(request.url, 302, headers={"Location": moved})
        if plain and page.fails_again and nth == 1:
            site.not_before[name] = time.monotonic() + RETRY_DELAY * 0.9
            world().voided += 1
            return TextResponse(request.url, 500, body=b"")
        if plain and page.redirect is not None:
            target = site.pages[page.redirect].url
            return TextResponse(request.url, 302, headers={"Location": target})
        return TextResponse(request.url, body=b"<html></html>")

    async def close(self) -> None:
        pass


class Refuse:
    """An item pipeline that raises for some items."""

    def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("raises"):
            raise ValueError(item["key"])
        return item


class Sink(BatchPipeline):
    """Upserts by key into a table of the world's."""

    async def open(self) -> None:
        worker = Scheduler.of(self.crawler)
        if worker is not None and "sees_end" in world().plan.features:
            worker.sees_the_end = True

    async def write(self, rows: list[Any]) -> None:
        await asyncio.sleep(0.004 + 2.0 * world().sink_slow)
        if world().sink_away:
            raise OSError("simulated: the sink is away")
        if bad := [row.item["key"] for row in rows if row.item.get("refused")]:
            raise ValueError(f"simulated: these rows cannot be: {bad}")
        for row in rows:
            key = row.item["key"]
            world().table[key] = world().table.get(key, 0) + 1
            world().rows[key].add(row.key)
        await asyncio.sleep(0.002)

    async def takes_others(self, row: Any, others: list[Any]) -> bool:
        # As a database does, which can be asked without a row.
        if world().sink_away:
            raise OSError("simulated: the sink is away")
        return await super().takes_others(row, others) if others else True
