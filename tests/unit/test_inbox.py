"""What a worker holds and has not started, what it met before, and when it exchanges."""

from __future__ import annotations

import itertools
from typing import Any

from scrapy_redisq.frontier.operations import Enqueue, Lease, Reply
from scrapy_redisq.frontier.pace import (
    FLUSH,
    FLUSH_SHARED,
    IDLE_FIRST,
    RUNNING_LOW,
    Pace,
)
from scrapy_redisq.frontier.seen import SeenCache
from scrapy_redisq.worker.inbox import Inbox


def lease(number: int, slot: str = "a", priority: int = 0) -> Lease:
    return Lease(str(number), slot, priority, 0, b"")


def filled(*leases: Lease, by_slot: bool = True) -> Inbox[None]:
    inbox: Inbox[None] = Inbox(2, 10, by_slot=by_slot)
    for item in leases:
        inbox.add(item, None)
    return inbox


def free(slot: str) -> int:
    return 0


def drain(inbox: Inbox[None], downloads: dict[str, int | None] | None = None) -> list[str]:
    taken = []
    while (popped := inbox.pop(lambda slot: (downloads or {}).get(slot, 0))) is not None:
        taken.append(popped[0].id)
    return taken


class TestInbox:
    def test_priority_then_arrival(self) -> None:
        """Within a slot the highest priority goes first, then the first that came."""
        inbox = filled(lease(1), lease(2, priority=5), lease(3), lease(4, priority=5))
        assert drain(inbox) == ["2", "4", "1", "3"]
        assert len(inbox) == 0

    def test_slots_take_turns(self) -> None:
        """Slots with equally many downloads take turns."""
        inbox = filled(*(lease(n, slot) for n, slot in enumerate("aaabbb")))
        assert drain(inbox) == ["0", "3", "1", "4", "2", "5"]

    def test_fewest_downloads_first(self) -> None:
        """The slot with the fewest downloads goes first, one that takes no more not at all."""
        inbox = filled(lease(1, "a"), lease(2, "b"), lease(3, "c"))
        assert drain(inbox, {"a": 3, "b": 1, "c": None}) == ["2", "1"]
        assert len(inbox) == 1

    def test_one_slot_only(self) -> None:
        """By priority alone nobody asks about downloads."""
        inbox = filled(lease(1, "*"), lease(2, "*", 1), by_slot=False)
        assert drain(inbox, {"*": None}) == ["2", "1"]
        assert inbox.slot_limit == inbox.limit("*") == 10

    def test_room(self) -> None:
        """Of a slot no more is held than it will need soon."""
        inbox = filled(lease(1), lease(2), lease(3, "b"))
        assert inbox.room() == {"a": 0, "b": 1}
        assert inbox.slot_limit == 2

    def test_low(self) -> None:
        """It is low when half of what is worth holding is gone."""
        assert filled().is_low(1, free)
        assert filled(lease(1)).is_low(10, free)
        assert not filled(lease(1), lease(2)).is_low(10, free), "all that one slot is worth"
        assert not filled(lease(1)).is_low(1, free)

    def test_low_for_others(self) -> None:
        """What waits for its host is not counted when other hosts may need more."""
        inbox = filled(lease(1), lease(2), lease(3, "b"), lease(4, "b"))
        assert not inbox.is_low(6, free)
        assert inbox.is_low(6, {"a": None, "b": 1}.__getitem__)

    def test_clear(self) -> None:
        """Clearing returns what was held, to be given back."""
        inbox = filled(lease(1), lease(2, "b"))
        assert {item.id for item, _ in inbox.clear()} == {"1", "2"}
        assert len(inbox) == 0
        assert drain(inbox) == []


class TestSeenCache:
    def test_forgets_the_oldest(self) -> None:
        """It knows the last keys, and never more than twice its size."""
        cache = SeenCache(size=10)
        for n in range(35):
            cache.add(n)
            assert n in cache
        assert all(n in cache for n in range(25, 35))
        assert sum(n in cache for n in range(35)) <= 20
        cache.clear()
        assert 34 not in cache


def exchanged(
    pace: Pace,
    *,
    claimed: int = 0,
    accepted: int = 0,
    filled: bool | None = False,
    low: bool = True,
    **told: Any,
) -> None:
    """It was answered; ``filled``: all that was wanted has come, None: nothing was."""
    leases, new = [lease(1)] * claimed, [Enqueue("a", 0, b"", None)] * accepted
    want = 0 if filled is None else 1 if filled else claimed + 1
    reply = Reply("ok", leases=[lease(1)] if filled else leases, accepted=new, **told)
    pace.exchanged(reply, want, low=low)


class TestPace:
    def test_idle_worker_asks_less_and_less(self) -> None:
        """Pauses grow from 0.1 s to 5 s while nothing is found, and start anew when it is; somebody
        has to see in time that a worker is dead."""
        pace = Pace(heartbeat=15)
        pace.listening = True
        pauses = []
        for _ in range(8):
            exchanged(pace, overdue_in=60_000)
            pauses.append(pace.pause(low=True, waiting=False, many=False, busy=False))
        assert all(after > before - 0.01 for before, after in itertools.pairwise(pauses))
        assert 0.15 < pauses[0] <= 0.2
        assert 4.9 < pauses[-1] <= 5.0
        for milliseconds, pause in ((3_000, 3.0), (0, 1.0)):
            exchanged(pace, overdue_in=milliseconds)
            found = pace.pause(low=True, waiting=False, many=False, busy=False)
            assert pause - 0.1 < found <= pause
        pace.woken = True
        assert pace.pause(low=True, waiting=False, many=False, busy=False) <= IDLE_FIRST
        exchanged(pace, claimed=3)
        assert pace.pause(low=True, waiting=False, many=False, busy=False) <= IDLE_FIRST

    def test_what_waits_is_sent_soon(self) -> None:
        """A busy worker gathers for a while, one that runs low not; a full batch goes at once."""
        pace = Pace(heartbeat=15)
        exchanged(pace, low=False)
        assert 0.5 * FLUSH < pace.pause(low=False, waiting=True, many=False, busy=True) <= FLUSH
        assert pace.pause(low=True, waiting=True, many=False, busy=True) <= RUNNING_LOW
        assert pace.pause(low=False, waiting=True, many=True, busy=True) == 0
        exchanged(pace, low=False, waiting=1)
        assert pace.pause(low=False, waiting=True, many=False, busy=True) <= FLUSH_SHARED

    def test_due_entries_and_heartbeat(self) -> None:
        """It asks when something falls due, and never later than the heartbeat allows."""
        pace = Pace(heartbeat=0.25)
        pace.listening = True
        for _ in range(9):
            exchanged(pace, next_due=30)
        assert pace.pause(low=True, waiting=False, many=False, busy=False) <= 0.03
        assert pace.pause(low=False, waiting=False, many=False, busy=True) <= 0.25
