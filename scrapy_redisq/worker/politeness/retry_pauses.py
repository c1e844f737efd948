"""How long a retry waits: what the settings say, or what the server asks for."""

from __future__ import annotations

import random
from dataclasses import dataclass

from scrapy.http import Response

from scrapy_redisq.worker.politeness.http_headers import retry_after

BASE, CAP = 2.0, 300.0
"""Seconds. Other pauses than these are a list of one's own."""

_MAX_DOUBLINGS = 64
"""More would leave the range of floats; any cap is reached long before."""


@dataclass(frozen=True)
class RetryPauses:
    """How long a retry waits, in seconds.

    ``delays`` are the pauses before the first, second… retry, of which the last is repeated; or
    "exponential": a random time up to `BASE` doubled with each retry, at most `CAP` ("full
    jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS, 2015).
    """

    delays: tuple[float, ...] | str

    def before(self, retry: int) -> float:
        """The pause before the ``retry``-th retry, counted from 1."""
        number = max(1, retry)
        if not isinstance(self.delays, str):
            return self.delays[min(number, len(self.delays)) - 1]
        return random.uniform(0, min(CAP, BASE * 2.0 ** min(number - 1, _MAX_DOUBLINGS)))

    def after(self, response: Response, retry: int) -> float:
        """The pause that ``response`` asks for by Retry-After, else `before`."""
        asked = retry_after(response)
        return self.before(retry) if asked is None else asked
