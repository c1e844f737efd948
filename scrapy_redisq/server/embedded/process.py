"""The redis-server process of a folder: its options, its start, what it says, and its end."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from scrapy_redisq.errors import EmbeddedServerError
from scrapy_redisq.server.embedded.binaries import ServerBinary, bloom_module, find_server
from scrapy_redisq.server.embedded.folder import ServerFolder
from scrapy_redisq.server.embedded.locks import Locks
from scrapy_redisq.server.embedded.watcher import ANSWER_TIMEOUT, STOP_TIMEOUT, ask

__all__ = ["answers", "ensure", "is_loading", "listens", "shut_down", "watch"]

logger = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds for a new server to go into the background."""
LOADING_PATIENCE = 5.0
"""Seconds to watch a new server reading its data; it may take longer."""
DEAF_PATIENCE = 1.0
"""Seconds for a server that is alive to listen at its socket, or to have ended."""
LOG_TAIL = 100_000
"""Bytes of the server's log that are looked through for its last start."""
LOG_LINES = 5
"""Lines of the server's log in an error."""

# What a server writes when the module, not the data, kept it from starting.
MODULE_AT_FAULT = re.compile(r"can't load module|failed to load|BUG REPORT", re.IGNORECASE)
# What a server without RedisBloom writes when its data needs it.
MODULE_MISSING = re.compile(r"MBbloom|Unknown command '?BF\.|module data", re.IGNORECASE)
# What a server writes when the data is of a newer one, or Redis reads Valkey's; its advice, to mend
# the file, would cut off all of it.
WRITTEN_BY_ANOTHER = re.compile(
    r"Can't handle RDB format version|Bad file format reading the append only file \S+\.base\.rdb"
)
DAMAGED = re.compile(r"Bad file format")
# What a server writes when the file ends in the middle of a command, as after a power cut.
TORN = "Truncating the AOF"
LOG_PREFIX = re.compile(r"^\d+:[A-Z] .{10,30} # ")
"""Of what the server takes for serious."""


def answers(folder: ServerFolder) -> Literal["ready", "loading", ""]:
    """What the server says: ready, still reading its data, or nothing."""
    said = ask(os.fsencode(folder.socket()), b"PING\r\n")
    # An error is an answer, too, of one at work and in trouble: a full disk (MISCONF).
    return "loading" if said.startswith(b"-LOADING") else "ready" if said else ""


def is_loading(folder: ServerFolder) -> bool:
    """Whether a server that is alive still reads its data, which may keep it silent for seconds."""
    said = answers(folder)
    if said or not listens(folder):
        return said == "loading"
    _, start, since = _log_since(folder, -LOG_TAIL).rpartition("Server initialized")
    return bool(start) and "Ready to accept connections" not in since


def listens(folder: ServerFolder) -> bool:
    """Whether anybody listens at the socket, however busy."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_TIMEOUT)
        try:
            probe.connect(str(folder.socket()))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def ensure(folder: ServerFolder, locks: Locks) -> Path:
    """Start the server unless one is alive; return its socket. Only under `exclusive`.

    One that nobody can reach any more, because its socket was deleted, is ended and started again.
    Raises `EmbeddedServerError` if there is no binary, or with the server's own words if it does
    not start.
    """
    path = folder.checked_socket()
    if locks.alive():
        # The process that started it may have been killed before it could note it down.
        locks.record(path, locks.server_pid() or _pid(folder))
        if _comes_to_listen(folder, locks):
            return path
        if locks.alive() and not locks.server_pid():
            raise EmbeddedServerError(
                f"a server works in {folder.path} (REDISQ_URL) that cannot be reached, and is no "
                "process of this machine: where several share a folder over a network, each needs "
                "REDISQ_URL = redis://…"
            )
        if locks.alive():
            logger.warning(
                "nobody can reach the embedded server in %s any more, its socket is gone: it is "
                "ended and started again",
                folder.path,
            )
        if not shut_down(folder, locks):
            raise EmbeddedServerError(f"the server in {folder.path} cannot be reached or ended")
    elif listens(folder):
        raise EmbeddedServerError(
            f"a server answers at {path} that does not hold {folder.path}/server.lock, which was "
            f"deleted: end that server before another one works on its data"
        )
    return _start(folder, locks, find_server(), path)


def _comes_to_listen(folder: ServerFolder, locks: Locks) -> bool:
    """Whether the server that is alive listens, or is not alive any more, within a moment."""
    deadline = time.monotonic() + DEAF_PATIENCE
    while locks.alive():
        if listens(folder):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return False


def _pid(folder: ServerFolder) -> int:
    """What the server wrote about itself."""
    try:
        return int(folder.pid_file.read_text())
    except (OSError, ValueError):
        return 0


def _start(folder: ServerFolder, locks: Locks, binary: ServerBinary, path: Path) -> Path:
    # Redis 7 moved the file into this folder; an older server would begin with no data.
    if binary.version < (7,) and (folder.path / "appendonlydir").exists():
        raise EmbeddedServerError(
            f"the data in {folder.path} was written by Redis 7 or newer, and {binary.path} is "
            f"{'.'.join(map(str, binary.version))}: put a newer one first on the PATH"
        )
    if module := bloom_module():
        said = _launch(folder, locks, binary, path, module)
        if said is None:
            return path
        if not MODULE_AT_FAULT.search(said):
            raise _failure(folder, binary, said)
        logger.warning(
            "%s cannot load %s, going on without RedisBloom (the log is %s)",
            binary.path,
            module,
            folder.log,
        )
    said = _launch(folder, locks, binary, path, None)
    if said is not None:
        raise _failure(folder, binary, said)
    return path


def watch(folder: ServerFolder, locks: Locks) -> None:
    """See to it that the server ends also when all its users are killed. Only under `exclusive`."""
    with locks.for_watcher() as files:
        if not files or getattr(sys, "frozen", False):  # then sys.executable is no Python
            return
        script = Path(__file__).with_name("watcher.py")
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", script, folder.path, *map(str, files)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=files,
                timeout=START_TIMEOUT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            logger.warning(
                "nothing will stop the embedded server in %s if all who use it are killed: %s",
                folder.path,
                error,
            )


def shut_down(folder: ServerFolder, locks: Locks) -> bool:
    """End the server of these locks; return whether it has ended. Only under `exclusive`."""
    if locks.end_server():
        return True
    logger.warning(
        "the embedded server in %s did not stop within %g s; see %s",
        folder.path,
        STOP_TIMEOUT,
        folder.log,
    )
    return False


def _launch(
    folder: ServerFolder, locks: Locks, binary: ServerBinary, path: Path, module: Path | None
) -> str | None:
    """Start a server. Return None when it runs, else what was said; then there is none.

    A server that finds a torn script at the end of its file forgets it, but before Valkey 9.1
    leaves its first half in the file. The second start, before anything is written behind that
    half, cuts it off.
    """
    written = folder.log.stat().st_size if folder.log.exists() else 0
    said = _launch_once(folder, locks, binary, path, module)
    if TORN in _log_since(folder, written):
        shut_down(folder, locks)
        said = _launch_once(folder, locks, binary, path, module)
    return said


def _launch_once(
    folder: ServerFolder, locks: Locks, binary: ServerBinary, path: Path, module: Path | None
) -> str | None:
    written = folder.log.stat().st_size if folder.log.exists() else 0
    try:
        with locks.for_server(path) as descriptor:
            # The server puts itself into the background (daemonize), so it is nobody's child: it
            # outlives who started it, and no process has to collect it. Ctrl-C in the terminal does
            # not reach its session; the new one here covers the moment until it has made its own.
            done = subprocess.run(
                [binary.path, *_options(folder, binary, path, module)],
                cwd=folder.path,
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
        shut_down(folder, locks)
        return str(error)
    if done.returncode == 0 and _comes_up(folder, locks):
        locks.record(path, _pid(folder))
        return None
    shut_down(folder, locks)  # a script may fail when its server works
    return _log_since(folder, written) + done.stdout.decode(errors="replace")


def _options(
    folder: ServerFolder, binary: ServerBinary, path: Path, module: Path | None
) -> list[str]:
    # Relative to the folder, wherever it is: at its end a server deletes its socket and its pid
    # file by their names, which are another server's if the folder was deleted and made anew.
    options = {
        "daemonize": "yes",
        "port": "0",
        "unixsocket": path.name if path.parent == folder.path else str(path),
        "unixsocketperm": "700",
        "pidfile": folder.pid_file.name,
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
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [*arguments, "--loadmodule", str(module)] if module else arguments


def _comes_up(folder: ServerFolder, locks: Locks) -> bool:
    """Wait for a new server to be ready; false when it died instead.

    One that is alive after LOADING_PATIENCE counts as up, though it is still reading its data:
    `Server.wait` goes on from there. Not at once, as what it cannot read mostly ends it within the
    first second. Raises `EmbeddedServerError`, with the server ended, if nobody will ever reach it.
    """
    begun = time.monotonic()
    while True:
        alive = locks.alive()
        said = answers(folder)
        passed = time.monotonic() - begun
        if not locks.are_current() or passed > START_TIMEOUT:
            shut_down(folder, locks)
            raise EmbeddedServerError(
                f"the embedded server in {folder.path} (REDISQ_URL) cannot be reached: its folder "
                f"was deleted or moved, or it does not listen after {START_TIMEOUT:g} s"
            )
        if said == "ready" or (passed > LOADING_PATIENCE and alive and listens(folder)):
            return True
        if not alive:
            return False
        time.sleep(0.005)


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
    hint = ""
    if MODULE_MISSING.search(said):
        hint = (
            " The data needs RedisBloom, which was there when it was written: "
            "pip install scrapy-redisq[redisbloom]."
        )
    elif WRITTEN_BY_ANOTHER.search(said):
        hint = (
            " The data is damaged, or was written by another server (a newer one, or Valkey for "
            "Redis): then put that one first on the PATH, and do not let redis-check-aof mend it."
        )
    elif DAMAGED.search(said):
        hint = (
            f" The data is damaged. Make a copy of {folder.path}, then cut off what cannot be read "
            f"with redis-check-aof: {_check_command(folder, binary)}. What is missing then is "
            "fetched again."
        )
    return EmbeddedServerError(
        f"the embedded server did not start in {folder.path} (REDISQ_URL): {why}.{hint} It was "
        f"{binary.path}; its log is {folder.log} and ends with:\n" + "\n".join(lines[-LOG_LINES:])
    )


def _check_command(folder: ServerFolder, binary: ServerBinary) -> str:
    beside = binary.path.resolve().with_name("redis-check-aof")
    manifest = folder.path / "appendonlydir" / "appendonly.aof.manifest"
    file = manifest if manifest.exists() else folder.path / "appendonly.aof"
    tool = str(beside) if beside.is_file() else "redis-check-aof"
    return shlex.join([tool, "--fix", str(file)])
