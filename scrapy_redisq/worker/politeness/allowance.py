"""What a worker may do with one slot: the turn that the frontier has given it, and its tokens."""

from __future__ import annotations

from dataclasses import dataclass

NOT_NOW = 3_600.0
"""Seconds until something may start that needs a turn or a token first."""


SLACK = 0.03
"""Share of a delay by which it may be lengthened for what a request needs to get to the host."""


MANY = 10_000
"""More than a worker ever holds."""


AHEAD = 1.0
"""Seconds' worth of a limited slot's requests that are worth holding. More would take the place of
requests of other slots: a worker may hold but so many in all."""


@dataclass
class Allowance:
    """What this worker may do with one slot. Times are those of time.monotonic().

    ``tat`` is the theoretical arrival time of the generic cell rate algorithm. ``tokens`` is None
    without a limit on the concurrency, ``ends`` is None without a delay and a rate. ``not_before``
    comes from what other workers have started, ``last`` is this worker's own last start.
    """

    slot: str
    delay: float = 0.0
    interval: float = 0.0
    burst: int = 1
    ends: float | None = None
    not_before: float = 0.0
    last: float | None = None
    tat: float = 0.0
    tokens: int | None = None
    parked: float = 0.0
    """Nothing begins before it."""
    paused: bool = False
    """It is parked because a person says so."""
    suspended: float = 0.0
    """When the frontier had to be asked anew; older answers do not count."""
    in_trouble: bool = False
    """The frontier wants to know how downloads end."""
    on_the_way: int = 0
    """Handed to Scrapy, and not begun to be downloaded."""
    flying: int = 0
    """Being downloaded."""
    uncounted: int = 0
    """Of these, what was begun before ``counted_since``, while any number was allowed: they have no
    tokens. One that hangs would keep a slot that has failed from its next try."""
    counted_since: float = 0.0
    at_the_gate: int = 0
    """About to be downloaded, and held up."""
    handed_back: bool = False
    """The frontier knows all of it, and that it is of no use."""

    def wait(self, now: float) -> float:
        """Seconds until a download may begin; NOT_NOW without a turn or a token."""
        if self.tokens is not None and self.counted >= self.tokens:
            return NOT_NOW
        if self.ends is None:
            return max(0.0, self.parked - now)
        by_rate = self.tat - (self.burst - 1) * self.interval
        start = max(self._by_delay(now), by_rate)
        return start - now if start < self.ends else NOT_NOW

    def _by_delay(self, now: float) -> float:
        start = max(now, self.parked, self.not_before)
        return start if self.last is None else max(start, self.last + self.delay)

    def stock(self, now: float) -> int:
        """How many requests are worth holding: as many as may begin soon, but one at least."""
        most = float("inf")
        if self.delay:
            most = 1 + (now + AHEAD - self._by_delay(now)) // self.delay
        if self.interval:
            most = min(most, self.burst + (now + AHEAD - max(now, self.tat)) // self.interval)
        if self.tokens is not None:
            most = min(most, 2 * self.tokens)
        return int(max(1, min(most, MANY)))

    def begin(self, now: float) -> None:
        """A download begins."""
        self.flying += 1
        self.handed_back = False
        self.last = now
        self.tat = max(self.tat, now) + self.interval

    def shift(self, late: float) -> None:
        """The last request got to its host ``late`` seconds after it began here, so the next one
        must begin later, too."""
        if self.last is not None:
            self.last += late
        self.tat += late

    def end(self, began: float, now: float) -> None:
        """A download that began at ``began`` has ended; its request got to the host some time
        between."""
        self.flying -= 1
        self.uncounted -= self.uncounted > 0 and began < self.counted_since
        self.shift(min(now - began, SLACK * max(self.delay, self.interval)))

    def limit(self, tokens: int | None, now: float) -> None:
        """So many downloads are allowed at a time, None: any number."""
        if tokens is None:
            self.uncounted, self.counted_since = 0, 0.0
        elif self.tokens is None:
            self.uncounted, self.counted_since = self.flying, now
        self.tokens = tokens

    @property
    def counted(self) -> int:
        """Downloads that have a token."""
        return self.flying - self.uncounted

    def suspend(self, now: float, parked: float) -> None:
        """Begin nothing before the frontier was asked anew, and in any case before ``parked``."""
        self.ends = 0.0
        self.handed_back = False
        self.suspended = now
        self.parked = parked

    @property
    def limited(self) -> bool:
        return self.ends is not None or self.tokens is not None

    @property
    def idle(self) -> bool:
        return not (self.on_the_way or self.flying or self.at_the_gate)
