"""Waiting for a server that does not answer yet: how long, and what to say of it."""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import redis
from redis.exceptions import AuthorizationError

from scrapy_redisq.errors import ServerUnreachable, with_causes
from scrapy_redisq.server.sentinel.finder import PrimaryUnknown

if TYPE_CHECKING:
    from scrapy_redisq.server.server import Server

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


def pauses(server: Server, longest: float, *, to_write: bool) -> Iterator[float]:
    """Seconds until the next attempt to reach ``server``, again and again until it answers.

    Each attempt blocks for some seconds at most, and starts an embedded server that has died.
    Unless it is ``to_write``, a server whose disk is full (MISCONF) will do. Raises
    `ServerUnreachable` after ``longest`` seconds, or sooner if waiting does not help. While the
    server loads its data the time begins anew.
    """
    began = time.monotonic()
    pause, is_warned, tell_at = FIRST_PAUSE, False, 0.0
    while problem := _attempt(server, longest - (time.monotonic() - began)):
        now = time.monotonic()
        if not to_write and str(problem).startswith("MISCONF "):
            return
        if _is_loading(server, problem):
            began = now
            if now >= tell_at:
                tell_at = now + BETWEEN_WORDS
                logger.warning(
                    "The Redis server at %s (REDISQ_URL) is loading its data (%s): waiting for it",
                    server.address,
                    server.loading() or "it does not say how long that takes",
                )
            server.revive()
            yield LOADING_PAUSE
            continue
        shown = server.redact(problem).rstrip(".")
        if final := _final_words(server, problem, shown):
            raise ServerUnreachable(final)
        shown += _doubt(server, problem)
        left = longest - (now - began)
        if left <= 0:
            setting = " (REDISQ_CONNECT_TIMEOUT)" * (longest == server.connect_timeout)
            raise ServerUnreachable(
                f"no Redis server could be used at {server.address} (REDISQ_URL) within "
                f"{longest:g} s{setting}: {shown}"
            )
        if not is_warned:
            is_warned = True
            logger.warning(
                "No Redis server can be used at %s (REDISQ_URL) yet: %s. Trying for %g s",
                server.address,
                shown,
                longest,
            )
        server.revive()
        yield min(pause, left)
        pause = min(pause * 2, LONGEST_PAUSE)


def _attempt(server: Server, left: float) -> Exception | None:
    """The server's error, None if the server answers."""
    try:
        server.ping(min(server.socket_timeout, max(SHORTEST_ATTEMPT, left)))
    except (redis.RedisError, OSError, ValueError) as error:
        return error
    return None


def _is_loading(server: Server, error: Exception) -> bool:
    return isinstance(error, redis.BusyLoadingError) or (
        isinstance(error, redis.TimeoutError)
        and server.embedded is not None
        and server.embedded.is_loading()
    )


def _final_words(server: Server, error: Exception, shown: str) -> str:
    """A sentence about an error that waiting does not mend; "" for all other errors."""
    if _comes_from(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {server.address} (REDISQ_URL) cannot be verified: {shown}. "
            "Add ?ssl_ca_certs=/path/of/ca.pem to REDISQ_URL if the authority is your own"
        )
    if isinstance(error, PrimaryUnknown) and error.final:
        return f"{server.address} (REDISQ_URL) cannot be used: {shown}"
    if not _is_final(error):
        return ""
    remedy = "Check user, password and database in REDISQ_URL"
    if server.is_cluster:
        remedy += (
            ", that it is a node of a cluster (else write redis:// or rediss://), and that this "
            "user may ask for its map: ACL SETUSER … +cluster|info +cluster|slots, on each node"
        )
    return f"the Redis server at {server.address} refuses this connection: {shown}. {remedy}"


def _is_final(error: Exception) -> bool:
    if isinstance(error, (redis.AuthenticationError, AuthorizationError)):
        return True
    if isinstance(error, redis.ResponseError):
        return str(error).partition(" ")[0] not in PASSING_ERRORS
    # An answer that is not Redis at all; a host name that cannot be one.
    unusable = (redis.InvalidResponse, redis.DataError, ValueError)
    return isinstance(error, unusable) or _comes_from(error, UnicodeError)


def _doubt(server: Server, error: Exception) -> str:
    """A guess about the URL where a server takes a connection and says nothing: it waits
    for the rest of what it takes for TLS, or for plain text, or it hangs up."""
    if server.uses_tls:
        is_odd = isinstance(error, redis.TimeoutError) or _comes_from(error, ssl.SSLError)
    else:
        hung_up = re.search("reset by peer|closed by server", str(error))
        is_odd = hung_up is not None and server.embedded is None
    schemes = "redis, not rediss" if server.uses_tls else "rediss, not redis"
    return f". Does this port speak TLS? Perhaps REDISQ_URL has to begin with {schemes}" * is_odd


def _comes_from(error: BaseException, kind: type[Exception]) -> bool:
    return any(isinstance(one, kind) for one in with_causes(error))
