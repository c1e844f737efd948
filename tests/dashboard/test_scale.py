"""What programs ask the dashboard, as they ask the exporter."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab.servers import wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.ops import serving
from scrapy_redisq.ops.metrics import exporter
from tests.dashboard.served import Served
from tests.harness.worker import NAME


def test_scale(dashboard: Served, frontier: Frontier) -> None:
    """Also of a crawl that has not begun, of which one worker is wanted."""
    assert dashboard.get(f"/scale/{NAME}")["workers"] == 0
    assert dashboard.get(f"/scale/{NAME}?run=monday")["workers"] == 1
    frontier.push([f"https://a.example/{n}" for n in range(50)])
    assert dashboard.get(f"/scale/{NAME}?max=3")["workers"] == 3


def test_programs_take_no_thread_from_people(
    dashboard: Served, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a Redis that hangs those of them that are too many are told so soon."""
    frontier.push(["https://a.example/"])
    go = threading.Event()

    def scale(frontier: Frontier, query: Mapping[str, str]) -> dict[str, Any]:
        go.wait(20)
        return {}

    monkeypatch.setattr(exporter, "scale", scale)
    monkeypatch.setattr(serving, "PATIENCE", 0.1)
    many = 24
    with ThreadPoolExecutor(many) as programs:
        asking = [programs.submit(dashboard.ask, f"/scale/{NAME}") for _ in range(many)]
        try:
            refused = many - exporter.THREADS
            wait_until(lambda: sum(one.done() for one in asking) == refused, 15, "the refusals")
            assert dashboard.get(f"/api/crawls/{NAME}")["queued"] == 1
        finally:
            go.set()
        found = Counter(one.result().status for one in asking)
    assert found == {503: refused, 200: exporter.THREADS}


def test_nobody_waits_for_who_opens_another_crawl(
    dashboard: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would wait for Redis, one after the other."""
    both = threading.Barrier(2)

    def config(frontier: Frontier) -> None:
        both.wait(10)

    monkeypatch.setattr(Frontier, "config", config)
    with ThreadPoolExecutor(2) as people:
        asking = [people.submit(dashboard.ask, f"/api/crawls/no{n}") for n in range(2)]
        assert [one.result().status for one in asking] == [404, 404]
