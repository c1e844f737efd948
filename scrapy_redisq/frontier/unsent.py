"""What waits to be sent to a shard, in the order in which it happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from scrapy_redisq.frontier.operations import (
    Delivered,
    Enqueue,
    Finish,
    Operation,
)

MAX_OPERATIONS = 300
"""Enqueues and finishes in one exchange, so that the script takes about a millisecond."""

MAX_BYTES = 4_000_000
"""Size of the entries in one exchange; one larger entry still goes alone."""


class Unsent(deque[Operation]):
    """A page's requests stand before the page's end, or go with it, so no prefix of what is sent
    ends a page without its requests."""

    def __init__(self) -> None:
        super().__init__()
        self._new: dict[int, Enqueue] = {}
        """By id(): what waits for room, and was not known when that was asked."""
        self._known: dict[int, tuple[int, Enqueue]] = {}
        """By id(): what waits for room, and was known when that was asked, with the number of the
        last exchange before."""

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

    def take_past_enqueues(self, most: int) -> list[Operation]:
        """Ends of pages of which nothing waits here: a full Redis can drain."""
        waiting = {item.page or "" for item in self if isinstance(item, Enqueue)}
        taken: list[Operation] = []
        left: list[Operation] = []
        size = 0
        for operation in self:
            may_pass = (
                isinstance(operation, Finish)
                and not operation.unsafe()
                and operation.lease not in waiting
            ) or isinstance(operation, Delivered)
            if may_pass and len(taken) < most and size < MAX_BYTES:
                size += operation.size
                taken.append(operation)
            else:
                left.append(operation)
        self.keep(left)
        return taken

    # What a full Redis has seen before

    def not_looked_up(self) -> list[Enqueue]:
        """What waits for room and may have been seen."""
        return [
            one
            for one in self
            if isinstance(one, Enqueue)
            and one.fingerprint is not None
            and one.also is None
            and id(one) not in self._new
            and id(one) not in self._known
        ]

    def looked_up(self, waiting: Sequence[Enqueue], known: Sequence[int], number: int) -> None:
        """Of ``waiting`` those are ``known`` (1; 0: they are not) after exchange ``number``."""
        for one, is_known in zip(waiting, known, strict=True):
            if is_known:
                self._known[id(one)] = number, one
            else:
                self._new[id(one)] = one

    def known_before(self, number: int) -> list[Enqueue]:
        """What was known before exchange ``number``."""
        return [one for after, one in self._known.values() if after < number]

    def take_known(self, asked: Sequence[Enqueue], known: Sequence[int]) -> list[Enqueue]:
        """Take out those of `known_before` that still are (1; 0: they are not any more, and
        stay)."""
        seen = set()
        for one, is_known in zip(asked, known, strict=True):
            del self._known[id(one)]
            if is_known:
                seen.add(id(one))
            else:
                self._new[id(one)] = one
        taken = [one for one in self if isinstance(one, Enqueue) and id(one) in seen]
        self.keep(one for one in self if id(one) not in seen)
        return taken

    def look_again(self) -> None:
        """Redis may know more by now, or less."""
        self._new.clear()
        self._known.clear()
