"""Whether the end of a download shows that its slot is in trouble, or well."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from msgspec import Struct
from scrapy.crawler import Crawler
from scrapy.http import Request, Response
from scrapy.utils.misc import load_object

from scrapy_redisq.frontier.config import SLOT_TTL
from scrapy_redisq.frontier.operations import DownloadResult
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.politeness.retry_pause import retry_after

REMEMBERED = 10_000
"""Slots that this worker knows something of."""

TELL_AGAIN = SLOT_TTL / 2
"""Seconds after which a status is told again, before the frontier forgets the slot."""


class _Known(Struct):
    """A slot as this worker knows it. Times are those of time.monotonic().

    ``status``: the last one that the frontier was told, at ``told_at``. ``well``: the last answer
    that was no failure. ``failed``, ``failed_before``: the last two failures.
    """

    answered: bool = False
    status: int = -1
    told_at: float = -math.inf
    well: float = 0.0
    failed: float = 0.0
    failed_before: float = 0.0


_UNKNOWN = _Known()


class Judge:
    """Judges how downloads ended.

    ``codes`` are HTTP statuses by which a host asks to be left alone, ``failures`` exceptions that
    mean that it does not answer. ``throttles``: the frontier wants to know how each download ended.
    Without ``retries`` (RETRY_ENABLED) nothing that was tried is sent back.
    """

    def __init__(
        self,
        codes: Collection[int],
        failures: tuple[type[BaseException], ...],
        *,
        throttles: bool = False,
        retries: bool = True,
    ) -> None:
        self._codes = frozenset(codes)
        self._failures = failures
        self.throttles = throttles
        self.retries = retries
        self._slots: dict[str, _Known] = {}

    @classmethod
    def of(cls, crawler: Crawler, settings: RedisqSettings) -> Judge | None:
        """As settings say. None: without slots there is nothing to judge."""
        if settings.scheduling == "priority":
            return None
        codes = settings.backoff_codes
        exceptions = crawler.settings.getlist("RETRY_EXCEPTIONS") if codes else []
        return cls(
            codes,
            tuple(map(load_object, exceptions)),
            throttles=bool(settings.throttle),
            retries=crawler.settings.getbool("RETRY_ENABLED"),
        )

    def _known(self, slot: str) -> _Known:
        return self._slots.get(slot, _UNKNOWN)

    def _note(self, slot: str) -> _Known:
        if slot not in self._slots and len(self._slots) >= REMEMBERED:
            self._slots.clear()
        return self._slots.setdefault(slot, _Known())

    def means_trouble(self, result: object) -> bool:
        """Whether a response or an exception is one for which a slot is left alone."""
        if isinstance(result, Response):
            return result.status in self._codes
        return isinstance(result, self._failures)

    def judge(
        self, slot: str, request: Request, result: Response | BaseException, begun: float
    ) -> DownloadResult | None:
        """The result of a download begun at ``begun``; None if there was none."""
        trouble = self.means_trouble(result)
        if trouble:
            known = self._note(slot)
            known.failed, known.failed_before = time.monotonic(), known.failed
        if not isinstance(result, Response):
            return DownloadResult(slot, 0, begun, failed=True) if trouble else None
        self.answers(slot, well=not trouble)
        adjusts = request.meta.get("autothrottle_dont_adjust_delay") is not True
        latency = request.meta.get("download_latency") if adjusts else None
        return DownloadResult(
            slot,
            result.status,
            begun,
            failed=True if trouble else False if result.status < 500 else None,
            retry_after=retry_after(result) if trouble else None,
            latency=latency if isinstance(latency, float) else None,
        )

    def answers(self, slot: str, *, well: bool = True) -> None:
        """A response of the slot has come, be it without a download."""
        known = self._note(slot)
        known.answered = True
        if well:
            known.well = time.monotonic()

    def is_well(self, slot: str, begun: float, *, again: bool) -> bool:
        """Whether the slot answers other requests while one fails, whose download was ``begun``.

        A host that breaks down has answered other requests just after that, too, but not in the
        second half of a time-out. ``again``: the request had failed before; then an answer since
        the failure of the slot before this one says it.
        """
        known, now = self._known(slot), time.monotonic()
        return known.well > (known.failed_before if again else (begun or now) / 2 + now / 2)

    def has_answered(self, slot: str) -> bool:
        """Whether this worker has had an answer from the slot."""
        return self._known(slot).answered

    def in_doubt(self, slot: str) -> bool:
        """Whether the slot has never answered here, or the last download of it failed."""
        known = self._known(slot)
        return not known.answered or known.failed > known.well

    def is_news(self, result: DownloadResult) -> bool:
        """Whether the status has to be told, because it is not the last one that was."""
        known, now = self._note(result.slot), time.monotonic()
        if known.status == result.status and now - known.told_at < TELL_AGAIN:
            return False
        known.status, known.told_at = result.status, now
        return True
