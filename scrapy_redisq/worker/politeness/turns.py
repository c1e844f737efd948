"""The limits of slots, kept by the worker that starts their requests.

The frontier gives a slot's turn to one worker at a time, for about a second, and tokens for the
downloads of a slot with a concurrency (see ``frontier/lua/shared/slots/``). A download begins when
the limit allows it by this process's clock, and is told to the frontier with the next exchange.
Delays of the network make a start later, never earlier.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping

from scrapy_redisq.frontier.operations import TurnGrant, TurnReport
from scrapy_redisq.worker.inbox import PATIENCE
from scrapy_redisq.worker.politeness.allowance import NOT_NOW, Allowance

AT_THE_GATE = 0.02
"""Seconds between looks at whether a download may begin."""


RENEW = 0.5
"""Seconds before its end at which a turn is asked for again."""


FREE_FOR = 10.0
"""Seconds for which a slot that the frontier called free of limits counts as such. Changes are told
to workers at once, but for the limits of a worker that joins later."""


MANY_SLOTS = 10_000
"""More are not remembered."""


EARLY = 0.2
"""Seconds before its parking ends that a slot is asked for; the frontier gives it a little
earlier."""


_UNLIMITED = Allowance("")


class Turns:
    """The turns of one worker. Slots that are not in it have no limits.

    ``valid_until``: a function of a slot: when (time.monotonic()) other workers may take this one
    for dead on its shard, and have its tokens. ``has_more``: whether this worker has requests of a
    slot that are to be downloaded, and of which nothing is said here.
    """

    def __init__(
        self,
        valid_until: Callable[[str], float] = lambda slot: math.inf,
        has_more: Callable[[str], bool] = lambda slot: False,
    ) -> None:
        self._turns: dict[str, Allowance] = {}
        self._on_the_way: dict[Hashable, tuple[Allowance, float]] = {}
        self._warm: set[str] = set()
        """Slots of which a download has ended here."""
        self._free: dict[str, float] = {}
        """Slots without limits, and until when that is known."""
        self._urgent = False
        self._valid_until = valid_until
        self._has_more = has_more

    def __bool__(self) -> bool:
        return bool(self._turns)

    def received(
        self, grants: Iterable[TurnGrant], told: Iterable[TurnReport], sent_at: float
    ) -> list[str]:
        """Take in what the frontier says in return for a `report`, sent at ``sent_at``.

        -> slots of which this worker may start nothing: it was refused the turn or tokens.
        """
        for report in told:
            state = self._turns.get(report.slot)
            # A worker that has kept a token for a download that has ended since has to tell so.
            if report.done and not report.tokens and state is not None and state.idle:
                state.handed_back = state.suspended <= sent_at
                self._drop_if_idle(report.slot)
        return [grant.slot for grant in grants if self._take(grant, sent_at)]

    def _take(self, grant: TurnGrant, sent_at: float) -> bool:
        """Take in what the frontier grants; -> was it refused?"""
        now = time.monotonic()
        state = self._turns.setdefault(grant.slot, Allowance(grant.slot))
        if grant.is_new:  # said once, so it counts even where the rest is out of date
            state.not_before = max(state.not_before, now + grant.next_start / 1e6)
            state.tat = max(state.tat, now + grant.tat / 1e6)
        if state.suspended > sent_at:
            self._urgent = True
            return False
        state.handed_back = False
        state.delay, state.interval, state.burst = (
            grant.delay / 1e6,
            grant.interval / 1e6,
            grant.burst,
        )
        # What a slower rate led to, a faster one never does.
        state.tat = min(state.tat, now + state.burst * state.interval)
        state.in_trouble, state.paused = bool(grant.trouble), bool(grant.paused)
        # What must be waited for is over earlier than this.
        state.parked = now + grant.parked / 1e6 if grant.parked > 0 else 0.0
        self._free.pop(grant.slot, None)
        if grant.is_free:
            if len(self._free) >= MANY_SLOTS:
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
        now = time.monotonic()
        if state is None or state.paused:  # for an hour, as it says, and perhaps for longer
            return
        is_over = state.idle and state.parked <= now
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
        state.suspend(now, now + parked if told else max(state.parked, now + parked))
        state.paused = state.paused and not told

    def _known(self, slot: str) -> Allowance:
        return self._turns.get(slot, _UNLIMITED)

    def tokens(self, slot: str) -> int:
        """Downloads of ``slot`` that this worker may have at a time; 0: its limits do not say."""
        return self._known(slot).tokens or 0

    def forgotten(self, of: Callable[[str], bool] = lambda slot: True) -> None:
        """All turns are void, or those ``of`` some slots. Downloads go on."""
        self._free = {slot: until for slot, until in self._free.items() if not of(slot)}
        for state in [state for slot, state in self._turns.items() if of(slot)]:
            state.ends = None if state.ends is None else 0.0
            state.tokens = None if state.tokens is None else 0
            self._drop_if_idle(state.slot)

    # Starting

    def wait(self, slot: str) -> float:
        """Seconds until another request of ``slot`` may be handed to Scrapy.

        One at a time is on its way to a download whose start is limited.
        """
        state = self._known(slot)
        if state.ends is not None and (state.on_the_way or state.at_the_gate):
            return NOT_NOW
        if self._is_cold(state):
            return NOT_NOW
        if state.tokens is not None and state.counted + state.on_the_way >= state.tokens:
            return NOT_NOW
        return self._wait(state)

    def soon(self, slot: str) -> bool:
        """Whether another request of ``slot`` may be handed to Scrapy as soon as its limits allow,
        and nothing else need happen first."""
        return self.wait(slot) < NOT_NOW

    def knows(self, slot: str) -> bool:
        """Whether ``slot`` has, or had lately, limits that this worker heeds."""
        return slot in self._turns

    def is_free(self, slot: str) -> bool:
        """Whether the frontier said lately that ``slot`` has no limits."""
        return self._free.get(slot, 0.0) > time.monotonic()

    def changed(self, slot: str) -> None:
        """``slot`` may have limits now."""
        self._free.pop(slot, None)

    def handed_back(self, slot: str) -> bool:
        """Whether the frontier knows that this worker has no use for ``slot``: it gives no requests
        of it without a turn, so what was known of the slot before is no reason to refuse them."""
        return self._known(slot).handed_back

    def parked(self, slot: str) -> float:
        """Seconds for which ``slot`` is parked, as far as this worker knows; 0 or less: not."""
        return self._known(slot).parked - time.monotonic()

    def paused(self, slot: str) -> bool:
        """Whether a person has paused ``slot``, as far as this worker knows."""
        return self._known(slot).paused

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
        """Returns when the download of ``request`` may begin, and takes it for begun.

        None: the slot has no limits. ``check`` is called with the seconds for which the slot is
        parked, again and again while it is waited, and may raise.
        """
        state = self._turns.get(slot)
        if state is None:
            return None
        state.at_the_gate += 1
        self.is_done(request)
        try:
            while (wait := self._wait_at_the_gate(state)) > 0:
                check(state.parked - time.monotonic())
                await asyncio.sleep(min(wait, AT_THE_GATE))
        finally:
            state.at_the_gate -= 1
        began = time.monotonic()
        state.begin(began)

        def written() -> None:
            if state.last == began:
                state.shift(time.monotonic() - began)

        # The request is written in the next round of the loop, which may have much to do before.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, written)
        return state

    def ended(self, state: Allowance, began: float) -> None:
        """A download that had begun has ended, one way or the other."""
        state.end(began, time.monotonic())
        self._warmed_up(state)

    def _wait_at_the_gate(self, state: Allowance) -> float:
        return NOT_NOW if self._is_cold(state) else self._wait(state)

    def _is_cold(self, state: Allowance) -> bool:
        """Whether the first download of a limited slot is under way here."""
        return state.limited and state.flying > 0 and state.slot not in self._warm

    def _wait(self, state: Allowance) -> float:
        now = time.monotonic()
        if state.tokens is not None and now > self._valid_until(state.slot):
            return NOT_NOW
        return state.wait(now)

    def _warmed_up(self, state: Allowance) -> None:
        """A download has ended: if it was the first of its slot, it may have got to its host only
        now.

        Until there is a connection a download may take much longer to begin than to be answered.
        """
        if state.slot in self._warm:
            return
        if len(self._warm) >= MANY_SLOTS:
            self._warm.clear()
        self._warm.add(state.slot)
        now = time.monotonic()
        state.not_before = max(state.not_before, now + state.delay)
        state.tat = max(state.tat, now + state.interval)

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
        """What the next exchange tells, with how many entries to claim.

        ``waiting``: leases of each slot, ``worth``: how many are worth having of one of which so
        many may begin soon, ``mine``: whether the slot is of the shard that is told.
        """
        now = time.monotonic()
        told = []
        self._urgent = False
        # What a downloader middleware keeps for longer may not come for minutes.
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
            to_start = held + soon[slot] + state.at_the_gate
            tokens = 0
            if state.tokens is not None:
                # What is given up is given up at once: the frontier may do so before it answers.
                state.tokens = max(state.counted, min(state.counted + to_start, state.tokens))
                tokens = state.tokens
            if not to_start and state.ends is not None:
                state.ends = 0.0
            since = -1 if state.last is None else max(0, int((now - state.last) * 1e6))
            arrival = int((state.tat - now) * 1e6)
            # A token is used again when its download ends, so the next request should be here.
            has_token = state.ends is None and state.tokens is not None and state.counted
            keeps = bool(to_start or has_token)
            want = max(0, worth(slot, state.stock(now)) - held) if keeps else 0
            told.append(TurnReport(slot, since, arrival, tokens, int(not keeps), want))
        return told
