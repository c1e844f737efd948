"""`scrapy_redisq.server.server.Server` where Sentinels say which it is."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlencode
from weakref import WeakSet

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.server.access import NAMELESS, async_options, blocking_options
from scrapy_redisq.server.address import SentinelService
from scrapy_redisq.server.sentinel.finder import Finder, Place, View
from scrapy_redisq.server.sentinel.pools import POLL, AsyncPool, Pool
from scrapy_redisq.server.server import Server

logger = logging.getLogger(__name__)

LONGEST_ANSWER = 1.0
"""Seconds that a Sentinel may take to be connected, and to answer."""

MOST_UNVOUCHED = 30
"""Rounds in a row, one in `POLL` seconds at most, without a majority that names the primary: then
that is said. Not a time: it would go on while the process is stopped."""

REPLICATED_WITHIN = 0.5
"""Seconds that replicas may take to have what the primary has."""

_OF_SERVERS = {"client_name", "protocol", "socket_connect_timeout", "socket_timeout"}


class SentinelServer(Server):
    """The primary that Sentinels name."""

    by_sentinels = True
    _address: SentinelService

    def __init__(
        self, address: SentinelService, *, connect_timeout: float, socket_timeout: float
    ) -> None:
        super().__init__(address, connect_timeout=connect_timeout, socket_timeout=socket_timeout)
        tls = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
        of_servers = {name: address.options[name] for name in _OF_SERVERS & address.options.keys()}
        # As redis-py takes them.
        typed = parse_url(f"redis://?{urlencode(tls | of_servers)}")  # type: ignore[no-untyped-call]
        login = {"username": address.username, "password": address.password, "db": address.db}
        answer_within = min(self.socket_timeout, LONGEST_ANSWER)
        asking = {"socket_timeout": answer_within, "socket_connect_timeout": answer_within}
        given = {name: value for name, value in typed.items() if name not in _OF_SERVERS}
        given = {**NAMELESS, **self._options, **given, **asking, "retry": Retry(NoBackoff(), 0)}
        self._options = {**self._options, **typed, **login}
        self.finder = Finder(address, given)
        self._async_pools: WeakSet[AsyncPool] = WeakSet()
        self._primary: Place | None = None
        """The last one that was told of."""
        self._unvouched = 0
        """Rounds in a row since a majority last named the primary."""

    def close(self) -> None:
        self.finder.close()

    def client(self, timeout: float | None = None) -> redis.Redis:
        options = blocking_options(timeout or self.socket_timeout, self._options)
        return redis.Redis.from_pool(Pool(self.finder, tls=self.uses_tls, **options))

    def async_client(self) -> redis.asyncio.Redis:
        options = async_options(self.socket_timeout, self._options)
        pool = AsyncPool(self.finder, tls=self.uses_tls, **options)
        self._async_pools.add(pool)
        return redis.asyncio.Redis.from_pool(pool)

    def find(self) -> None:
        self.finder.find()
        self._primary = self._primary or self.finder.primary

    def _confirm(self) -> None:
        """A majority of all Sentinels names the server, and so does one that knows of the last
        failover; none is under way, and whichever replica is chosen next has all that it has. The
        last is for a planned failover: for a second or two most Sentinels name the old primary
        while the new one no longer replicates."""
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
        with self.client() as client:
            client.role()  # so that WAIT means all until now
            wanted = max(view.promotable for view in views)
            there = client.wait(wanted, int(REPLICATED_WITHIN * 1000)) if wanted else 0
        if there < wanted:
            raise ServerBusy(
                f"{wanted - there} of its {wanted} replicas may be without the last writes, and "
                "may be made the primary"
            )

    async def _drop(self) -> None:
        if self._primary not in {None, self.finder.primary}:
            logger.warning(
                "The primary is %s:%d now, by its Sentinels", *(self.finder.primary or ())
            )
        self._primary = self.finder.primary
        for pool in list(self._async_pools):
            await pool.leave_former()

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            before = self.finder.vouched
            try:
                views = await asyncio.to_thread(self.finder.find)
                await self._drop()
            except Exception:  # nothing may end it
                logger.exception("An unexpected error while Sentinels are followed")
            else:
                self._tell_unvouched(views, is_vouched=self.finder.vouched > before)

    def _tell_unvouched(self, views: list[View], *, is_vouched: bool) -> None:
        """Warn if no majority names the primary: then what was sent there is kept for ever, and why
        would be said at the end alone."""
        primary = self.finder.primary or ()
        if is_vouched:
            if self._unvouched >= MOST_UNVOUCHED:
                logger.warning("Most Sentinels name %s:%s as the primary again", *primary)
            self._unvouched = 0
            return
        self._unvouched += 1
        if self._unvouched == MOST_UNVOUCHED:
            logger.warning(
                "Only %d of %d Sentinels name %s:%s as the primary, and more than half have to. "
                "Until they do a failover may not be noticed, this worker does not end as "
                "finished, and start() waits once too much might have to be sent again. If some "
                "are no more, say SENTINEL RESET %s to those that still count them, one after the "
                "other, and restart workers without them in REDISQ_URL",
                sum(view.primary == self.finder.primary for view in views),
                self.finder.voters,
                *primary,
                self._address.service,
            )

    def primary_vouched(self) -> float:
        return self.finder.vouched
