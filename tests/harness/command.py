"""``scrapy redisq …`` in this process, and other programs, which must end well."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
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


def at(server: RedisServer) -> tuple[str, str]:
    return ("-s", f"REDISQ_URL={server.url}")
