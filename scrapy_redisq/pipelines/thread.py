"""A thread for calls that may hang."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

__all__ = ["OneThread"]


class OneThread:
    """Runs calls one after the other, in a thread that does not keep the process from ending.

    Those of `concurrent.futures` do: Python waits for them at exit, also for a storage that hangs.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises. When this is cancelled, a call that has begun goes
        on."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(function, *arguments)))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """Let the thread end after the calls that it has been given; does not wait for it."""
        self._calls.put(None)

    def _work(self) -> None:
        while call := self._calls.get():
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function  # not to be kept while it waits for the next
