"""What a worker holds and has not started: in which order it is started."""

from __future__ import annotations

from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.worker.inbox import Inbox


def order(*slots_and_priorities: tuple[str, int], **downloads: int | None) -> list[int]:
    """The numbers of leases as an inbox gives them, where slots have so many ``downloads``."""
    inbox: Inbox[None] = Inbox(2, 10, by_slot=True)
    for number, (slot, priority) in enumerate(slots_and_priorities):
        inbox.add(Lease(str(number), slot, priority, 0, b""), None)
    taken = []
    while (popped := inbox.pop(lambda slot: downloads.get(slot, 0))) is not None:
        taken.append(int(popped[0].id))
    return taken


def test_order() -> None:
    """Within a slot the highest priority goes first, then the first that came. The slot with the
    fewest downloads goes first, one that takes no more not at all; the others take turns."""
    assert order(("a", 0), ("a", 5), ("a", 0), ("a", 5)) == [1, 3, 0, 2]
    assert order(*((slot, 0) for slot in "aaabbb")) == [0, 3, 1, 4, 2, 5]
    assert order(*((slot, 0) for slot in "abc"), a=3, b=1, c=None) == [1, 0]
