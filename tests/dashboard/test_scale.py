"""What programs ask the dashboard, as they ask the exporter."""

from __future__ import annotations

from scrapy_redisq.control import Frontier
from tests.dashboard.served import Served
from tests.harness.worker import NAME


def test_scale(dashboard: Served, frontier: Frontier) -> None:
    """Also of a crawl that has not begun, of which one worker is wanted."""
    assert dashboard.get(f"/scale/{NAME}")["workers"] == 0
    assert dashboard.get(f"/scale/{NAME}?run=monday")["workers"] == 1
    frontier.push([f"https://a.example/{n}" for n in range(50)])
    assert dashboard.get(f"/scale/{NAME}?max=3")["workers"] == 3
