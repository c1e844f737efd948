"""The locks of an embedded server's folder, held as open files. The package's text says what for.

An open file stays what it is when its name is deleted, moved or taken by another: a process that
has joined a server judges by its own files who else uses it, whatever has become of the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded.keeper import is_current, take

LOCK_TIMEOUT = 60.0
"""Seconds to wait for other processes or threads that start or stop the server."""

NAMES = ("start.lock", "users.lock", "server.lock")


@contextlib.contextmanager
def file_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the setting."""
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(
            f"the embedded server's folder {folder} (REDISQ_URL) cannot be used: {error}"
        ) from error


class Locks:
    """The three lock files of a folder, open; to be closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.joined = False
        # Two threads that use the same open file do not exclude each other.
        self._thread = threading.Lock()
        self._files: list[int] = []
        try:
            for name in NAMES:
                self._files.append(self._open(name))
        except BaseException:
            self.close()
            raise
        self._start, self._users, self._server = self._files

    def _open(self, name: str) -> int:
        """Open a lock file that is no link. No child inherits it but a keeper."""
        with file_errors(self.folder):
            return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def close(self) -> None:
        """Give up whatever is held. May be called twice."""
        while self._files:
            os.close(self._files.pop())

    def are_current(self) -> bool:
        """Whether these are the files that the folder has now."""
        return all(
            is_current(self.folder / name, file)
            for name, file in zip(NAMES, self._files, strict=True)
        )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold ``start.lock``. Raises `EmbeddedServerError` after LOCK_TIMEOUT."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        taken = EmbeddedServerError(
            f"another process has been starting or stopping the server in {self.folder} for "
            f"{LOCK_TIMEOUT:g} s; see its redis.log"
        )
        if not self._thread.acquire(timeout=LOCK_TIMEOUT):
            raise taken
        try:
            pause = 0.002
            while not self._try(self._start, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise taken
                time.sleep(pause)
                pause = min(0.05, pause * 1.5)
            try:
                yield
            finally:
                # Not left to close(): a fork in another thread may hold a copy for a moment.
                if self._files:
                    fcntl.flock(self._start, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    # Who uses the server. All of it only under `exclusive`, or it would disturb a leaver.

    def join(self) -> None:
        """Be a user from now on. Waits for a keeper that ends the server just now."""
        with file_errors(self.folder):
            fcntl.flock(self._users, fcntl.LOCK_SH)
        self.joined = True

    def leave(self) -> bool:
        """Be no user any more; return whether this was the last."""
        self.joined = False
        # Unlock first: a fork in another thread may hold a copy for a moment.
        fcntl.flock(self._users, fcntl.LOCK_UN)
        return not self.in_use()

    def in_use(self) -> bool:
        """Whether anybody else is a user: a keeper, which holds the lock exclusively, is none."""
        return not self._is_free(self._users, fcntl.LOCK_EX) and self._is_free(
            self._users, fcntl.LOCK_SH
        )

    # The server

    def alive(self) -> bool:
        """Whether a server process holds ``server.lock``; true also while it is busy."""
        # Shared, so that two who ask at once do not take each other for the server.
        return not self._is_free(self._server, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def for_keeper(self) -> Iterator[list[int]]:
        """Files of its own for a keeper: ``users.lock``, and ``server.lock``, which is held. Raises
        `EmbeddedServerError` if a server holds it, or the folder was replaced."""
        files: list[int] = []
        try:
            for name in NAMES[1:]:
                files.append(self._open(name))
            if not self.are_current() or not self._try(files[1], fcntl.LOCK_EX):
                raise EmbeddedServerError(f"another server works in {self.folder}")
            yield files
        finally:
            for file in files:
                os.close(file)

    def _try(self, file: int, kind: int) -> bool:
        with file_errors(self.folder):  # not every file system has locks
            return take(file, kind)

    def _is_free(self, file: int, kind: int) -> bool:
        """Whether a lock could be taken."""
        if not self._try(file, kind):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        return True
