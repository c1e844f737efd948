"""How tasks end for certain."""

from __future__ import annotations

import asyncio
import time

import pytest

from scrapy_redisq.tasks import cancel, within


async def lose_cancellations(number: int, lost: list[int]) -> None:
    """Go on after so many, as `asyncio.wait_for` may before Python 3.12."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.append(number)
            if len(lost) > number:
                raise


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    async def both() -> list[list[int]]:
        lost: list[list[int]] = [[], []]
        tasks = [asyncio.ensure_future(lose_cancellations(n, lost[n])) for n in range(len(lost))]
        await asyncio.sleep(0)
        await cancel(*tasks)
        assert all(task.cancelled() for task in tasks)
        return lost

    assert asyncio.run(both()) == [[0], [1, 1]]


def test_work_has_so_much_time_even_if_it_loses_its_cancellation() -> None:
    lost: list[int] = []

    async def too_long() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await within(0.05, lose_cancellations(2, lost))

    began = time.monotonic()
    asyncio.run(too_long())
    assert lost == [2, 2, 2] and time.monotonic() - began < 5


def test_work_that_is_done_in_time() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def fails() -> None:
        raise KeyError("it")

    assert asyncio.run(within(5, work())) == "done"
    with pytest.raises(KeyError):
        asyncio.run(within(5, fails()))


def test_work_that_fails_while_it_is_ended_says_why() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError("it")

    with pytest.raises(KeyError):
        asyncio.run(within(0.05, fails()))


def test_who_is_cancelled_ends_its_work() -> None:
    ended: list[int] = []

    async def cancelled() -> None:
        waits = asyncio.ensure_future(within(60, lose_cancellations(0, ended)))
        await asyncio.sleep(0.01)
        await cancel(waits)

    asyncio.run(cancelled())
    assert ended == [0]
