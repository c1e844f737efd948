"""One server: clients for it, waiting until it answers, and the check before it is used.

The clients send each command once. redis-py's default sends a command again when its answer was
lost, up to ten times; that is right only for what may happen twice. Exchanges survive it by their
sequence number and are repeated by the worker itself, nothing else is repeated at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError, OutOfMemoryError

from scrapy_redisq.errors import ServerBusy, ServerUnreachable, ServerUnsuitable
from scrapy_redisq.server.address import Address, ClusterNodes, SentinelService, parse
from scrapy_redisq.server.cluster import AsyncCluster, Cluster, ClusterRoute, nodes_of
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.requirements import ServerFacts, ask, assess, renew_log
from scrapy_redisq.server.route import AsyncClient, Client, OneServerRoute, Route
from scrapy_redisq.server.sentinel.finder import PrimaryUnknown
from scrapy_redisq.server.sentinel.route import SentinelRoute
from scrapy_redisq.server.url import checks_host_name, embedded_folder, redact

__all__ = ["AsyncClient", "Client", "Server", "open_server"]

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
"""Seconds between the first two attempts to reach a server; doubled each time."""
LONGEST_PAUSE = 2.0
LOADING_PAUSE = 0.25
"""Seconds between attempts while a server loads its data."""
BETWEEN_WORDS = 10.0
"""Seconds between lines that say how far it is."""
READ_PATIENCE = 4.0
"""Seconds for which who only reads waits for a server, at most: a person looks on."""
SOCKET_TIMEOUT = 5.0
"""Seconds that a connection or an answer may take where the URL does not say ``socket_timeout``:
longer than a script or a fork takes on a busy server, and half of a short lease."""
SHORTEST_ATTEMPT = 1.0
"""Seconds that one attempt may take even at the end of REDISQ_CONNECT_TIMEOUT."""

# First words of errors that pass by themselves: a long script, a full disk, a failover. So does a
# full memory, of which redis-py leaves out the word. All others (wrong database, not allowed) are
# for a person.
PASSING_ERRORS = {"BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "READONLY", "TRYAGAIN"}


def open_server(
    url: str,
    *,
    project_dir: Path | None = None,
    connect_timeout: float = 30.0,
    socket_timeout: float = SOCKET_TIMEOUT,
) -> Server:
    """The server at ``url``; an embedded one is joined, and started if need be.

    ``connect_timeout`` is REDISQ_CONNECT_TIMEOUT, how many seconds
    `Server.wait` tries; ``socket_timeout`` is how many seconds a connection or an answer may
    take where the URL does not say it. Sends nothing yet, except to start an embedded server.
    Raises `SettingError` for a URL that cannot be used, `EmbeddedServerError` as
    `EmbeddedServer.acquire` does.
    """
    folder = embedded_folder(url, project_dir)
    if folder is None:
        return Server(url, connect_timeout=connect_timeout, socket_timeout=socket_timeout)
    embedded = EmbeddedServer.acquire(folder)
    try:
        return Server(
            embedded.url,
            connect_timeout=connect_timeout,
            socket_timeout=socket_timeout,
            embedded=embedded,
        )
    except BaseException:
        embedded.close()
        raise


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
        self._tls = address.tls
        self._cluster = isinstance(address, ClusterNodes)
        self.masters = 0
        self.keeps_log = True
        """No server is known to have no append-only file; asked by `check`."""
        self.by_sentinels = isinstance(address, SentinelService)
        self.socket_timeout = float(address.options.get("socket_timeout", socket_timeout))
        self._route = _route(address, self.socket_timeout)
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
        self._route.close()
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
        return self._route.client(self.socket_timeout)

    def async_client(self) -> AsyncClient:
        """A new asyncio client, with the same promises as `client`. Where the address may lead to
        another server in time, `follow` has to run beside it."""
        return self._route.async_client(self.socket_timeout)

    async def follow(self) -> None:
        """Until cancelled: see to it that asyncio clients leave a server that is the primary no
        longer. Ends at once where there is nobody who would tell."""
        await self._route.follow()

    async def confirm_primary(self) -> None:
        """Return if the server that clients reach is, now, the one that has the last word.

        Else, and where that is not certain, raises `ServerBusy` or redis-py's errors: then it is
        to be asked again. What was read before may be of another server: read it once more.
        """
        try:
            await asyncio.to_thread(self._route.confirm, self.socket_timeout)
        except ServerBusy as error:
            raise ServerBusy(
                f"{self.address} (REDISQ_URL) cannot be relied upon now: {error}"
            ) from None
        finally:
            await self._route.drop()

    def primary_vouched(self) -> float:
        """When the server that clients reach was certainly the primary, by time.monotonic(); what
        it acknowledged since may be lost. -inf: never."""
        return self._route.vouched()

    def revive(self) -> None:
        """Start the embedded server again if it died; nothing for other servers.

        Blocks for some milliseconds, so call it from a thread. Raises `EmbeddedServerError`.
        """
        if self.embedded is not None:
            self.embedded.ensure_running()

    def wait(self, *, to_write: bool = True) -> None:
        """Return when the server answers; try with growing pauses for ``connect_timeout`` seconds.

        A server that is loading its data is waited for, however long that takes, and says now and
        then how far it is. Raises `ServerUnreachable` at the end of the time, and at once if
        waiting cannot help: a wrong password, no permission, a certificate that cannot be verified.
        Where ``to_write`` is false, one whose disk is full will do (MISCONF): it can be read; and
        it is waited for no longer than `READ_PATIENCE`.
        """
        longest = self.connect_timeout if to_write else min(self.connect_timeout, READ_PATIENCE)
        waiting = _Waiting(self, longest)
        while True:
            try:
                self._try(waiting.attempt_timeout)
                return
            except redis.BusyLoadingError:
                pause = waiting.pause_while_loading()
            except (redis.RedisError, OSError, ValueError) as error:
                if not to_write and str(error).startswith("MISCONF "):
                    return
                pause = waiting.pause_after(error)
            self.revive()
            time.sleep(pause)

    async def wait_async(self) -> None:
        """`wait`, without blocking the loop."""
        waiting = _Waiting(self, self.connect_timeout)
        while True:
            try:
                await self._try_async(waiting.attempt_timeout)
                return
            except redis.BusyLoadingError:
                pause = await asyncio.to_thread(waiting.pause_while_loading)
            except (redis.RedisError, OSError, ValueError) as error:
                pause = waiting.pause_after(error)
            await asyncio.to_thread(self.revive)
            await asyncio.sleep(pause)

    def _try(self, timeout: float) -> None:
        """Return if it answers, as the kind of server that it should be."""
        self._route.find()
        with self._route.client(timeout) as client:
            client.ping()
            if isinstance(client, Cluster):
                self.masters = len(client.router.map.masters)
                return
            with contextlib.suppress(redis.ResponseError):  # INFO is denied
                self._check_kind(client.info())

    async def _try_async(self, timeout: float) -> None:
        await asyncio.to_thread(self._route.find)
        async with self._route.async_client(timeout) as client:
            await client.ping()
            if isinstance(client, AsyncCluster):
                self.masters = len(client.router.map.masters)
                return
            with contextlib.suppress(redis.ResponseError):
                self._check_kind(await client.info())

    def _check_kind(self, told: dict[str, Any]) -> None:
        if "sentinel" in {told.get("redis_mode"), told.get("server_mode")}:  # Valkey's
            names = [told[key]["name"] for key in told if re.fullmatch(r"master\d+", key)]
            raise ServerUnsuitable(
                f"{self.address} (REDISQ_URL) is a Sentinel, and keeps no data: write "
                f"redis+sentinel://HOST:PORT,HOST:PORT/{[*names, 'SERVICE'][0]}"
            )
        if told.get("cluster_enabled") == 1:
            scheme, *_ = self.address.partition("://")
            raise ServerUnsuitable(
                f"{self.address} (REDISQ_URL) is a node of a cluster: write "
                f"{scheme.replace('unix', 'redis')}+cluster://, and after it the hosts and ports "
                f"of one or more of its nodes, with commas between them"
            )

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

        Raises `ServerUnsuitable` as `assess` does, and `ServerUnreachable` if it went away.
        """
        return self._report(self._facts())

    async def check_async(self) -> list[str]:
        """`check`, without blocking the loop."""
        return self._report(await asyncio.to_thread(self._facts))

    def _facts(self) -> dict[ServerFacts, list[str]]:
        """What the server says, or each of the masters; -> who says so."""
        found: dict[ServerFacts, list[str]] = {}
        try:
            with self.client() as client:
                if not isinstance(client, Cluster):
                    return {ask(client, failovers=self.by_sentinels): []}
                masters = client.masters()
                self.masters = len(masters)
                for (host, port), master in zip(client.router.map.masters, masters, strict=True):
                    try:
                        found.setdefault(ask(master), []).append(f"{host}:{port}")
                    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                        # Not all of the cluster's slots need be this frontier's.
                        logger.warning(
                            "Master %s:%d of %s does not answer: %s",
                            host,
                            port,
                            self.address,
                            self.redact(error),
                        )
        except (redis.RedisError, OSError) as error:
            raise ServerUnreachable(
                f"the Redis server at {self.address} (REDISQ_URL) went away: {self.redact(error)}"
            ) from None
        return found

    def _report(self, found: dict[ServerFacts, list[str]]) -> list[str]:
        self.keeps_log = all(facts.append_only is not False for facts in found)
        warnings: list[str] = []
        for facts, masters in found.items():
            which = f" (master {', '.join(masters)})" if len(found) > 1 else ""
            warnings += assess(facts, self.address + which, cluster=bool(masters))
        for warning in warnings:
            logger.warning("%s", warning)
        return warnings

    def doubt(self, error: Exception) -> str:
        """What may be wrong with the URL where a server takes a connection and says nothing: it
        waits for the rest of what it takes for TLS, or for plain text, or it hangs up."""
        if self._tls and (
            isinstance(error, redis.TimeoutError) or _comes_from(error, ssl.SSLError)
        ):
            return ". Does this port speak TLS? If not, let REDISQ_URL begin with redis, not rediss"
        hung_up = re.search("reset by peer|closed by server", str(error))
        if not self._tls and hung_up and not self.embedded:
            return ". Does this port speak TLS? Then let REDISQ_URL begin with rediss, not redis"
        return ""

    def renew_log(self) -> None:
        """To be called when a server that was away answers again, for it may have been started
        anew: see `requirements.renew_log`. Blocks for some milliseconds; never raises.
        """
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            for node in nodes_of(client):
                with contextlib.suppress(redis.RedisError, OSError):
                    renew_log(node)

    def remedy(self, error: Exception) -> str:
        """What to do about an error that waiting does not mend."""
        text = str(error).lower()
        if self._cluster and re.search("cluster support disabled|unknown command", text):
            return "It is no node of a cluster: write redis:// or rediss:// in REDISQ_URL"
        if isinstance(error, NoPermissionError) and "cluster" in text:
            return (
                "Let this user ask for the map of the cluster: ACL SETUSER … +cluster|info "
                "+cluster|slots, on each node"
            )
        return "Check user, password and database in REDISQ_URL"


def _route(address: Address, timeout: float) -> Route:
    """How clients reach ``address``; warns of what its URL leaves unverified."""
    options: dict[str, Any] = {}
    if not address.url.startswith("unix:"):
        options["socket_keepalive"] = True
    if address.tls:
        verified = address.options.get("ssl_cert_reqs") != "none"
        # Before redis-py 6 a certificate of any other host would do.
        options["ssl_check_hostname"] = verified
        if not verified:
            logger.warning("REDISQ_URL: ssl_cert_reqs=none, the server is not verified")
        elif checks_host_name(address.options) is False:
            logger.warning(
                "REDISQ_URL: ssl_check_hostname=false, whoever has any certificate of a known "
                "authority is taken for the server"
            )
    if isinstance(address, ClusterNodes):
        return ClusterRoute(address, options)
    if isinstance(address, SentinelService):
        return SentinelRoute(address, options, timeout)
    return OneServerRoute(address, options)


class _Waiting:
    """How long to wait, and what to say; shared by the blocking and the asyncio wait."""

    def __init__(self, server: Server, longest: float) -> None:
        self._server = server
        self._longest = longest
        self._deadline = time.monotonic() + longest
        self._pause = FIRST_PAUSE
        self._warned = False
        self._tell_at = 0.0

    @property
    def attempt_timeout(self) -> float:
        left = self._deadline - time.monotonic()
        return min(self._server.socket_timeout, max(SHORTEST_ATTEMPT, left))

    def pause_while_loading(self) -> float:
        """Seconds until the next attempt; the time to give up begins anew, for it has answered."""
        now = time.monotonic()
        self._deadline = now + self._longest
        if now >= self._tell_at:
            self._tell_at = now + BETWEEN_WORDS
            logger.warning(
                "The Redis server at %s (REDISQ_URL) is loading its data (%s): waiting for it",
                self._server.address,
                self._server.loading() or "it does not say how long that takes",
            )
        return LOADING_PAUSE

    def pause_after(self, error: Exception) -> float:
        """Seconds until the next attempt; raises `ServerUnreachable` if there shall be none.

        Without cause: the client's own error may hold the password, and its words are repeated.
        """
        server = self._server
        silent = isinstance(error, redis.TimeoutError)
        if silent and server.embedded is not None and server.embedded.is_loading():
            return self.pause_while_loading()
        shown = server.redact(error).rstrip(".")
        if _comes_from(error, ssl.SSLCertVerificationError):
            raise ServerUnreachable(
                f"the certificate of {server.address} (REDISQ_URL) cannot be verified: {shown}. "
                "Add ?ssl_ca_certs=/path/of/ca.pem to REDISQ_URL if the authority is your own"
            ) from None
        if isinstance(error, PrimaryUnknown) and error.final:
            raise ServerUnreachable(
                f"{server.address} (REDISQ_URL) cannot be used: {shown}"
            ) from None
        if _is_final(error):
            raise ServerUnreachable(
                f"the Redis server at {server.address} refuses this connection: {shown}. "
                f"{server.remedy(error)}"
            ) from None
        shown += server.doubt(error)
        left = self._deadline - time.monotonic()
        if left <= 0:
            setting = " (REDISQ_CONNECT_TIMEOUT)" * (self._longest == server.connect_timeout)
            raise ServerUnreachable(
                f"no Redis server could be used at {server.address} (REDISQ_URL) within "
                f"{self._longest:g} s{setting}: {shown}"
            ) from None
        if not self._warned:
            self._warned = True
            logger.warning(
                "No Redis server can be used at %s (REDISQ_URL) yet: %s. Trying for %g s",
                server.address,
                shown,
                self._longest,
            )
        pause, self._pause = min(self._pause, left), min(self._pause * 2, LONGEST_PAUSE)
        return pause


def _comes_from(error: BaseException | None, kind: type[Exception]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_final(error: Exception) -> bool:
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return True
    if isinstance(error, redis.ResponseError) and not isinstance(error, OutOfMemoryError):
        return str(error).partition(" ")[0] not in PASSING_ERRORS
    # An answer that is not Redis at all; a host name that cannot be one.
    unusable = (redis.InvalidResponse, redis.DataError, ValueError)
    return isinstance(error, unusable) or _comes_from(error, UnicodeError)
