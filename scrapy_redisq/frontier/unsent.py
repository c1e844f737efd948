"""What waits to be sent to a shard, in the order in which it happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scrapy_redisq.frontier.operations import Operation

MAX_OPERATIONS = 300
"""Enqueues and finishes in one exchange, so that the script takes about a millisecond."""

MAX_BYTES = 4_000_000
"""Size of the entries in one exchange; one larger entry still goes alone."""


class Unsent(deque[Operation]):
    """A page's requests stand before the page's end, or go with it, so no prefix of what is sent
    ends a page without its requests."""

    def keep(self, left: Iterable[Operation]) -> None:
        """Of all that is here these are left."""
        left = list(left)
        self.clear()
        self.extend(left)

    def take(self, most: int) -> list[Operation]:
        """Take out what goes with the next exchange, no more than ``most``."""
        taken: list[Operation] = []
        number = size = 0
        while self and number < MAX_OPERATIONS and len(taken) < most:
            number += max(1, self[0].number)
            size += self[0].size
            if taken and (number > MAX_OPERATIONS or size > MAX_BYTES):
                break
            taken.append(self.popleft())
        return taken
