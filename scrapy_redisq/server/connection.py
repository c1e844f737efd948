"""One server: clients for it, waiting until it answers, and the check before it is used.

The clients send each command once. redis-py's default sends a command again when its answer was
lost, up to ten times; that is right only for what may happen twice. Exchanges survive it by their
sequence number and are repeated by the worker itself, nothing else is repeated at all.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.errors import ServerUnreachable
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.requirements import ServerFacts, ask, assess
from scrapy_redisq.server.url import check_url, checks_host_name, embedded_folder, redact

__all__ = ["Server", "open_server"]

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
"""Seconds between the first two attempts to reach a server; doubled each time."""
LONGEST_PAUSE = 2.0
LOADING_PAUSE = 0.25
"""Seconds between attempts while a server loads its data."""
BETWEEN_WORDS = 10.0
"""Seconds between lines that say how far it is."""
SHORTEST_ATTEMPT = 1.0
"""Seconds that one attempt may take even at the end of REDISQ_CONNECT_TIMEOUT."""

# First words of errors that pass by themselves: a long script, a full disk, a failover. All others
# (wrong database, not allowed) are for a person.
PASSING_ERRORS = {"BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "READONLY", "TRYAGAIN"}


def open_server(
    url: str,
    *,
    project_dir: Path | None = None,
    binary: str = "",
    connect_timeout: float = 30.0,
    socket_timeout: float = 5.0,
) -> Server:
    """The server at ``url``; an embedded one is joined, and started if need be.

    ``binary`` is REDISQ_SERVER. ``connect_timeout`` is REDISQ_CONNECT_TIMEOUT, how many seconds
    `Server.wait` tries; ``socket_timeout`` is REDISQ_SOCKET_TIMEOUT, how many seconds a connection
    or an answer may take. Sends nothing yet, except to start an embedded server. Raises
    `SettingError` for a URL that cannot be used, `EmbeddedServerError` as
    `EmbeddedServer.acquire` does.
    """
    folder = embedded_folder(url, project_dir)
    if folder is None:
        return Server(url, connect_timeout=connect_timeout, socket_timeout=socket_timeout)
    embedded = EmbeddedServer.acquire(folder, binary)
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
    """One Redis server: makes clients, waits for it, checks it. Close it when done.

    ``address`` is the URL without password. ``embedded`` is this process's share in the embedded
    server, if it is one. Clients are the caller's to close, before the server.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float,
        socket_timeout: float,
        embedded: EmbeddedServer | None = None,
    ) -> None:
        parts, query = check_url(url)
        self._url = url
        self._options: dict[str, Any] = {}
        if parts.scheme != "unix":
            self._options["socket_keepalive"] = True
        if parts.scheme == "rediss":
            verified = query.get("ssl_cert_reqs") != "none"
            # Before redis-py 6 a certificate of any other host would do.
            self._options["ssl_check_hostname"] = verified
            if not verified:
                logger.warning("REDISQ_URL: ssl_cert_reqs=none, the server is not verified")
            elif checks_host_name(query) is False:
                logger.warning(
                    "REDISQ_URL: ssl_check_hostname=false, whoever has any certificate of a known "
                    "authority is taken for the server"
                )
        passwords = {parts.password or "", query.get("password", "")}
        self._secrets = {form for word in passwords for form in (word, unquote(word)) if form}
        self.connect_timeout = connect_timeout
        self.socket_timeout = socket_timeout
        self.embedded = embedded
        self.address = f"embedded://{embedded.folder}" if embedded else redact(url)

    def __repr__(self) -> str:
        return f"Server({self.address!r})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the embedded server; nothing to do for others. May be called twice."""
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

    def client(self) -> redis.Redis:
        """A new blocking client: answers are bytes, RESP2, nothing is ever sent twice."""
        return self._client(self.socket_timeout)

    def async_client(self) -> redis.asyncio.Redis:
        """A new asyncio client, with the same promises as `client`."""
        return self._async_client(self.socket_timeout)

    def _client(self, timeout: float) -> redis.Redis:
        return redis.Redis.from_url(
            self._url, **self._client_options(timeout), retry=Retry(NoBackoff(), 0)
        )

    def _async_client(self, timeout: float) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(
            self._url, **self._client_options(timeout), retry=AsyncRetry(NoBackoff(), 0)
        )

    def _client_options(self, timeout: float) -> dict[str, Any]:
        return {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "health_check_interval": 0,
            "decode_responses": False,
            "protocol": 2,
            **self._options,
        }

    def revive(self) -> None:
        """Start the embedded server again if it died; nothing for others.

        Blocks for some milliseconds, so call it from a thread. Raises `EmbeddedServerError`.
        """
        if self.embedded is not None:
            self.embedded.ensure_running()

    def wait(self, *, to_write: bool = True) -> None:
        """Return when the server answers; try with growing pauses for ``connect_timeout`` seconds.

        A server that is loading its data is waited for, however long that takes, and says now and
        then how far it is. Raises `ServerUnreachable` at the end of the time, and at once if
        waiting cannot help: a wrong password, no permission, a certificate that cannot be verified.
        Where ``to_write`` is false, one whose disk is full will do (MISCONF): it can be read.
        """
        waiting = _Waiting(self)
        while True:
            try:
                with self._client(waiting.attempt_timeout) as client:
                    client.ping()
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
        waiting = _Waiting(self)
        while True:
            try:
                async with self._async_client(waiting.attempt_timeout) as client:
                    await client.ping()
                return
            except redis.BusyLoadingError:
                pause = await asyncio.to_thread(waiting.pause_while_loading)
            except (redis.RedisError, OSError, ValueError) as error:
                pause = waiting.pause_after(error)
            await asyncio.to_thread(self.revive)
            await asyncio.sleep(pause)

    def loading(self) -> str:
        """How far a server is that loads its data: "43 %, about 20 s left"; "" if it does not say.
        Blocks for at most some seconds."""
        try:
            with self._client(self.socket_timeout) as client:
                told: dict[str, Any] = client.info("persistence")
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

    def _facts(self) -> ServerFacts:
        try:
            with self.client() as client:
                return ask(client)
        except (redis.RedisError, OSError) as error:
            raise ServerUnreachable(
                f"the Redis server at {self.address} (REDISQ_URL) went away: {self.redact(error)}"
            ) from None

    def _report(self, facts: ServerFacts) -> list[str]:
        warnings = assess(facts, self.address)
        for warning in warnings:
            logger.warning("%s", warning)
        return warnings


class _Waiting:
    """How long to wait, and what to say; shared by the blocking and the asyncio wait."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._deadline = time.monotonic() + server.connect_timeout
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
        self._deadline = now + self._server.connect_timeout
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
        if _is_final(error):
            raise ServerUnreachable(
                f"the Redis server at {server.address} refuses this connection: {shown}. Check "
                "user, password and database in REDISQ_URL"
            ) from None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ServerUnreachable(
                f"no Redis server could be used at {server.address} (REDISQ_URL) within "
                f"{server.connect_timeout:g} s (REDISQ_CONNECT_TIMEOUT): {shown}"
            ) from None
        if not self._warned:
            self._warned = True
            logger.warning(
                "No Redis server can be used at %s (REDISQ_URL) yet: %s. Trying for %g s",
                server.address,
                shown,
                server.connect_timeout,
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
    if isinstance(error, redis.ResponseError):
        return str(error).partition(" ")[0] not in PASSING_ERRORS
    # An answer that is not Redis at all; a host name that cannot be one.
    unusable = (redis.InvalidResponse, redis.DataError, ValueError)
    return isinstance(error, unusable) or _comes_from(error, UnicodeError)
