"""What the processes of a test session share: a folder, and who is alone there."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED = "REDISQ_SESSION"
"""The name of an environment variable: the folder of a session."""


def folder() -> Path:
    """The folder of the session, or one of this process alone, which goes with it."""
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="redisq-session-")
        atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
    return Path(os.environ[SHARED])


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process is in such a block with the same path."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
