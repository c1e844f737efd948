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
from scrapy_redisq.worker.politeness.turn import NOT_NOW, Turn

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
        self._turns: dict[str, Turn] = {}
        self._on_the_way: dict[Hashable, tuple[Turn, float]] = {}
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
            turn = self._turns.get(report.slot)
            # A worker that has kept a token for a download that has ended since has to tell so.
            if report.done and not report.tokens and turn is not None and turn.idle:
                turn.handed_back = turn.suspended <= sent_at
                self._drop_if_idle(report.slot)
        return [grant.slot for grant in grants if self._take(grant, sent_at)]

    def _take(self, grant: TurnGrant, sent_at: float) -> bool:
        """Take in what the frontier grants; -> was it refused?"""
        now = time.monotonic()
        turn = self._turns.setdefault(grant.slot, Turn(grant.slot))
        if grant.is_new:  # said once, so it counts even where the rest is out of date
            turn.not_before = max(turn.not_before, now + grant.next_start / 1e6)
            turn.tat = max(turn.tat, now + grant.tat / 1e6)
        if turn.suspended > sent_at:
            self._urgent = True
            return False
        turn.handed_back = False
        turn.delay, turn.interval, turn.burst = grant.delay / 1e6, grant.interval / 1e6, grant.burst
        # What a slower rate led to, a faster one never does.
        turn.tat = min(turn.tat, now + turn.burst * turn.interval)
        turn.in_trouble, turn.paused = bool(grant.trouble), bool(grant.paused)
        # What must be waited for is over earlier than this.
        turn.parked = now + grant.parked / 1e6 if grant.parked > 0 else 0.0
        self._free.pop(grant.slot, None)
        if grant.is_free:
            if len(self._free) >= MANY_SLOTS:
                self._free.clear()
            self._free[grant.slot] = now + FREE_FOR
            turn.ends = None
            turn.limit(None, now)
            self._drop_if_idle(grant.slot, free=True)
            return False
        refused = grant.is_refused
        turn.limit(None if grant.tokens < 0 else grant.tokens, now)
        if refused and turn.tokens is not None:
            turn.tokens = turn.counted
        # It was given after it was asked for, and so ends later than this.
        turn.ends = None if grant.left < 0 else 0.0 if refused else sent_at + grant.left / 1e6
        return refused

    def _drop_if_idle(self, slot: str, *, free: bool = False) -> None:
        """``free``: the slot has no limits, so what comes of it later need not ask."""
        turn = self._turns.get(slot)
        now = time.monotonic()
        if turn is None or turn.paused:  # for an hour, as it says, and perhaps for longer
            return
        is_over = turn.idle and max(turn.parked, turn.watched) <= now
        if is_over and (free or not self._has_more(slot)):
            del self._turns[slot]

    def suspend(self, slot: str, parked: float, *, told: bool = False) -> None:
        """Begin nothing of ``slot`` before the frontier was asked anew, and nothing for ``parked``
        seconds. ``told``: by the frontier, so what was known before does not count."""
        now = time.monotonic()
        self._free.pop(slot, None)
        turn = self._turns.setdefault(slot, Turn(slot))
        # Of many failures at a time one is urgent.
        self._urgent = self._urgent or told or turn.parked <= now
        turn.suspend(now, now + parked if told else max(turn.parked, now + parked))
        turn.paused = turn.paused and not told

    def tokens(self, slot: str) -> int | None:
        """Downloads of ``slot`` that its limits allow at a time, 0 if they do not say; None if no
        limits of it are known."""
        turn = self._turns.get(slot)
        return None if turn is None else turn.tokens or 0

    def forgotten(self, of: Callable[[str], bool] = lambda slot: True) -> None:
        """All turns are void, or those ``of`` some slots. Downloads go on."""
        self._free = {slot: until for slot, until in self._free.items() if not of(slot)}
        for turn in [turn for slot, turn in self._turns.items() if of(slot)]:
            turn.ends = None if turn.ends is None else 0.0
            turn.tokens = None if turn.tokens is None else 0
            self._drop_if_idle(turn.slot)

    # Starting

    def wait(self, slot: str) -> float:
        """Seconds until another request of ``slot`` may be handed to Scrapy.

        One at a time is on its way to a download whose start is limited.
        """
        turn = self._turns.get(slot)
        if turn is None:
            return 0.0
        if turn.ends is not None and (turn.on_the_way or turn.at_the_gate):
            return NOT_NOW
        if self._is_cold(turn):
            return NOT_NOW
        if turn.tokens is not None and turn.counted + turn.on_the_way >= turn.tokens:
            return NOT_NOW
        return self._wait(turn)

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
        turn = self._turns.get(slot)
        return turn is not None and turn.handed_back

    def has(self, slot: str) -> bool:
        """Whether ``slot`` is limited and this worker has a turn or a token for it."""
        turn = self._turns.get(slot)
        return turn is not None and self._wait(turn) < NOT_NOW

    def parked(self, slot: str) -> float:
        """Seconds for which ``slot`` is parked, as far as this worker knows; 0 or less: not."""
        turn = self._turns.get(slot)
        return 0.0 if turn is None else turn.parked - time.monotonic()

    def paused(self, slot: str) -> bool:
        """Whether a person has paused ``slot``, as far as this worker knows."""
        turn = self._turns.get(slot)
        return turn is not None and turn.paused

    def handed_out(self, request: Hashable, slot: str) -> None:
        """``request`` was handed to Scrapy."""
        turn = self._turns.get(slot)
        if turn is not None and request not in self._on_the_way:
            turn.on_the_way += 1
            self._on_the_way[request] = turn, time.monotonic()

    def waits_for_all(self, request: Hashable) -> None:
        """What ``request`` waits for on its way, all others of its slot would have to wait for."""
        if known := self._on_the_way.get(request):
            self._on_the_way[request] = known[0], time.monotonic()

    def is_done(self, request: Hashable) -> None:
        """``request`` is done with; perhaps it was never downloaded."""
        if known := self._on_the_way.pop(request, None):
            known[0].on_the_way -= 1

    async def may_begin(
        self, request: Hashable, slot: str, check: Callable[[float], None]
    ) -> Turn | None:
        """Returns when the download of ``request`` may begin, and takes it for begun.

        None: the slot has no limits. ``check`` is called with the seconds for which the slot is
        parked, again and again while it is waited, and may raise.
        """
        turn = self._turns.get(slot)
        if turn is None:
            return None
        turn.at_the_gate += 1
        self.is_done(request)
        try:
            while (wait := self._wait_at_the_gate(turn)) > 0:
                check(turn.parked - time.monotonic())
                await asyncio.sleep(min(wait, AT_THE_GATE))
        finally:
            turn.at_the_gate -= 1
        began = time.monotonic()
        turn.begin(began)

        def written() -> None:
            if turn.last == began:
                turn.shift(time.monotonic() - began)

        # The request is written in the next round of the loop, which may have much to do before.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, written)
        return turn

    def ended(self, turn: Turn, began: float) -> None:
        """A download that had begun has ended, one way or the other."""
        turn.end(began, time.monotonic())
        self._warmed_up(turn)

    def _wait_at_the_gate(self, turn: Turn) -> float:
        return NOT_NOW if self._is_cold(turn) else self._wait(turn)

    def _is_cold(self, turn: Turn) -> bool:
        """Whether the first download of a limited slot is under way here."""
        return turn.limited and turn.flying > 0 and turn.slot not in self._warm

    def _wait(self, turn: Turn) -> float:
        now = time.monotonic()
        if turn.tokens is not None and now > self._valid_until(turn.slot):
            return NOT_NOW
        return turn.wait(now)

    def _warmed_up(self, turn: Turn) -> None:
        """A download has ended: if it was the first of its slot, it may have got to its host only
        now.

        Until there is a connection a download may take much longer to begin than to be answered.
        """
        if turn.slot in self._warm:
            return
        if len(self._warm) >= MANY_SLOTS:
            self._warm.clear()
        self._warm.add(turn.slot)
        now = time.monotonic()
        turn.not_before = max(turn.not_before, now + turn.delay)
        turn.tat = max(turn.tat, now + turn.interval)

    # Telling

    @property
    def urgent(self) -> bool:
        """The frontier has to be asked at once."""
        return self._urgent and bool(self._turns)

    def needed_within(self, waiting: Mapping[str, int]) -> float:
        """Seconds within which an exchange is needed to keep the turns that are of use."""
        asks = [
            max(turn.ends - RENEW, turn.parked - EARLY)
            for slot, turn in self._turns.items()
            if turn.ends is not None and (waiting.get(slot) or turn.at_the_gate)
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
            turn.slot for turn, since in self._on_the_way.values() if now - since < PATIENCE
        )
        for slot, turn in list(self._turns.items()):
            if not mine(slot):
                continue
            held = waiting.get(slot, 0)
            if turn.handed_back and turn.idle and not held:
                # Of many slots that are parked for long, each would lengthen every exchange.
                self._drop_if_idle(slot)
                continue
            to_start = held + soon[slot] + turn.at_the_gate
            tokens = 0
            if turn.tokens is not None:
                # What is given up is given up at once: the frontier may do so before it answers.
                turn.tokens = max(turn.counted, min(turn.counted + to_start, turn.tokens))
                tokens = turn.tokens
            if not to_start and turn.ends is not None:
                turn.ends = 0.0
            since = -1 if turn.last is None else max(0, int((now - turn.last) * 1e6))
            arrival = int((turn.tat - now) * 1e6)
            # A token is used again when its download ends, so the next request should be here.
            has_token = turn.ends is None and turn.tokens is not None and turn.counted
            keeps = bool(to_start or has_token)
            want = max(0, worth(slot, turn.stock(now)) - held) if keeps else 0
            told.append(TurnReport(slot, since, arrival, tokens, int(not keeps), want))
        return told
