"""The process whose child the server is: it ends a server that nobody uses, or nobody can reach.

A script of the standard library alone: ``keeper.py FOLDER SOCKET USERS SERVER COMMAND…``, where
USERS and SERVER are the open lock files of `Locks.for_keeper`. It stays as long as the server does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PAUSE = 0.5
"""Seconds between two looks."""

LISTENS_WITHIN = 30.0
"""Seconds after its start in which the server makes its socket."""

ANSWER_TIMEOUT = 1.0
"""Seconds for a server to answer."""

UNREADY_GRACE = 600.0
"""Seconds for which an unused server that still reads its data, or says nothing, is left alone: a
supervisor may try again only after a while, and would find it at its beginning each time."""


def take(lock: int, kind: int) -> bool:
    """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) without waiting: whether it is held."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_current(path: Path, file: int) -> bool:
    """Whether an open file is the one that is at ``path`` now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError:
        return False


def ask(path: Path, command: bytes) -> bytes:
    """The answer of the server at a socket; nothing if there is none in time."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(os.fsencode(path))
        connection.sendall(command)
        return connection.recv(1_000)
    return b""


def _may_be_ended(folder: Path, path: Path, unused_since: float) -> bool:
    """Whether an unused server is neither to be kept nor to be left to its data."""
    if (folder / "keep").exists():
        return False
    said = ask(path, b"PING\r\n")
    is_ready = said != b"" and not said.startswith(b"-LOADING")
    return is_ready or time.monotonic() > unused_since + UNREADY_GRACE


def keep(folder: Path, path: Path, users: int, server: subprocess.Popen[bytes]) -> None:
    """Look after ``server``, which was started in ``folder`` and listens at ``path``."""
    waiting = threading.Thread(target=server.wait, daemon=True)
    waiting.start()
    # Where the folder is another one by now, others may be at its paths.
    is_here = is_current(folder / "users.lock", users)
    deadline = time.monotonic() + LISTENS_WITHIN
    while waiting.is_alive() and is_here and not path.exists() and time.monotonic() < deadline:
        waiting.join(0.005)
        is_here = is_current(folder / "users.lock", users)
    unused_since: float | None = None
    while waiting.is_alive():
        waiting.join(PAUSE)
        is_here = is_current(folder / "users.lock", users)
        if is_here and not path.exists():
            server.terminate()
        elif not take(users, fcntl.LOCK_EX):
            unused_since = None
        else:
            unused_since = unused_since or time.monotonic()
            if not is_here or _may_be_ended(folder, path, unused_since):
                server.terminate()  # refused while it writes its first file: then once more
                waiting.join(PAUSE)
            fcntl.flock(users, fcntl.LOCK_UN)


def main(folder: str, path: str, users: str, lock: str, *command: str) -> None:
    """Start the server, which alone holds ``server.lock`` then, and stay with it."""
    server = subprocess.Popen(command, pass_fds=[int(lock)])
    os.close(int(lock))
    keep(Path(folder), Path(path), int(users), server)


if __name__ == "__main__" and not os.fork():  # nobody's child: no process has to collect it
    main(*sys.argv[1:])
