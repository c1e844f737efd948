"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Let a test be a coroutine, which has two minutes."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fixtures), 120))

    return run


async def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition; fail with ``what`` did not come true."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} s: {what}")


async def results(tasks: list[asyncio.Task[Any]]) -> list[type[BaseException] | None]:
    """What each task has raised, None: nothing."""
    await asyncio.wait(tasks, timeout=90)
    assert all(task.done() for task in tasks)
    return [type(error) if (error := task.exception()) else None for task in tasks]
