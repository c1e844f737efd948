"""What a worker may begin by itself with the turn of a slot."""

from __future__ import annotations

import time

import pytest

from scrapy_redisq.frontier.operations import TurnGrant
from scrapy_redisq.worker.politeness.turns import NOT_NOW, Allowance, Turns


def test_a_rate_is_not_saved_up() -> None:
    """A slot that was left alone may begin its burst at once, and no more."""
    state = Allowance("slot", interval=1.0, burst=2, ends=1_000.0)
    for now in (100.0, 500.0):
        state.begin(now)
        assert state.wait(now) == 0
        state.begin(now)
        assert state.wait(now) == 1.0


def test_nothing_begins_after_a_turn() -> None:
    """Another worker has it by then."""
    state = Allowance("slot", delay=0.3, ends=101.0, last=100.5)
    assert state.wait(100.6) == pytest.approx(0.2)
    state.begin(100.8)
    assert state.wait(100.8) == NOT_NOW


def test_a_new_turn_says_once_when_it_may_begin() -> None:
    """Also by an answer that is out of date, as the worker has asked anew meanwhile: with the next
    one the turn is not new."""
    turns, asked_at = Turns(), time.monotonic()
    turns.suspend("slot", 0.0)
    new = TurnGrant("slot", 1_000_000, 1, 300_000, 0, 400_000, 0, 1, -1, 0, 0)
    turns.received([new], [], asked_at - 1)
    assert turns.wait("slot") > 1
    turns.received([new._replace(news=0)], [], time.monotonic())
    assert 0.2 < turns.wait("slot") <= 0.3
