"""From a URL to a server that may be used: address, clients, waiting, and what it must be.

The clients send each command once. redis-py's default sends a command again when its answer was
lost, up to ten times; that is right only for what may happen twice. Exchanges survive it by their
sequence number and are repeated by the worker itself, nothing else is repeated at all.

No password reaches a log, a repr or an error: whatever is shown goes through `redact`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.embedded import EmbeddedServer
from scrapy_redisq.errors import ServerUnreachable, ServerUnsuitable, SettingError

__all__ = [
    "Server",
    "ServerFacts",
    "assess",
    "embedded_folder",
    "open_server",
    "redact",
]

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
"""Seconds between the first two attempts to reach a server; doubled each time."""
LONGEST_PAUSE = 2.0
SHORTEST_ATTEMPT = 1.0
"""Seconds that one attempt may take even at the end of REDISQ_CONNECT_TIMEOUT."""

# What may stand behind the "?" of a URL. Everything else of redis-py's would change what the
# frontier relies on (decoding, retries, health checks) or fails at the first command.
URL_OPTIONS = {
    "client_name",
    "db",
    "password",
    "protocol",
    "socket_connect_timeout",
    "socket_timeout",
    "username",
}
TLS_OPTIONS = {
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

# First words of errors that pass by themselves: a long script, a full disk, a failover (LOADING
# is a connection error to redis-py). All others (wrong database, not allowed) are for a person.
PASSING_ERRORS = {"BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "READONLY", "TRYAGAIN"}

# Any scheme: a URL that is refused for its scheme is shown as well.
_SCHEME = r"\b[a-z][a-z0-9+.-]*://"
_QUERY_PASSWORD = re.compile(r"([?&]\w*password=)[^&\s]*", re.IGNORECASE)
_USER_PART = re.compile(rf"({_SCHEME})([^\s]*)@", re.IGNORECASE)
# In a URL alone, blanks belong to the password rather than to the text behind it.
_QUERY_PASSWORD_ALONE = re.compile(r"([?&]\w*password=)[^&]*", re.IGNORECASE)
_USER_PART_ALONE = re.compile(rf"({_SCHEME})(.*)@", re.IGNORECASE | re.DOTALL)


def redact(text_or_url: str) -> str:
    """The text with the passwords of all Redis URLs in it replaced by ``***``.

    Works on malformed URLs too, where it hides too much rather than too little: everything up to
    the last ``@`` counts as user and password. A user's name stays if a password follows it.
    """

    def hidden(match: re.Match[str]) -> str:
        user, colon, _ = match[2].partition(":")
        return f"{match[1]}{user}:***@" if colon else f"{match[1]}***@"

    alone = re.match(_SCHEME, text_or_url, re.IGNORECASE) is not None
    # The query first: a password there may hold an "@".
    text = (_QUERY_PASSWORD_ALONE if alone else _QUERY_PASSWORD).sub(r"\1***", text_or_url)
    return (_USER_PART_ALONE if alone else _USER_PART).sub(hidden, text)


def _wrong(url: str, takes: str) -> SettingError:
    return SettingError("REDISQ_URL", redact(url), takes)


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts and the query of ``url``; raises `SettingError` without showing what it holds."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # urllib checks it when it is asked for
    except ValueError:
        # The error's own words quote what it took for a port: often a piece of the password.
        raise _wrong(
            url, "a valid URL; write the characters /?#[]@:% of user and password as %2F and so on"
        ) from None
    return parts, dict(parse_qsl(parts.query, keep_blank_values=True))


def _check_url(url: str) -> tuple[SplitResult, dict[str, str]]:
    parts, query = _split(url)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise _wrong(url, "redis://, rediss://, unix:// or embedded:///path")
    allowed = URL_OPTIONS | (TLS_OPTIONS if parts.scheme == "rediss" else set())
    if unknown := sorted(query.keys() - allowed):
        raise _wrong(url, f"after '?' only {', '.join(sorted(allowed))}, not {unknown[0]!r}")
    if parts.fragment:
        raise _wrong(url, "no '#'; write it as %23 inside a password")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path:
            raise _wrong(url, "unix:///path/of/the/socket, with three slashes")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise _wrong(url, "the number of a database as its path, such as /0")
    for name, check in {"db": int, "protocol": int, "socket_timeout": float}.items():
        try:
            check(query.get(name, "2"))
        except ValueError:
            raise _wrong(url, f"a number for {name}") from None
    if query.get("ssl_cert_reqs", "required") not in {"required", "optional", "none"}:
        raise _wrong(url, "'required', 'optional' or 'none' for ssl_cert_reqs")
    for name in TLS_FILES:
        if name in query and not Path(query[name]).is_file():
            raise _wrong(url, f"for {name} the path of a file that exists")
    return parts, query


def embedded_folder(url: str, project_dir: Path | None) -> Path | None:
    """The folder that an ``embedded://`` URL names; None for all other schemes.

    Without a path it is ``.scrapy/redisq`` in ``project_dir``, or in the current folder.
    """
    if not url.startswith("embedded://"):
        return None
    parts, _ = _split(url)
    if parts.netloc or parts.query or parts.fragment:
        raise _wrong(url, "embedded:// or embedded:///absolute/path, with three slashes")
    if parts.path in {"", "/"}:
        return (project_dir or Path.cwd()) / ".scrapy" / "redisq"
    return Path(unquote(parts.path))


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
        parts, query = _check_url(url)
        self._url = url
        self._scheme = parts.scheme
        self._options: dict[str, Any] = {}
        if parts.scheme != "unix":
            self._options["socket_keepalive"] = True
        if parts.scheme == "rediss":
            verified = query.get("ssl_cert_reqs") != "none"
            # Before redis-py 6 a certificate of any other host would do.
            self._options["ssl_check_hostname"] = verified
            if not verified:
                logger.warning("REDISQ_URL: ssl_cert_reqs=none, the server is not verified")
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

    def wait(self) -> None:
        """Return when the server answers; try with growing pauses for ``connect_timeout`` seconds.

        A server that is reading its data is waited for. Raises `ServerUnreachable` at the end of
        the time, and at once if waiting cannot help: a wrong password, no permission, a
        certificate that cannot be verified.
        """
        waiting = _Waiting(self)
        while True:
            try:
                with self._client(waiting.attempt_timeout) as client:
                    client.ping()
                return
            except (redis.RedisError, OSError, ValueError) as error:
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
            except (redis.RedisError, OSError, ValueError) as error:
                pause = waiting.pause_after(error)
            await asyncio.to_thread(self.revive)
            await asyncio.sleep(pause)

    def check(self) -> list[str]:
        """Refuse a server that would lose requests; log and return what else is to be said of it.

        Raises `ServerUnsuitable` as `assess` does, and `ServerUnreachable` if it went away.
        """
        questions = _questions()
        answer: Any = None
        try:
            with self.client() as client:
                while True:
                    question = questions.send(answer)
                    try:
                        answer = client.execute_command(*question)
                    except redis.ResponseError:
                        answer = None
        except StopIteration as done:
            facts = done.value
        except (redis.RedisError, OSError) as error:
            raise self._went_away(error) from None
        return self._report(facts)

    async def check_async(self) -> list[str]:
        """`check`, without blocking the loop."""
        questions = _questions()
        answer: Any = None
        try:
            async with self.async_client() as client:
                while True:
                    question = questions.send(answer)
                    try:
                        # redis-py left this one method without types.
                        answer = await client.execute_command(*question)  # type: ignore[no-untyped-call]
                    except redis.ResponseError:
                        answer = None
        except StopIteration as done:
            facts = done.value
        except (redis.RedisError, OSError) as error:
            raise self._went_away(error) from None
        return self._report(facts)

    def _report(self, facts: ServerFacts) -> list[str]:
        warnings = assess(facts, self.address)
        for warning in warnings:
            logger.warning("%s", warning)
        return warnings

    def _went_away(self, error: Exception) -> ServerUnreachable:
        return ServerUnreachable(
            f"the Redis server at {self.address} (REDISQ_URL) went away: {self.redact(error)}"
        )


class _Waiting:
    """How long to wait, and what to say; shared by the blocking and the asyncio wait."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._deadline = time.monotonic() + server.connect_timeout
        self._pause = FIRST_PAUSE
        self._warned = False

    @property
    def attempt_timeout(self) -> float:
        left = self._deadline - time.monotonic()
        return min(self._server.socket_timeout, max(SHORTEST_ATTEMPT, left))

    def pause_after(self, error: Exception) -> float:
        """Seconds until the next attempt; raises `ServerUnreachable` if there shall be none.

        Without cause: the client's own error may hold the password, and its words are repeated.
        """
        server = self._server
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


# --- what a server must be --------------------------------------------------------------------


@dataclass(frozen=True)
class ServerFacts:
    """What a server says about keeping data. ``None``: it does not say."""

    policy: str | None
    """``maxmemory-policy``."""
    append_only: bool | None
    snapshots: bool | None
    """Whether any save point is set."""


def _questions() -> Generator[tuple[str, ...], Mapping[str, Any] | None, ServerFacts]:
    """Yield commands, take their answers (None: denied), return the facts.

    CONFIG is asked only for what INFO left open: many users and hosted servers may not use it.
    """

    def setting(answer: Mapping[str, Any] | None, name: str) -> str | None:
        return str(answer[name]) if answer and name in answer else None

    policy = setting((yield "INFO", "memory"), "maxmemory_policy")
    if policy is None:
        policy = setting((yield "CONFIG GET", "maxmemory-policy"), "maxmemory-policy")
    append_only = setting((yield "INFO", "persistence"), "aof_enabled")
    if append_only is None:
        append_only = setting((yield "CONFIG GET", "appendonly"), "appendonly")
    save = None
    if append_only not in {"1", "yes"}:
        save = setting((yield "CONFIG GET", "save"), "save")
    return ServerFacts(
        policy=policy,
        append_only=None if append_only is None else append_only in {"1", "yes"},
        snapshots=None if save is None else bool(save.strip()),
    )


def assess(facts: ServerFacts, address: str) -> list[str]:
    """What to warn of; raises `ServerUnsuitable` if the server would throw requests away.

    Only ``noeviction`` is right. ``volatile-*`` evicts keys that have a time to live, and no key
    that holds requests, leases or counts has one: nothing can be lost, so it is a warning.
    ``allkeys-*``, and any policy not known here, may evict a whole queue, also while
    ``maxmemory`` is not reached or not set yet: it would be when the crawl is large.
    """
    remedy = "set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)"
    warnings = []
    unknown = []
    if facts.policy is None:
        unknown.append(f"its maxmemory-policy (if it is not noeviction, {remedy})")
    elif facts.policy.startswith("volatile-"):
        warnings.append(
            f"{address}: maxmemory-policy is {facts.policy}. The frontier's own keys are safe from "
            f"it, what shares the server may not be: better {remedy}"
        )
    elif facts.policy != "noeviction":
        raise ServerUnsuitable(
            f"{address}: maxmemory-policy is {facts.policy}, which throws requests away when "
            f"memory is full: {remedy}, or give REDISQ_URL another server"
        )
    if facts.append_only is None or (not facts.append_only and facts.snapshots is None):
        unknown.append("whether it keeps data over a restart (appendonly, save)")
    elif not facts.append_only and not facts.snapshots:
        warnings.append(
            f"{address} keeps data in memory only: if it restarts, the frontier is lost and the "
            "crawl must begin again. Set appendonly yes (CONFIG SET appendonly yes, and in "
            "redis.conf)"
        )
    if unknown:
        warnings.append(
            f"{address} does not let this user see {' or '.join(unknown)}: INFO or CONFIG is denied"
        )
    return warnings
