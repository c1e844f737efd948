"""The locks of an embedded server's folder, held as open files. The package's text says what for.

An open file stays what it is when its name is deleted, moved or taken by another: a process that
has joined a server judges by its own files who else uses it and which process it is, whatever has
become of the folder.
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
from scrapy_redisq.server.embedded import watcher

__all__ = ["Locks", "file_errors"]

LOCK_TIMEOUT = 60.0
"""Seconds to wait for other processes or threads that start or stop the server."""

NAMES = ("start.lock", "users.lock", "server.lock")
WATCH = "watch.lock"


@contextlib.contextmanager
def file_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the setting."""
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(
            f"the embedded server's folder {folder} (REDISQ_URL) cannot be used: {error}"
        ) from error


def _open(path: Path, flags: int = 0) -> int:
    """Open a lock file that is no link. No child, redis-server included, inherits it."""
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)


class Locks:
    """The three lock files of a folder, open; `close` them, or `leave` after `join`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.joined = False
        # Two threads that use the same open file do not exclude each other.
        self._thread = threading.Lock()
        self._files: list[int] = []
        try:
            for name in NAMES:
                self._files.append(_open(folder / name, os.O_CREAT))
        except BaseException:
            self.close()
            raise
        self._start, self._users, self._server = self._files

    def close(self) -> None:
        """Give up whatever is held. May be called twice."""
        while self._files:
            os.close(self._files.pop())

    def are_current(self) -> bool:
        """Whether these are the files that the folder has now."""
        return all(
            watcher.is_current(self.folder / name, file)
            for name, file in zip(NAMES, self._files, strict=True)
        )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold ``start.lock``. Raises `EmbeddedServerError` after LOCK_TIMEOUT."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        if not self._thread.acquire(timeout=LOCK_TIMEOUT):
            raise self._taken()
        try:
            pause = 0.002
            while not self._try(self._start, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise self._taken()
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

    def _taken(self) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"another process has been starting or stopping the server in {self.folder} for "
            f"{LOCK_TIMEOUT:g} s; see its redis.log"
        )

    # Who uses the server. All of it only under `exclusive`, or it would disturb a leaver.

    def join(self) -> None:
        """Be a user from now on."""
        # Only leavers hold it exclusively, and only under start.lock: never waits.
        with file_errors(self.folder):
            fcntl.flock(self._users, fcntl.LOCK_SH)
        self.joined = True

    def leave(self) -> bool:
        """Be no user any more; return whether this was the last."""
        self.joined = False
        with file_errors(self.folder):
            # Unlock first: a fork in another thread may hold a copy for a moment.
            fcntl.flock(self._users, fcntl.LOCK_UN)
        return not self.in_use()

    def in_use(self) -> bool:
        """Whether anybody else is a user."""
        with file_errors(self.folder):
            return not watcher.is_free(self._users, fcntl.LOCK_EX)

    @contextlib.contextmanager
    def for_watcher(self) -> Iterator[list[int]]:
        """Files of its own for a watcher to inherit: ``watch.lock``, which it alone holds
        afterwards, and those of `NAMES`. None if there is a watcher, or the folder was replaced."""
        files: list[int] = []
        try:
            with file_errors(self.folder):
                for name in (WATCH, *NAMES):
                    files.append(_open(self.folder / name, os.O_CREAT))
            same = all(map(os.path.samestat, map(os.fstat, files[1:]), map(os.fstat, self._files)))
            yield files if same and self._try(files[0], fcntl.LOCK_EX) else []
        finally:
            for file in files:
                os.close(file)

    # Which process the server is

    def alive(self) -> bool:
        """Whether a server process holds ``server.lock``; true also while it is busy."""
        with file_errors(self.folder):
            return watcher.is_alive(self._server)

    @contextlib.contextmanager
    def for_server(self, socket: Path) -> Iterator[int]:
        """``server.lock`` for a new server to inherit; it alone holds it afterwards.

        Raises `EmbeddedServerError` if another server holds it, or the folder was replaced.
        """
        with file_errors(self.folder):
            descriptor = _open(self.folder / NAMES[2])
        try:
            if not watcher.is_current(self.folder / NAMES[2], self._server) or not self._try(
                descriptor, fcntl.LOCK_EX
            ):
                raise EmbeddedServerError(f"another server works in {self.folder}")
            self.record(socket, 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def record(self, socket: Path, pid: int) -> None:
        """Note where the server listens and which process it is (0: not known yet)."""
        with file_errors(self.folder):
            content = os.fsencode(socket) + b"\n%d\n" % pid
            if os.pread(self._server, len(content) + 1, 0) == content:
                return  # a full disk may refuse even what changes nothing
            os.pwrite(self._server, content, 0)
            os.ftruncate(self._server, len(content))

    def server_pid(self) -> int:
        """The process id of the server that is `alive`; 0 if it is not known for certain."""
        return watcher.server_pid(self._server)

    def end_server(self) -> bool:
        """End the server of these locks; return whether it has ended. Only under `exclusive`."""
        return watcher.end(self.folder, self._server)

    def _try(self, file: int, kind: int) -> bool:
        """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) without waiting: whether it is held."""
        with file_errors(self.folder):  # not every file system has locks
            return watcher.take(file, kind)
