"""What a worker may begin by itself with the turn of a slot."""

from __future__ import annotations

import asyncio
import time

import pytest

from scrapy_redisq.frontier.operations import TurnGrant, TurnReport
from scrapy_redisq.worker.politeness.turns import NOT_NOW, Allowance, Turns


def test_nothing_begins_after_a_turn() -> None:
    """Another worker has it by then."""
    state = Allowance("slot", delay=0.3, ends=101.0, last=100.5)
    assert state.wait(100.6) == pytest.approx(0.2)
    state.begin(100.8)
    assert state.wait(100.8) == NOT_NOW


def test_who_is_turned_away_asks_again() -> None:
    """What is kept, or downloaded on the side, of a paused slot: that the slot goes on is said
    once, and may not be heard. Else all wait for an hour until a paused slot is looked at."""
    turns = Turns()

    def report() -> list[TurnReport]:
        return turns.report({}, lambda slot, soon: 1, lambda slot: True)

    def check(parked: float) -> None:
        raise KeyError(parked)

    paused = TurnGrant("slot", 0, 0, 0, 0, 0, 0, 1, -1, 3_600_000_000, 0, 1)
    turns.received([paused], [], time.monotonic())
    (told,) = report()
    assert told.done
    turns.received([], [told], time.monotonic())
    assert not report()
    with pytest.raises(KeyError):
        asyncio.run(turns.may_begin("request", "slot", check))
    (told,) = report()
    assert not told.done
    assert turns.wait("slot") > 3_000
    free = TurnGrant("slot", -2, 0, 0, 0, 0, 0, 1, -1, 0, 0, 0)
    turns.received([free], [told], time.monotonic())
    assert turns.wait("slot") == 0
