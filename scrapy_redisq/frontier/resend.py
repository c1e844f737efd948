"""Requests that a shard has taken and may yet lose with the end of its log."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from scrapy_redisq.frontier.operations import Enqueue, Letter, Operation

MAX_KEPT_BYTES = 64_000_000
"""Of requests that are to be sent, or without a page and may have to be sent again."""

KEPT_OVERHEAD = 250
"""Bytes that such a request takes beside its entry."""

NO_REPLICA = 2.5
"""Seconds after which a server without any replica cannot lose what it has acknowledged. No replica
could take its place, and its log is on the disk by then (``appendfsync everysec``). A replica that
comes later has all of it."""

LOOK_AGAIN = 10.0
"""Seconds after which it is looked again whether there is a replica by now, while it matters."""


def _is_of_nobody(operation: Enqueue | Letter) -> bool:
    return isinstance(operation, Letter) or operation.page is None


class Resend:
    """Requests that no page of the shard's own server stands for, from their acknowledgement until
    they are safe; and whether the shard may lose its begin of the run.

    ``rewind``: the seconds of its log that a server may lose. ``primary_vouched``: until when, by
    time.monotonic(), the server is known not to have been replaced. ``spread``: shards have logs
    of their own.
    """

    def __init__(
        self, rewind: float, primary_vouched: Callable[[], float], *, spread: bool
    ) -> None:
        self.alone_at = -math.inf
        """When (time.monotonic()) the server was last seen to have no replica; -inf: it may have
        some, of which none or all may be away."""
        self.bytes = 0
        """Of the requests that are kept."""
        self._rewind = rewind
        self._primary_vouched = primary_vouched
        self._spread = spread
        self._kept: deque[tuple[float, Enqueue | Letter]] = deque()
        self._of_nobody = 0
        """How many of them have no page at all."""
        self._begin()

    def _begin(self) -> None:
        self._joined_at = time.monotonic()
        self._sent_at = self._proved_at = self._confirmed_at = -math.inf

    def size_of(self, operation: Operation) -> int:
        """Bytes of an operation that is to be kept because no page of this server stands for it;
        else 0."""
        if self._rewind <= 0 or not isinstance(operation, (Enqueue, Letter)):
            return 0
        if isinstance(operation, Enqueue) and operation.page is not None and not operation.link:
            return 0
        return len(operation.entry) + KEPT_OVERHEAD

    def acknowledged(self, operation: Enqueue | Letter, at: float) -> None:
        """Keep a request that no page of this server stands for until it is safe."""
        if size := self.size_of(operation):
            if isinstance(operation, Enqueue) and operation.tag is not None:
                operation = replace(operation, tag=None)  # nobody is told of it again
            self._kept.append((at, operation))
            self.bytes += size
            self._of_nobody += _is_of_nobody(operation)
        elif isinstance(operation, Enqueue) and operation.link:  # REDISQ_REWIND is 0
            operation.link.is_safe_now()

    def sends(self) -> None:
        """An exchange is sent, to the server that is known now. By the time of the answer, or of
        `rejoined`, another one may be known to be right, which lacks all of it."""
        self._sent_at = min(time.monotonic(), self._primary_vouched())

    def answered(self, *, confirmed: bool) -> None:
        """The server has answered what was sent, so it had all from before. ``confirmed``: its
        replicas have what was sent, and so all before it."""
        self._proved_at = max(self._proved_at, self._sent_at)
        if confirmed:
            self._confirmed_at = time.monotonic()
        safe = self._safe_until
        while self._kept and self._kept[0][0] <= safe:
            _, operation = self._kept.popleft()
            self.bytes -= self.size_of(operation)
            self._of_nobody -= _is_of_nobody(operation)
            if isinstance(operation, Enqueue) and operation.link:
                operation.link.is_safe_now()

    def rejoined(self) -> list[Enqueue | Letter]:
        """-> the requests to be sent again, in the order in which they were sent."""
        again = [kept for _, kept in self._kept]
        self._kept.clear()
        self._of_nobody = self.bytes = 0
        self._begin()
        return again

    # Requests may be lost

    @property
    def proof_at(self) -> float:
        """When (time.monotonic()) an exchange may show that nothing of it can be lost any more; in
        the past if one has."""
        last = self._kept[-1][0] if self._kept else self._joined_at
        lost_at_most = min(self._rewind, NO_REPLICA) if self.is_alone else self._rewind
        return last + lost_at_most + 0.001  # timers may be early

    @property
    def is_alone(self) -> bool:
        """The server had no replica when that was last looked at."""
        return self.alone_at > -math.inf

    def look_since(self, proof_at: float) -> float:
        """Since when (time.monotonic()) it should have been looked whether the server still has no
        replica; -inf: that would not help. ``proof_at``: the latest of all shards, so that one look
        proves all."""
        if not (self.is_alone and self.may_lose):
            return -math.inf
        now = time.monotonic()
        return proof_at if proof_at <= now else now - LOOK_AGAIN

    @property
    def _safe_until(self) -> float:
        """The server can no longer lose requests that it acknowledged until then. The time that has
        passed is no proof: after an outage the server may lack its last words. Nor are answers of a
        server that may have been replaced: its successor may lack all of them."""
        alone = min(self._proved_at, self.alone_at) - min(self._rewind, NO_REPLICA)
        return max(self._confirmed_at, self._proved_at - self._rewind, alone)

    @property
    def may_lose(self) -> bool:
        """Whether the server may yet lose a kept request, or its begin of the run."""
        return bool(self._kept) or self._safe_until < self._joined_at

    @property
    def may_ask_again(self) -> bool:
        """Whether the server has, and may yet lose, requests without a page."""
        return self._spread and self._of_nobody > 0

    @property
    def has_begun(self) -> bool:
        """Whether the server can no longer lose that it has begun the run."""
        return self._joined_at < self._safe_until
