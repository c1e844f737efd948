"""Errors that pass by themselves, how long to wait for that, and how often to speak of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_redisq.errors import ServerBusy, ServerFull

logger = logging.getLogger(__name__)

TROUBLE = (RedisConnectionError, RedisTimeoutError, ServerBusy, ServerFull, OSError)
"""Errors that pass: Redis is away, or says that it takes no commands now."""

RETRY_FIRST, RETRY_LAST = 0.1, 2.0
"""Seconds between attempts while Redis is away; with a short lease TTL at most an eighth of it, so
that nobody who comes back is taken for dead."""

WARN_EVERY = 30.0
"""Seconds between warnings about the same trouble."""


class Warnings:
    """Warns of each kind of trouble now and then, whichever shard has it. ``redact`` takes
    passwords out of an error's text."""

    def __init__(self, redact: Callable[[object], str]) -> None:
        self._redact = redact
        self._last: dict[str, float] = {}

    def warn(self, kind: str, text: str, error: Exception) -> bool:
        """Log, unless the last warning of this kind was just now; -> whether it was logged."""
        if may := self.may_warn(kind):
            logger.warning(text, self._redact(error))
        return may

    def may_warn(self, kind: str) -> bool:
        """Whether it is time to speak of ``kind``; then it is for nobody else."""
        now = time.monotonic()
        may = now - self._last.get(kind, -WARN_EVERY) >= WARN_EVERY
        if may:
            self._last[kind] = now
        return may
