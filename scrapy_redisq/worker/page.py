"""One request in progress, and what went wrong with it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapy.http import Request
from twisted.python.failure import Failure

from scrapy_redisq.errors import message_of
from scrapy_redisq.frontier.operations import Claim, Enqueue, Finish, Lease
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

    def finish(self, lease: str, children: Sequence[Enqueue] = ()) -> Finish:
        """The end of the lease."""
        return Finish(
            lease,
            "dead",
            self.reason,
            self.text,
            error=self.error,
            status=self.status,
            foreign=self.foreign,
            children=children,
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

    ``children`` are unfiltered requests that it asked for, the first at ``waiting_since``
    (time.monotonic()): they go with its end, because another fetch of the page asks for them again.
    ``retry`` takes its place at its end. ``repeats`` counts children that are alike, ``sent`` and
    ``links`` are what `RunSession.finish` has to know of those that went to other shards.

    A request that stays in this process has a page, too, whose lease is none. What asked for it is
    its ``asker``, which is not ended before it: it is one of its ``unwritten``. Its ``root`` is the
    outermost of these, None if it is that itself: the page that asks for all of it again when it
    is fetched again. Its ``claim`` is there once it was granted; if it has no root it may be
    ``lost`` to another worker, which was granted it when this one's leases were void.
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
    children: list[Enqueue] = field(default_factory=list)
    children_bytes: int = 0
    waiting_since: float = 0.0
    retry: Enqueue | None = None
    repeats: Repeats = field(default_factory=Repeats)
    sent: dict[ShardSession, int] = field(default_factory=dict)
    links: list[Enqueue] = field(default_factory=list)
    most_links: int = 1_000
    root: Page | None = None
    asker: Page | None = None
    claim: Claim | None = None
    lost: bool = False
    gone_on: bool = False
    """Something new came of a root in this worker, see `GoesOn`."""
    comes_again: bool = True
    """Of a request that stays here: its root asks for it when it is fetched again, or if there is
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
        """Another worker has it by now, or will: that one asks for all that the page asks for."""
        return self.lost or (bool(self.lease.id) and not self.is_held)

    def finish(self) -> Finish:
        """How its lease ends."""
        lease, children, retry = self.lease.id, tuple(self.children), self.retry
        if self.given_back:  # the worker that fetches it asks for its children again
            if self.entry is not None and self.delay:
                delay, priority = int(self.delay * 1000), self.lease.priority
                return Finish(lease, "retried", delay=delay, entry=self.entry, priority=priority)
            if self.entry is not None:
                return Finish(lease, "backed_off", entry=self.entry)
            return Finish(lease, "released")
        if self.problem is not None:
            return self.problem.finish(lease, (*children, retry) if retry else children)
        if retry is not None:
            return Finish(
                lease,
                "retried",
                delay=retry.delay,
                entry=retry.entry,
                priority=retry.priority,
                children=children,
            )
        return Finish(lease, "done", children=children)

    def ends_after(self, session: ShardSession) -> None:
        """It is to be ended after all that ``session`` has been given until now."""
        self.sent[session] = session.enqueued

    def end_of(self, kept: Page) -> None:
        """A request that stayed here, and that this one asked for, is over or was given up."""
        self.unwritten -= 1
        self.given_back = self.given_back or kept.given_back
        if kept.problem is not None and self.problem is None:
            self.problem = kept.problem
        for session, number in kept.sent.items():
            self.sent[session] = max(number, self.sent.get(session, 0))
        self.keep_links(kept.links)

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
