"""The folder of an embedded server: its paths, and the way to its locks.

A unix socket's path may have about 100 bytes. For a folder with a longer one the socket lies in
``/tmp/redisq-UID-HASH`` (mode 700), whatever TMPDIR is: all processes have to find it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded.locks import Locks, file_errors

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
        self.socket = self.path / "redis.sock"
        if len(os.fsencode(self.socket)) > MAX_SOCKET_BYTES:
            digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
            self.socket = Path(f"/tmp/redisq-{os.getuid()}-{digest}/redis.sock")

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

    def make_place_for_socket(self) -> None:
        """See to it that the socket's folder is there, and this user's own."""
        parent = self.socket.parent
        if parent == self.path:
            return
        with file_errors(self.path):
            parent.mkdir(mode=0o700, exist_ok=True)
            found = parent.lstat()
        # The name can be guessed: somebody else could have made it to read along.
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_mode & 0o077:
            raise EmbeddedServerError(
                f"{parent} is not a folder that only this user can enter: remove it, or name a "
                "folder with a shorter path: REDISQ_URL = embedded:///path"
            )

    def remove_place_of_socket(self) -> None:
        if self.socket.parent != self.path:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # of another machine or container
        return str(number)
