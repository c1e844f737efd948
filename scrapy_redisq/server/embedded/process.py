"""The redis-server process of a folder: its options, its start, what it says, and its end."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded.binaries import ServerBinary, bloom_module, find_server
from scrapy_redisq.server.embedded.folder import ServerFolder
from scrapy_redisq.server.embedded.keeper import ANSWER_TIMEOUT, ask
from scrapy_redisq.server.embedded.locks import Locks

logger = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds for a keeper to go into the background, and for a new server to listen."""
STOP_TIMEOUT = 30.0
"""Seconds for the server to write its data and exit."""
LOADING_PATIENCE = 5.0
"""Seconds to watch a new server reading its data; it may take longer."""
DEAF_PATIENCE = 10.0
"""Seconds for a server that is alive to listen at its socket, or to have been ended."""
LOG_TAIL = 100_000
"""Bytes of the server's log that are looked through for its last start."""
LOG_LINES = 5
"""Lines of the server's log in an error."""

# What a server writes when the module, not the data, kept it from starting.
MODULE_AT_FAULT = re.compile(r"can't load module|failed to load|BUG REPORT", re.IGNORECASE)
# What it writes when it cannot read the data. Its own advice, to mend the file, may cut off all.
DATA_AT_FAULT = re.compile(
    r"MBbloom|unknown command '?BF\.|module data|RDB format version|Bad file format|"
    r"reading the append only file",
    re.IGNORECASE,
)
CURE = (
    " The data is damaged, or needs what wrote it: RedisBloom (pip install "
    "scrapy-redisq[redisbloom]), a newer server, or Valkey for Redis, first on the PATH. Try these "
    "first, and redis-check-aof --fix on a copy of the folder alone."
)
# What a server writes when the file ends in the middle of a command, as after a power cut.
TORN = "Truncating the AOF"
LOG_PREFIX = re.compile(r"^\d+:[A-Z] .{10,30} # ")
"""Of what the server takes for serious."""


def answers(folder: ServerFolder) -> str:
    """The server's answer to PING. An error is an answer, too, of a server in trouble: a
    full disk (MISCONF)."""
    return ask(folder.socket, b"PING\r\n").decode(errors="replace")


def is_loading(folder: ServerFolder) -> bool:
    """Whether a server that is alive still reads its data, which may keep it silent for seconds."""
    said = answers(folder)
    if said or not listens(folder):
        return said.startswith("-LOADING")
    _, start, since = _log_since(folder, -LOG_TAIL).rpartition("Server initialized")
    return bool(start) and "Ready to accept connections" not in since


def listens(folder: ServerFolder) -> bool:
    """Whether anybody listens at the socket, however busy."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_TIMEOUT)
        try:
            probe.connect(str(folder.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def ensure(folder: ServerFolder, locks: Locks) -> None:
    """Start the server unless one is alive. Only under `exclusive`.

    One whose socket was deleted is ended by its keeper, and started again. Raises
    `EmbeddedServerError` if there is no binary, or with the server's own words if it does not
    start.
    """
    folder.make_place_for_socket()
    deadline = time.monotonic() + DEAF_PATIENCE
    while locks.alive():
        if listens(folder):
            return
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"a server works in {folder.path} (REDISQ_URL) that cannot be reached: end that "
                "redis-server. Where several machines share a folder over a network, each needs "
                "REDISQ_URL = redis://…"
            )
        time.sleep(0.01)
    if listens(folder):
        raise EmbeddedServerError(
            f"a server answers at {folder.socket} that does not hold {folder.path}/server.lock, "
            "which was deleted: end that server before another one works on its data"
        )
    _start(folder, locks, find_server())


def _start(folder: ServerFolder, locks: Locks, binary: ServerBinary) -> None:
    # Redis 7 moved the file into this folder; an older server would begin with no data.
    if binary.version < (7,) and (folder.path / "appendonlydir").exists():
        raise EmbeddedServerError(
            f"the data in {folder.path} was written by Redis 7 or newer, and {binary.path} is "
            f"{'.'.join(map(str, binary.version))}: put a newer one first on the PATH"
        )
    if module := bloom_module():
        said = _launch(folder, locks, [*_command(folder, binary), "--loadmodule", str(module)])
        if said is None:
            return
        if not MODULE_AT_FAULT.search(said):
            raise _failure(folder, binary, said)
        logger.warning(
            "%s cannot load %s, going on without RedisBloom (the log is %s)",
            binary.path,
            module,
            folder.log,
        )
    said = _launch(folder, locks, _command(folder, binary))
    if said is not None:
        raise _failure(folder, binary, said)


def shut_down(folder: ServerFolder, locks: Locks) -> bool:
    """End the server of these locks; return whether it has ended. Only under `exclusive`.

    Where its folder was deleted or moved its keeper does so, once nobody uses it.
    """
    deadline = time.monotonic() + STOP_TIMEOUT
    asked = 0.0
    while locks.alive():
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
        if now - asked > 1 and locks.are_current():
            asked = now
            # NOSAVE concerns snapshots only: the append-only file is written and synced.
            ask(folder.socket, b"SHUTDOWN NOSAVE\r\n")
        time.sleep(0.005)
    folder.remove_place_of_socket()
    return True


def _launch(folder: ServerFolder, locks: Locks, command: list[str]) -> str | None:
    """Start a server. Return None when it runs, else what was said; then there is none.

    Before Valkey 9.1 a server that finds a torn script at the end of its file leaves its first half
    there. The second start, before anything is written behind that half, cuts it off.
    """
    written = _log_size(folder)
    said = _launch_once(folder, locks, command)
    if TORN in _log_since(folder, written):
        shut_down(folder, locks)
        said = _launch_once(folder, locks, command)
    return said


def _launch_once(folder: ServerFolder, locks: Locks, command: list[str]) -> str | None:
    written = _log_size(folder)
    _run_keeper(folder, locks, command)
    return None if _comes_up(folder, locks) else _log_since(folder, written)


def _run_keeper(folder: ServerFolder, locks: Locks, command: list[str]) -> None:
    if getattr(sys, "frozen", False) or not sys.executable:
        raise EmbeddedServerError(
            "the embedded server needs a Python to run its keeper, and this program brings none: "
            "set REDISQ_URL to a server that runs elsewhere"
        )
    keeper: list[str | Path] = [sys.executable, "-I", "-S", Path(__file__).with_name("keeper.py")]
    try:
        with locks.for_keeper() as files, open(folder.log, "ab", opener=_private) as log:
            # The keeper is nobody's child: it outlives who started it, and Ctrl-C in the terminal
            # does not reach its session.
            subprocess.run(
                [*keeper, folder.path, folder.socket, *map(str, files), *command],
                cwd=folder.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
                pass_fds=files,
                timeout=START_TIMEOUT,
                check=True,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            f"the embedded server cannot be started in {folder.path} (REDISQ_URL): {error}"
        ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _command(folder: ServerFolder, binary: ServerBinary) -> list[str]:
    # Relative to the folder, wherever it is: at its end a server deletes its socket by its name,
    # which is another server's if the folder was deleted and made anew.
    is_near = folder.socket.parent == folder.path
    options = {
        "port": "0",
        "unixsocket": folder.socket.name if is_near else str(folder.socket),
        "unixsocketperm": "700",
        "logfile": folder.log.name,
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
    return [
        str(binary.path),
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    ]


def _comes_up(folder: ServerFolder, locks: Locks) -> bool:
    """Wait for a new server to be ready; false when it died instead. One that is still reading its
    data after LOADING_PATIENCE counts as up; what it cannot read mostly ends it within the first
    second. Raises `EmbeddedServerError` if nobody will ever reach it."""
    begun = time.monotonic()
    while True:
        alive = locks.alive()
        said = answers(folder)
        passed = time.monotonic() - begun
        if not locks.are_current() or passed > START_TIMEOUT:
            raise EmbeddedServerError(
                f"the embedded server in {folder.path} (REDISQ_URL) cannot be reached: its folder "
                f"was deleted or moved, or it does not listen after {START_TIMEOUT:g} s"
            )
        is_ready = said != "" and not said.startswith("-LOADING")
        if is_ready or (passed > LOADING_PATIENCE and alive and listens(folder)):
            return True
        if not alive:
            return False
        time.sleep(0.005)


def _log_size(folder: ServerFolder) -> int:
    return folder.log.stat().st_size if folder.log.exists() else 0


def _log_since(folder: ServerFolder, offset: int) -> str:
    """The server's log from an offset on, negative ones from its end."""
    try:
        with folder.log.open("rb") as log:
            log.seek(max(offset, -log.seek(0, os.SEEK_END)), os.SEEK_END if offset < 0 else 0)
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _failure(folder: ServerFolder, binary: ServerBinary, said: str) -> EmbeddedServerError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    serious = [LOG_PREFIX.sub("", line) for line in lines if LOG_PREFIX.match(line)]
    why = (serious or lines or ["it said nothing"])[-1].rstrip(".")
    cure = CURE if DATA_AT_FAULT.search(said) else ""
    return EmbeddedServerError(
        f"the embedded server did not start in {folder.path} (REDISQ_URL): {why}.{cure} It was "
        f"{binary.path}; its log is {folder.log} and ends with:\n" + "\n".join(lines[-LOG_LINES:])
    )
