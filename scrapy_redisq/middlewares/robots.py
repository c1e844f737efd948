"""robots.txt for a fleet: fetched once, heeded by all, with its Crawl-delay."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Request, Response
from scrapy.http.request import NO_CALLBACK
from scrapy.robotstxt import RobotParser
from scrapy.utils.datatypes import LocalCache
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_redisq.errors import FrontierCorrupt, RedisqError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.scheduler import Scheduler
from scrapy_redisq.worker.politeness.gate import WAITS_NOT_KEY, SlotParked
from scrapy_redisq.worker.politeness.judge import TELL_AGAIN
from scrapy_redisq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_redisq.frontier.scripts import Call

T = TypeVar("T")

logger = logging.getLogger(__name__)

VALID = 86_400.0
"""Seconds for which a text is valid: no longer than a day, says RFC 9309, 2.4."""

ERROR_VALID = 600.0
"""Seconds after which a robots.txt is tried again that could not be fetched, or was refused as one
request too many."""

CLOSED_FOR = 2.0
"""The same where nothing else is fetched from the host meanwhile. Its slot is left alone for longer
with each failure."""

MAX_TEXT = 500 * 1024
"""Bytes of a robots.txt that are heeded: as many as RFC 9309, 2.5 wants to be parsed at least."""

KEPT = 1_000
"""Parsers that a worker keeps, each for `TELL_AGAIN`: then it reads the text from the frontier, and
tells the frontier of the delay once more, before that forgets the slot."""

QUICK = 10_000
"""Bytes that are parsed without a thread."""

TIMEOUT = 25.0
"""Seconds that a robots.txt may take. For 30 s nobody else fetches it (see ``robots.lua``)."""

LOOK_FIRST, LOOK_LAST = 0.05, 0.5
"""Seconds between looks at whether another worker has fetched it."""

AGAIN = 1.0
"""Seconds between attempts to tell the frontier of a Crawl-delay."""

CLOSED = b"closed"
"""In the place of a compressed text: the host cannot say what it allows."""

AWAY = (RedisError, RedisqError, OSError)
"""Errors when the frontier cannot be asked."""


@dataclass
class Rules:
    """A host's robots.txt, as a worker knows it.

    Without a ``parser`` all is allowed. With ``closed``, a status (0: it is not known), nothing is
    allowed for now. This failure ``began`` at a time.monotonic(); None: the frontier knows of it.
    Valid ``until`` a time.monotonic(). ``is_news``: other workers may not know it yet. Of the delay
    of the slots in ``told`` the frontier knows.
    """

    parser: RobotParser | None
    until: float
    closed: int | None = None
    began: float | None = None
    is_news: bool = False
    told: set[str] = field(default_factory=set)
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)


class RedisqRobotsTxtMiddleware(RobotsTxtMiddleware):
    """Scrapy's RobotsTxtMiddleware, whose texts and Crawl-delay all workers share.

    Settings, meta keys, stats and the signal robots_parsed are Scrapy's. One worker fetches a
    host's robots.txt, once a run or when it has expired, and the others wait for it. After 5xx
    nothing is allowed for now (RFC 9309, 2.3.1.4): requests go back, and the slot is left alone as
    one that fails. Any other answer than 2xx counts as an empty text (2.3.1.3).
    ``Crawl-delay`` or ``Request-rate``, whichever is slower and at most
    ``REDISQ_CRAWL_DELAY_MAX``, is the delay of the slot. While Redis is away each worker fetches
    for itself. With another scheduler this is Scrapy's.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)  # raises NotConfigured without ROBOTSTXT_OBEY
        settings = crawler.settings
        self._agent: str = settings["ROBOTSTXT_USER_AGENT"] or settings["USER_AGENT"]
        self._timeout = min(TIMEOUT, settings.getfloat("DOWNLOAD_TIMEOUT") or TIMEOUT)
        self._parser_class: Any = load_object(settings["ROBOTSTXT_PARSER"])
        self._rules: LocalCache[str, Rules] = LocalCache(KEPT)
        self._lookups: dict[str, asyncio.Task[Rules]] = {}
        self._worker: Worker | None = None
        crawler.signals.connect(self._spider_opened, signals.spider_opened)

    def _spider_opened(self) -> None:
        self._worker = Scheduler.of(self.crawler)

    def _count(self, name: str) -> None:
        stats: Any = self.crawler.stats
        stats.inc_value(name)

    # A subclass may pass a spider on, as to middlewares of Scrapy itself.

    def process_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """To be awaited: returns when the host's robots.txt allows the request, and the frontier
        knows its Crawl-delay."""
        if self._worker is None:
            return super().process_request(request, *args, **kwargs)
        return self._process(request, *args, **kwargs)

    async def _process(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.meta.get("dont_obey_robotstxt") or request.url.startswith(("data:", "file:")):
            return
        rules = await self._rules_for(request)
        if rules.closed is not None:
            self._count("redisq/robots/closed")
            slot, left = self._slot_of(request), max(0.0, rules.until - time.monotonic())
            self._in_use.gate.put_off(request, slot, rules.closed, left, rules.began)
        if rules.parser is not None:
            self.process_request_2(rules.parser, request, *args, **kwargs)
            await self._keep_delay(request, rules)

    # Texts

    async def _rules_for(self, request: Request) -> Rules:
        host = host_of(request)
        rules = self._rules.get(host)
        if rules is not None and rules.until > time.monotonic():
            return rules
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(host, request))
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(host))
        while not lookup.done():
            await asyncio.wait({lookup}, timeout=LOOK_LAST)
            self._check(request)
        return lookup.result()

    def _check(self, request: Request) -> None:
        """Send the request back to the frontier if the spider is being closed, or the host is in
        trouble."""
        self._in_use.gate.check(request, self._slot_of(request))

    async def _look_up(self, host: str, request: Request) -> Rules:
        pause = LOOK_FIRST
        while not self._in_use.engine.closing:
            what, text, valid = await self._ask(host)
            if what == "wait":
                await asyncio.sleep(pause)
                pause = min(1.5 * pause, LOOK_LAST)
                continue
            if what == "known":
                self._count("redisq/robots/shared")
                rules = Rules(None, time.monotonic() + min(valid, TELL_AGAIN))
                if text == CLOSED:
                    rules.closed = 0
                else:
                    rules.parser = await self._parse(text, host, request)
            else:
                rules = await self._fetch(host, request)
            self._rules[host] = rules
            return rules
        return Rules(None, 0.0)  # which nobody uses: all requests go back

    async def _ask(self, host: str) -> tuple[str, bytes, float]:
        """("known", the text or `CLOSED`, seconds for which it is valid), or ("wait" for another
        worker, …), or ("fetch", …)."""
        try:
            what, text, valid = await self._run(calls.robots_txt, host, host)
            if what == "known" and text != CLOSED:
                text = zlib.decompressobj().decompress(text, MAX_TEXT)
        except (*AWAY, zlib.error):  # what is no text of ours is fetched, and then replaced
            return "fetch", b"", 0.0
        return what, text, valid

    async def _run(self, call: Callable[..., Call[T]], of: str, *args: Any, **options: Any) -> T:
        """Run a script on the shard ``of`` a host or slot. Raises `AWAY`."""
        run = self._in_use.run_session
        shard = run.shard_of(of).shard
        return await run.call(call(run.terms.name, shard, run.joined.run, *args, **options))

    @property
    def _in_use(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def _slot_of(self, request: Request) -> str:
        return slot_name(self._in_use.engine.downloads.slot_of(request))

    async def _parse(self, text: bytes, host: str, request: Request) -> RobotParser | None:
        def parse() -> RobotParser:
            parser: RobotParser = build_from_crawler(self._parser_class, self.crawler, text)
            return parser

        try:
            parser = parse() if len(text) <= QUICK else await asyncio.to_thread(parse)
        except Exception as error:
            self._failed(error, f"robots.txt of {host} cannot be parsed")
            return None
        if signal := getattr(signals, "robots_parsed", None):  # since Scrapy 2.18
            await self.crawler.signals.send_catch_log_async(
                signal=signal, robotparser=parser, request=request
            )
        return parser

    def _failed(self, error: Exception, text: str) -> None:
        self._count(f"robotstxt/exception_count/{type(error)}")
        spider = self.crawler.spider
        logger.error("%s: %s", text, error, exc_info=error, extra={"spider": spider})

    async def _fetch(self, host: str, request: Request) -> Rules:
        """Fetch the text, for all if the frontier can be told."""
        self._count("robotstxt/request_count")
        parser, began = None, time.monotonic()
        try:
            response = await self._download(request)
        except SlotParked as error:
            # A retry, mostly. It would be one of the worker's downloads for as long as it waits;
            # a worker that has a page of the host when it may be asked again fetches it then.
            if error.slot == self._slot_of(request):
                return await self._leave_to_others(host, CLOSED_FOR, closed=0)
            # The robots.txt leads to another host, or is of another slot. Without this the page's
            # slot would be asked again and again, and keep the crawl open.
            return await self._close(host, 0, began)
        except Exception as error:
            if isinstance(error, IgnoreRequest) or self._in_use.engine.closing:
                # By a middleware of this worker, or because it is being closed, when the engine
                # takes no downloads any more: no news about the host.
                return await self._leave_to_others(host, ERROR_VALID)
            self._failed(error, f"Error downloading robots.txt of {host}")
            text, valid = b"", ERROR_VALID
        else:
            self._count("robotstxt/response_count")
            self._count(f"robotstxt/response_status_count/{response.status}")
            if response.status >= 500:
                return await self._close(host, response.status, began)
            text = heeded(response.body) if 200 <= response.status < 300 else b""
            valid = ERROR_VALID if response.status == 429 else VALID
            parser = await self._parse(text, host, request)
        await self._tell(host, zlib.compress(text, 1), valid)
        return Rules(parser, time.monotonic() + min(valid, TELL_AGAIN), is_news=True)

    async def _close(self, host: str, status: int, began: float) -> Rules:
        await self._tell(host, CLOSED, CLOSED_FOR)
        return Rules(None, time.monotonic() + CLOSED_FOR, closed=status, began=began)

    async def _leave_to_others(self, host: str, valid: float, closed: int | None = None) -> Rules:
        await self._tell(host, b"", 0.0)
        return Rules(None, time.monotonic() + valid, closed=closed)

    async def _tell(self, host: str, text: bytes, valid: float) -> None:
        """Have the frontier keep this for ``valid`` seconds; 0: another worker may fetch it."""
        try:
            await self._run(calls.robots_txt, host, host, text=text, ttl=valid)
        except AWAY as error:
            self._count("redisq/robots/alone")
            logger.debug("A robots.txt is not shared: %s", type(error).__name__)

    async def _download(self, request: Request) -> Response:
        url = urlparse_cached(request)
        # The frontier keeps it; a cache would keep a 503 for ever, too.
        meta = {"dont_obey_robotstxt": True, "dont_cache": True, WAITS_NOT_KEY: True}
        engine: Any = self.crawler.engine
        response: Response = await engine.download_async(
            Request(
                f"{url.scheme}://{url.netloc}/robots.txt",
                priority=self.DOWNLOAD_PRIORITY,
                meta={**meta, "download_timeout": self._timeout},
                callback=NO_CALLBACK,
            )
        )
        return response

    # Delays

    async def _keep_delay(self, request: Request, rules: Rules) -> None:
        """Returns when the frontier knows the slot's delay, and this worker heeds it."""
        if not self._in_use.settings.heeds_crawl_delay:
            return
        slot = self._slot_of(request)
        if slot not in rules.told:
            async with rules.telling:
                if slot not in rules.told:
                    await self._tell_delay(request, rules, slot)
        # It may have been handed out before the slot had a delay.
        self._in_use.gate.turns.handed_out(request, slot)

    async def _tell_delay(self, request: Request, rules: Rules, slot: str) -> None:
        assert rules.parser is not None
        asked = asked_delay(rules.parser, self._agent)
        delay = min(self._in_use.settings.crawl_delay_max, asked)
        changed = False
        while delay or rules.is_news:
            try:
                host = host_of(request)
                changed = await self._run(calls.crawl_delay, slot, host, slot, delay)
                break
            except FrontierCorrupt as error:
                logger.warning("The delay that a robots.txt asks for is not kept: %s", error)
                break
            except AWAY:
                if not delay:
                    return
                # As with all limited slots: nothing begins that the frontier has not agreed to.
                self._check(request)
                await asyncio.sleep(AGAIN)
        rules.told.add(slot)
        if delay:
            self._count("redisq/robots/crawl_delay")
        if changed or delay:
            self._in_use.gate.limited(slot)


def host_of(request: Request) -> str:
    """Whose robots.txt a request heeds: host and port, as for Scrapy, and no password."""
    return urlparse_cached(request).netloc.rpartition("@")[2].lower()


def heeded(text: bytes) -> bytes:
    """The lines of a robots.txt that are heeded. Half a rule may forbid more than the whole one."""
    return text if len(text) <= MAX_TEXT else text[: max(0, text.rfind(b"\n", 0, MAX_TEXT))]


def asked_delay(parser: RobotParser, agent: str) -> float:
    """Seconds between requests that a robots.txt asks ``agent`` for: the longer of Crawl-delay and
    Request-rate; 0 where it does not, or the parser cannot tell."""
    rules: Any = getattr(parser, "rp", None)  # of all of Scrapy's own
    asked = [0.0]
    for source, method in (
        (parser, "crawl_delay"),  # since Scrapy 2.18
        (rules, "crawl_delay"),
        (rules, "get_crawl_delay"),
        (rules, "request_rate"),
    ):
        try:
            delay: Any = getattr(source, method)(agent)
            seconds = delay.seconds / delay.requests if method == "request_rate" else float(delay)
        except (AttributeError, TypeError, ValueError, ArithmeticError):
            continue
        if 0 < seconds < math.inf:
            asked.append(seconds)
    return max(asked)
