"""The folder of an embedded server: its paths and its locks. The package's text says what for.

A unix socket's path may have about 100 bytes. For a folder with a longer one the socket lies in
``redisq-UID-HASH`` (mode 700) under the temporary folder, and ``server.lock`` holds its path, so
that processes with another ``TMPDIR`` find it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scrapy_redisq.errors import EmbeddedServerError

__all__ = ["MAX_SOCKET_BYTES", "ServerFolder", "try_lock"]

MAX_SOCKET_BYTES = 100
"""Longest path of a unix socket: Linux takes 107 bytes, macOS 103."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait for others that start or stop the server."""


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) without waiting; return whether it is held."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ServerFolder:
    """Paths and locks of one embedded server; neither starts it nor speaks with it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().resolve()
        self.log = self.path / "redis.log"
        self.keep = self.path / "keep"
        self._start_lock = self.path / "start.lock"
        self._users_lock = self.path / "users.lock"
        self._server_lock = self.path / "server.lock"

    def create(self) -> None:
        with self.file_errors():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def file_errors(self) -> Iterator[None]:
        """Turn what the file system refuses into an error that names the setting."""
        try:
            yield
        except OSError as error:
            raise EmbeddedServerError(
                f"the embedded server's folder {self.path} (REDISQ_URL) cannot be used: {error}"
            ) from error

    # --- locks

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold ``start.lock``. Raises `EmbeddedServerError` after LOCK_TIMEOUT."""
        descriptor = self._open(self._start_lock)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            pause = 0.002
            while not self._try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"another process has been starting or stopping the server in {self.path} "
                        f"for {LOCK_TIMEOUT:g} s; see {self.log}"
                    )
                time.sleep(pause)
                pause = min(0.05, pause * 1.5)
            try:
                yield
            finally:
                # Not left to close(): a fork in another thread may hold a copy for a moment.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def join(self) -> int:
        """A descriptor that makes its holder a user until it is closed. Only under `exclusive`."""
        descriptor = self._open(self._users_lock)
        try:
            # Only leavers hold it exclusively, and only under start.lock: never waits.
            with self.file_errors():
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def in_use(self) -> bool:
        """Whether any user is left. Only under `exclusive`, or it would disturb a leaver."""
        return not self._is_free(self._users_lock, fcntl.LOCK_EX)

    def alive(self) -> bool:
        """Whether a server process works on this folder; true also while it is busy."""
        # Shared, so that two who ask at once do not take each other for the server.
        return not self._is_free(self._server_lock, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def lock_for_server(self, socket: Path) -> Iterator[int]:
        """``server.lock`` for a new server to inherit; it alone holds it afterwards.

        Raises `EmbeddedServerError` if another server holds it.
        """
        descriptor = self._open(self._server_lock)
        try:
            if not self._try_lock(descriptor, fcntl.LOCK_EX):
                raise EmbeddedServerError(f"another server works in {self.path}")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(socket), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, lock: Path) -> int:
        # Python opens without inheritance: no child, redis-server included, keeps a lock alive.
        with self.file_errors():
            return os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)

    def _try_lock(self, descriptor: int, kind: int) -> bool:
        with self.file_errors():  # not every file system has locks
            return try_lock(descriptor, kind)

    def _is_free(self, lock: Path, kind: int) -> bool:
        descriptor = self._open(lock)
        try:
            return self._try_lock(descriptor, kind)
        finally:
            os.close(descriptor)

    # --- the socket

    def socket(self) -> Path:
        """Where the socket is or will be; see the module's text on long paths."""
        near = self.path / "redis.sock"
        if len(os.fsencode(near)) <= MAX_SOCKET_BYTES:
            return near
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        name = f"redisq-{os.getuid()}-{digest}"
        recorded = self._recorded_socket()
        # A record of another folder means that this one was moved or copied.
        if recorded is not None and recorded.parent.name == name:
            return recorded
        for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
            path = parent / name / "redis.sock"
            if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
                return path
        raise EmbeddedServerError(f"{self.path} (REDISQ_URL) is too long for a socket; set TMPDIR")

    def _recorded_socket(self) -> Path | None:
        try:
            text = self._server_lock.read_bytes()
        except OSError:
            return None
        return Path(os.fsdecode(text)) if text else None

    def checked_socket(self) -> Path:
        """`socket`, its folder made if need be and certain to be this user's own."""
        path = self.socket()
        if path.parent != self.path:
            with self.file_errors():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                found = path.parent.lstat()
            # The name can be guessed: somebody else could have made it to read along.
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if not ours or found.st_mode & 0o077:
                raise EmbeddedServerError(
                    f"{path.parent} is not a folder that only this user can enter: remove it, or "
                    "set TMPDIR or REDISQ_URL"
                )
        return path

    def remove_socket_folder(self) -> None:
        """Remove the folder of a socket that lies elsewhere, once its server has ended."""
        path = self.socket()
        if path.parent != self.path:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
