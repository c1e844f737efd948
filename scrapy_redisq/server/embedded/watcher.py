"""Ends an embedded server that nobody uses any more, because all who did were killed.

A script of its own, of the standard library alone, as it stays for as long as the server is used:
``watcher.py FOLDER WATCH START USERS SERVER``, the open lock files of `Locks.for_watcher`. Who
leaves in order ends the server himself; this looks once in a while whether somebody is there.
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

STOP_TIMEOUT = 30.0
"""Seconds for the server to write its data and exit."""

LOADED_GRACE = 600.0
"""Seconds for which a server that was still reading its data is left to whoever started it: a
supervisor may try again only after a while, and would find it at its beginning each time."""


def take(lock: int, kind: int) -> bool:
    """Take a lock without waiting: whether it is held."""
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


def is_held_by(lock: int, pid: int) -> bool:
    """Whether a process has locked a file, so that its id is no reused one, and none of another
    container. Where that cannot be seen (macOS) the id alone must do."""
    if not Path("/proc/self/fdinfo").exists():
        return True
    try:
        return any(
            os.path.samestat(file.stat(), os.fstat(lock))
            and "FLOCK" in Path(f"/proc/{pid}/fdinfo/{file.name}").read_text()
            for file in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False


class Watcher:
    """Looks after the server of these locks, which was started in ``folder``."""

    def __init__(self, folder: Path, start: int, users: int, server: int) -> None:
        self._folder = folder
        self._start, self._users, self._server = start, users, server
        self._loading_until = self._silent_since = 0.0

    def look(self) -> bool:
        """-> whether there is nothing left to look after. Only under ``start.lock``."""
        if not is_free(self._users, fcntl.LOCK_EX):
            self._loading_until = self._silent_since = 0.0
            return False
        if not self._is_alive() or (self._is_current() and self._is_to_be_kept()):
            return True
        said = self._ask(b"PING\r\n")
        now = time.monotonic()
        if said.startswith(b"-LOADING"):
            self._loading_until = self._loading_until or now + LOADED_GRACE
        # One that reads its data may be silent for seconds; so may one that is busy.
        self._silent_since = 0.0 if said else self._silent_since or now
        is_silent = self._silent_since and now < self._silent_since + STOP_TIMEOUT
        if is_silent or now < self._loading_until:
            return False
        self._end()
        return True

    def _is_alive(self) -> bool:
        return not is_free(self._server, fcntl.LOCK_SH)

    def _is_to_be_kept(self) -> bool:
        return (self._folder / "keep").exists()

    def _is_current(self) -> bool:
        """Whether the folder is still the one that the server works in."""
        try:
            there = (self._folder / "server.lock").stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._server))

    def _noted(self) -> tuple[bytes, int]:
        """Where the server listens, and its process id (0: not known), see `Locks.record`."""
        found = re.fullmatch(rb"(.+)\n(\d{1,10})\n", os.pread(self._server, 10_000, 0), re.DOTALL)
        return (found[1], int(found[2])) if found else (b"", 0)

    def _ask(self, command: bytes) -> bytes:
        """What the server answers; nothing if it does not within a second."""
        path, _ = self._noted()
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(path)
            connection.sendall(command)
            return connection.recv(1_000)
        return b""

    def _end(self) -> None:
        until = time.monotonic() + STOP_TIMEOUT
        asked = 0.0
        while self._is_alive() and time.monotonic() < until:
            if time.monotonic() > asked + 1:  # it refuses while it writes its first file
                asked = time.monotonic()
                _, pid = self._noted()
                if pid and is_held_by(self._server, pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGTERM)
                elif self._is_current():
                    self._ask(b"SHUTDOWN NOSAVE\r\n")
            time.sleep(0.01)
        place = Path(os.fsdecode(self._noted()[0])).parent
        if self._is_current() and place != self._folder:
            with contextlib.suppress(OSError):
                place.rmdir()


def main(folder: str, watch: int, start: int, users: int, server: int) -> None:
    """Look until there is nothing left to look after, or the files are no more."""
    watcher = Watcher(Path(folder), start, users, server)
    done = False
    while not done:
        time.sleep(PAUSE)
        if take(start, fcntl.LOCK_EX):
            done = watcher.look()
            if done:  # before somebody joins, who needs another one
                fcntl.flock(watch, fcntl.LOCK_UN)
            fcntl.flock(start, fcntl.LOCK_UN)


if __name__ == "__main__":
    if pid := os.fork():  # nobody's child: no process has to collect it
        os.ftruncate(int(sys.argv[2]), 0)
        os.pwrite(int(sys.argv[2]), b"%d\n" % pid, 0)  # see Locks.dismiss_watcher
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
