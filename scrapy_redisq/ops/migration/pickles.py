"""The process that reads pickles, from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO, Any, NamedTuple

from scrapy_redisq.errors import RedisqError
from scrapy_redisq.ops.migration.plain import SECONDS
from scrapy_redisq.serialization.values import decode

MOST_BYTES = 1 << 26
"""Bytes of a pickle that is read; no request of more can be stored by default."""


class Unpickled(NamedTuple):
    """What a pickle holds: see `scrapy_redisq.ops.migration.plain`."""

    fields: dict[str, Any] | None
    refused: list[str]
    fault: str


class PickleReader:
    """Reads pickles in a process of its own, which is started when it is needed. A context manager.
    The process ends with its input, whatever becomes of this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PickleReader:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def read(self, data: bytes) -> Unpickled:
        """What one pickle holds. Raises `RedisqError` if no such process runs here."""
        if len(data) > MOST_BYTES:
            return Unpickled(None, [], f"{len(data):,} bytes: too long to be read")
        if self._process is None:
            command = [sys.executable, "-m", "scrapy_redisq.ops.migration.plain"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        process, told = self._process, b""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(len(data).to_bytes(4, "big") + data)
            process.stdin.flush()
            told = _message(process.stdout)
        except BrokenPipeError:  # it has died of the pickle, or of the one before
            pass
        if told:
            return Unpickled(*decode(told))
        code = process.wait()
        self.__exit__()
        if code > 0:
            raise RedisqError(f"the process that reads pickles ended with code {code}")
        died = f"the process that read it died (signal {-code})"
        slow = f"it takes more than {SECONDS} s to read"
        return Unpickled(None, [], slow if -code == signal.SIGPROF else died)


def _message(source: IO[bytes]) -> bytes:
    """The next answer, b"" if there will be none."""
    size = int.from_bytes(source.read(4), "big")
    told = source.read(size)
    return told if len(told) == size else b""
