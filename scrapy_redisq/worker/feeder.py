"""Reads feeds: keys that any client of Redis fills with URLs, or with requests as JSON.

A worker that could use more takes a batch of lines aside (`scrapy_redisq.frontier.feed_lines`). It
sends their requests, each with an identity, and deletes the batch when Redis has all of them. If
the worker dies before that, another one reads the same batch after the lease TTL. A worker that is
told to stop finishes its batch first, while it still exchanges: later it would not notice that the
server has lost what it sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from scrapy.http import Request

from scrapy_redisq.errors import RedisqError, SettingError, Unserializable, message_of, reason
from scrapy_redisq.frontier.feed_lines import TYPES, Taken, take_lines
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.frontier.scripts import AsyncClient, execute_async
from scrapy_redisq.serialization.callbacks import Callbacks
from scrapy_redisq.serialization.request_fields import parse_line, request_from_fields
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.server.access import hang_up
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.declared import CrawlSettings
from scrapy_redisq.settings.settings import RedisqSettings, open_server_of, project_folder
from scrapy_redisq.settings.start_urls import Feed
from scrapy_redisq.tasks import cancel
from scrapy_redisq.worker.page import Problem

if TYPE_CHECKING:
    from scrapy_redisq.worker.worker import Worker

logger = logging.getLogger(__name__)

LOOK, LOOK_IDLE = 0.02, 1.0
"""Seconds between two looks: whether the worker could use more, and at feeds that were empty."""

AWAY_LONGEST = 30.0
"""Seconds until a feed that could not be read is read again, at most."""

SETTING = CrawlSettings.feeds.name


class Source:
    """One feed and the server that has it. ``server``: another one than that of REDISQ_URL."""

    def __init__(self, feed: Feed, server: Server | None) -> None:
        self.feed = feed
        self.server = server
        self.client: AsyncClient | None = None
        self.read_at = 0.0
        """When (time.monotonic()) it is read again."""
        self._following: asyncio.Future[None] | None = None
        self._trouble = ""
        self._pause = LOOK_IDLE

    async def connect(self) -> None:
        """Connect to another server, unless that was done. Raises what redis-py does, and
        `RedisqError`."""
        if self.server is None or self.client is not None:
            return
        await asyncio.to_thread(self.server.revive)
        await asyncio.to_thread(self.server.ping, self.server.socket_timeout)
        self.client = self.server.async_client()
        self._following = asyncio.ensure_future(self.server.follow())

    def went_well(self) -> None:
        """It was read."""
        if self._trouble:
            logger.info("The feed %r is read again", self.feed.key)
        self._trouble, self._pause = "", LOOK_IDLE

    def failed(self, text: str) -> None:
        """It cannot be read now. Warn of what is new."""
        if text != self._trouble:
            logger.warning("The feed %r (%s) is not read: %s", self.feed.key, SETTING, text)
        self._trouble = text
        self.read_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, AWAY_LONGEST)

    async def hang_up(self) -> None:
        """Close the connection to another server; it is connected again when it is read."""
        if self._following is not None:
            await cancel(self._following)
        client: Any = self.client
        self.client = self._following = None
        if client is not None:
            await hang_up(client)

    async def close(self) -> None:
        """Close the connection, and leave the server."""
        await self.hang_up()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)


async def open_sources(
    feeds: Iterable[Feed],
    settings: RedisqSettings,
    closes: Callable[[Callable[[], Awaitable[None]]], None],
) -> list[Source]:
    """The feeds, each with its server; ``closes`` is given what closes them. No server is waited
    for: a feed that is away keeps no crawl from starting. Raises `RedisqError`."""
    sources = []
    for feed in feeds:
        server = None
        if feed.url:
            try:
                server = await asyncio.to_thread(
                    open_server_of, settings, project_folder(), url=feed.url
                )
            except SettingError as error:
                text = str(error).replace(CrawlSettings.url.name, f"{SETTING}[{feed.key!r}]['url']")
                raise RedisqError(text) from None
        sources.append(Source(feed, server))
        closes(sources[-1].close)
    return sources


FAILURES = (*TROUBLE, RedisError, RedisqError, ValueError)
"""Of a feed's server; ValueError: its URL has an impossible host."""


class Feeder:
    """Reads the ``sources`` of a worker, the first ones first. ``max_idle``: seconds after which
    the crawl is kept open no longer when all of it is idle; 0: it stays."""

    def __init__(self, worker: Worker, sources: Sequence[Source], max_idle: float) -> None:
        self._worker = worker
        self._run = worker.run_session
        self._sources = sources
        self._max_idle = max_idle
        self._callbacks = Callbacks(worker.spider)
        self.ends = False
        """Whether the crawl does not stay for more lines: ``max_idle``, and all feeds are empty."""
        self._idle_since = time.monotonic()
        self._reads = False

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            pause = LOOK
            if self._worker.could_use_more():
                await self._worker.room_for_start()
                self._reads = not self._worker.engine.closing
                try:
                    if self._reads:
                        pause = 0.0 if await self._read_first() else LOOK_IDLE
                finally:
                    self._reads = False
            elif not self._worker.engine.closing:
                self._mind_the_end(all_empty=False)
            await asyncio.sleep(pause)

    async def finish(self, seconds: float) -> None:
        """Wait so long at most for lines that are being read. If it is cut off, its lines are read
        again when the TTL is over."""
        deadline = time.monotonic() + seconds
        while self._reads and time.monotonic() < deadline:
            await asyncio.sleep(LOOK)

    async def _read_first(self) -> bool:
        """Read the first feed that has something; -> whether one had."""
        all_empty = True
        for source in self._sources:
            if time.monotonic() < source.read_at:
                all_empty = False
                continue
            taken = await self._taken(source)
            if taken is not None and taken.lines:
                self._idle_since = time.monotonic()
                self._run.stay_open(True)
                await self._push(source, taken)
                return True
            all_empty &= taken is not None and not taken.aside
        self._mind_the_end(all_empty)
        return False

    def _mind_the_end(self, all_empty: bool) -> None:
        now = time.monotonic()
        self.ends = all_empty and self._max_idle > 0
        if not all_empty or self._run.has_more() or self._worker.starting()[0]:
            self._idle_since = now
            self._run.stay_open(True)
        elif self._max_idle and now - self._idle_since >= self._max_idle:
            if self._run.terms.run.keep_alive:
                logger.info(
                    "The crawl was idle for %g s (max_idle_time, MAX_IDLE_TIME_BEFORE_CLOSE): it "
                    "ends",
                    self._max_idle,
                )
            self._run.stay_open(False)

    # Lines

    async def _taken(self, source: Source) -> Taken | None:
        """Lines of the feed; None if it cannot be read."""
        try:
            taken = await self._call(source, most=source.feed.batch)
        except FAILURES as error:
            self._failed(source, error)
            await source.hang_up()
            return None
        if taken.type not in (*TYPES, "none"):
            source.failed(f"the key is a {taken.type}; it takes a {', '.join(TYPES)}")
            return taken if taken.lines else None
        source.went_well()
        return taken

    def _failed(self, source: Source, error: Exception) -> None:
        server = source.server or self._run.server
        source.failed(server.redact(error))

    async def _call(self, source: Source, *, most: int, done: Any = None) -> Taken:
        run = self._run
        ttl = run.terms.lease_ttl
        call = take_lines(source.feed.key, run.terms.name, most=most, ttl=ttl, done=done)
        await source.connect()
        if source.client is None:
            return await run.call(call)
        return await execute_async(source.client, call)

    async def _push(self, source: Source, taken: Taken) -> None:
        """Send what the lines ask for, and delete them when Redis has all of it."""
        sent: set[object] = set()
        for identity, line in taken.lines:
            sent.update(self._take(source.feed.key, identity, line))
        self._run.wake()
        while self._run.holds_any(sent):
            if self._worker.is_lost:
                return
            await asyncio.sleep(LOOK)
        try:
            await self._call(source, most=0, done=taken.done)
        except FAILURES as error:
            # Its lines are read once more when the TTL is over, and are duplicates.
            self._failed(source, error)

    def _take(self, key: str, identity: bytes, line: bytes) -> Iterator[object]:
        """Hand in the requests of a line, or its dead letter; -> each of them."""
        try:
            for number, request in enumerate(self._requests(line)):
                own = blake2b(identity + b"%d" % number, digest_size=16).digest()
                self._worker.outbox.take_fed(request, own)
                yield request
        except Exception as error:
            why = message_of(error) if isinstance(error, RedisqError) else reason(error)
            if isinstance(error, Unserializable) and error.cure:
                why = f"{why}; {error.cure}"
            detail = f"{why}; line of {key!r}: {line[:10_000].decode(errors='backslashreplace')}"
            logger.warning("Dead letter (line): %.500s", detail)
            problem = Problem("line", detail, type_name(type(error)))
            self._worker.stats.inc_value(f"redisq/dead/{problem.reason}")
            letter = problem.letter("", identity)
            self._run.enqueue(letter)
            yield letter

    def _requests(self, line: bytes) -> Iterator[Request]:
        make = getattr(self._worker.spider, "make_request_from_data", None)
        if make is None:
            yield self._request(line)
            return
        made = make(line)
        for request in [made] if isinstance(made, Request) else made or ():
            if not isinstance(request, Request):
                raise TypeError(f"make_request_from_data() gave {request!r:.100}, no request")
            yield request

    def _request(self, line: bytes) -> Request:
        """As ``push`` reads it."""
        read = parse_line(line)
        fields = {"url": read} if isinstance(read, str) else read
        request, callback, errback = request_from_fields(fields)
        if callback:
            request.callback = self._callbacks.method(callback, "callback")
        if errback:
            request.errback = self._callbacks.method(errback, "errback")
        return request
