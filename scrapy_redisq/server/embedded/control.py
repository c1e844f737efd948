"""The embedded server apart from any user: what ``scrapy redisq server`` does."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Literal

import redis
from msgspec import Struct
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.server.embedded import process
from scrapy_redisq.server.embedded.folder import ServerFolder
from scrapy_redisq.server.embedded.keeper import ANSWER_TIMEOUT
from scrapy_redisq.server.embedded.locks import file_errors


class EmbeddedStatus(Struct, frozen=True):
    """State of a folder's server. ``None``: unknown, as the server does not run or is busy."""

    folder: Path
    running: bool
    reachable: bool
    """Whether it listens at its socket; one that does not is started again by the next user."""
    kept: bool
    """Whether it stays when the last user leaves (`start`)."""
    in_use: bool
    socket: Path
    log: Path
    pid: int | None = None
    version: str | None = None
    memory_bytes: int | None = None
    keys: int | None = None


def start(folder: Path | str) -> EmbeddedStatus:
    """Start the server of ``folder`` and keep it running with nobody attached, until `stop`, also
    after a crash. Raises as `EmbeddedServer.acquire` does."""
    place = ServerFolder(folder)
    place.create()
    with place.exclusive() as locks:
        locks.join()
        try:
            process.ensure(place, locks)
            with file_errors(place.path):
                place.keep.touch()
        finally:
            locks.leave()
    return status(place.path)


def stop(
    folder: Path | str, *, force: bool = False
) -> Literal["stopped", "not running", "in use", "still running"]:
    """Stop the server of ``folder``; its data stays. While others use it, the answer is "in use",
    and the last of them to leave stops it. With ``force`` it is stopped at once; they may start it
    again."""
    place = ServerFolder(folder)
    if not place.path.is_dir():
        return "not running"
    with place.exclusive() as locks:
        with file_errors(place.path):
            place.keep.unlink(missing_ok=True)
        if not locks.alive():
            return "not running"
        if locks.in_use() and not force:
            return "in use"
        return "stopped" if process.shut_down(place, locks) else "still running"


def status(folder: Path | str) -> EmbeddedStatus:
    """State of the server of ``folder``. The server is not started, the folder is not created."""
    place = ServerFolder(folder)
    running = in_use = reachable = False
    told: dict[str, Any] = {}
    if place.path.is_dir():
        with place.exclusive() as locks:
            running, in_use = locks.alive(), locks.in_use()
            reachable = running and process.listens(place)
    if reachable:
        with _client(place) as client, contextlib.suppress(redis.RedisError):
            told = client.info()
    databases = [told[name]["keys"] for name in told if re.fullmatch(r"db\d+", name)]
    return EmbeddedStatus(
        folder=place.path,
        running=running,
        reachable=reachable,
        kept=place.keep.exists(),
        in_use=in_use,
        socket=place.socket,
        log=place.log,
        pid=told.get("process_id"),
        version=told.get("valkey_version") or told.get("redis_version"),
        memory_bytes=told.get("used_memory"),
        keys=sum(databases) if told else None,
    )


def _client(place: ServerFolder) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(place.socket),
        socket_timeout=ANSWER_TIMEOUT,
        socket_connect_timeout=ANSWER_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
