"""The server that holds a lock: asking it and ending it, and a watcher that does so in time.

A script of its own, of the standard library alone, as it stays for as long as the server is used:
``watcher.py FOLDER WATCH START USERS SERVER``, the open lock files of `Locks.for_watcher`. It ends
a server that nobody uses any more because all who did were killed. Who leaves in order ends the
server himself; the watcher looks once in a while whether somebody is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

PAUSE = 1.0
"""Seconds between two looks."""

ANSWER_TIMEOUT = 1.0
"""Seconds for a server to answer."""

STOP_TIMEOUT = 30.0
"""Seconds for the server to write its data and exit."""

LOADED_GRACE = 600.0
"""Seconds for which a server that was still reading its data is left to whoever started it: a
supervisor may try again only after a while, and would find it at its beginning each time."""

FILES_OF_PROCESSES = Path("/proc/self/fdinfo")
"""There where the kernel tells who holds which lock (Linux)."""


def take(lock: int, kind: int) -> bool:
    """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) without waiting: whether it is held."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(lock: int, kind: int) -> bool:
    """Whether a lock could be taken."""
    if not take(lock, kind):
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def is_alive(lock: int) -> bool:
    """Whether a server process holds ``server.lock``; true also while it is busy."""
    # Shared, so that two who ask at once do not take each other for the server.
    return not is_free(lock, fcntl.LOCK_SH)


def is_current(path: Path, file: int) -> bool:
    """Whether an open file is the one that is at ``path`` now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError:
        return False


def noted(content: bytes) -> tuple[bytes, int]:
    """The socket's path and the process id of what `Locks.record` wrote (0: not known); nothing of
    what another hand wrote, or what was cut off."""
    found = re.fullmatch(rb"(.+)\n(\d{1,10})\n", content, re.DOTALL)
    return (found[1], int(found[2])) if found else (b"", 0)


def noted_in(lock: int) -> tuple[bytes, int]:
    return noted(os.pread(lock, 10_000, 0))


def server_pid(lock: int) -> int:
    """The process id of the server that is alive; 0 if it is not known for certain.

    Where it was not noted, as the process that started it was killed, the kernel's list of
    processes is looked through.
    """
    _, pid = noted_in(lock)
    if pid and _is_held_by(lock, pid):
        return pid
    if not FILES_OF_PROCESSES.exists():
        return 0
    others = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    # A server that writes its file anew has a child, which is younger and holds it, too.
    return min((other for other in others if _is_held_by(lock, other)), default=0)


def _is_held_by(lock: int, pid: int) -> bool:
    """Whether a process has locked a file, so that its id is no reused one, and none of another
    container. Where that cannot be seen (macOS) the id alone must do."""
    if not FILES_OF_PROCESSES.exists():
        return True
    try:
        return any(
            os.path.samestat(file.stat(), os.fstat(lock))
            and "FLOCK" in Path(f"/proc/{pid}/fdinfo/{file.name}").read_text()
            for file in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False


def ask(path: str | bytes, command: bytes) -> bytes:
    """What the server at a socket answers; nothing if it does not in time."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(path)
        connection.sendall(command)
        return connection.recv(1_000)
    return b""


def end(folder: Path, lock: int) -> bool:
    """End the server of ``server.lock``; return whether it has ended. Only under ``start.lock``.

    By its process id: the folder may be another server's by now.
    """
    deadline = time.monotonic() + STOP_TIMEOUT
    asked = 0.0
    while is_alive(lock):
        now = time.monotonic()
        if now > deadline:
            return False
        # A server that writes its first append-only file refuses to stop: ask again.
        if now - asked > 1:
            asked = now
            if pid := server_pid(lock):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
            elif is_current(folder / "server.lock", lock):
                # NOSAVE concerns snapshots only: the append-only file is written and synced.
                ask(noted_in(lock)[0], b"SHUTDOWN NOSAVE\r\n")
        time.sleep(0.005)
    place = Path(os.fsdecode(noted_in(lock)[0])).parent
    if place.name.startswith("redisq-") and is_current(folder / "server.lock", lock):
        with contextlib.suppress(OSError):  # the socket's own folder, see `ServerFolder.socket`
            place.rmdir()
    return True


class _Watcher:
    """Looks after the server of these locks, which was started in ``folder``."""

    def __init__(self, folder: Path, users: int, server: int) -> None:
        self._folder = folder
        self._users, self._server = users, server
        self._loading_until = self._silent_since = 0.0

    def look(self) -> bool:
        """-> whether there is nothing left to look after. Only under ``start.lock``."""
        if not is_free(self._users, fcntl.LOCK_EX):
            self._loading_until = self._silent_since = 0.0
            return False
        is_to_be_kept = (self._folder / "keep").exists()
        if not is_alive(self._server) or (
            is_to_be_kept and is_current(self._folder / "server.lock", self._server)
        ):
            return True
        said = ask(noted_in(self._server)[0], b"PING\r\n")
        now = time.monotonic()
        if said.startswith(b"-LOADING"):
            self._loading_until = self._loading_until or now + LOADED_GRACE
        # One that reads its data may be silent for seconds; so may one that is busy.
        self._silent_since = 0.0 if said else self._silent_since or now
        is_silent = self._silent_since and now < self._silent_since + STOP_TIMEOUT
        if is_silent or now < self._loading_until:
            return False
        end(self._folder, self._server)
        return True


def _watch(folder: str, watch: int, start: int, users: int, server: int) -> None:
    """Look until there is nothing left to look after, or the files are no more."""
    watcher = _Watcher(Path(folder), users, server)
    done = False
    while not done:
        time.sleep(PAUSE)
        if take(start, fcntl.LOCK_EX):
            done = watcher.look()
            if done:  # before somebody joins, who needs another one
                fcntl.flock(watch, fcntl.LOCK_UN)
            fcntl.flock(start, fcntl.LOCK_UN)


if __name__ == "__main__" and not os.fork():  # nobody's child: no process has to collect it
    _watch(sys.argv[1], *map(int, sys.argv[2:]))
