"""What is shared by all who look, and read a portion at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from scrapy_redisq.control.figures import figures
from scrapy_redisq.ops.dashboard.shared import Listed, Shared
from tests.harness.in_loop import in_a_loop


@in_a_loop
async def test_ten_who_ask_cost_one_look() -> None:
    """Who asks meanwhile waits for the same; afterwards it is shown for a while; then it is looked
    at anew, and an error is shared, too."""
    looks: list[int] = []
    go = threading.Event()

    def look() -> int:
        go.wait(10)
        looks.append(1)
        if len(looks) == 2:
            raise redis.ConnectionError
        return len(looks)

    with ThreadPoolExecutor() as threads:
        shared = Shared(threads, look, lasts=60.0)
        asking = [asyncio.ensure_future(shared.get()) for _ in range(10)]
        await asyncio.sleep(0)
        asking.pop().cancel()  # it went away
        go.set()
        assert await asyncio.gather(*asking) == [1] * 9
        assert (await shared.get(), len(looks)) == (1, 1)
        shared.forget()
        found = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
        assert [type(error) for error in found] == [redis.ConnectionError] * 2
        shared.forget()
        assert await shared.get() == 3


@in_a_loop
async def test_a_long_list_is_shown_as_it_comes() -> None:
    """The first who asks gets what is there so far, later ones the whole while it is read anew."""
    go = threading.Event()

    def read() -> Iterator[int]:
        yield from range(1_000)
        go.wait(10)
        yield from range(1_000, 2_000)

    with ThreadPoolExecutor() as threads:
        listed = Listed(threads, read, lasts=0.0)
        some, is_all, _ = await listed.get()
        assert (some, is_all) == (list(range(len(some))), False)
        assert len(some) <= 1_000
        go.set()
        while not is_all:
            some, is_all, _ = await listed.get()
        assert some == list(range(2_000))
        go.clear()
        assert (await listed.get())[:2] == (some, True)
        go.set()


def sample(at: int, **counts: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(("pages", "items", "errors", "created", "finished"), 0)
    return {"run": "r", "at": at, **zeros, **counts}


def test_rates_and_the_end() -> None:
    """A rate is that of the last minute of this run, and the end that of the last ten: not told
    where it is not in sight."""
    status = {**sample(0), "state": "running", "queued": 400, "delayed": 50, "leased": 50}
    minutes = [
        sample(60 * n, pages=100 * n, items=50 * n, created=500 + 20 * n, finished=100 * n)
        for n in range(6)
    ]
    told = figures(status, [{**sample(0), "run": "before", "pages": 10**6}, *minutes])
    assert (told["pages_per_minute"], told["items_per_minute"]) == (100, 50)
    assert told["left"] == pytest.approx(60 * 500 / 80, abs=0.1)
    assert told["recent"] == [100.0] * 5
    growing = [{**one, "created": 500 + 200 * n} for n, one in enumerate(minutes)]
    assert figures(status, growing)["left"] is None
    assert figures(status, [])["pages_per_minute"] is None
    stopped = figures({**status, "state": "stopped"}, minutes)
    assert (stopped["pages_per_minute"], stopped["left"]) == (0, None)
