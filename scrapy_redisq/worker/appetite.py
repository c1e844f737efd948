"""How many more leases a worker should have."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.unsafe import MAX_KEPT_BYTES
from scrapy_redisq.frontier.worker_protocol import Demand
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.politeness.gate import DownloadGate

Downloading = Callable[[str], "int | None"]
"""How many requests of a slot are being downloaded; None: no more should be started now."""


class Appetite:
    """As many as could be started soon, and what comes of them be sent.

    ``works``: False while the worker starts nothing, whatever it has. ``max_outbox``: what may wait
    to be sent.
    """

    def __init__(
        self,
        works: Callable[[], bool],
        *,
        engine: Engine,
        inbox: Inbox[ShardSession],
        in_progress: InProgress,
        kept: KeptRequests,
        gate: DownloadGate,
        exchange_loop: ExchangeLoop,
        max_outbox: int,
    ) -> None:
        self._works = works
        self._engine = engine
        self._inbox = inbox
        self._in_progress = in_progress
        self._kept = kept
        self._gate = gate
        self._exchange_loop = exchange_loop
        self._max_outbox = max_outbox
        self._wants_nothing = False

    def outbox_is_full(self) -> bool:
        """So much waits to be sent that nothing is started that would add to it."""
        return self._exchange_loop.waiting() > self._max_outbox

    def _may_start(self) -> bool:
        return self._works() and not self.outbox_is_full()

    def _capacity(self) -> int:
        return self._inbox.most - len(self._in_progress)

    def free(self) -> int:
        """Requests that could be started at once."""
        if not self._may_start():
            return 0
        return self._engine.downloads.free

    def want(self, downloading: Downloading) -> int:
        """How many more leases are worth having."""
        startable = len(self._inbox) - self._inbox.held_up(downloading)
        worth = self._inbox.worth(self.free()) - startable
        want = max(0, min(worth, self._capacity() - len(self._inbox)))
        if want and self._wants_nothing:
            self._wants_nothing = False
            self._exchange_loop.found_more()
        elif worth <= 0:
            self._wants_nothing = True
        return want

    def is_low(self, want: int, downloading: Downloading) -> bool:
        """Whether what it has will soon be started; ``want``: as many may come."""
        return want > 0 and self._inbox.is_low(len(self._inbox) + want, downloading)

    def demand(self, *, quiet: bool) -> Demand:
        """What the next exchange is to bring; ``quiet``: nothing, as people have said."""
        within, urgent = self._gate.needed_within(), self._gate.urgent
        nothing = Demand(False, 0, 0, {}, within=within, urgent=urgent, rests=quiet)
        if (
            quiet
            or not self._may_start()
            or self._engine.closing
            or self._kept.waiting > self._max_outbox
            # Pages go on while start() waits for room: it is seldom they that fill it.
            or self._exchange_loop.run_session.keeps_too_much(2 * MAX_KEPT_BYTES)
        ):
            return nothing
        downloading = self._gate.downloading()
        want = self.want(downloading)
        if not want:
            return nothing
        return Demand(
            low=self.is_low(want, downloading),
            want=want,
            slot_limit=self._inbox.slot_limit,
            room=self._inbox.room(),
            # What waits for nothing but its sink is bounded by the sink.
            most=self._inbox.most + self._in_progress.unwritten_pages(),
            within=within,
            urgent=urgent,
        )
