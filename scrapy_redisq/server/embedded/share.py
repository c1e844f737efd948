"""A process's share in an embedded server: the first to join starts it, the last to leave stops it.

A process that ends without leaving leaves all the same, and a forked child has no share.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded import process
from scrapy_redisq.server.embedded.folder import ServerFolder
from scrapy_redisq.server.embedded.locks import Locks

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """This process's share in an embedded server. Make one with `acquire`, leave with `close`."""

    _joined: ClassVar[set[EmbeddedServer]] = set()

    def __init__(self, place: ServerFolder) -> None:
        self._place = place
        self._mutex = threading.Lock()
        self.folder = place.path
        self.socket = place.socket
        self._locks: Locks | None = _join(place)
        EmbeddedServer._joined.add(self)

    @classmethod
    def acquire(cls, folder: Path | str) -> EmbeddedServer:
        """Join the server of ``folder``, starting it if it does not run; it may still be reading
        its data. Blocks while other processes start or stop it. Raises `EmbeddedServerError` if
        there is no binary, or with the server's own words; then nothing stays acquired."""
        return cls(ServerFolder(folder))

    @property
    def url(self) -> str:
        """The server's real address, a ``unix://`` URL."""
        return f"unix://{quote(os.fsencode(self.socket))}"

    def ensure_running(self) -> None:
        """Start the server again if it died, with the data that it left. If the folder was deleted
        or moved, join the server of the one that is there now. Takes a millisecond while all is
        well, else blocks as `acquire` does. Raises as that does, and when this share was closed."""
        with self._mutex:
            locks = self._locks
            if locks is None:
                raise EmbeddedServerError(f"the embedded server in {self.folder} was left")
            if not locks.are_current():
                logger.warning(
                    "the folder of the embedded server, %s, was deleted or moved: going on with "
                    "the one that is there now",
                    self.folder,
                )
                self._locks = _join(self._place)
                _leave(self._place, locks)
            elif not process.answers(self._place):
                with locks.exclusive():
                    process.ensure(self._place, locks)

    def is_loading(self) -> bool:
        """Whether the server still reads its data. Blocks for a second at most."""
        return process.is_loading(self._place)

    def close(self) -> None:
        """Leave; the last one to leave stops the server, unless `start` said to keep it."""
        with self._mutex:
            locks, self._locks = self._locks, None
            EmbeddedServer._joined.discard(self)
            if locks is not None:
                _leave(self._place, locks)

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
            if joined._locks is not None:
                joined._locks.close()
            joined._locks, joined._mutex = None, threading.Lock()
        cls._joined.clear()


def _join(place: ServerFolder) -> Locks:
    """Become a user of the server of ``place``, which runs then."""
    place.create()
    with place.exclusive() as locks:
        locks.join()
        try:
            process.ensure(place, locks)
        except BaseException:  # its keeper ends what was just started
            locks.leave()
            raise
        return locks


def _leave(place: ServerFolder, locks: Locks) -> None:
    """Be no user any more. The last one ends the server, but not one that is to be kept, or is
    still reading its data: it would never come to an end with it."""
    try:
        with locks.exclusive():
            if not locks.leave():
                return
            if locks.are_current():
                if place.keep.exists():
                    return
                if locks.alive() and process.is_loading(place):
                    logger.warning(
                        "the embedded server in %s is still reading its data and is left to it: "
                        "the next crawl finds it ready, 'scrapy redisq server stop' ends it",
                        place.path,
                    )
                    return
            process.shut_down(place, locks)
    except EmbeddedServerError as error:
        logger.warning("left the embedded server without stopping it: %s", error)
    finally:
        locks.close()


atexit.register(EmbeddedServer._close_all)
os.register_at_fork(after_in_child=EmbeddedServer._forget_all)
