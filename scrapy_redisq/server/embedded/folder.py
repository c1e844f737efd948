"""The folder of an embedded server: its paths, and the way to its locks.

A unix socket's path may have about 100 bytes. For a folder with a longer one the socket lies in
``redisq-UID-HASH`` (mode 700) under the temporary folder, and ``server.lock`` holds its path, so
that processes with another ``TMPDIR`` find it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded.locks import Locks, file_errors
from scrapy_redisq.server.embedded.watcher import noted

__all__ = ["MAX_SOCKET_BYTES", "ServerFolder"]

MAX_SOCKET_BYTES = 100
"""Longest path of a unix socket: Linux takes 107 bytes, macOS 103."""
MOST_LOOKS = 100
"""Times that a folder may be deleted just while it is being locked."""


class ServerFolder:
    """Paths of one embedded server; neither starts it nor speaks with it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().resolve()
        self.log = self.path / "redis.log"
        self.keep = self.path / "keep"
        self.pid_file = self.path / "redis.pid"

    def create(self) -> None:
        with file_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self) -> None:
        """Raises `EmbeddedServerError` if another user may write into the folder, or owns it or
        anything in it: that user's server could answer, and a link of theirs lead a file away."""
        with file_errors(self.path):
            paths = (self.path, *self.path.iterdir())
            mode = self.path.stat().st_mode
        user = os.geteuid()
        wrong = ""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # the socket of a server that just ended
                owner = path.lstat().st_uid
                if owner != user and not wrong:
                    wrong = f"{path} belongs to {_user_name(owner)}, not to {_user_name(user)}"
        remedy = f"chown -R {_user_name(user)} {self.path}"
        if mode & 0o022 and not wrong:
            wrong = f"others may write into it (mode {stat.S_IMODE(mode):04o})"
            remedy = f"chmod go-w {self.path}"
        if wrong:
            raise EmbeddedServerError(
                f"the embedded server's folder {self.path} (REDISQ_URL) is not this user's alone, "
                f"so another user's server could answer there: {wrong}. Say {remedy}, or name "
                "another folder: REDISQ_URL = embedded:///path"
            )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Locks]:
        """The locks of the folder that is there now, with ``start.lock`` held to the end of the
        block. Open afterwards if they were joined. Raises `EmbeddedServerError`."""
        for _ in range(MOST_LOOKS):
            self.check()
            with file_errors(self.path):
                locks = Locks(self.path)
            try:
                with locks.exclusive():
                    if locks.are_current():
                        yield locks
                        return
            finally:
                if not locks.joined:
                    locks.close()
        raise EmbeddedServerError(f"{self.path} (REDISQ_URL) is deleted again and again")

    # --- the socket

    def socket(self) -> Path:
        """Where the socket is or will be; see the module's text on long paths."""
        near = self.path / "redis.sock"
        if len(os.fsencode(near)) <= MAX_SOCKET_BYTES:
            return near
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        name = f"redisq-{os.getuid()}-{digest}"
        noted = self._noted_socket()
        # A note of another folder means that this one was moved or copied.
        if noted is not None and noted.parent.name == name:
            return noted
        for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
            path = parent / name / "redis.sock"
            if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
                return path
        raise EmbeddedServerError(f"{self.path} (REDISQ_URL) is too long for a socket; set TMPDIR")

    def _noted_socket(self) -> Path | None:
        try:
            text, _ = noted((self.path / "server.lock").read_bytes())
        except OSError:
            return None
        return Path(os.fsdecode(text)) if text else None

    def checked_socket(self) -> Path:
        """`socket`, its folder made if need be and certain to be this user's own."""
        path = self.socket()
        if path.parent != self.path:
            with file_errors(self.path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                found = path.parent.lstat()
            # The name can be guessed: somebody else could have made it to read along.
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not ours or found.st_mode & 0o077:
                raise EmbeddedServerError(
                    f"{path.parent} is not a folder that only this user can enter: remove it, or "
                    "set TMPDIR or REDISQ_URL"
                )
        return path


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # of another machine or container
        return str(number)
