"""The limits of slots, kept by the worker that starts their requests.

The frontier gives a slot's turn to one worker at a time, for about a second. For the downloads of a
slot with a concurrency it gives tokens (see ``frontier/lua/shared/slots/``). A download begins when
the limit allows it by this process's clock, and the next exchange tells the frontier. Delays of the
network make a start later, never earlier.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping

from msgspec import Struct

from scrapy_redisq.frontier.operations import TurnGrant, TurnReport
from scrapy_redisq.worker.inbox import PATIENCE

NOT_NOW = 3_600.0
"""Seconds until something may start that needs a turn or a token first."""

MANY = 10_000
"""More requests than a worker ever holds; of more slots nothing is remembered."""

AHEAD = 1.0
"""Seconds' worth of a limited slot's requests that are worth holding. More would take the place of
requests of other slots: a worker may hold but so many in all."""

AT_THE_GATE = 0.02
"""Seconds between looks at whether a download may begin."""

RENEW = 0.5
"""Seconds before its end at which a turn is asked for again."""

FREE_FOR = 10.0
"""Seconds for which a slot that the frontier called free of limits counts as such. Changes are told
to workers at once, but for the limits of a worker that joins later."""

EARLY = 0.2
"""Seconds before its parking ends that a slot is asked for; the frontier gives it a little
earlier."""


class Allowance(Struct):
    """This worker's allowance for one slot. Times are those of time.monotonic().

    ``tat`` is the theoretical arrival time of the generic cell rate algorithm. ``tokens`` is None
    without a limit on the concurrency, ``ends`` is None without a delay and a rate. ``not_before``
    comes from what other workers have started, ``last`` is this worker's own last start. Nothing
    begins before ``parked``; the slot is ``paused`` if a person says so. Answers of the frontier
    from before ``suspended`` do not count. ``in_trouble``: it wants to know how downloads end.

    ``unwritten`` requests have begun, and the loop has yet to write them.

    Requests are ``on_the_way`` when they were handed to Scrapy, ``at_the_gate`` when their download
    is held up, ``flying`` when it has begun. Of these ``uncounted`` were begun before
    ``counted_since``, while any number was allowed. They have no tokens: else one that hangs would
    keep a slot that has failed from its next try. ``handed_back``: the frontier knows that this
    worker needs the slot no more. ``turned_away``: it had a request for it, which was told that the
    slot is parked: that may be over by now, and the news of it lost.
    """

    slot: str
    delay: float = 0.0
    interval: float = 0.0
    burst: int = 1
    ends: float | None = None
    not_before: float = 0.0
    last: float | None = None
    unwritten: int = 0
    tat: float = 0.0
    tokens: int | None = None
    parked: float = 0.0
    paused: bool = False
    suspended: float = 0.0
    in_trouble: bool = False
    on_the_way: int = 0
    at_the_gate: int = 0
    flying: int = 0
    uncounted: int = 0
    counted_since: float = 0.0
    handed_back: bool = False
    turned_away: bool = False

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
        most: float = MANY
        if self.delay:
            most = min(most, 1 + (now + AHEAD - self._by_delay(now)) // self.delay)
        if self.interval:
            most = min(most, self.burst + (now + AHEAD - max(now, self.tat)) // self.interval)
        if self.tokens is not None:
            most = min(most, 2 * self.tokens)
        return int(max(1, most))

    def begin(self, now: float) -> None:
        """A download begins."""
        self.flying += 1
        self.unwritten += 1
        self.handed_back = False
        self.last = now
        self.tat = max(self.tat, now) + self.interval

    def written(self, began: float, now: float) -> None:
        """The request that ``began`` is on its way only now. If it was the last one, the next one
        begins so much later."""
        self.unwritten -= 1
        if self.last == began:
            self.last = now
            self.tat += now - began

    def end(self, began: float) -> None:
        """A download has ended, which ``began`` then."""
        self.flying -= 1
        self.uncounted -= self.uncounted > 0 and began < self.counted_since

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

    @property
    def waiting(self) -> int:
        """Requests that are to begin."""
        return self.on_the_way + self.at_the_gate

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.flying)


_UNLIMITED = Allowance("")


class Turns:
    """The turns of one worker. Slots that are not in it have no limits.

    ``valid_until(slot)``: when (time.monotonic()) other workers may take this one for dead, and
    have its tokens. ``has_more(slot)``: this worker has more to download of it than is said here.
    """

    def __init__(
        self,
        valid_until: Callable[[str], float] = lambda slot: math.inf,
        has_more: Callable[[str], bool] = lambda slot: False,
    ) -> None:
        self._turns: dict[str, Allowance] = {}
        self._on_the_way: dict[Hashable, tuple[Allowance, float]] = {}
        self._free: dict[str, float] = {}
        """Slots without limits, and until when that is known."""
        self._urgent = False
        self._valid_until = valid_until
        self._has_more = has_more

    def __bool__(self) -> bool:
        return bool(self._turns)

    def of(self, slot: str) -> Allowance:
        """The allowance for a slot, to be read."""
        return self._turns.get(slot, _UNLIMITED)

    def knows(self, slot: str) -> bool:
        """Whether ``slot`` has, or had lately, limits that this worker heeds."""
        return slot in self._turns

    def waiting(self) -> int:
        """Requests that wait for the turn of their slot, or for a token."""
        states = self._turns.values()
        return sum(one.waiting for one in states if one.waiting and self._wait_at_the_gate(one) > 0)

    def is_free(self, slot: str) -> bool:
        """Whether the frontier said lately that ``slot`` has no limits."""
        return self._free.get(slot, 0.0) > time.monotonic()

    # The frontier answers

    def received(
        self, grants: Iterable[TurnGrant], told: Iterable[TurnReport], sent_at: float
    ) -> list[str]:
        """Take in the frontier's answer to a `report` that was sent at ``sent_at``. -> slots whose
        turn or tokens this worker was refused."""
        for report in told:
            state = self._turns.get(report.slot)
            # A worker that has kept a token for a download that has ended since has to tell so.
            if report.done and not report.tokens and state is not None and state.idle:
                state.handed_back = state.suspended <= sent_at
                self._drop_if_idle(report.slot)
        return [grant.slot for grant in grants if self._take(grant, sent_at)]

    def _take(self, grant: TurnGrant, sent_at: float) -> bool:
        """Take in a grant of the frontier; -> was it refused?"""
        now = time.monotonic()
        state = self._turns.setdefault(grant.slot, Allowance(grant.slot))
        if grant.is_new:  # said once, so it counts even where the rest is out of date
            state.not_before = max(state.not_before, now + grant.next_start / 1e6)
            state.tat = max(state.tat, now + grant.tat / 1e6)
        if state.suspended > sent_at:
            self._urgent = True
            return False
        state.handed_back = False
        state.delay, state.interval = grant.delay / 1e6, grant.interval / 1e6
        state.burst = grant.burst
        # A faster rate never puts the next start further off than `burst` intervals.
        state.tat = min(state.tat, now + state.burst * state.interval)
        state.in_trouble, state.paused = bool(grant.trouble), bool(grant.paused)
        # A wait for a turn or a token is over before the parking is.
        state.parked = now + grant.parked / 1e6 if grant.parked > 0 else 0.0
        self._free.pop(grant.slot, None)
        if grant.is_free:
            if len(self._free) >= MANY:
                self._free.clear()
            self._free[grant.slot] = now + FREE_FOR
            state.ends = None
            state.limit(None, now)
            self._drop_if_idle(grant.slot, free=True)
            return False
        refused = grant.is_refused
        state.limit(None if grant.tokens < 0 else grant.tokens, now)
        if refused and state.tokens is not None:
            state.tokens = state.counted
        # It was given after it was asked for, and so ends later than this.
        state.ends = None if grant.left < 0 else 0.0 if refused else sent_at + grant.left / 1e6
        return refused

    def _drop_if_idle(self, slot: str, *, free: bool = False) -> None:
        """``free``: the slot has no limits, so what comes of it later need not ask."""
        state = self._turns.get(slot)
        if state is None or state.paused:  # for an hour, as it says, and perhaps for longer
            return
        is_over = state.idle and state.parked <= time.monotonic()
        if is_over and (free or not self._has_more(slot)):
            del self._turns[slot]

    def suspend(self, slot: str, parked: float, *, told: bool = False) -> None:
        """Begin nothing of ``slot`` before the frontier was asked anew, and nothing for ``parked``
        seconds. ``told``: by the frontier, so what was known before does not count."""
        now = time.monotonic()
        self._free.pop(slot, None)
        state = self._turns.setdefault(slot, Allowance(slot))
        # Of many failures at a time one is urgent.
        self._urgent = self._urgent or told or state.parked <= now
        state.ends, state.suspended, state.handed_back = 0.0, now, False
        state.parked = now + parked if told else max(state.parked, now + parked)
        state.paused = state.paused and not told

    def changed(self, slot: str) -> None:
        """``slot`` may have limits now."""
        self._free.pop(slot, None)

    def forgotten(self, of: Callable[[str], bool]) -> None:
        """All turns ``of`` some slots are void. Downloads go on."""
        self._free = {slot: until for slot, until in self._free.items() if not of(slot)}
        for state in [state for slot, state in self._turns.items() if of(slot)]:
            state.ends = None if state.ends is None else 0.0
            state.tokens = None if state.tokens is None else 0
            self._drop_if_idle(state.slot)

    # Starting

    def wait(self, slot: str) -> float:
        """Seconds until another request of ``slot`` may be handed to Scrapy; NOT_NOW if something
        else has to happen first. If starts are limited, one request at a time is on its way to its
        download."""
        state = self.of(slot)
        if state.ends is not None and state.waiting:
            return NOT_NOW
        if state.tokens is not None and state.counted + state.on_the_way >= state.tokens:
            return NOT_NOW
        return self._wait_at_the_gate(state)

    def handed_out(self, request: Hashable, slot: str) -> None:
        """``request`` was handed to Scrapy."""
        state = self._turns.get(slot)
        if state is not None and request not in self._on_the_way:
            state.on_the_way += 1
            self._on_the_way[request] = state, time.monotonic()

    def is_done(self, request: Hashable) -> None:
        """``request`` is done with; perhaps it was never downloaded."""
        if known := self._on_the_way.pop(request, None):
            known[0].on_the_way -= 1

    async def may_begin(
        self, request: Hashable, slot: str, check: Callable[[float], None]
    ) -> Allowance | None:
        """Returns when the download of ``request`` may begin, and takes it for begun; None: no
        limits. Meanwhile ``check`` is called with the seconds for which the slot is parked,
        and may raise."""
        state = self._turns.get(slot)
        if state is None:
            return None
        state.at_the_gate += 1
        self.is_done(request)
        try:
            while (wait := self._wait_at_the_gate(state)) > 0:
                check(state.parked - time.monotonic())
                await asyncio.sleep(min(wait, AT_THE_GATE))
        except BaseException:
            state.turned_away, state.handed_back = True, False
            raise
        finally:
            state.at_the_gate -= 1
        began = time.monotonic()
        state.begin(began)
        # The request is written in the next round of the loop, which may have much to do before.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, lambda: state.written(began, time.monotonic()))
        return state

    def _wait_at_the_gate(self, state: Allowance) -> float:
        now = time.monotonic()
        if state.tokens is not None and now > self._valid_until(state.slot):
            return NOT_NOW
        return state.wait(now)

    # Telling

    @property
    def urgent(self) -> bool:
        """The frontier has to be asked at once."""
        return self._urgent and bool(self._turns)

    def needed_within(self, waiting: Mapping[str, int]) -> float:
        """Seconds within which an exchange is needed to keep the turns that are of use."""
        asks = [
            max(state.ends - RENEW, state.parked - EARLY)
            for slot, state in self._turns.items()
            if state.ends is not None and (waiting.get(slot) or state.at_the_gate)
        ]
        return max(0.0, min(asks) - time.monotonic()) if asks else NOT_NOW

    def report(
        self,
        waiting: Mapping[str, int],
        worth: Callable[[str, int], int],
        mine: Callable[[str], bool],
    ) -> list[TurnReport]:
        """The reports for the next exchange, with the entries to claim. ``waiting``: leases of each
        slot. ``worth(slot, soon)``: how many leases are worth having if ``soon`` may begin soon.
        ``mine``: whether the slot is of the shard that is told."""
        now = time.monotonic()
        told = []
        self._urgent = False
        # A request that a downloader middleware keeps for longer may not come for minutes.
        soon = Counter(
            state.slot for state, since in self._on_the_way.values() if now - since < PATIENCE
        )
        for slot, state in list(self._turns.items()):
            if not mine(slot):
                continue
            held = waiting.get(slot, 0)
            if state.handed_back and state.idle and not held:
                # Of many slots that are parked for long, each would lengthen every exchange.
                self._drop_if_idle(slot)
                continue
            to_start = held + soon[slot] + state.at_the_gate + state.turned_away
            state.turned_away = False
            tokens = 0
            if state.tokens is not None:
                # Tokens are given up at once: the frontier may take them before it answers.
                state.tokens = max(state.counted, min(state.counted + to_start, state.tokens))
                tokens = state.tokens
            if not to_start and state.ends is not None:
                state.ends = 0.0
            last = now if state.unwritten else state.last
            since = -1 if last is None else max(0, int((now - last) * 1e6))
            arrival = int((state.tat - now) * 1e6)
            # A token is used again when its download ends, so the next request should be here.
            has_token = state.ends is None and state.tokens is not None and state.counted
            keeps = bool(to_start or has_token)
            want = max(0, worth(slot, state.stock(now)) - held) if keeps else 0
            told.append(TurnReport(slot, since, arrival, tokens, int(not keeps), want))
        return told
