"""A worker's session: its server, its configuration, and its place in the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis

from scrapy_redisq.errors import RedisqError, RunOver, ServerBusy, ServerFull, ServerUnreachable
from scrapy_redisq.frontier.calls import Joined, MayComeBack, RunTerms
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.passing_errors import TROUBLE, WARN_EVERY
from scrapy_redisq.frontier.resend import NO_REPLICA
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.terms import SUSPECT_FROM, Terms
from scrapy_redisq.server.access import hang_up
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import RedisqSettings, open_server_of, project_folder
from scrapy_redisq.tasks import cancel, within

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_PAUSE = 0.2
"""Seconds between attempts to join."""

BACKENDS = {
    "redisbloom": "Bloom filter of RedisBloom",
    "bitmap": "Bloom filter on bitmaps (the server has no RedisBloom)",
    "exact": "exact",
}


class WorkerConnection:
    """Connects and joins; closes what it has opened."""

    def __init__(self, settings: RedisqSettings) -> None:
        self._settings = settings
        self._opened = contextlib.AsyncExitStack()
        self._joined: RunSession | None = None

    async def open(
        self, name: str, config: FrontierConfig, *, started: float, release: str, digest: str
    ) -> RunSession:
        """Join the run of the frontier ``name``; -> the place in it.

        ``started``: when the crawl was, by time.monotonic(); ``release`` and the settings'
        ``digest`` are for people. Raises `RedisqError`; `RunOver` if there is nothing to do. Then,
        and if anything else keeps the worker from working, `abandon` is to be called.
        """
        settings = self._settings
        # Starting an embedded server takes a moment, which is not the event loop's.
        server = await asyncio.to_thread(open_server_of, settings, project_folder())
        # The last session of an embedded server stops it.
        self._opened.push_async_callback(asyncio.to_thread, server.close)
        await server.wait_async()
        await self._persist(server, server.check_async)
        client = server.async_client()
        self._opened.push_async_callback(hang_up, client)
        self._opened.push_async_callback(cancel, asyncio.ensure_future(server.follow()))
        settings.check_shards(server.masters)
        config = config.laid_out(server.masters)
        terms = self._terms(name, config, server, started=started, release=release, settings=digest)
        run_session = RunSession(client, terms, server)

        async def join() -> Joined:
            try:
                return await run_session.join()
            except RunOver:
                await server.confirm_primary()  # else the run may go on elsewhere
                return await run_session.join()  # at another server, perhaps

        joined = await self._persist(server, join)
        self._joined = run_session
        logger.info(
            "%s run %s of frontier %r on %s; dupefilter: %s",
            "Began" if joined.new else "Joined",
            f"{joined.name} ({joined.run})" if joined.name else joined.run,
            name,
            server.address,
            BACKENDS[joined.config.backend],
        )
        return run_session

    def _terms(self, name: str, config: FrontierConfig, server: Server, **others: Any) -> Terms:
        settings = self._settings
        feeds = [key for key, given in settings.feeds.items() if not given.get("url")]
        return Terms(
            name,
            config,
            lease_ttl=settings.lease_ttl,
            max_deliveries=settings.max_deliveries,
            suspect_from=max(1, min(SUSPECT_FROM, settings.max_deliveries - 1)),
            dead_max=settings.dead_max,
            max_entry_bytes=settings.max_entry_bytes,
            run=RunTerms(
                settings.run_name(config.spider),
                settings.resume,
                settings.keep_seen,
                settings.keep_alive,
                json.dumps(feeds) if feeds else "",
                settings.growth_limit(),
            ),
            limits=settings.limits(),
            throttle=settings.throttle.to_text() if settings.throttle else "",
            seen_ttl=settings.seen_ttl,
            rewind=settings.rewind,
            # A server that lost all it had, not the end of its log, has lost safe links.
            young=settings.rewind if server.keeps_log else min(settings.rewind, NO_REPLICA),
            wait_replicas=settings.wait_replicas,
            history=settings.history,
            give_up=settings.slot_give_up,
            **others,
        )

    async def _persist(self, server: Server, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make an ``attempt`` that may be made twice, again when the connection breaks, for
        REDISQ_CONNECT_TIMEOUT (then `ServerUnreachable`). While workers may come back, or Redis is
        full, make it again however long that takes."""
        timeout = self._settings.connect_timeout
        deadline, warn_at = time.monotonic() + timeout, 0.0
        while True:
            try:
                return await attempt()
            except (MayComeBack, ServerFull) as waiting:
                # Redis itself lets workers join while it is full; a service that refuses whole
                # scripts does not.
                deadline = time.monotonic() + timeout
                if time.monotonic() >= warn_at:
                    warn_at = time.monotonic() + WARN_EVERY
                    level = logging.WARNING if isinstance(waiting, ServerFull) else logging.INFO
                    logger.log(level, "This worker waits: %s", waiting)
            except (redis.RedisError, ServerBusy, ServerUnreachable, OSError) as error:
                if time.monotonic() >= deadline:
                    raise ServerUnreachable(
                        f"the Redis server at {server.address} (REDISQ_URL) did not let this "
                        f"worker join within {timeout:g} s (REDISQ_CONNECT_TIMEOUT): "
                        f"{server.redact(error)}"
                    ) from None
                await asyncio.to_thread(server.revive)
            await asyncio.sleep(RETRY_PAUSE)

    def closes(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call ``close``, too, when the connection is closed."""
        self._opened.push_async_callback(close)

    async def abandon(self) -> None:
        """Leave the run, if it was joined, and `close`: other workers would wait for this one until
        its TTL is over."""
        if self._joined is not None:
            await self._joined.cut_off()
            with contextlib.suppress(asyncio.TimeoutError, *TROUBLE, redis.RedisError, RedisqError):
                await within(self._settings.close_timeout, self._joined.give_back())
        await self.close()

    async def close(self) -> None:
        """Close what was opened, once."""
        await self._opened.aclose()
