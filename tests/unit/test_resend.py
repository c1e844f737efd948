"""What a server may have lost is sent again, whatever is known of its successor."""

from __future__ import annotations

import time

import pytest

from scrapy_redisq.frontier import resend as module
from scrapy_redisq.frontier.operations import Enqueue
from scrapy_redisq.frontier.resend import Resend


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


def test_a_split_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is cut off with its primary for an hour, and then finds the one that counts: that is
    vouched for at once, and says nothing of what the other one has acknowledged."""
    clock, vouched = Clock(), [float("-inf")]
    monkeypatch.setattr(module, "time", clock)
    resend = Resend(30.0, lambda: vouched[0], spread=False)
    vouched[0] = clock.now
    for number in range(360):
        clock.now += 10
        resend.sends()
        resend.acknowledged(Enqueue("host", 0, b"%d" % number, b""), clock.now)
        resend.answered(confirmed=False)
    vouched[0] = clock.now
    again = resend.rejoined()
    assert [one.entry for one in again] == [b"%d" % number for number in range(360)]


def test_a_primary_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had thirty seconds ago it has for good."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    resend = Resend(30.0, clock.monotonic, spread=False)
    for number in range(100):
        clock.now += 10
        resend.sends()
        resend.acknowledged(Enqueue("host", 0, b"%d" % number, b""), clock.now)
        resend.answered(confirmed=False)
    assert [one.entry for one in resend.rejoined()] == [b"97", b"98", b"99"]
