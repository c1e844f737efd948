"""``scrapy redisq …`` in this process, and other programs, which must end well."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from lab.servers import RedisServer


class Ran(NamedTuple):
    """What a call left behind."""

    code: int
    out: str
    err: str


Redisq = Callable[..., Ran]


def run_well(
    command: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a program says, which must end well."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """A terminal for others, and what they have written there, of which nothing is missing when it
    is closed."""
    ours, theirs = os.openpty()
    written = bytearray()

    def read() -> None:
        with suppress(OSError):  # Linux' way to say that nobody writes any more
            while data := os.read(ours, 65_536):
                written.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, written
    finally:
        os.close(theirs)
        reader.join(10)
        os.close(ours)


def at(server: RedisServer) -> tuple[str, str]:
    return ("-s", f"REDISQ_URL={server.url}")
