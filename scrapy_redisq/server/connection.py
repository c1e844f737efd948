"""One server: clients for it, waiting until it answers, and the check before it is used.

The clients send each command once. redis-py's default sends a command again when its answer was
lost, up to ten times; that is right only for what may happen twice. Exchanges survive it by their
sequence number and are repeated by the worker itself, nothing else is repeated at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from scrapy_redisq.errors import ServerBusy, ServerUnreachable
from scrapy_redisq.server import requirements
from scrapy_redisq.server.access import Access, AsyncClient, Client
from scrapy_redisq.server.address import Address, ClusterNodes, SentinelService, parse
from scrapy_redisq.server.cluster import Cluster, ClusterAccess, nodes_of
from scrapy_redisq.server.condition import Told
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.sentinel.access import SentinelAccess
from scrapy_redisq.server.url import embedded_folder, redact
from scrapy_redisq.server.waiting import pauses

__all__ = ["AsyncClient", "Client", "Server", "open_server"]

logger = logging.getLogger(__name__)

READ_PATIENCE = 4.0
"""Seconds for which who only reads waits for a server, at most: a person looks on."""
SOCKET_TIMEOUT = 5.0
"""Seconds that a connection or an answer may take where the URL does not say ``socket_timeout``:
longer than a script or a fork takes on a busy server, and half of a short lease."""


def open_server(
    url: str,
    *,
    project_dir: Path | None = None,
    connect_timeout: float = 30.0,
    socket_timeout: float = SOCKET_TIMEOUT,
) -> Server:
    """The server at ``url``; an embedded one is joined, and started if need be.

    ``connect_timeout`` (REDISQ_CONNECT_TIMEOUT) is how many seconds `Server.wait` tries,
    ``socket_timeout`` how many a connection or an answer may take where the URL does not say it.
    Sends nothing yet, except to start an embedded server. Raises `SettingError` for a URL that
    cannot be used, `EmbeddedServerError` as `EmbeddedServer.acquire` does.
    """
    folder = embedded_folder(url, project_dir)
    embedded = None if folder is None else EmbeddedServer.acquire(folder)
    return Server(
        url if embedded is None else embedded.url,
        connect_timeout=connect_timeout,
        socket_timeout=socket_timeout,
        embedded=embedded,
    )


class Server:
    """What REDISQ_URL names: makes clients, waits for it, checks it. Close it when done.

    ``address`` is the URL without password. ``masters`` is how many a cluster had when this last
    waited for it or checked it; 0 for one server. ``by_sentinels``: they say which server it is.
    ``embedded`` is this process's share in the embedded server, if it is one. Clients are the
    caller's to close, before the server.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float,
        socket_timeout: float,
        embedded: EmbeddedServer | None = None,
    ) -> None:
        address = parse(url)
        self._secrets = address.passwords
        self.uses_tls = address.tls
        self.is_cluster = isinstance(address, ClusterNodes)
        self.masters = 0
        self.keeps_log = True
        """No server is known to have no append-only file; asked by `check`."""
        self._told: Told | None = None
        """By a server that was waited for, just now."""
        self.by_sentinels = isinstance(address, SentinelService)
        self.socket_timeout = float(address.options.get("socket_timeout", socket_timeout))
        self._access = _access(address, self.socket_timeout)
        self.connect_timeout = connect_timeout
        self.embedded = embedded
        self.address = f"embedded://{embedded.folder}" if embedded else redact(url)

    def __repr__(self) -> str:
        return f"Server({self.address!r})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the embedded server. May be called twice."""
        self._access.close()
        if self.embedded is not None:
            self.embedded.close()

    def redact(self, text: object) -> str:
        """``str(text)`` without passwords, this server's own in plain text included.

        Old servers quote a whole unknown command, and with it the password in ``HELLO … AUTH``.
        """
        shown = redact(str(text))
        for secret in sorted(self._secrets, key=len, reverse=True):
            shown = shown.replace(secret, "***")
        return shown

    def client(self) -> Client:
        """A new blocking client: answers are bytes, RESP2, nothing is ever sent twice."""
        return self._access.client(self.socket_timeout)

    def async_client(self) -> AsyncClient:
        """A new asyncio client, with the same promises as `client`. Where the address may lead to
        another server in time, `follow` has to run beside it."""
        return self._access.async_client(self.socket_timeout)

    async def follow(self) -> None:
        """Until cancelled: see to it that asyncio clients leave a server that is the primary no
        longer. Ends at once where there is nobody who would tell."""
        await self._access.follow()

    async def confirm_primary(self) -> None:
        """Return if the server that clients reach is, now, the one that has the last word.

        Else, and where that is not certain, raises `ServerBusy` or redis-py's errors: then it is
        to be asked again. What was read before may be of another server: read it once more.
        """
        try:
            await asyncio.to_thread(self._access.confirm, self.socket_timeout)
        except ServerBusy as error:
            raise ServerBusy(
                f"{self.address} (REDISQ_URL) cannot be relied upon now: {error}"
            ) from None
        finally:
            await self._access.drop()

    def primary_vouched(self) -> float:
        """When the server that clients reach was certainly the primary, by time.monotonic(); what
        it acknowledged since may be lost. -inf: never."""
        return self._access.vouched()

    def revive(self) -> None:
        """Start the embedded server again if it died, which blocks for some milliseconds; nothing
        for other servers. Raises `EmbeddedServerError`."""
        if self.embedded is not None:
            self.embedded.ensure_running()

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
        self._access.find()
        with self._access.client(timeout) as client:
            if isinstance(client, Cluster):
                client.ping()
                self.masters = len(client.hash_slots.map.masters)
                return
            self._told = Told(client)
            if self._told.trouble:
                raise self._told.trouble
            requirements.check_kind(self._told.info, self.address)

    def loading(self) -> str:
        """How far a server is that loads its data: "43 %, about 20 s left"; "" if it does not say.
        Blocks for at most some seconds."""
        told: dict[str, Any] = {}
        try:
            with self.client() as client:
                for node in nodes_of(client):
                    told = node.info("persistence")
                    if told.get("loading"):
                        break
            done, left = float(told["loading_loaded_perc"]), int(told["loading_eta_seconds"])
        except (redis.RedisError, OSError, KeyError, ValueError):
            return ""
        return f"{done:.0f} %, about {left} s left"

    def check(self) -> list[str]:
        """Refuse a server that would lose requests; log and return what else is to be said of it.

        Blocks for some round trips. Raises `ServerUnsuitable` as `requirements.check` does, and
        `ServerUnreachable` if it went away.
        """
        found: dict[str, list[str]] = {}
        try:
            with self.client() as client:
                if isinstance(client, Cluster):
                    self._check_masters(client, found)
                else:
                    told, self._told = self._told or Told(client), None
                    self.keeps_log = requirements.keeps_log(told) is not False
                    for what in self._look(told, self.address):
                        found[what] = []
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

    def _look(self, told: Told, address: str) -> list[str]:
        """What is wrong with one server; raises `ServerUnsuitable`."""
        terms = {"in_cluster": self.is_cluster, "failovers": self.by_sentinels}
        requirements.check(told, address, **terms)
        found = list(requirements.weaknesses(told, **terms))
        if not requirements.renew_log(told.client, told.info):
            found.append(requirements.NO_NEW_LOG)
        return list(map(str, found))

    def _check_masters(self, client: Cluster, found: dict[str, list[str]]) -> None:
        """Add what is wrong with masters: with which of them."""
        masters = client.masters()
        self.masters, self.keeps_log = len(masters), True
        for place, master in zip(client.hash_slots.map.masters, masters, strict=True):
            name = "{}:{}".format(*place)
            try:
                told = Told(master)
                if told.trouble:
                    raise told.trouble
                for what in self._look(told, f"{self.address} (master {name})"):
                    found.setdefault(what, []).append(name)
                self.keeps_log = self.keeps_log and requirements.keeps_log(told) is not False
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                # Not all of the cluster's slots need be this frontier's.
                logger.warning(
                    "Master %s of %s does not answer: %s", name, self.address, self.redact(error)
                )

    def renew_log(self) -> None:
        """To be called when a server that was away answers again, for it may have been started
        anew: see `requirements.renew_log`. Blocks for some milliseconds; never raises.
        """
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            for node in nodes_of(client):
                with contextlib.suppress(redis.RedisError, OSError):
                    requirements.renew_log(node)


def _access(address: Address, timeout: float) -> Access:
    """How clients reach ``address``; warns of what its URL leaves unverified."""
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
    if isinstance(address, ClusterNodes):
        return ClusterAccess(address, options)
    if isinstance(address, SentinelService):
        return SentinelAccess(address, options, timeout)
    return Access(address, options)
