"""A process's share in an embedded server: the first to join starts it, the last to leave stops it.

A process that ends without leaving leaves all the same, and a forked child has no share.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from scrapy_redisq.embedded import process
from scrapy_redisq.embedded.folder import ServerFolder, try_lock
from scrapy_redisq.errors import EmbeddedServerError

__all__ = ["EmbeddedServer"]

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """This process's share in an embedded server. Make one with `acquire`, leave with `close`."""

    _joined: ClassVar[set[EmbeddedServer]] = set()

    def __init__(self, place: ServerFolder, binary: str, socket: Path, descriptor: int) -> None:
        self._place = place
        self._binary = binary
        self._users: int | None = descriptor
        self.folder = place.path
        self.socket = socket
        EmbeddedServer._joined.add(self)

    @classmethod
    def acquire(cls, folder: Path | str, binary: str = "") -> EmbeddedServer:
        """Join the server of ``folder``, starting it if it does not run.

        On return the server runs; it may still be reading its data (``LOADING``). ``binary`` is
        REDISQ_SERVER. Blocks while others start or stop it, at most LOCK_TIMEOUT seconds. Raises
        `EmbeddedServerError` if there is no binary, or with the end of the server's log if it
        does not start; then nothing stays acquired.
        """
        place = ServerFolder(folder)
        place.create()
        with place.exclusive():
            descriptor = place.join()
            try:
                socket = process.ensure(place, binary)
            except BaseException:
                os.close(descriptor)
                raise
            return cls(place, binary, socket, descriptor)

    @property
    def url(self) -> str:
        """The server's real address, a ``unix://`` URL."""
        return f"unix://{quote(os.fsencode(self.socket))}"

    def ensure_running(self) -> None:
        """Start the server again if it died; on the same socket, with the data that it left.

        Takes about a millisecond while it runs, else as long as `acquire`; blocks, so call it
        from a thread. Raises as `acquire` does, and when this share was closed.
        """
        if self._users is not None and process.answers(self._place):
            return
        with self._place.exclusive():
            if self._users is None:
                raise EmbeddedServerError(f"the embedded server in {self.folder} was left")
            process.ensure(self._place, self._binary)

    def close(self) -> None:
        """Leave; the last one to leave stops the server, unless `start` said to keep it."""
        if self._users is None:
            return
        try:
            with self._place.exclusive():
                descriptor, self._users = self._users, None
                if descriptor is None:  # another thread has left meanwhile
                    return
                try:
                    # Unlock first: a fork in another thread may hold a copy for a moment.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    last = try_lock(descriptor, fcntl.LOCK_EX)
                    if last and not self._place.keep.exists():
                        process.shut_down(self._place)
                finally:
                    os.close(descriptor)
        except EmbeddedServerError as error:
            logger.warning("left the embedded server without stopping it: %s", error)
            self._drop()
        finally:
            EmbeddedServer._joined.discard(self)

    def _drop(self) -> None:
        """Give the share up without a look at the server."""
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self.folder)!r})"

    @classmethod
    def _close_all(cls) -> None:
        for joined in list(cls._joined):
            joined.close()

    @classmethod
    def _forget_all(cls) -> None:
        # In a forked child: the shares are the parent's, and their locks must die with it.
        for joined in cls._joined:
            joined._drop()
        cls._joined.clear()


atexit.register(EmbeddedServer._close_all)
os.register_at_fork(after_in_child=EmbeddedServer._forget_all)
