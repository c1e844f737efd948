"""Ends of pages that wait for a moment, because their links to other shards may soon be safe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from scrapy_redisq.frontier.operations import Enqueue, Finish
from scrapy_redisq.frontier.shard_session import ShardSession

PATIENCE = 1.0
"""Seconds that an end waits for its links to be safe, where that may be soon, before it posts
them."""


@dataclass
class _End:
    session: ShardSession
    finish: Finish
    since: float = field(default_factory=time.monotonic)


class HeldBack:
    """Ends in the order in which they came.

    ``soon_safe``: links are safe as soon as they are answered, or nearly so, which makes a post
    needless.
    """

    def __init__(self, *, soon_safe: bool) -> None:
        self._soon_safe = soon_safe
        self._ends: deque[_End] = deque()
        self.closing = False
        """Nothing waits any longer for what is not answered soon."""

    def __len__(self) -> int:
        return len(self._ends)

    def finish(self, session: ShardSession, finish: Finish, links: Sequence[Enqueue]) -> None:
        """Send the end on, now or when it may go: see `RunSession.finish`."""
        end = _End(session, replace(finish, links=links) if links else finish)
        if self._may_go(end):
            session.add(end.finish)
        else:
            self._ends.append(end)

    def _may_go(self, end: _End) -> bool:
        waited = time.monotonic() - end.since
        return not self._soon_safe or waited > PATIENCE or self.closing or not end.finish.unsafe()

    def release(self) -> None:
        """Send on what may go by now."""
        for _ in range(len(self._ends)):
            end = self._ends.popleft()
            if self._may_go(end):
                end.session.add(end.finish)
            else:
                self._ends.append(end)

    def drop(self, sessions: Iterable[ShardSession]) -> None:
        """The leases of these shards are void."""
        void = list(sessions)
        self._ends = deque(end for end in self._ends if end.session not in void)
