"""`scrapy_redisq.server.access.Access` to the primary that Sentinels name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakSet

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.server.access import (
    CANCEL_AGAIN,
    NAMELESS,
    async_options,
    blocking_options,
)
from scrapy_redisq.server.address import SentinelService
from scrapy_redisq.server.sentinel.connections import (
    POLL,
    AsyncConnection,
    AsyncSSLConnection,
    Connection,
    SSLConnection,
)
from scrapy_redisq.server.sentinel.finder import Finder, Place

__all__ = ["SentinelAccess"]

logger = logging.getLogger(__name__)

LONGEST_ANSWER = 1.0
"""Seconds that a Sentinel may take to be connected, and to answer."""

NEWS = ("+switch-master", "+promoted-slave")
"""What a Sentinel publishes when it knows of another primary; the one that sees to the failover
says the latter, and the former only when that is over."""

QUIET = 60.0
"""Seconds after which another Sentinel is listened to."""

MOST_UNVOUCHED = 30
"""Answers in a row, at most one in `POLL` seconds, without a majority that names the primary: then
that is said. Not a time: it would go on while no Sentinel answers, or the process is stopped."""

REPLICATED_WITHIN = 0.5
"""Seconds that replicas may take to have what the primary has."""


class SentinelAccess:
    """`scrapy_redisq.server.access.Access` to the primary that Sentinels name."""

    def __init__(
        self, address: SentinelService, options: Mapping[str, Any], timeout: float
    ) -> None:
        self._address = address
        self._options = {
            **options,
            **_typed(address.options),
            "username": address.username,
            "password": address.password,
            "db": address.db,
        }
        answer_within = min(timeout, LONGEST_ANSWER)
        asking = {"socket_timeout": answer_within, "socket_connect_timeout": answer_within}
        self._asking = {**NAMELESS, **options, **_tls_options(address.options), **asking}
        self.finder = Finder(address, {**self._asking, "retry": Retry(NoBackoff(), 0)})
        self._connections: WeakSet[Any] = WeakSet()
        self._told: Place | None = None
        self._silent = 0
        """Questions in a row that no Sentinel has answered."""
        self._without = False
        self._vouched = -math.inf
        self._unvouched = 0
        """Answers in a row since a majority last named the primary."""
        self._told_unvouched = False

    def client(self, timeout: float) -> redis.Redis:
        pool = redis.ConnectionPool(
            connection_class=SSLConnection if self._address.tls else Connection,
            finder=self.finder,
            **{**blocking_options(timeout, {}), **self._options},
        )
        return redis.Redis.from_pool(pool)

    def async_client(self, timeout: float) -> redis.asyncio.Redis:
        pool = redis.asyncio.ConnectionPool(
            connection_class=AsyncSSLConnection if self._address.tls else AsyncConnection,
            finder=self.finder,
            made=self._connections,
            **{**async_options(timeout, {}), **self._options},
        )
        return redis.asyncio.Redis.from_pool(pool)

    def find(self) -> None:
        self.finder.find()
        self._told = self._told or self.finder.primary

    def confirm(self, timeout: float) -> None:
        """A majority of all Sentinels names the server, and so does one that knows of the last
        failover; none is under way, the server says that it is a primary, and whichever replica is
        chosen next has all that it has.

        The last is for a planned failover: for a second or two all Sentinels but one name the old
        primary while the new one is already one, and no longer replicates.
        """
        views = self.finder.find(all_of_them=True)
        if not views:
            raise ServerBusy("no Sentinel answers")
        voters, primary = self.finder.voters, self.finder.primary
        if 2 * len(views) <= voters:
            raise ServerBusy(
                f"only {len(views)} of {voters} Sentinels answer, and the others may have made "
                "another server the primary"
            )
        naming = sum(view.primary == primary for view in views)
        if 2 * naming <= voters:
            raise ServerBusy(f"only {naming} of {voters} Sentinels name it as the primary")
        latest = max(view.epoch for view in views)
        if primary not in {view.primary for view in views if view.epoch == latest}:
            raise ServerBusy("the Sentinel that knows of the last failover names another server")
        if any(view.failing_over for view in views):
            raise ServerBusy("a failover is under way")
        with self.client(timeout) as client:
            client.role()  # so that WAIT means all until now
            wanted = max(view.promotable for view in views)
            there = client.wait(wanted, int(REPLICATED_WITHIN * 1000)) if wanted else 0
        if there < wanted:
            raise ServerBusy(
                f"{wanted - there} of its {wanted} replicas may be without the last writes, and "
                "may be made the primary"
            )

    async def drop(self) -> None:
        if self._told not in {None, self.finder.primary}:
            logger.warning(
                "The primary is %s:%d now, by its Sentinels", *(self.finder.primary or ())
            )
        self._told = self.finder.primary
        for connection in list(self._connections):
            if connection.leads_elsewhere:
                # What is on its way there has no answer, and is sent again.
                with contextlib.suppress(redis.RedisError, OSError):
                    await connection.disconnect()

    async def follow(self) -> None:
        switched = asyncio.Event()
        tasks = [
            asyncio.ensure_future(self._again(lambda: self._listen(switched))),
            asyncio.ensure_future(self._again(lambda: self._ask(switched))),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            # gather() ends with the first of them; none may outlive this, see `cancel`.
            while not all(task.done() for task in tasks):
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(tasks, timeout=CANCEL_AGAIN)

    @staticmethod
    async def _again(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # nothing may end it
                logger.exception("An unexpected error while Sentinels are followed")
                await asyncio.sleep(QUIET)

    async def _ask(self, switched: asyncio.Event) -> None:
        """Ask one Sentinel when it is time, or all when one has told of another primary, and until
        they agree about the last failover."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(switched.wait(), POLL)
        if switched.is_set() or self.finder.in_doubt:
            switched.clear()
            answered = bool(await asyncio.to_thread(self.finder.find, all_of_them=True))
        else:
            answered = await asyncio.to_thread(self.finder.poll)
        await self.drop()
        self._silent = 0 if answered else self._silent + 1
        self._tell(self._silent >= len(self.finder.places()))
        await self._tell_unvouched(answered)

    def _tell(self, without: bool) -> None:
        if without and not self._without:
            logger.warning(
                "No Sentinel of REDISQ_URL answers: a failover is not noticed before one does. The "
                "crawl goes on, and does not end as finished before a majority of them is back"
            )
        elif self._without and not without:
            logger.warning("Sentinels answer again")
        self._without = without

    async def _tell_unvouched(self, answered: bool) -> None:
        """Warn if Sentinels answer, but no majority names the primary: then what was sent there is
        kept for ever, and why would be said at the end alone."""
        before, self._vouched = self._vouched, self.finder.vouched()
        if self._vouched > before:
            if self._told_unvouched:
                logger.warning(
                    "Most Sentinels name %s:%s as the primary again", *(self.finder.primary or ())
                )
            self._told_unvouched, self._unvouched = False, 0
        elif answered:
            self._unvouched += 1
            if self._unvouched == MOST_UNVOUCHED:
                # Now, as each was asked at another time.
                views = await asyncio.to_thread(self.finder.find, all_of_them=True)
                self._warn_unless_vouched(sum(v.primary == self.finder.primary for v in views))

    def _warn_unless_vouched(self, naming: int) -> None:
        voters = self.finder.voters
        if 2 * naming > voters:
            return
        self._told_unvouched = True
        logger.warning(
            "Only %d of %d Sentinels name %s:%s as the primary, and more than half have to. Until "
            "they do this worker does not end as finished, and start() waits once too much might "
            "have to be sent again. If some are no more, say SENTINEL RESET %s to those that still "
            "count them, one after the other, and restart workers without them in REDISQ_URL",
            naming,
            voters,
            *(self.finder.primary or ()),
            self._address.service,
        )

    async def _listen(self, switched: asyncio.Event) -> None:
        """Hear of failovers from any Sentinel; another one's turn when it has been quiet."""
        for host, port in self.finder.places():
            # What has been missed meanwhile is found by asking.
            client = self._sentinel_client(host, port)
            try:
                with contextlib.suppress(redis.RedisError, OSError):
                    await self._hear(client, switched)
            finally:
                await client.aclose()
        await asyncio.sleep(POLL)

    def _sentinel_client(self, host: str, port: int) -> redis.asyncio.Redis:
        options = {
            **self._asking,
            "username": self._address.sentinel_username,
            "password": self._address.sentinel_password,
        }
        return redis.asyncio.Redis(
            host=host, port=port, ssl=self._address.tls, **async_options(1.0, options)
        )

    async def _hear(self, client: redis.asyncio.Redis, switched: asyncio.Event) -> None:
        async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(*NEWS)
            until = time.monotonic() + QUIET
            while (left := until - time.monotonic()) > 0:
                message = await pubsub.get_message(timeout=left)
                if message and self._address.service.encode() in message["data"].split():
                    switched.set()

    def vouched(self) -> float:
        return self.finder.vouched()

    def close(self) -> None:
        self.finder.close()


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    """The options of a URL as redis-py takes them."""
    typed: dict[str, Any] = _tls_options(options)
    for name in ("socket_timeout", "socket_connect_timeout"):
        if name in options:
            typed[name] = float(options[name])
    if "protocol" in options:
        typed["protocol"] = int(options["protocol"])
    if "client_name" in options:
        typed["client_name"] = options["client_name"]
    return typed


def _tls_options(options: Mapping[str, str]) -> dict[str, Any]:
    typed: dict[str, Any] = {
        name: value for name, value in options.items() if name.startswith("ssl_")
    }
    if "ssl_check_hostname" in typed:
        typed["ssl_check_hostname"] = typed["ssl_check_hostname"].lower() in {"true", "yes", "1"}
    return typed
