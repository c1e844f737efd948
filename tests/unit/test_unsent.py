"""What waits to be sent, and what a full server has said of it."""

from __future__ import annotations

from scrapy_redisq.frontier.operations import Enqueue
from scrapy_redisq.frontier.unsent import Unsent


def test_known_before_and_after_an_exchange() -> None:
    """It is left out only if it is known after a later exchange, too."""
    unsent = Unsent()
    known, new, forgotten = (Enqueue("host", 0, b"", name) for name in (b"known", b"new", b"lost"))
    unsent.extend([known, new, forgotten])
    unsent.looked_up(unsent.not_looked_up(), [1, 0, 1], 3)
    assert unsent.not_looked_up() == []
    assert unsent.known_before(3) == []
    assert unsent.known_before(4) == [known, forgotten]
    assert unsent.take_known([known, forgotten], [1, 0]) == [known]
    assert [*unsent] == [new, forgotten]
    assert (unsent.not_looked_up(), unsent.known_before(5)) == ([], [])
    unsent.look_again()
    assert unsent.not_looked_up() == [new, forgotten]
