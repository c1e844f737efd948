"""Where each download begins and ends: it waits for its slot, and the frontier is told the end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Request, Response

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.frontier.operations import DownloadResult, Lease, Reply, TurnReport
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.worker.in_progress import InProgress, Interrupted
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.page import Problem
from scrapy_redisq.worker.politeness.judge import Judge
from scrapy_redisq.worker.politeness.turns import AT_THE_GATE, NOT_NOW, Allowance, Turns

LONG = 1.0
"""Seconds: if a slot is parked for longer, its requests do not wait in Scrapy, where they would
take the place of other slots' requests."""

WAITS_NOT_KEY = "redisq_waits_not"
"""In the meta of a download on the side that is asked for again later. It does not wait either
while its slot is parked for long, and fails with `SlotParked`."""

AHEAD = 0.05
"""Seconds before its start that a request is handed to Scrapy. It waits at the gate, and so its way
through the downloader middlewares, or a loop that is busy, makes no delay longer."""

LONG_AGO = 1e9
"""Seconds: whatever began then says nothing new of a slot."""

TIMES = 10
"""How often a request is sent back. After that its failures are its own, and cost retries; so they
are where there was no answer while the host answered other requests."""


class SlotParked(IgnoreRequest):
    """Nothing is downloaded from ``slot`` for a while: a request of the frontier's goes back."""

    def __init__(self, text: str, slot: str) -> None:
        super().__init__(text)
        self.slot = slot


class LeftAlone(Exception):
    """Nothing is downloaded from a slot for longer than a download may take, and the frontier
    cannot have the request back. So a kept request, or a download on the side of a callback or a
    pipeline, fails as if the host did not answer."""


class DownloadGate:
    """Holds each download until the limits of its slot allow it, and judges its end.

    Ends of downloads go to ``run_session``, early if that is needed. Without slots ``judge`` is
    None. ``download_timeout``: seconds that a download may take whose request does not say.
    """

    crawl_paused = False
    """No page is begun, of whatever slot."""

    sends_back = False
    """Requests of a slot that is parked may be sent back: `BackOffMiddleware` is there."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox[ShardSession],
        kept: KeptRequests,
        in_progress: InProgress,
        judge: Judge | None,
        run_session: RunSession,
        *,
        download_timeout: float,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._in_progress = in_progress
        self._judge = judge
        self._run_session = run_session
        self._download_timeout = download_timeout
        self._valid_until: dict[ShardSession, float] = {}
        """After it other workers may take this one for dead on the shard."""
        self.turns = Turns(
            lambda slot: self._valid_until.get(run_session.shard_of(slot), math.inf),
            # Scrapy begins the others when some of the slot have ended, be it minutes later.
            lambda slot: kept.waits(slot) or in_progress.to_begin(slot),
        )
        self._next_start: asyncio.TimerHandle | None = None

    # Downloads

    async def begin(self, request: Request, slot: str) -> Callable[[Any], None]:
        """See ``Downloads.gate_by``. Raises `SlotParked`, `LeftAlone` or `Interrupted`."""
        slot = slot_name(slot)
        is_page = self._in_progress.asking(request) is not None

        def check(parked: float) -> None:
            self._check(request, slot, NOT_NOW if self.crawl_paused and is_page else parked)

        while self.crawl_paused and is_page:
            check(0.0)
            await asyncio.sleep(AT_THE_GATE)
        self.ask_of(slot, again=self.turns.of(slot).handed_back)
        state = await self.turns.may_begin(request, slot, check) if self.turns else None
        if state is not None:
            self._engine.wake()  # the next one may come after it, whenever this one ends
        began = time.monotonic()
        if (page := self._in_progress.asking(request)) is not None:
            page.download.began = began
        return partial(self._ended, request, slot, state, began)

    def _ended(
        self, request: Request, slot: str, state: Allowance | None, began: float, result: Any
    ) -> None:
        if state is not None:
            state.end(began)
        told = self._judge and self._judge.judge(slot, request, result, began)
        if told and request.meta.get(WAITS_NOT_KEY):
            if 300 <= told.status < 400:
                # Where it leads, it may not be had: no page of the slot is fetched by that.
                told = replace(told, failed=None)
            elif told.failed:
                told = replace(told, status=-told.status)
        if told:
            self._judged(told, state)

    def ask_of(self, slot: str, *, again: bool = False) -> None:
        """Have the frontier asked for the limits of a slot, if they are not known, or ``again``."""
        knows = self.knows(slot) and not again
        if self._judge is not None and not (knows or self._engine.closing):
            self.turns.suspend(slot, 0.0)
            self._run_session.wake()

    def knows(self, slot: str) -> bool:
        """Whether it is known what limits a slot has. Leases that came without a turn have none. Of
        what is downloaded on the side, or stays in this process, the frontier has said nothing."""
        return (
            self.turns.knows(slot)
            or self.turns.is_free(slot)
            or self._inbox.highest(slot) is not None
            or self._in_progress.to_begin(slot)
        )

    def check(self, request: Request, slot: str) -> None:
        """Raises `SlotParked`, `LeftAlone` or `Interrupted` if ``request`` should not go on waiting
        in Scrapy for something else than its slot."""
        self._check(request, slot, self.turns.of(slot).parked - time.monotonic())

    def _check(self, request: Request, slot: str, parked: float) -> None:
        closing = self._engine.closing
        if not closing and (parked <= LONG or not self.sends_back):
            return
        paused = self.crawl_paused or self.turns.of(slot).paused  # by a person
        if self._in_progress.send_back(request, paused=paused):
            raise SlotParked(f"{slot} is left alone", slot)
        if closing:
            page, in_pipeline = self._engine.downloads.asker(request)
            self._in_progress.interrupt(page, in_pipeline=in_pipeline)
            raise Interrupted("the spider is being closed")
        if request.meta.get(WAITS_NOT_KEY):
            raise SlotParked(f"{slot} is left alone", slot)
        longest = request.meta.get("download_timeout") or self._download_timeout
        if parked > longest:
            raise LeftAlone(
                f"its slot is left alone for {parked:.0f} s, the download may take {longest:g} s "
                f"(DOWNLOAD_TIMEOUT)"
            )

    def _judged(self, result: DownloadResult, state: Allowance | None = None) -> None:
        """Have the frontier told, where it wants to know."""
        assert self._judge is not None
        is_news = self._judge.is_news(result)
        if (
            result.failed
            or is_news
            or self._judge.throttles
            or (result.failed is False and state and state.in_trouble)
        ):
            self._run_session.shard_of(result.slot).outgoing.download_results.append(result)
        if result.failed:
            self.turns.suspend(result.slot, result.retry_after or 0.0)
            if self.turns.urgent:
                self._run_session.wake()

    def send_back(self, request: Request, result: Response | BaseException) -> bool:
        """Whether a request that ended so goes back to the front of its slot."""
        if isinstance(result, SlotParked):
            return self._in_progress.is_sent_back(request)
        judge = self._judge
        if judge is None or not judge.means_trouble(result):
            return False
        if not judge.retries or request.meta.get("dont_retry"):
            return False  # the spider wants to see it
        if not isinstance(result, Response):
            page = self._in_progress.asking(request)
            if page is None or not judge.has_answered(page.lease.slot):
                return False  # there may be no such host
            if judge.is_well(page.lease.slot, page.download.began, again=page.tries > 0):
                page.blame(TIMES)
                return False
        return self._in_progress.send_back(request, most=TIMES)

    def put_off(
        self, request: Request, slot: str, status: int, left: float, began: float | None
    ) -> None:
        """Nothing may be fetched from the host of ``request`` for now. Raises `SlotParked` as the
        request goes back, or `LeftAlone` if it cannot. Without slots it becomes a dead letter.

        ``status``: the answer of robots.txt, 0 if it is not known. The slot is parked for ``left``
        seconds at least. ``began``: when the answer was asked for, which counts as a failure of the
        slot, once; None: it was counted.
        """
        text = "its host answers 5xx to robots.txt, so nothing is allowed for now"
        if self._judge is None:
            self._in_progress.mark_failed(request, Problem("robots", text, status=status))
            raise IgnoreRequest(text)
        failure = DownloadResult(slot, -status or -1, began or 0.0, failed=True)
        if began is not None:
            self._judged(failure)
        long_ago = time.monotonic() - LONG_AGO
        self._judged(replace(failure, begun=long_ago, retry_after=left))
        if self._in_progress.send_back(request, others_first=True):
            raise SlotParked("nothing is allowed for now", slot)
        raise LeftAlone(text)

    # The scheduler asks before it hands a request to Scrapy

    def limited(self, slot: str) -> None:
        """The slot has another limit: nothing of it begins before the frontier was asked."""
        self.turns.suspend(slot, 0.0, told=True)
        self._run_session.wake()

    def remove_stuck(self, *, full: bool) -> list[tuple[Lease, ShardSession]]:
        """Leases that have waited in vain, and go back. ``full``: Scrapy takes no requests."""
        if not (self._inbox or self._inbox.stuck):
            return []
        downloading, turns = self._trusted(), self.turns

        def can_start(slot: str) -> bool:
            # Of what the worker has handed back the frontier gives nothing without a turn.
            return downloading(slot) is not None and (
                turns.wait(slot) < NOT_NOW or turns.of(slot).handed_back
            )

        return self._inbox.remove_stuck(can_start, full=full)

    def arrived(self, request: Request) -> None:
        """A response has passed the downloader middlewares. Where these answer themselves, as a
        cache does, no download has shown that the slot answers."""
        page = self._in_progress.asking(request)
        if self._judge is not None and page is not None and not page.download.began:
            self._judge.answers(page.lease.slot)

    def downloading(self) -> Callable[[str], int | None]:
        """A function of a slot: how many requests of it are being downloaded, or None if no more
        should be handed to Scrapy now."""
        downloading = self._trusted()
        if not self.turns:
            return downloading
        return lambda slot: None if self.turns.wait(slot) > AHEAD else downloading(slot)

    def downloading_kept(self) -> Callable[[str], int | None]:
        """The same for kept requests. The frontier is asked about slots that are not known, about
        as many at a time as there are places. One of a slot at a time waits for the turn; one place
        is left for slots that need not wait."""
        downloading, turns, places = self._trusted(), self.turns, self._engine.downloads.places
        is_full, questions = turns.waiting() >= max(1, places - 1), iter(range(places))

        def count(slot: str) -> int | None:
            number = downloading(slot)
            if number is None:
                return None
            if not self.knows(slot):
                if next(questions, None) is None:
                    return None
                self.ask_of(slot)
            if turns.wait(slot) > AHEAD and (is_full or turns.of(slot).waiting):
                return None
            return number

        return count

    def _trusted(self) -> Callable[[str], int | None]:
        """The same, but for the limits of slots.

        Of a slot that has never answered one request is downloaded at a time, as it may hang for
        minutes; of one that fails the frontier says how many. All in doubt together leave places to
        the other slots that wait, but no more than half of all.
        """
        downloading, judge = self._engine.downloads.by_slot(), self._judge
        if judge is None:
            return downloading
        waiting, places = self._inbox.waiting(), self._engine.downloads.places
        others = sum(not judge.in_doubt(slot) for slot in waiting)
        room = places - min(others, places // 2)
        is_full = (
            others < len(waiting) and sum(map(judge.in_doubt, self._in_progress.slots())) >= room
        )

        def trusted(slot: str) -> int | None:
            number = downloading(slot)
            if number and not judge.has_answered(slot):
                return None
            return None if is_full and judge.in_doubt(slot) else number

        return trusted

    def wake_at_next_start(self) -> None:
        """Make the engine ask again when the next request may be started."""
        if self._next_start is not None:
            self._next_start.cancel()
            self._next_start = None
        if not self.turns:
            return
        wait = min((self.turns.wait(slot) for slot in self._inbox.waiting()), default=NOT_NOW)
        if AHEAD < wait < NOT_NOW:
            loop = asyncio.get_running_loop()
            self._next_start = loop.call_later(wait - AHEAD, self._engine.wake)

    # Exchanges

    def needed_within(self) -> float | None:
        """Seconds within which an exchange is needed, None if no limit needs one."""
        return self.turns.needed_within(self._inbox.waiting()) if self.turns else None

    def report(self, session: ShardSession) -> list[TurnReport]:
        """Reports on the turns of slots of this shard."""
        if not self.turns:
            return []
        worth = self._inbox.limit if not self._engine.closing else lambda slot, stock: 0
        return self.turns.report(
            self._inbox.waiting(),
            worth,
            lambda slot: self._run_session.shard_of(slot) is session,
        )

    def received(
        self, session: ShardSession, reply: Reply, told: list[TurnReport], sent_at: float
    ) -> list[tuple[Lease, ShardSession]]:
        """Take in the turns of a shard's reply; -> leases that are of no use now, and go back."""
        self._valid_until[session] = sent_at + self._run_session.terms.lease_ttl
        if not (told or reply.turns):
            return []
        refused = self.turns.received(reply.turns, told, sent_at)
        self._engine.wake()
        return [lease for slot in refused for lease in self._inbox.remove(slot)]

    def announced(self, slot: str, parked: float) -> None:
        """It is published that ``slot`` is parked for some seconds, or with 0 that something else
        about it has changed."""
        self.turns.changed(slot)
        ruled = parked <= 0 and self.turns.knows(slot)  # perhaps it was parked for an hour
        is_held = slot in self._in_progress.slots() or self._inbox.highest(slot) is not None
        if ruled or is_held:
            self.turns.suspend(slot, parked, told=True)
            self._run_session.wake()

    def forgotten(self, sessions: Sequence[ShardSession]) -> None:
        """All leases and turns of these shards are void."""
        self.turns.forgotten(lambda slot: self._run_session.shard_of(slot) in sessions)
