"""What the end of a download says about its slot: that it is in trouble, or that it is not."""

from __future__ import annotations

import time
from collections.abc import Collection

from scrapy.http import Request, Response

from scrapy_redisq.frontier.config import SLOT_TTL
from scrapy_redisq.frontier.operations import DownloadResult
from scrapy_redisq.worker.politeness.http_headers import retry_after

REMEMBERED = 10_000
"""Slots whose last status this worker knows."""

TELL_AGAIN = SLOT_TTL / 2
"""Seconds after which a status is told again, before the frontier forgets the slot."""


class Judge:
    """Judges how downloads ended.

    ``codes`` are HTTP statuses by which a host asks to be left alone, ``failures`` exceptions that
    mean that it does not answer.
    """

    def __init__(self, codes: Collection[int], failures: tuple[type[BaseException], ...]) -> None:
        self._codes = frozenset(codes)
        self._failures = failures
        self._told: dict[str, tuple[int, float]] = {}
        self._answered: set[str] = set()
        self._well: dict[str, float] = {}
        """Slot -> when its last answer came that was no failure, by time.monotonic()."""
        self._failed: dict[str, tuple[float, float]] = {}
        """Slot -> when its last failure was, and the one before."""

    def means_trouble(self, result: object) -> bool:
        """Whether a response or an exception is one for which a slot is left alone."""
        if isinstance(result, Response):
            return result.status in self._codes
        return isinstance(result, self._failures)

    def judge(
        self, slot: str, request: Request, result: Response | BaseException, begun: float
    ) -> DownloadResult | None:
        """The result of a download begun at ``begun``; None if there was none, as when it was
        cancelled."""
        trouble = self.means_trouble(result)
        self._note(slot, trouble=trouble, well=isinstance(result, Response) and not trouble)
        if not isinstance(result, Response):
            return DownloadResult(slot, 0, begun, failed=True) if trouble else None
        failed = True if trouble else False if result.status < 500 else None
        latency = request.meta.get("download_latency")
        if request.meta.get("autothrottle_dont_adjust_delay") is True:
            latency = None
        return DownloadResult(
            slot,
            result.status,
            begun,
            failed=failed,
            retry_after=retry_after(result) if trouble else None,
            latency=latency if isinstance(latency, float) else None,
        )

    def _note(self, slot: str, *, trouble: bool, well: bool) -> None:
        now = time.monotonic()
        if well:
            self._well[slot] = now
        elif trouble:
            self._failed[slot] = now, self._failed.get(slot, (0.0, 0.0))[0]
        for known in (self._well, self._failed):
            if len(known) > REMEMBERED:
                known.clear()

    def is_well(self, slot: str, begun: float, *, again: bool) -> bool:
        """Whether the slot answers other requests while one fails, whose download was ``begun``.

        A host that breaks down has answered other requests just after that, too, but not in the
        second half of a time-out. ``again``: the request had failed before; then an answer since
        the failure of the slot before this one says it.
        """
        now = time.monotonic()
        since = self._failed.get(slot, (now, now))[1] if again else (begun or now) / 2 + now / 2
        return self._well.get(slot, 0.0) > since

    def answers(self, slot: str) -> None:
        """A page of the slot has come without a download."""
        self._answered.add(slot)
        self._note(slot, trouble=False, well=True)

    def has_answered(self, slot: str) -> bool:
        """Whether this worker has had an answer from the slot."""
        return slot in self._answered

    def in_doubt(self, slot: str) -> bool:
        """Whether this worker has never had an answer from the slot, or the last one was a
        failure."""
        failed = self._failed.get(slot, (0.0, 0.0))[0]
        return slot not in self._answered or failed > self._well.get(slot, 0.0)

    def never_answers(self, slot: str) -> bool:
        """Whether at least two downloads of the slot have failed here, and none had an answer."""
        return slot not in self._answered and self._failed.get(slot, (0.0, 0.0))[1] > 0

    def is_news(self, result: DownloadResult) -> bool:
        """Whether the status has to be told, because it is not the last one that was."""
        now = time.monotonic()
        status, told_at = self._told.get(result.slot, (-1, 0.0))
        if status == result.status and now - told_at < TELL_AGAIN:
            return False
        if len(self._told) >= REMEMBERED:
            self._told.clear()
            self._answered.clear()
            self._failed.clear()
        if result.status not in {0, -1}:
            self._answered.add(result.slot)
        self._told[result.slot] = (result.status, now)
        return True
