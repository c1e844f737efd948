"""When a worker's next exchange is due."""

from __future__ import annotations

import math
import time

from scrapy_redisq.frontier.operations import Reply

FLUSH = 0.25
"""Seconds that something to send waits for company at most: an exchange costs Redis as much as
ten pages in it."""

FLUSH_SHARED = 0.05
"""The same while other workers wait for something to do."""

RUNNING_LOW = 0.005
"""Seconds between exchanges of a worker that has little left to start."""

URGENT = 0.05
"""Seconds between exchanges for what is urgent: clients may publish it as often as they like."""

BUSY = 1.0
"""Seconds between exchanges of a worker that has nothing to say but works on something."""

START = 0.25
"""Seconds that the first exchange of a worker waits for a request of ``start()`` at most. So one
round trip brings the request, and claims it."""

IDLE_FIRST, IDLE_LAST = 0.1, 5.0
"""Seconds between exchanges of a worker that finds nothing; they grow from one to the other. It
hears of new work, and knows when something is due."""

OTHERS_ASKED = 0.1
"""The same while other shards are asked for all that it could take, and may answer."""

UNHEARD = 0.2
"""The longest of them where a worker cannot hear of new work."""


class Pace:
    """The pause before the next exchange, by the results of the last ones.

    ``heartbeat`` is the longest pause in seconds, a quarter of the lease TTL. With several
    ``shards`` operations for one of them wait longer for as much company.
    """

    def __init__(self, heartbeat: float, shards: int = 1) -> None:
        self._heartbeat = heartbeat
        self._gather = min(FLUSH * shards, BUSY)
        self._sent_at = 0.0
        self._began_at: float | None = time.monotonic()
        self._idle = IDLE_FIRST
        self._more = True
        self.has_enough = False
        """All entries that were asked for last have come, or new ones have been pushed since."""
        self._next_due: float | None = None
        self._overdue_in = 0.0
        self._flush = self._gather
        self.woken = False
        """Another process has said that there is something to do."""
        self.listening = False
        """This worker would hear if another process said so."""
        self.told = False
        """People have ordered something, which the next exchange tells."""
        self.confirms = False
        """The next exchange says whether all is done indeed: nothing else is waited for."""
        self.is_uncertain = False
        """All is done, if this server counts: that is asked again after the next exchange."""

    def exchanged(self, reply: Reply, want: int, *, idle: bool) -> None:
        """An exchange was answered that might claim ``want`` entries. ``idle``: the worker has
        nothing else to do."""
        self._sent_at = time.monotonic()
        self._began_at = None
        claimed = len(reply.leases)
        if want:
            self._more = self.has_enough = claimed >= want
        elif reply.accepted:
            self._more = self.has_enough = True
        dues = [due for due in (reply.next_due, reply.post_due) if due is not None]
        self._next_due = min(dues) / 1000 if dues else None
        self._overdue_in = reply.overdue_in / 1000
        self._flush = FLUSH_SHARED if reply.waiting else self._gather
        if claimed or not idle:
            self._idle = IDLE_FIRST
        else:
            self._idle = min(self._idle * 2, IDLE_LAST)

    def found_more(self) -> None:
        """Something has become claimable."""
        self._more = True

    def may_have_more(self) -> bool:
        """Whether it is worth asking for more now, as far as is known."""
        due = self._next_due is not None and time.monotonic() >= self._sent_at + self._next_due
        return self._more or self.woken or due

    def pause(
        self,
        *,
        low: bool,
        waiting: bool,
        others_asked: bool,
        many: bool,
        busy: bool,
        starting: bool = False,
        held_back: bool = False,
        enqueues: bool = True,
        within: float = math.inf,
        urgent: bool = False,
        proof_at: float = -math.inf,
    ) -> float:
        """Seconds until the next exchange.

        ``low``: the worker has little left to start. ``others_asked``: other shards are asked for
        all that it could take. ``waiting``: there is something to send, ``enqueues``: requests too,
        ``many``: enough for a whole exchange. ``busy``: it works on something, ``starting``:
        ``start()`` may have more. ``held_back``: it has more, and waits for room, of which only an
        exchange tells. ``within``: seconds from now. ``urgent``: as soon as may be.
        ``proof_at``: when (time.monotonic()) an exchange will show that nothing which the server
        has can be lost.
        """
        since = time.monotonic() - self._sent_at
        if many:
            return 0.0
        if urgent or self.told:
            return max(0.0, URGENT - since)
        if starting and not waiting and self._began_at is not None:
            return max(0.0, self._began_at + START - time.monotonic())
        if self.confirms:
            return max(0.0, RUNNING_LOW - since)
        soon = OTHERS_ASKED if others_asked else RUNNING_LOW
        pauses = [self._heartbeat, BUSY if busy else self._idle]
        if held_back:
            pauses.append(BUSY)
        pauses.append(max(BUSY, self._overdue_in))
        if proof_at > self._sent_at:
            pauses.append(proof_at - self._sent_at)  # it is tried once, then now and then
        if self.is_uncertain:
            pauses.append(BUSY)
        if not self.listening:
            pauses.append(UNHEARD)
        if low and self.woken:
            pauses.append(IDLE_FIRST)
        if waiting:
            # A worker that runs low may claim at once what it enqueues.
            pauses.append(RUNNING_LOW if not busy or (low and enqueues) else self._flush)
        if low and self._more:
            pauses.append(soon)
        if low and self._next_due is not None:
            pauses.append(max(soon, self._next_due))
        return max(0.0, min(min(pauses) - since, max(within, IDLE_FIRST - since)))
