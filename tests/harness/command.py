"""``scrapy redisq …``, in this process or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab.servers import RedisServer


class Ran(NamedTuple):
    """What a call left behind."""

    code: int
    out: str
    err: str


Redisq = Callable[..., Ran]


def scrapy(
    *args: str, cwd: Path, stdin: str = "", environment: dict[str, str] | None = None
) -> Ran:
    """A real ``scrapy`` process."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "scrapy", *args],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def at(server: RedisServer) -> tuple[str, str]:
    return ("-s", f"REDISQ_URL={server.url}")
