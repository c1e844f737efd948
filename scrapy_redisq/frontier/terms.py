"""The calls between a worker and its run session: terms, demand, questions and news."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from scrapy_redisq.frontier.calls import ANY_RUN, RunTerms
from scrapy_redisq.frontier.config import REWIND, FrontierConfig
from scrapy_redisq.frontier.limits import GIVE_UP
from scrapy_redisq.frontier.operations import Reply, TurnReport

if TYPE_CHECKING:
    from scrapy_redisq.frontier.shard_session import ShardSession

SUSPECT_FROM = 2
"""Deliveries from which a request is a suspect. The death of one worker says nothing about any of
its requests; few requests are there at a second death, too."""


class Terms(Struct, frozen=True):
    """How a worker takes part. Durations in seconds."""

    name: str
    config: FrontierConfig
    lease_ttl: float
    max_deliveries: int
    dead_max: int
    max_entry_bytes: int
    run: RunTerms = ANY_RUN
    started: float = field(default_factory=time.monotonic)
    """When the worker was, by time.monotonic()."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Of slots by pattern, see ``lua/shared/slots/limits.lua``."""
    throttle: str = ""
    """Terms of AutoThrottle, see ``lua/shared/slots/state.lua``."""
    seen_ttl: float = 0.0
    """From which on what was seen may be forgotten; 0: never."""
    give_up: int = GIVE_UP
    rewind: float = REWIND
    """Seconds for which a request without a page is kept after its acknowledgement."""
    young: float = REWIND
    """A run that began no longer ago is begun anew where shard 0 has lost it."""
    history: int = 0
    """Finished requests that are kept for people, over all shards; 0: none."""
    release: str = ""
    settings: str = ""
    """For people, see `calls.Registration`."""
    wait_replicas: int = 0
    """Replicas that are to have what is sent to a shard before it counts as safe at once."""
    suspect_from: int = SUSPECT_FROM
    """Deliveries from which a request is a suspect."""


class Demand(Struct, frozen=True):
    """How many entries a worker could take now: in all, of one slot, and of slots it has some of.

    ``low``: its leases will not last long, so that an exchange is worth it. ``within``: seconds in
    which an exchange is needed in any case, ``urgent``: at once. ``most``: leases that it may hold.
    It ``rests`` if it wants nothing before it is told to go on.
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

    # The session asks

    def demand(self) -> Demand: ...

    def is_busy(self) -> bool:
        """Whether it works on something, so that finishes are to be expected."""

    def starting(self) -> tuple[bool, bool]:
        """(it may still add requests of its own, all its start requests were added)."""

    def held_back(self) -> bool:
        """It would add requests if there were room."""

    def report(self) -> dict[str, Any]:
        """What an exchange with shard 0 tells people of it."""

    def turns(self, session: ShardSession) -> list[TurnReport]:
        """Its use of the turns of slots of this shard."""

    # The session tells

    def collect_ended(self) -> None:
        """Hand in the finishes of pages that have ended since the last call."""

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> None:
        """Take in a reply, and turns in return for those ``told`` at ``sent_at`` (monotonic)."""

    def announced(self, slot: str, parked: float) -> None:
        """``slot`` is parked for some seconds, or with 0 something else about it has changed."""

    def stuck(self, seconds: int) -> None:
        """For so long all that is left has been in slots that are set aside."""

    def forgotten(self, sessions: Sequence[ShardSession]) -> None:
        """All leases of these shards are void, and so are caches of seen URLs."""

    def rejoined(self) -> None:
        """It goes on as a new worker."""

    def completed(self, missing: int) -> None:
        """The whole frontier is finished; so many requests were created, and are nowhere."""

    def lost(self, error: Exception) -> None:
        """It cannot go on: close without saying that the crawl is finished."""


class Server(Protocol):
    """See `scrapy_redisq.server.server`."""

    def revive(self) -> None:
        """Start a dead embedded server again; blocks."""

    def redact(self, text: object) -> str:
        """Take passwords out of an error's text."""

    async def confirm_primary(self) -> None:
        """Return if the server that answers is the one that counts, else raise `ServerBusy` or an
        error of redis-py."""

    def primary_vouched(self) -> float:
        """Until when (time.monotonic()) the server is known not to have been replaced."""

    def renew_log(self) -> None:
        """Look after the log of a server that may have been started anew; blocks."""
