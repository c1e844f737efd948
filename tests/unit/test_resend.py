"""What a server may have lost is sent again, whatever is known of its successor."""

from __future__ import annotations

import pytest

from scrapy_redisq.frontier import resend as module
from scrapy_redisq.frontier.operations import Enqueue
from scrapy_redisq.frontier.resend import Resend
from tests.harness.worker import Clock


@pytest.mark.parametrize(("stays", "again"), [(False, 360), (True, 3)])
def test_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch, stays: bool, again: int) -> None:
    """A worker is cut off with its primary for an hour, and then finds the one that counts: that is
    vouched for at once, and says nothing of what the other one has acknowledged. What a primary
    that stays had thirty seconds ago it has for good."""
    clock = Clock()
    vouched = clock.monotonic()
    monkeypatch.setattr(module, "time", clock)
    resend = Resend(30.0, lambda: clock.monotonic() if stays else vouched, spread=False)
    for number in range(360):
        clock.ahead += 10
        resend.sends()
        resend.acknowledged(Enqueue("host", 0, b"%d" % number, b""), clock.monotonic())
        resend.answered(confirmed=False)
    vouched = clock.monotonic()
    kept = [one.entry for one in resend.rejoined()]
    assert kept == [b"%d" % number for number in range(360 - again, 360)]
