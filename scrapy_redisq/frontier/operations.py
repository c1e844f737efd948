"""The parts of an exchange and of its reply: requests, ends, dead letters, leases."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field


class Lease(Struct, frozen=True):
    """An entry that this worker holds. ``deliveries``: how many workers died with it before."""

    id: str
    slot: str
    priority: int
    deliveries: int
    entry: bytes


class Link(Struct, eq=False):
    """A request that a page of one shard has sent to another shard, which has another log.

    ``safe``: its shard can no longer lose it. ``post`` stands for it until then.
    """

    safe: bool = False
    post: Post | None = None

    def is_safe_now(self) -> None:
        """Its shard can no longer lose it."""
        self.safe = True
        if self.post is not None:
            post, self.post = self.post, None
            post.unsafe -= 1
            if post.unsafe == 0:
                post.delivered()


class Post(Struct, eq=False):
    """The links that the end of a page has left in its shard, until none of them is ``unsafe``."""

    unsafe: int
    delivered: Callable[[], None]


OVER_BUDGET = -1
"""In the place of a delay: the page has asked for too many, and this one becomes a dead letter."""


class Enqueue(Struct, frozen=True):
    """A request to be added. ``fingerprint`` as the dupefilter encodes it, None: not filtered.

    ``delay`` in ms, or `OVER_BUDGET`. ``also`` is a second fingerprint, which is recorded but not
    asked about. ``identity`` stands in the place of ``fingerprint``; ``asked``: the set that knows
    it (``calls.STARTS``, ``calls.RECENT``, 0: none). ``page``: the lease of the page that stands
    for the request, None: there is none. ``link``: that page is on another server. Without a page,
    or with a link, the request is sent again if the server loses it. ``tag`` is handed back with
    the outcome.
    """

    slot: str
    priority: int
    entry: bytes
    fingerprint: bytes | str | None
    delay: int = 0
    also: bytes | str | None = None
    identity: bytes | None = None
    asked: int = 0
    page: str | None = None
    tag: Hashable = None
    link: Link | None = None


Ending = Literal["done", "released", "dead", "backed_off", "retried"]


class Finish(Struct, frozen=True):
    """How a lease ends: "done", "released", "dead" (reason, detail, if known the type of the
    exception and the HTTP status; ``foreign``: enqueued by nobody), "backed_off" (released, as the
    ``entry``), "retried" (a new request in its place: the ``entry``, with its priority and delay in
    ms). Only "retried" knows a delay.

    ``links`` were sent to other shards: those that are not safe are posted in the same step.
    ``record``: identity and record of the page for the history.
    """

    lease: str
    ending: Ending
    reason: str = ""
    detail: str = ""
    delay: int = 0
    error: str = ""
    status: int = 0
    entry: bytes = b""
    foreign: bool = False
    priority: int = 0
    links: Sequence[Enqueue] = ()
    record: tuple[str, bytes] | None = None

    def unsafe(self) -> list[Enqueue]:
        """The links to post if this is sent now. A page that will be fetched again asks for all its
        links again."""
        if self.ending not in {"done", "dead", "retried"}:
            return []
        return [one for one in self.links if one.link is not None and not one.link.safe]


class Delivered(Struct, frozen=True):
    """A post is no longer needed."""

    post: str


class Letter(Struct, frozen=True):
    """A dead letter of a request that could not be enqueued, and that no page stands for.

    One is kept for each ``identity``. ``entry`` is b"" if the request cannot be kept.
    """

    slot: str
    priority: int
    identity: bytes
    reason: str
    detail: str
    error: str = ""
    status: int = 0
    entry: bytes = b""


Operation = Enqueue | Finish | Letter | Delivered


class DownloadResult(Struct, frozen=True):
    """How a download ended, for its slot. ``status`` 0: there was no answer; negative: that of
    its robots.txt, -1: not known.

    It was ``begun`` at a time.monotonic(). ``failed`` is None if it says nothing about the slot.
    ``retry_after``: seconds that the host asks to be left alone; ``latency`` in seconds.
    """

    slot: str
    status: int
    begun: float
    failed: bool | None = None
    retry_after: float | None = None
    latency: float | None = None


FREE = -2
"""Stands for what is left of the turn of a slot without limits, as in ``slots/turns.lua``."""


class TurnReport(NamedTuple):
    """A worker's use of a slot that has limits, and its wishes. Times in us."""

    slot: str
    since: int
    """Since it last started a request of it; -1: it has not."""
    tat: int
    """Until the theoretical arrival time of the rate, which may be over."""
    tokens: int
    """Tokens that it needs."""
    done: int
    """1: the turn, or its tokens, are of no more use to it."""
    want: int
    """Entries to claim."""


class TurnGrant(NamedTuple):
    """A worker's allowance for a slot that has limits. Times in us."""

    slot: str
    left: int
    """Of its turn; -1: it needs none, FREE: the slot has no limits."""
    news: int
    """1: the turn is new, -1: it was refused."""
    next_start: int
    """Until the delay allows a start."""
    tat: int
    """Until the theoretical arrival time of the rate."""
    delay: int
    interval: int
    burst: int
    tokens: int
    """Requests of it that the worker may download at a time; -1: that is not limited."""
    parked: int
    """For so long nothing of it may be started."""
    trouble: int
    """1: it has failed lately, and the frontier wants to know how downloads end."""
    paused: int = 0
    """1: a person has paused it."""

    @property
    def is_free(self) -> bool:
        return self.left == FREE

    @property
    def is_new(self) -> bool:
        return self.news == 1

    @property
    def is_refused(self) -> bool:
        return self.news == -1


class Reply(Struct):
    """The reply to an exchange. ``status`` as documented in ``exchange.lua``."""

    status: str
    accepted: list[Enqueue] = field(default_factory=list)
    duplicates: list[Enqueue] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    complete: bool = False
    created: int = 0
    finished: int = 0
    dead: int = 0
    full: bool = False
    """Redis is at its maxmemory."""
    waiting: int = 0
    """Workers that have found nothing to claim."""
    overdue_in: int = 0
    """Milliseconds until a worker without a sign of life is dead; 0: one is."""
    next_due: int | None = None
    """Milliseconds until it is worth asking again; None if nothing waits."""
    stuck: int | None = None
    """Seconds for which all that is left has been in slots that are set aside; None: it is not."""
    post_due: int | None = None
    """Milliseconds until somebody should take the oldest post; None if there is none."""
    turns: list[TurnGrant] = field(default_factory=list)
    """This worker's allowances for slots that have limits."""
    told: str = ""
    """The order of people: "quiet", "work" or "stop"; "" if there is none."""


def parse_lease(lease_id: str, record: bytes) -> Lease:
    """A lease from its record, "PRIORITY:LENGTH-OF-SLOT:SLOT" and the entry."""
    priority, length, rest = record.split(b":", 2)
    slot, entry = rest[: int(length)], rest[int(length) :]
    return Lease(lease_id, slot.decode(), int(priority), entry[0] if entry else 0, entry[1:])
