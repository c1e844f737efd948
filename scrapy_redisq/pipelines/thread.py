"""Calls that may hang, in a thread."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from scrapy_redisq.errors import SinkMismatch


class Calls:
    """Calls the methods of a sink: those without ``async def`` in one thread, called ``name``.

    The thread does not keep the process from ending. Threads of `concurrent.futures` do: Python
    waits for them at exit, even if a storage hangs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] | None = None

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return or raise as the method does. Raises `SinkMismatch` if nothing of it has run.

        When this is cancelled, a call of the thread that has begun goes on.
        """
        if inspect.iscoroutinefunction(inspect.unwrap(method)):
            return await method(*arguments)
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=_work, args=[self._queue], name=self._name, daemon=True).start()
        future: Future[Any] = Future()
        self._queue.put((future, partial(method, *arguments)))
        result = await asyncio.wrap_future(future)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            name = getattr(method, "__qualname__", repr(method))
            raise SinkMismatch(f"{name}() must not contain 'yield': nothing of it has run")
        # Decorators make such methods.
        return await result if inspect.isawaitable(result) else result

    def end(self) -> None:
        """Let the thread end after the calls that it has been given; does not wait for it."""
        if self._queue is not None:
            self._queue.put(None)


def _work(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while call := calls.get():
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except StopIteration as error:  # which no future of asyncio takes
                future.set_exception(RuntimeError(repr(error)))
            except BaseException as error:
                future.set_exception(error)
        del call, future, function  # not to be kept while it waits for the next
