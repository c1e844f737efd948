"""What a worker may begin by itself with the turn of a slot."""

from __future__ import annotations

from scrapy_redisq.worker.politeness.turn import Turn


def test_a_rate_is_not_saved_up() -> None:
    """A slot that was left alone may begin its burst at once, and no more."""
    turn = Turn("slot", interval=1.0, burst=2, ends=1_000.0)
    for now in (100.0, 500.0):
        turn.begin(now)
        assert turn.wait(now) == 0
        turn.begin(now)
        assert turn.wait(now) == 1.0
