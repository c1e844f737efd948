"""Waiting for a server that does not answer yet: how long, and what to say of it."""

from __future__ import annotations

import logging
import re
import ssl
import time
from typing import TYPE_CHECKING

import redis
from redis.exceptions import AuthorizationError, NoPermissionError, OutOfMemoryError

from scrapy_redisq.errors import ServerUnreachable
from scrapy_redisq.server.sentinel.finder import PrimaryUnknown

if TYPE_CHECKING:
    from scrapy_redisq.server.connection import Server

__all__ = ["Waiting"]

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

# First words of errors that pass by themselves: a long script, a full disk, a failover. So does a
# full memory, of which redis-py leaves out the word. All others (wrong database, not allowed) are
# for a person.
PASSING_ERRORS = {"BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "READONLY", "TRYAGAIN"}


class Waiting:
    """One wait for a server, for ``longest`` seconds from now on; longer while it loads its data.

    Where it is not ``to_write``, a server will do whose disk is full (MISCONF): it can be read.
    """

    def __init__(self, server: Server, longest: float, *, to_write: bool) -> None:
        self._server = server
        self._longest = longest
        self._to_write = to_write
        self._deadline = time.monotonic() + longest
        self._pause = FIRST_PAUSE
        self._warned = False
        self._tell_at = 0.0

    def attempt(self) -> float | None:
        """Seconds until the next attempt; None when the server answers.

        Blocks for some seconds at most, and starts an embedded server that has died. Raises
        `ServerUnreachable` if there shall be no further attempt.
        """
        left = self._deadline - time.monotonic()
        try:
            self._server.ping(min(self._server.socket_timeout, max(SHORTEST_ATTEMPT, left)))
            return None
        except redis.BusyLoadingError:
            pause = self._pause_while_loading()
        except (redis.RedisError, OSError, ValueError) as error:
            if not self._to_write and str(error).startswith("MISCONF "):
                return None
            pause = self._pause_after(error)
        self._server.revive()
        return pause

    def _pause_while_loading(self) -> float:
        """The time to give up begins anew, for the server has answered."""
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

    def _pause_after(self, error: Exception) -> float:
        server = self._server
        silent = isinstance(error, redis.TimeoutError)
        if silent and server.embedded is not None and server.embedded.is_loading():
            return self._pause_while_loading()
        shown = server.redact(error).rstrip(".")
        if final := _final_words(server, error, shown):
            # Without cause: the client's own error may hold the password, and its words are there.
            raise ServerUnreachable(final) from None
        shown += _doubt(server, error)
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


def _final_words(server: Server, error: Exception, shown: str) -> str:
    """What to say of an error that waiting does not mend; "" of all others."""
    if _comes_from(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {server.address} (REDISQ_URL) cannot be verified: {shown}. "
            "Add ?ssl_ca_certs=/path/of/ca.pem to REDISQ_URL if the authority is your own"
        )
    if isinstance(error, PrimaryUnknown) and error.final:
        return f"{server.address} (REDISQ_URL) cannot be used: {shown}"
    if not _is_final(error):
        return ""
    text = str(error).lower()
    remedy = "Check user, password and database in REDISQ_URL"
    if server.is_cluster and re.search("cluster support disabled|unknown command", text):
        remedy = "It is no node of a cluster: write redis:// or rediss:// in REDISQ_URL"
    elif isinstance(error, NoPermissionError) and "cluster" in text:
        remedy = (
            "Let this user ask for the map of the cluster: ACL SETUSER … +cluster|info "
            "+cluster|slots, on each node"
        )
    return f"the Redis server at {server.address} refuses this connection: {shown}. {remedy}"


def _is_final(error: Exception) -> bool:
    if isinstance(error, (redis.AuthenticationError, AuthorizationError)):
        return True
    if isinstance(error, redis.ResponseError) and not isinstance(error, OutOfMemoryError):
        return str(error).partition(" ")[0] not in PASSING_ERRORS
    # An answer that is not Redis at all; a host name that cannot be one.
    unusable = (redis.InvalidResponse, redis.DataError, ValueError)
    return isinstance(error, unusable) or _comes_from(error, UnicodeError)


def _doubt(server: Server, error: Exception) -> str:
    """What may be wrong with the URL where a server takes a connection and says nothing: it waits
    for the rest of what it takes for TLS, or for plain text, or it hangs up."""
    if server.uses_tls and (
        isinstance(error, redis.TimeoutError) or _comes_from(error, ssl.SSLError)
    ):
        return ". Does this port speak TLS? If not, let REDISQ_URL begin with redis, not rediss"
    hung_up = re.search("reset by peer|closed by server", str(error))
    if not server.uses_tls and hung_up and not server.embedded:
        return ". Does this port speak TLS? Then let REDISQ_URL begin with rediss, not redis"
    return ""


def _comes_from(error: BaseException | None, kind: type[Exception]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None
