"""One request in progress, and what went wrong with it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapy.http import Request
from twisted.python.failure import Failure

from scrapy_redisq.errors import message_of
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease, Letter
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.serialization.identity import Repeats
from scrapy_redisq.worker.shared_values import SharedValues

DETAIL_FRAMES = 5
"""Last frames of a traceback that a dead letter keeps."""


DETAIL_LENGTH = 4_000
"""Most characters of a dead letter's detail."""


@dataclass(frozen=True)
class Problem:
    """Why a request becomes a dead letter.

    ``error`` is the type of the exception or "", ``status`` that of the response or 0. It is
    ``provisional`` if it no longer counts once the spider has dealt with the failure or the
    response. ``foreign``: nobody has enqueued it.
    """

    reason: str
    detail: str
    error: str = ""
    status: int = 0
    provisional: bool = False
    foreign: bool = False

    @classmethod
    def of(
        cls, reason: str, failure: Failure, status: int = 0, *, provisional: bool = False
    ) -> Problem:
        """What an exception says."""
        return cls(reason, describe(failure), error_type(failure), status, provisional)

    @property
    def text(self) -> str:
        """The detail as Redis can hold it."""
        return self.detail.encode("utf-8", "replace").decode()[:DETAIL_LENGTH]

    def finish(self, lease: str) -> Finish:
        """The end of the lease."""
        return Finish(
            lease,
            "dead",
            self.reason,
            self.text,
            error=self.error,
            status=self.status,
            foreign=self.foreign,
        )

    def letter(self, slot: str, identity: bytes) -> Letter:
        """The dead letter of a request that no page stands for."""
        return Letter(
            slot, 0, identity, self.reason, self.text, error=self.error, status=self.status
        )


@dataclass(eq=False)
class Page:
    """A request in progress.

    ``problem`` is there once something went wrong. ``status`` is that of its response.
    It is ``ignored`` if a downloader middleware has raised `IgnoreRequest` for it.
    ``exhausted`` is the status (0: it was an exception) after which no further retry was made; that
    is a problem only if the spider is not given the response. ``unwritten`` are items that Scrapy
    is done with and whose sink is not. A page that is ``given_back`` goes to whoever claims it
    next, with ``entry`` in the place of its own if its slot was in trouble, or after ``delay``
    seconds. It is ``grouped`` if it came with a download slot, which else Scrapy has put into its
    meta.

    Its download was ``began`` at a time.monotonic(). If it is to ``blame`` itself for having been
    sent back, that number takes the place of how often it was.

    ``retry`` takes its place at its end. ``repeats`` counts children that are alike,
    ``links`` went to other shards.

    A request that stays in this process has a page, too, whose lease is none; ``holder`` is the
    page of the frontier that holds it, None if it is of ``start()`` or of nowhere (`KeptRequests`).
    """

    lease: Lease
    session: ShardSession
    problem: Problem | None = None
    status: int = 0
    ignored: bool = False
    exhausted: int | None = None
    unwritten: int = 0
    given_back: bool = False
    entry: bytes | None = None
    delay: float = 0.0
    grouped: bool = True
    began: float = 0.0
    blame: int | None = None
    identity: bytes | None = None
    retry: Enqueue | None = None
    repeats: Repeats = field(default_factory=Repeats)
    links: list[Enqueue] = field(default_factory=list)
    most_links: int = 1_000
    holder: Page | None = None
    asked_again: bool = True
    """Of a request that stays here: its holder asks for it when it is fetched again, or if there is
    none each worker's ``start()``."""
    sent_back: int = 0
    """How often a request that stays here was, for the trouble of its slot or of its sink."""
    request: Request | None = None
    items: int = 0
    """How many items came of it, where a history is kept."""
    shared: SharedValues = field(default_factory=SharedValues)
    """What its requests hold."""

    @property
    def is_held(self) -> bool:
        """Its lease is not void, so that it is this worker that ends it."""
        return self.lease.id in self.session.held

    @property
    def is_void(self) -> bool:
        """Another worker has it by now, or what holds it, or will."""
        page = self.holder or self
        return bool(page.lease.id) and not page.is_held

    def finish(self) -> Finish:
        """How its lease ends."""
        lease, retry = self.lease.id, self.retry
        if self.given_back:
            if self.entry is not None and self.delay:
                delay, priority = int(self.delay * 1000), self.lease.priority
                return Finish(lease, "retried", delay=delay, entry=self.entry, priority=priority)
            if self.entry is not None:
                return Finish(lease, "backed_off", entry=self.entry)
            return Finish(lease, "released")
        if retry is not None:  # whatever else went wrong, it is tried again
            return Finish(
                lease, "retried", delay=retry.delay, entry=retry.entry, priority=retry.priority
            )
        if self.problem is not None:
            return self.problem.finish(lease)
        return Finish(lease, "done")

    def keep_links(self, links: Sequence[Enqueue]) -> None:
        """Keep what it has sent to other shards, until it is safe there: that may be far more than
        a process can hold."""
        self.links += links
        if len(self.links) > self.most_links:
            self.links = [one for one in self.links if one.link is None or not one.link.safe]
            self.most_links = 1_000 + 2 * len(self.links)


def error_type(failure: Failure) -> str:
    """``module.Class`` of an exception."""
    kind = type(failure.value)
    return f"{kind.__module__}.{kind.__qualname__}"


def describe(failure: Failure) -> str:
    """An exception for a dead letter: its type, its message and the last frames."""
    error = failure.value
    trace = failure.tb or (error.__traceback__ if error else None)
    frames = traceback.format_tb(trace)[-DETAIL_FRAMES:]
    return f"{error_type(failure)}: {message_of(error):.1000}\n{''.join(frames)}"
