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

__all__ = ["Calls", "OneThread"]


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
                except StopIteration as error:  # which no future of asyncio takes
                    future.set_exception(RuntimeError(repr(error)))
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function  # not to be kept while it waits for the next


class Calls:
    """Calls the methods of a sink: those without ``async def`` in one thread, which ``name`` has.

    A method without ``async def`` may still return something to be awaited, as decorators do.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: OneThread | None = None

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What the method returns or raises. Raises `SinkMismatch` if nothing of it has run."""
        if inspect.iscoroutinefunction(inspect.unwrap(method)):
            return await method(*arguments)
        self._thread = self._thread or OneThread(self._name)
        result = await self._thread.run(method, *arguments)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            name = getattr(method, "__qualname__", repr(method))
            raise SinkMismatch(f"{name}() must not contain 'yield': nothing of it has run")
        return await result if inspect.isawaitable(result) else result

    def end(self) -> None:
        """Let the thread end, if there is one; does not wait for it."""
        if self._thread is not None:
            self._thread.end()
