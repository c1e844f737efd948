"""The redis-server process of a folder: its options, its start, what it says, and its end."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import time
from pathlib import Path
from typing import Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.embedded.binaries import ServerBinary, bloom_module, find_server
from scrapy_redisq.embedded.folder import ServerFolder
from scrapy_redisq.errors import EmbeddedServerError

__all__ = ["answers", "client", "ensure", "shut_down"]

logger = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds for a new server to say anything."""
LOADING_PATIENCE = 5.0
"""Seconds to watch a new server reading its data; it may take longer."""
SCRIPT_GRACE = 2.0
"""Seconds to look for a server that a script started without its lock."""
STOP_TIMEOUT = 30.0
"""Seconds for the server to write its data and exit."""
PING_TIMEOUT = 1.0
LOG_LINES = 5
"""Lines of the server's log in an error."""

# What a server writes when the module, not the data, kept it from starting.
MODULE_AT_FAULT = re.compile(r"can't load module|failed to load|BUG REPORT", re.IGNORECASE)
# What a server without RedisBloom writes when its data needs it.
MODULE_MISSING = re.compile(r"MBbloom|Unknown command '?BF\.|module data", re.IGNORECASE)
# What a server writes when the data is of a newer one, or Redis reads Valkey's; its advice, to mend
# the file, would cut off all of it.
WRITTEN_BY_ANOTHER = re.compile(r"Can't handle RDB format version|Bad file format")


def client(folder: ServerFolder) -> redis.Redis:
    """A client with short timeouts, for questions about the server itself."""
    return redis.Redis(
        unix_socket_path=str(folder.socket()),
        socket_timeout=PING_TIMEOUT,
        socket_connect_timeout=PING_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


def answers(folder: ServerFolder) -> Literal["ready", "loading", ""]:
    """What the server says: ready, still reading its data, or nothing."""
    with client(folder) as asking:
        try:
            asking.ping()
        except redis.BusyLoadingError:
            return "loading"
        except redis.RedisError:
            return ""
    return "ready"


def ensure(folder: ServerFolder, given_binary: str) -> Path:
    """Start the server unless one is alive; return its socket. Only under `exclusive`.

    ``given_binary`` is REDISQ_SERVER. Raises `EmbeddedServerError` if there is no binary, or with
    the end of the server's log if it does not start.
    """
    socket = folder.checked_socket()
    if folder.alive():
        return socket
    binary = find_server(given_binary)
    # Redis 7 moved the file into this folder; an older server would begin with no data.
    if binary.version < (7,) and (folder.path / "appendonlydir").exists():
        raise EmbeddedServerError(
            f"the data in {folder.path} was written by Redis 7 or newer, and {binary.path} is "
            f"{'.'.join(map(str, binary.version))}: set REDISQ_SERVER to a newer server"
        )
    if module := bloom_module():
        said = _launch(folder, binary, socket, module)
        if said is None:
            return socket
        if not MODULE_AT_FAULT.search(said):
            raise _failure(folder, binary, said)
        logger.warning(
            "%s cannot load %s, going on without RedisBloom (the log is %s)",
            binary.path,
            module,
            folder.log,
        )
    said = _launch(folder, binary, socket, None)
    if said is not None:
        raise _failure(folder, binary, said)
    return socket


def shut_down(folder: ServerFolder) -> bool:
    """Stop the server; return whether it has ended. Only under `exclusive`."""
    deadline = time.monotonic() + STOP_TIMEOUT
    asked = 0.0
    while folder.alive():
        now = time.monotonic()
        if now > deadline:
            logger.warning(
                "the embedded server in %s did not stop within %g s; see %s",
                folder.path,
                STOP_TIMEOUT,
                folder.log,
            )
            return False
        # A server that writes its first append-only file refuses to stop: ask again.
        if now - asked > 1:
            _order_shutdown(folder)
            asked = now
        time.sleep(0.005)
    folder.remove_socket_folder()
    return True


def _order_shutdown(folder: ServerFolder) -> None:
    # The answer to SHUTDOWN is a closed connection. NOSAVE concerns snapshots only: the
    # append-only file is written out and synced in any case.
    with client(folder) as ordering, contextlib.suppress(redis.RedisError):
        ordering.execute_command("SHUTDOWN", "NOSAVE")


def _launch(
    folder: ServerFolder, binary: ServerBinary, socket: Path, module: Path | None
) -> str | None:
    """Start a server. Return None when it runs, else what it said before it died."""
    written = folder.log.stat().st_size if folder.log.exists() else 0
    try:
        with folder.lock_for_server(socket) as descriptor:
            # The server puts itself into the background (daemonize), so it is nobody's child: it
            # outlives who started it, and no process has to collect it. Ctrl-C in the terminal does
            # not reach its session; the new one here covers the moment until it has made its own.
            done = subprocess.run(
                [binary.path, *_options(folder, binary, socket, module)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
                pass_fds=(descriptor,),
                timeout=START_TIMEOUT,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0 and _comes_up(folder, SCRIPT_GRACE if binary.is_script() else 0.0):
        return None
    return _log_since(folder, written) + done.stdout.decode(errors="replace")


def _options(
    folder: ServerFolder, binary: ServerBinary, socket: Path, module: Path | None
) -> list[str]:
    options = {
        "daemonize": "yes",
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.path),
        # Nobody reads it, but the default is one file for the whole machine.
        "pidfile": str(folder.path / "redis.pid"),
        "logfile": str(folder.log),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        # Before Redis 7 a compressed node that was read (LRANGE) can be compressed anew when it has
        # become the head of its list, which must stay plain: the server dies at the next LPOP
        # (seen in 6.2.14; redis/redis#9849 mended it).
        "list-compress-depth": "1" if binary.version >= (7,) else "0",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [*arguments, "--loadmodule", str(module)] if module else arguments


def _comes_up(folder: ServerFolder, grace: float) -> bool:
    """Wait for a new server to be ready; false when it died or stayed silent instead.

    One that is still reading its data after LOADING_PATIENCE counts as up: `Server.wait` goes
    on from there. Not at once, as what it cannot read mostly ends it within the first second.
    A server that does not hold its lock has died, unless a script started it: one that closed
    the inherited descriptor. Such a server cannot be guarded, and to find it without its lock
    takes a look for ``grace`` seconds.
    """
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < START_TIMEOUT:
        alive = folder.alive()
        said = answers(folder)
        if said and not alive:
            _order_shutdown(folder)
            raise EmbeddedServerError(
                "the redis-server found is a script that hides the server from its lock: set "
                "REDISQ_SERVER to the binary itself"
            )
        if said == "ready" or (said == "loading" and passed > LOADING_PATIENCE):
            return True
        if not alive and passed >= grace:
            return False
        time.sleep(0.005)
    return False


def _log_since(folder: ServerFolder, offset: int) -> str:
    try:
        with folder.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _failure(folder: ServerFolder, binary: ServerBinary, said: str) -> EmbeddedServerError:
    lines = [line.strip() for line in said.splitlines() if line.strip()][-LOG_LINES:]
    hint = ""
    if MODULE_MISSING.search(said):
        hint = (
            " The data needs RedisBloom, which was there when it was written: "
            "pip install scrapy-redisq[redisbloom]."
        )
    elif WRITTEN_BY_ANOTHER.search(said):
        hint = (
            " The data is damaged, or was written by another server (a newer one, or Valkey for "
            "Redis): then set REDISQ_SERVER to that one, and do not let redis-check-aof mend it."
        )
    return EmbeddedServerError(
        f"the embedded server {binary.path} did not start in {folder.path} (REDISQ_URL).{hint} "
        f"Its log is {folder.log} and ends with:\n" + "\n".join(lines or ["(nothing)"])
    )
