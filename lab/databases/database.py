"""What all databases have in common, and all that are servers."""

from __future__ import annotations

import abc
import atexit
import contextlib
import functools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
import sqlalchemy

from lab import session
from lab.servers import free_port, wait_until, watcher

PASSWORD = "pa ss:w@rd/%41?#"
"""Of the servers' user: whatever shows it, as it is or as it stands in a URL, has leaked it."""


@functools.lru_cache(maxsize=16)
def engine(url: str) -> sqlalchemy.Engine:
    """An engine that keeps no connections and commits each statement."""
    # pymysql would read all certificates of the machine for each connection.
    options = {"ssl_disabled": True} if "pymysql" in url else {}
    return sqlalchemy.create_engine(
        url,
        connect_args=options,
        poolclass=sqlalchemy.NullPool,
        isolation_level="AUTOCOMMIT",
    )


class Database(abc.ABC):
    """A database that can be taken away."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
        self._databases = 0

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """SQLAlchemy URL of the current database, with the password."""

    @abc.abstractmethod
    def fresh(self) -> str:
        """Make a new empty database, let ``url`` and ``query`` mean it, and return its URL."""

    @abc.abstractmethod
    def empty(self) -> None:
        """Remove everything from the current database, which takes less time than a new one."""

    @abc.abstractmethod
    def start(self) -> None:
        """Bring the database back after ``stop`` or ``kill``, on the same port."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Take the database away in an orderly way."""

    @abc.abstractmethod
    def kill(self) -> None:
        """SIGKILL to all of its processes, as a crash would."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Let it hang: it takes connections and does not answer."""

    def cpu_seconds(self) -> float:
        """User and system time of its own processes so far; 0 without any."""
        return 0.0

    @abc.abstractmethod
    def resume(self) -> None:
        """End ``pause``."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it and remove its folder."""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, over a connection of its own; ``%`` stands for itself.

        It is committed by itself.
        """
        with engine(self.url).connect() as connection:
            connection.execution_options(no_parameters=True)
            result = connection.exec_driver_sql(sql)
            return [tuple(row) for row in result] if result.returns_rows else []

    def execute(self, sql: str) -> None:
        """Run one statement."""
        self.query(sql)


class DatabaseServer(Database):
    """A server process of our own."""

    driver: ClassVar[str]
    orderly: ClassVar[signal.Signals]
    abandon: ClassVar[signal.Signals]
    """Signal that ends the server at once and lets it take its shared memory along."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.user = "redisq"
        self.database = ""
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._paused: list[psutil.Process] = []
        atexit.register(self.close)
        self._install()
        self.start()
        self.fresh()

    @abc.abstractmethod
    def _install(self) -> None:
        """Make the data folder and its user."""

    def _once(self, command: Sequence[str | Path], **options: Any) -> None:
        """Let ``command`` make the folder ``data``, in the first process of a session: the others
        copy what it made."""
        data, made = self.folder / "data", session.folder() / f"{self.kind}-data"
        with session.alone(made):
            if not made.exists():
                subprocess.run(
                    command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **options
                )
                partial = made.with_suffix(".partial")
                subprocess.run(["cp", "-a", data, partial], check=True)
                partial.rename(made)
                return
        subprocess.run(["cp", "-a", made, data], check=True)

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The command line of the server."""

    @property
    def url(self) -> str:
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        """The URL of the current database behind a proxy on ``port``."""
        return sqlalchemy.URL.create(
            self.driver, self.user, PASSWORD, "127.0.0.1", port, self.database or None
        ).render_as_string(hide_password=False)

    def fresh(self) -> str:
        self._databases += 1
        name = f"items_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        self.database = name
        return self.url

    def start(self) -> None:
        if self._process is not None:
            return
        with (self.folder / "log").open("ab") as log:
            self._process = self._spawn(self._command(), stdout=log, stderr=log)
        self._watcher = watcher(self._process.pid, self.folder, self.abandon.name[3:])
        wait_until(self._answers, 60, f"{self.kind} up, see {self.folder / 'log'}")

    def _spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C is for the tests, which then end the server.
        return subprocess.Popen(command, start_new_session=True, cwd=self.folder, **options)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            return self.query("SELECT 1") == [(1,)]
        except sqlalchemy.exc.OperationalError:
            return False

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def cpu_seconds(self) -> float:
        main, *others = self._processes()
        ended = main.cpu_times()
        seconds = float(ended.children_user + ended.children_system)
        for process in (main, *others):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def pause(self) -> None:
        self._paused = self._processes()
        for process in self._paused:
            with contextlib.suppress(psutil.NoSuchProcess):  # a backend that has just ended
                process.suspend()

    def resume(self) -> None:
        for process in self._paused:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._paused = []

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(self.orderly)
            self._ended()

    def kill(self) -> None:
        if self._process is None:
            return
        # Held first, so that it neither begins children meanwhile nor tells them to end in order.
        self._process.send_signal(signal.SIGSTOP)
        processes = self._processes()
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._ended()
        wait_until(lambda: not any(map(_runs, processes)), 15, f"end of {self.kind}")

    def _ended(self) -> None:
        assert self._process is not None and self._watcher is not None
        self._process.wait(60)
        self._process = None
        self._paused = []
        assert self._watcher.stdin is not None
        self._watcher.kill()
        self._watcher.wait(15)
        self._watcher.stdin.close()

    def close(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.send_signal(self.abandon)
            self._ended()
        atexit.unregister(self.close)
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
