"""One request in progress, and what went wrong with it."""

from __future__ import annotations

import logging
import time
import traceback
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from scrapy import Item
from scrapy.http import Request
from scrapy.utils.python import global_object_name
from twisted.python.failure import Failure

from scrapy_redisq.errors import message_of
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease, Letter
from scrapy_redisq.frontier.seen import exact_member
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.reasons import DeadReason
from scrapy_redisq.serialization.entry_format import back_offs, next_time, with_back_offs
from scrapy_redisq.serialization.identity import UNMARKED_META, Repeats, of_next_time
from scrapy_redisq.serialization.meta import WANTED_KEY, milliseconds, retry_times
from scrapy_redisq.serialization.recurrence import (
    EVERY_KEY,
    SEEN_TTL_KEY,
    Answer,
    Recurrence,
    seen_ttl_of,
)

logger = logging.getLogger(__name__)

MOST_HELD = 1_000
"""Objects of one page that are remembered."""

_CHANGEABLE = (list, dict, set, bytearray, Item)
_NOT_OF_THE_SPIDER = UNMARKED_META | {"handle_httpstatus_list"}

DETAIL_FRAMES = 5
"""Last frames of a traceback that a dead letter keeps."""

DETAIL_LENGTH = 4_000
"""Most characters of a dead letter's detail."""

MOST_URL = 2_000
"""Characters of a URL that the history keeps."""

MOST_TRIES = 2**31
"""Meta may say anything of how often a request was tried."""

_encode = msgspec.msgpack.Encoder().encode


class Problem(Struct, frozen=True):
    """Why a request becomes a dead letter.

    ``error`` is the type of the exception or "", ``status`` that of the response or 0. A
    ``provisional`` problem no longer counts once the spider has dealt with the failure or the
    response. ``foreign``: nobody has enqueued the request.
    """

    reason: DeadReason
    detail: str
    error: str = ""
    status: int = 0
    provisional: bool = False
    foreign: bool = False

    @classmethod
    def of(
        cls, reason: DeadReason, failure: Failure, status: int = 0, *, provisional: bool = False
    ) -> Problem:
        """The problem that an exception is."""
        error = global_object_name(type(failure.value))
        return cls(reason, describe(failure), error, status, provisional)

    @property
    def text(self) -> str:
        """The detail as Redis can hold it."""
        return _text(self.detail)[:DETAIL_LENGTH]

    def finish(self, lease: str) -> Finish:
        """The end of the lease."""
        more = {"error": self.error, "status": self.status, "foreign": self.foreign}
        return Finish(lease, "dead", self.reason, self.text, **more)  # type: ignore[arg-type]

    def tell_of_death(self, stats: Any, what: Page | str) -> None:
        """One line: Scrapy has logged the traceback, and the dead letter keeps its last frames."""
        stats.inc_value(f"redisq/dead/{self.reason}")
        logger.warning(
            "Dead letter (%s): %s: %s", self.reason, what, self.detail.partition("\n")[0]
        )

    def letter(self, slot: str, identity: bytes) -> Letter:
        """The dead letter of a request that no page stands for."""
        return Letter(slot, 0, identity, self.reason, self.text, self.error, self.status)


class Download(Struct):
    """A page's download, which ``began`` at a time.monotonic() (0: not yet).

    ``status`` is that of its response. ``ignored``: a downloader middleware has raised
    `IgnoreRequest`. After the status ``exhausted`` (0: an exception) no further retry was made: a
    problem only if the spider is not given the response. ``answer``: what the content is known by,
    of a page that comes again.
    """

    began: float = 0.0
    status: int = 0
    exhausted: int | None = None
    ignored: bool = False
    answer: Answer | None = None


class Output:
    """The requests and items of a page, or of ``start()``."""

    def __init__(self) -> None:
        self.repeats = Repeats()
        """Counts unfiltered requests that are alike."""
        self._held: dict[int, object] = {}
        self.items = self.asked = 0
        self.links: list[Enqueue] = []
        """Requests that went to other shards, until they are safe there."""
        self._most_links = 1_000

    def shared(self, request: Request) -> str:
        """Where the request holds an object that an earlier one held, such as ``meta['rows']``; ""
        if nowhere. Objects are known themselves, so that no other comes to have the same id."""
        found = ""
        for name, values in (("meta", request.meta), ("cb_kwargs", request.cb_kwargs)):
            for key, value in values.items():
                if not isinstance(value, _CHANGEABLE) or key in _NOT_OF_THE_SPIDER:
                    continue
                if id(value) in self._held:
                    found = f"{name}[{key!r:.50}]"
                elif len(self._held) < MOST_HELD:
                    self._held[id(value)] = value
        return found

    def keep_link(self, link: Enqueue) -> None:
        """Keep a link until it is safe. A page may have more links than a process can hold."""
        self.links.append(link)
        if len(self.links) > self._most_links:
            self.links = [one for one in self.links if one.link is None or not one.link.safe]
            self._most_links = 1_000 + 2 * len(self.links)


class AsStored(NamedTuple):
    """What a request had before middlewares and Scrapy's downloader could set it. ``wanted``: how
    many of its retries its callback has asked for (`WANTED_KEY`)."""

    dont_filter: bool
    download_slot: str | None
    wanted: int


class Page(Struct, eq=False):
    """A request in progress.

    ``problem`` is there once something went wrong. The page is not over while it ``waits_for``
    something: items that their sink has not written, or kept requests. ``tries``: how often the
    request was sent back before, because its slot or its sink was in trouble. ``every``: it comes
    again; ``seen_ttl``: its URL may be asked for again after so many seconds. Raises ValueError if
    its meta says one of these as it cannot be.

    At its end ``back`` goes first: the next worker that claims the page fetches it again. Then
    comes ``retry``, a request that takes the page's place.
    """

    request: Request
    lease: Lease
    session: ShardSession
    identity: bytes | None = None
    download: Download = field(default_factory=Download)
    output: Output = field(default_factory=Output)
    waits_for: int = 0
    problem: Problem | None = None
    back: Finish | None = None
    retry: Finish | None = None
    tries: int = 0
    every: Recurrence | None = None
    seen_ttl: float = 0.0
    stored: AsStored = AsStored(False, None, 0)

    asked_again = True
    is_kept = False

    def __str__(self) -> str:
        callback = getattr(self.request.callback, "__name__", "parse")
        return f"{self.request!s:.500} (callback {callback})"

    def __post_init__(self) -> None:
        request, meta = self.request, self.request.meta
        # Its links, which may be given all of its meta, do not come again, and were never retried;
        # nor do kept requests come again.
        every, wanted = meta.pop(EVERY_KEY, None), retry_times(meta, WANTED_KEY)
        meta.pop(WANTED_KEY, None)
        self.stored = AsStored(request.dont_filter, meta.get("download_slot"), wanted)
        if self.lease.entry:
            self.tries = back_offs(self.lease.entry)
            self.every = None if every is None else Recurrence.of(every)
        if SEEN_TTL_KEY in meta:
            self.seen_ttl = seen_ttl_of(meta[SEEN_TTL_KEY])

    @property
    def is_held(self) -> bool:
        """Its lease is not void: this worker ends it. Else another worker has the page, or will."""
        return not self.session.is_void and self.lease.id in self.session.held

    @property
    def given_back(self) -> bool:
        return self.back is not None

    def give_back(self) -> None:
        """Let the next worker that claims the page fetch it again."""
        self.back = self.back or Finish(self.lease.id, "released")

    def give_back_tried(self, delay: float = 0.0) -> None:
        """The same, after ``delay`` seconds; the try counts."""
        lease, ms = self.lease, int(delay * 1000)
        entry = with_back_offs(lease.entry, self.tries + 1) if lease.entry else b""
        if ms:
            self.back = Finish(lease.id, "retried", entry=entry, priority=lease.priority, delay=ms)
        else:
            self.back = Finish(lease.id, "backed_off", entry=entry)

    def come_again(self, identity: bytes) -> float:
        """Let the request, which is known by ``identity``, take its own place after its interval;
        -> the seconds until then. Whatever went wrong, it is no dead letter."""
        assert self.every is not None
        # An answer of which something went wrong is none: a 304 to the next request would hide it.
        answer = None if self.problem is not None else self.download.answer
        lease, every = self.lease, self.every.after(answer)
        meta = {EVERY_KEY: every.stored()}
        entry = next_time(lease.entry, of_next_time(identity), meta, every.headers)
        delay = milliseconds(every.every)
        self.retry = Finish(lease.id, "retried", entry=entry, priority=lease.priority, delay=delay)
        return every.every

    def as_itself(self, request: Request) -> Request:
        """``request``, by which the page is tried again, as the page's own."""
        if self.every is None:
            return request
        # Its meta does not say so any more. A retry's priority is another one, and would be that of
        # all times to come.
        meta = {**request.meta, EVERY_KEY: self.every.stored()}
        return request.replace(meta=meta, priority=self.lease.priority)

    def blame(self, most: int) -> None:
        """The page itself is at fault: times that it was sent back count as retries, once. From
        now on it counts as sent back ``most`` times."""
        if 0 < self.tries < most:
            self.request.meta["retry_times"] = retry_times(self.request.meta) + self.tries
        self.tries = max(self.tries, most)

    def finish(self) -> Finish:
        """How the lease ends."""
        if self.back is not None:
            return self.back
        if self.retry is not None:  # goes before a problem
            return self.retry
        if self.problem is not None:
            return self.problem.finish(self.lease.id)
        return Finish(self.lease.id, "done")


class KeptPage(Page, eq=False):
    """A kept request in progress or waiting; its lease is none of the frontier (`KeptRequests`).

    ``holder`` is the page of the frontier that asked for it; None: ``start()`` or a handler of
    ``spider_idle`` did. ``asked_again``: the holder asks for it again when the holder is fetched
    again, or each worker's ``start()`` does.
    """

    holder: Page | None = None
    asked_again: bool = True

    is_kept = True


def record_of(page: Page, identity: bytes, finish: Finish) -> tuple[str, bytes] | None:
    """The ``identity`` of ``page``, as an exact dupefilter has it, and its record in the history
    (REDISQ_HISTORY). None if the page is not over.

    The record is a msgpack map: url, method, status (0: no answer), items, attempts, seconds (from
    the beginning of its download, 0: there was none), worker, run, and outcome: "done", or the
    reason of its dead letter.
    """
    if finish.ending not in ("done", "dead"):
        return None
    request, began = page.request, page.download.began
    tries = retry_times(request.meta) + back_offs(page.lease.entry) + page.lease.deliveries
    record = {
        "url": _text(request.url[:MOST_URL]),
        "method": _text(request.method),
        "status": page.download.status,
        "items": page.output.items,
        "attempts": min(1 + tries, MOST_TRIES),
        "seconds": round(time.monotonic() - began, 3) if began else 0.0,
        "worker": page.session.worker_id,
        "run": page.session.run_id,
        "outcome": finish.reason or "done",
    }
    return exact_member(identity), _encode(record)


def _text(text: str) -> str:
    """The text without surrogates, which spiders may use and Redis cannot hold."""
    return text.encode("utf-8", "replace").decode()


def describe(failure: Failure) -> str:
    """An exception for a dead letter: its type, its message and the last frames."""
    error = failure.value
    trace = failure.tb or (error.__traceback__ if error else None)
    frames = traceback.format_tb(trace)[-DETAIL_FRAMES:]
    return f"{global_object_name(type(error))}: {message_of(error):.1000}\n{''.join(frames)}"
