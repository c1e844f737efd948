"""Tasks of asyncio that are ended for certain.

Before Python 3.12 a cancellation can be lost, by `asyncio.wait_for` or a client's own timeout,
where it comes just when something is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN = 0.05
"""Seconds after which a task that goes on is cancelled once more."""


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, again and again, and wait for their ends."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. When it takes longer it is ended: raises what it raises then, else
    `asyncio.TimeoutError`."""
    task, late = asyncio.ensure_future(work), False
    try:
        await asyncio.wait([task], timeout=seconds)
        late = not task.done()
    finally:
        await cancel(task)
    if late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
