"""What a run session asks of the worker that it exchanges for, and of its connection."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scrapy_redisq.frontier.operations import Reply, TurnReport
from scrapy_redisq.frontier.shard_session import ShardSession


@dataclass(frozen=True)
class Demand:
    """What a worker could take now: entries in all, of one slot, and of slots it has some of.

    ``low``: what it has will not last long, so it is worth an exchange. ``within``: seconds in
    which one is needed in any case, ``urgent``: at once. ``most``: leases that it may hold. It
    ``rests`` if it wants nothing, and will not before it is told to.
    """

    low: bool
    want: int
    slot_limit: int
    room: Mapping[str, int]
    within: float | None = None
    urgent: bool = False
    most: int = 0
    rests: bool = False


NOTHING = Demand(False, 0, 0, {})


class Worker(Protocol):
    """See `scrapy_redisq.worker`."""

    # What it tells

    pages: int

    @property
    def items(self) -> int: ...

    def demand(self) -> Demand: ...

    def is_busy(self) -> bool:
        """Whether it works on something, so that finishes are to be expected."""

    def starting(self) -> tuple[bool, bool]:
        """(it may still add requests of its own, all its start requests were added)."""

    def report(self) -> str:
        """What it tells people of itself, "" if it has told them just now."""

    def turns(self, session: ShardSession) -> list[TurnReport]:
        """What it did with the turns of slots of this shard."""

    # What it does

    def collect_ended(self) -> None:
        """Hand in the finishes of what has ended since the last call."""

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        """Take in a reply, and turns in return for those ``told`` at ``sent_at`` (monotonic)."""

    def announced(self, slot: str, parked: float) -> None:
        """``slot`` is parked for some seconds, or with 0 something else about it has changed."""

    def stuck(self, seconds: int) -> None:
        """For so long all that is left has been in slots that are set aside."""

    def forgotten(self, sessions: Sequence[ShardSession]) -> None:
        """All leases of these shards are void, and so is what is cached about seen URLs."""

    def rejoined(self) -> None:
        """It goes on as a new worker."""

    def completed(self, missing: int) -> None:
        """The whole frontier is finished; so many requests were created, and are nowhere."""

    def lost(self, error: Exception) -> None:
        """It cannot go on: close without saying that the crawl is finished."""


async def _certain() -> None:
    """There is but one server."""


@dataclass(frozen=True)
class ServerHelp:
    """What a run session may ask of the connection (see `scrapy_redisq.server.connection`)."""

    revive: Callable[[], None] = lambda: None
    """Start a dead embedded server again; blocks."""
    redact: Callable[[object], str] = str
    """Take passwords out of an error's text."""
    confirm_primary: Callable[[], Awaitable[None]] = _certain
    """Return if what answers is the server that has the last word, else raise `ServerBusy` or an
    error of redis-py."""
    primary_vouched: Callable[[], float] = time.monotonic
    """Since when what was acknowledged may have been by a server that no longer counts."""
    renew_log: Callable[[], None] = lambda: None
    """Look after the log of a server that may have been started anew; blocks."""
