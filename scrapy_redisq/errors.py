"""Everything that scrapy-redisq raises.

::

    RedisqError
    ├── SettingError             a setting has a value that it does not take
    ├── ServerError              no server, or one that must not be used
    │   ├── ServerUnreachable
    │   ├── ServerUnsuitable
    │   ├── ServerBusy
    │   ├── ShardAway            other shards answer
    │   ├── ServerFull
    │   └── EmbeddedServerError
    ├── FrontierError            the frontier does not allow what was asked
    │   ├── ConfigurationMismatch
    │   ├── RunMismatch
    │   ├── RunOver
    │   ├── FrontierInUse
    │   ├── FrontierCorrupt
    │   │   └── ScriptFailed
    │   ├── FrontierLost
    │   └── ShardLost
    ├── SerializationError       one request, not the crawl
    │   ├── Unserializable
    │   ├── EntryTooLarge
    │   ├── SchemeRefused
    │   └── Undecodable
    │       └── ForeignEntry     something else than scrapy-redisq wrote it
    └── SinkError                where items are written to
        ├── SinkUnavailable      tried again until it works
        │   ├── BatchTooLarge    in smaller batches
        │   ├── ConnectionLost   of some rows, if it is so each time
        │   ├── RowLocked        by somebody else: never the row's fault
        │   └── WriteFailed      of the sink or of some rows: other rows will tell
        ├── SinkMismatch         ends the crawl: nothing of this kind can be written
        └── RowRefused           some rows, not the crawl
            └── ReferenceMissing until their pages were fetched again, later
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class RedisqError(Exception):
    """Base of all errors of this package."""

    told = False
    """Whether the log has it in a line of its own, so that nothing else need say it again."""


class SettingError(RedisqError, ValueError):
    """Raised when a setting has a value that it does not take; names what it takes."""

    def __init__(self, name: str, value: object, takes: str) -> None:
        self.name = name
        super().__init__(f"{name} = {value!r}: takes {takes}")


class ServerError(RedisqError):
    """Base of the errors that concern the server. Messages never hold a password."""


class ServerUnreachable(ServerError):
    """Raised when no server answered within REDISQ_CONNECT_TIMEOUT."""


class ServerUnsuitable(ServerError):
    """Raised when the server's configuration would lose requests (``maxmemory-policy``)."""


class ServerBusy(ServerError):
    """Raised when Redis will take commands later (loading, read-only); it has applied nothing."""


class ShardAway(ServerError):
    """Raised when a server of a cluster does not answer, and all are needed."""


class ServerFull(ServerError):
    """Raised when Redis is at its ``maxmemory``; it has applied nothing of what was sent."""


class EmbeddedServerError(ServerError):
    """Raised when the embedded redis-server cannot be found or does not start."""


class FrontierError(RedisqError):
    """Base of the errors that concern one frontier."""


class ConfigurationMismatch(FrontierError):
    """Raised when a crawl joins a frontier that was begun with another configuration.

    ``differences``: setting, or "-a" for the spider's arguments → (stored, given).
    """

    def __init__(self, frontier: str, differences: dict[str, tuple[str, str]]) -> None:
        self.differences = differences
        what = "; ".join(
            f"{name} is {stored!r} there and {given!r} here"
            for name, (stored, given) in sorted(differences.items())
        )
        cure = f"Use the same settings, or 'scrapy redisq reset {frontier} --yes'"
        if differences.keys() == {"-a"}:
            cure = (
                f"To resume it, give the same arguments. For a crawl of its own: -s "
                f"REDISQ_FRONTIER={frontier}-2, or in the settings REDISQ_FRONTIER = "
                f"'%(spider)s-%(arguments)s'. Workers with different arguments share a run with "
                f"REDISQ_SAME_ARGUMENTS = False"
            )
        super().__init__(
            f"frontier {frontier!r} was begun with another configuration: {what}. {cure}"
        )


class RunMismatch(FrontierError):
    """Raised when REDISQ_RUN names another run than the one that is not finished."""

    def __init__(self, frontier: str, unfinished: str, given: str) -> None:
        super().__init__(
            f"frontier {frontier!r} has an unfinished run with the name {unfinished!r}, and "
            f"REDISQ_RUN is {given!r}: finish it with REDISQ_RUN={unfinished!r}, stop its workers "
            f"and forget it with REDISQ_RESUME=False, or use another REDISQ_FRONTIER"
        )


class RunOver(FrontierError):
    """Raised when the run that a worker belongs to is complete. ``name`` is its REDISQ_RUN or "";
    it ended ``ago`` seconds ago, if that is known."""

    def __init__(self, frontier: str, run: str, name: str, ago: float | None) -> None:
        when = "" if ago is None else f", {ago:.0f} s ago"
        super().__init__(
            f"run {name!r} (REDISQ_RUN) of frontier {frontier!r} is complete{when}. To crawl "
            f"again, give REDISQ_RUN another name"
            if name
            else f"run {run} of frontier {frontier!r} was completed by other workers{when}, after "
            f"this one had been started. To crawl again, start it again"
        )


class FrontierInUse(FrontierError):
    """Raised when something needs a frontier without workers and some are alive."""


class FrontierCorrupt(FrontierError):
    """Raised when a key under the frontier's prefix is not of the type it must have."""


class ScriptFailed(FrontierCorrupt):
    """Raised when a script failed: by what it was given, by itself, or by this user's rights."""


class FrontierLost(FrontierError):
    """Raised when the frontier that a worker belonged to is gone from Redis."""


class ShardLost(FrontierError):
    """Raised when one server has lost its part of a run. Waiting does not bring that back."""

    def __init__(self, frontier: str, shard: int) -> None:
        self.shard = shard
        super().__init__(
            f"shard {shard} of frontier {frontier!r} has lost the run that other shards have: its "
            f"server came back without its data, or its meta key was deleted. If they can be "
            f"brought back, do so; else begin anew with 'scrapy redisq reset {frontier} --yes', "
            f"which deletes what is left"
        )


class SerializationError(RedisqError):
    """Base of the errors that concern one request."""


class Unserializable(SerializationError):
    """Raised when a request holds what cannot be stored, such as a lambda or a lock. ``cure`` is
    what would help, or ""."""

    def __init__(self, message: str, cure: str = "") -> None:
        self.cure = cure
        super().__init__(message)


class EntryTooLarge(SerializationError):
    """Raised when a serialised request is larger than REDISQ_MAX_ENTRY_BYTES."""


class SchemeRefused(SerializationError):
    """Raised when a URL has a scheme that REDISQ_SCHEMES does not list."""


class Undecodable(SerializationError):
    """Raised when an entry from Redis is not a request that this spider can run."""


class ForeignEntry(Undecodable):
    """Raised when bytes from Redis are no entry at all."""


class SinkError(RedisqError):
    """Base of the errors that concern item pipelines. Messages never hold a password."""


class SinkUnavailable(SinkError):
    """Raised when rows cannot be written now, through no fault of theirs. They are kept.

    ``at_commit``: the write ended so when all rows had been taken.
    """

    def __init__(self, message: str, *, at_commit: bool = False) -> None:
        self.at_commit = at_commit
        super().__init__(message)


class ConnectionLost(SinkUnavailable):
    """Raised when the connection ended while rows were written. They are tried again as they are;
    when it ends each time while another one can be had, as with `WriteFailed`."""


class BatchTooLarge(SinkUnavailable):
    """Raised when a write took longer than it may: its rows are tried again in smaller batches. A
    row that is alone is refused when that has been so for minutes, while others were taken."""


class RowLocked(SinkUnavailable):
    """Raised when a write met those of others: a lock, a deadlock, or rows that they have changed.
    Its rows are tried again, then in smaller batches, however often."""


class WriteFailed(SinkUnavailable):
    """Raised when a write failed, and nobody knows whether its rows or the sink are at fault. A row
    is refused if it fails while others pass. A sink that takes no row is away."""


class SinkMismatch(SinkError):
    """Raised when no item of a kind can be written. The crawl ends, its pages stay."""


class RowRefused(SinkError):
    """Raised when ``rows`` cannot be written, and others can. Without ``rows`` halving the batch
    finds them."""

    def __init__(self, message: str, rows: Iterable[object] = ()) -> None:
        self.rows = tuple(rows)
        super().__init__(message)


class ReferenceMissing(RowRefused):
    """Raised when rows refer to others that are not there, which may come later."""


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that it came of, each once: a cause that is raised again makes a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def message_of(error: BaseException | None) -> str:
    """``str(error)``, also where that raises, as it does with exceptions of some projects."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as Python's own tracebacks have it


def reason(error: BaseException) -> str:
    """An error for a message: its class and what it says, in at most 300 characters, without
    surrogates, which logs could not write."""
    text = f"{type(error).__name__}: {message_of(error)}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 300 else text[:300] + "…"
