"""One server: clients for it, waiting until it answers, and the check before it is used.

Its subclasses, for a cluster and for a primary that Sentinels know, are in ``cluster/`` and
``sentinel/``; which of them an address means says `scrapy_redisq.server.connection.open_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import redis
import redis.asyncio

from scrapy_redisq.errors import ServerBusy, ServerUnreachable
from scrapy_redisq.server import requirements
from scrapy_redisq.server.access import AsyncClient, Client, async_options, blocking_options
from scrapy_redisq.server.address import Address
from scrapy_redisq.server.condition import Told
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.url import redact
from scrapy_redisq.server.waiting import pauses

logger = logging.getLogger(__name__)

READ_PATIENCE = 4.0
"""Seconds for which who only reads waits for a server, at most: a person looks on."""


class Server:
    """The server of REDISQ_URL: makes clients, waits for the server, checks it. Close it when done,
    after its clients.

    ``address`` is the URL without password. ``masters``: how many a cluster had when it was waited
    for or checked; 0 for one server. ``keeps_log``: no server is known to have no append-only file.
    ``embedded`` is this process's share in the embedded server, if it is one.
    """

    is_cluster = by_sentinels = False

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float,
        socket_timeout: float,
        embedded: EmbeddedServer | None = None,
    ) -> None:
        self._address = address
        self._options = _options(address)
        self._pools: WeakSet[redis.asyncio.ConnectionPool] = WeakSet()
        self.uses_tls = address.tls
        self.masters, self.keeps_log = 0, True
        self._told: Told | None = None
        """By a server that was waited for, just now."""
        self.socket_timeout = float(address.options.get("socket_timeout", socket_timeout))
        self.connect_timeout = connect_timeout
        self.embedded = embedded
        self.address = f"embedded://{embedded.folder}" if embedded else redact(address.url)

    def __repr__(self) -> str:
        return f"Server({self.address!r})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the embedded server. May be called twice."""
        if self.embedded is not None:
            self.embedded.close()

    def redact(self, text: object) -> str:
        """``str(text)`` without passwords, this server's own in plain text included.

        Old servers quote a whole unknown command, and with it the password in ``HELLO … AUTH``.
        """
        shown = redact(str(text))
        for secret in sorted(self._address.passwords, key=len, reverse=True):
            shown = shown.replace(secret, "***")
        return shown

    def revive(self) -> None:
        """Start the embedded server again if it died, which blocks for some milliseconds; nothing
        for other servers. Raises `EmbeddedServerError`."""
        if self.embedded is not None:
            self.embedded.ensure_running()

    # Clients

    def client(self, timeout: float | None = None) -> Client:
        """A new blocking client: answers are bytes, RESP2, nothing is ever sent twice. Connections
        and answers may take ``timeout`` seconds, or what the URL says."""
        options = blocking_options(timeout or self.socket_timeout, self._options)
        return redis.Redis.from_url(self._address.url, **options)

    def async_client(self) -> AsyncClient:
        """A new asyncio client, with the same promises. Where the address may lead to another
        server in time, `follow` has to run beside it."""
        options = async_options(self.socket_timeout, self._options)
        client = redis.asyncio.Redis.from_url(self._address.url, **options)
        self._pools.add(client.connection_pool)
        return client

    def _nodes(self, client: Any) -> Sequence[redis.Redis]:
        """The servers behind a blocking client that have the keys between them."""
        return [client]

    # Which server it is

    def find(self) -> None:
        """Look which server it is; raises `redis.ConnectionError` if that cannot be told, with
        ``final`` if it never will."""

    async def follow(self) -> None:
        """Until cancelled: see to it that asyncio clients leave a server that is the primary no
        longer. Ends at once where there is nobody who would tell."""

    async def confirm_primary(self) -> None:
        """Return if the server that clients reach is, now, the one that has the last word. Else
        raises `ServerBusy` or redis-py's errors: ask again. What was read before may be of another
        server."""
        try:
            await asyncio.to_thread(self._confirm)
        except ServerBusy as error:
            raise ServerBusy(
                f"{self.address} (REDISQ_URL) cannot be relied upon now: {error}"
            ) from None
        finally:
            await self._drop()

    def _confirm(self) -> None:
        with self.client() as client:
            try:
                role = client.execute_command("ROLE")
            except redis.ResponseError:  # denied: then it is taken for what it should be
                return
        if role[0] in {b"slave", "slave"}:
            raise ServerBusy("the server at this address is a replica now")

    async def _drop(self) -> None:
        """Close the connections of asyncio clients that may lead to another server by now."""
        for pool in list(self._pools):
            # The listener's is in use, and of no weight.
            await pool.disconnect(inuse_connections=False)

    def primary_vouched(self) -> float:
        """When the server that clients reach was certainly the primary, by time.monotonic(); what
        it acknowledged since may be lost. -inf: never."""
        return time.monotonic()

    # Waiting and checking

    def wait(self, *, to_write: bool = True) -> None:
        """Return when the server answers; try with growing pauses for ``connect_timeout`` seconds,
        or where it is not ``to_write`` for `READ_PATIENCE` at most. See `pauses`, also for what it
        raises."""
        longest = self.connect_timeout if to_write else min(self.connect_timeout, READ_PATIENCE)
        for pause in pauses(self, longest, to_write=to_write):
            time.sleep(pause)

    async def wait_async(self) -> None:
        """`wait`, without blocking the loop."""
        waiting = pauses(self, self.connect_timeout, to_write=True)
        while (pause := await asyncio.to_thread(next, waiting, None)) is not None:
            await asyncio.sleep(pause)

    def ping(self, timeout: float) -> None:
        """Return if it answers, as the kind of server that it should be; raises what redis-py does,
        and `ServerUnsuitable`."""
        self.find()
        with self.client(timeout) as client:
            self._told = told_by(self._nodes(client)[0])
            requirements.check_kind(self._told.info, self.address)

    def loading(self) -> str:
        """How far a server is that loads its data: "43 %, about 20 s left"; "" if it does not say.
        Blocks for at most some seconds."""
        told: dict[str, Any] = {}
        try:
            with self.client() as client:
                for node in self._nodes(client):
                    told = node.info("persistence")
                    if told.get("loading"):
                        break
            done, left = float(told["loading_loaded_perc"]), int(told["loading_eta_seconds"])
        except (redis.RedisError, OSError, KeyError, ValueError):
            return ""
        return f"{done:.0f} %, about {left} s left"

    def check(self) -> list[str]:
        """Refuse a server that would lose requests; log and return what else is to be said of it.
        Blocks. Raises `ServerUnsuitable`, and `ServerUnreachable` if it went away."""
        try:
            with self.client() as client:
                found = self._check(client)
        except (redis.RedisError, OSError) as error:
            raise ServerUnreachable(
                f"the Redis server at {self.address} (REDISQ_URL) went away: {self.redact(error)}"
            ) from None
        warnings = []
        for what, masters in found.items():
            which = f" (master {', '.join(masters)})" if 0 < len(masters) < self.masters else ""
            warnings.append(f"{self.address}{which}: {what}")
            logger.warning("%s", warnings[-1])
        return warnings

    async def check_async(self) -> list[str]:
        """`check`, without blocking the loop."""
        return await asyncio.to_thread(self.check)

    def _check(self, client: Any) -> dict[str, list[str]]:
        """Problems; of a cluster: with which masters. Raises `ServerUnsuitable`."""
        told, self._told = self._told or told_by(client), None
        told.client = client  # that of `ping` is closed, and had less patience
        self.keeps_log = requirements.keeps_log(told) is not False
        return {what: [] for what in self._look(told, self.address)}

    def _look(self, told: Told, address: str) -> list[str]:
        """Problems of one server; raises `ServerUnsuitable`."""
        terms = {"in_cluster": self.is_cluster, "failovers": self.by_sentinels}
        requirements.check(told, address, **terms)
        found = list(requirements.weaknesses(told, **terms))
        if not requirements.renew_log(told.client, told.info):
            found.append(requirements.NO_NEW_LOG)
        return list(map(str, found))

    def renew_log(self) -> None:
        """To be called when a server that was away answers again, for it may have been started
        anew: see `requirements.renew_log`. Blocks for some milliseconds; never raises.
        """
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            for node in self._nodes(client):
                with contextlib.suppress(redis.RedisError, OSError):
                    requirements.renew_log(node)


def told_by(client: redis.Redis) -> Told:
    """The server's answers; raises the error that comes instead of PONG."""
    told = Told(client)
    if told.trouble:
        raise told.trouble
    return told


def _options(address: Address) -> dict[str, Any]:
    """Of connections to ``address``; warns of what its URL leaves unverified."""
    options: dict[str, Any] = {}
    if not address.url.startswith("unix:"):
        options["socket_keepalive"] = True
    if address.tls:
        verified = address.options.get("ssl_cert_reqs") != "none"
        options["ssl_check_hostname"] = verified
        if not verified:
            logger.warning("REDISQ_URL: ssl_cert_reqs=none, the server is not verified")
        elif address.checks_host_name is False:
            logger.warning(
                "REDISQ_URL: ssl_check_hostname=false, whoever has any certificate of a known "
                "authority is taken for the server"
            )
    return options
