"""How many more leases a worker should have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_redisq.frontier.terms import Demand
from scrapy_redisq.frontier.unsafe import MAX_KEPT_BYTES

if TYPE_CHECKING:
    from scrapy_redisq.worker.worker import Worker

Downloading = Callable[[str], "int | None"]
"""How many requests of a slot are being downloaded; None: no more should be started now."""


class Appetite:
    """As many as could be started soon, and what comes of them be sent."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._wants_nothing = False

    def outbox_is_full(self) -> bool:
        """So much waits to be sent that nothing is started that would add to it."""
        return self._worker.run_session.waiting() > self._worker.settings.max_outbox

    def _may_start(self) -> bool:
        worker = self._worker
        return not (
            worker.is_lost
            or worker.sinks_away
            or worker.engine.paused
            or worker.back_pressure.pauses
            or self.outbox_is_full()
        )

    def free(self) -> int:
        """Requests that could be started at once."""
        if not self._may_start():
            return 0
        return self._worker.engine.downloads.free

    def want(self, downloading: Downloading) -> int:
        """How many more leases are worth having."""
        worker, inbox = self._worker, self._worker.inbox
        startable = len(inbox) - inbox.held_up(downloading)
        worth = inbox.worth(self.free()) - startable
        want = max(0, min(worth, inbox.most - len(worker.in_progress) - len(inbox)))
        if want and self._wants_nothing:
            self._wants_nothing = False
            worker.run_session.found_more()
        elif worth <= 0:
            self._wants_nothing = True
        return want

    def is_low(self, want: int, downloading: Downloading) -> bool:
        """Whether what it has will soon be started; ``want``: as many may come."""
        inbox = self._worker.inbox
        return want > 0 and inbox.is_low(len(inbox) + want, downloading)

    def demand(self, *, quiet: bool) -> Demand:
        """What the next exchange is to bring; ``quiet``: nothing, as people have said."""
        worker, inbox, gate = self._worker, self._worker.inbox, self._worker.gate
        within, urgent = gate.needed_within(), gate.urgent
        nothing = Demand(False, 0, 0, {}, within=within, urgent=urgent, rests=quiet)
        if (
            quiet
            or not self._may_start()
            or worker.engine.closing
            or worker.kept.waiting > worker.settings.max_outbox
            # Pages go on while start() waits for room: it is seldom they that fill it.
            or worker.run_session.keeps_too_much(2 * MAX_KEPT_BYTES)
        ):
            return nothing
        downloading = gate.downloading()
        want = self.want(downloading)
        if not want:
            return nothing
        return Demand(
            low=self.is_low(want, downloading),
            want=want,
            slot_limit=inbox.slot_limit,
            room=inbox.room(),
            # What waits for nothing but its sink is bounded by the sink.
            most=inbox.most + worker.in_progress.unwritten,
            within=within,
            urgent=urgent,
        )
