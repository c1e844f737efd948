"""What all databases have in common: SQLite's files, and what all servers are."""

from __future__ import annotations

import abc
import atexit
import contextlib
import functools
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

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


class _Asked(abc.ABC):
    """A database that is asked by SQL."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
        self._databases = 0

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """SQLAlchemy URL of the current database, with the password."""

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


class SQLiteDatabase(_Asked):
    """A file. It has no server: while it is "away", another connection holds its write lock."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self._lock: sqlite3.Connection | None = None
        self.fresh()

    @property
    def path(self) -> Path:
        return self.folder / f"items {self._databases}.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def fresh(self) -> str:
        self.start()
        self._databases += 1
        return self.url

    def start(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def stop(self) -> None:
        if self._lock is None:
            self._lock = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._lock.execute("BEGIN EXCLUSIVE")

    empty = fresh
    kill = pause = stop
    resume = start

    def cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        self.start()
        shutil.rmtree(self.folder, ignore_errors=True)


class DatabaseServer(_Asked):
    """A server process of our own."""

    kind: ClassVar[str]
    driver: ClassVar[str]
    orderly: ClassVar[signal.Signals]
    abandon: ClassVar[signal.Signals]
    """Signal that ends the server at once and lets it take its shared memory along."""
    user = "redisq"
    runs_as: ClassVar[dict[str, Any]] = {}
    """Options of subprocesses: their user, if they are not to be ours."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.database = ""
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[psutil.Process] = []
        atexit.register(self.close)
        self._install()
        self.start()
        self.fresh()

    @abc.abstractmethod
    def _install(self) -> None:
        """Make the data folder and its user."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The command line of the server."""

    @abc.abstractmethod
    def empty(self) -> None:
        """Remove everything from the current database, which takes less time than a new one."""

    def _once(self, command: list[str]) -> None:
        """Let ``command`` make the folder ``data``, in the first process of a session: the others
        copy what it made."""
        data, made = self.folder / "data", session.folder() / f"{self.kind}-data"
        with session.alone(made):
            if not made.exists():
                options: dict[str, Any] = {"stdout": subprocess.DEVNULL, **self.runs_as}
                subprocess.run(command, check=True, cwd=self.folder, **options)
                partial = made.with_suffix(".partial")
                subprocess.run(["cp", "-a", data, partial], check=True)
                partial.rename(made)
                return
        subprocess.run(["cp", "-a", made, data], check=True)

    @property
    def url(self) -> str:
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        """The URL of the current database behind a proxy on ``port``."""
        return sqlalchemy.URL.create(
            self.driver, self.user, PASSWORD, "127.0.0.1", port, self.database or None
        ).render_as_string(hide_password=False)

    def fresh(self) -> str:
        """Make a new empty database, let ``url`` and ``query`` mean it, and return its URL."""
        self._databases += 1
        name = f"items_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        self.database = name
        return self.url

    def start(self) -> None:
        """Bring the database back after ``stop`` or ``kill``, on the same port."""
        if self._process is not None:
            return
        # A session of its own: Ctrl-C is for the tests, which then end the server.
        options: dict[str, Any] = {"start_new_session": True, "cwd": self.folder, **self.runs_as}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, **options)
        self._watcher = watcher(self._process.pid, self.folder, self.abandon.name[3:])
        wait_until(self._answers, 60, f"{self.kind} up, see {self.folder / 'log'}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        return answers(self.url)

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far."""
        main, *others = self._processes()
        ended = main.cpu_times()
        seconds = float(ended.children_user + ended.children_system)
        for process in (main, *others):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def pause(self) -> None:
        """Let it hang: it takes connections and does not answer."""
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
        """Take the database away in an orderly way."""
        self._end(self.orderly)

    def kill(self) -> None:
        """SIGKILL to all of its processes, as a crash would."""
        if self._process is None:
            return
        # Held first, so that it neither begins children meanwhile nor tells them to end in order.
        self._process.send_signal(signal.SIGSTOP)
        _, *children = processes = self._processes()
        for process in reversed(children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._end(signal.SIGKILL)
        psutil.wait_procs(processes, 15)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None
            self._paused = []
            self._watcher.kill()
            self._watcher.communicate()

    def close(self) -> None:
        """End it and remove its folder."""
        self.resume()
        self._end(self.abandon)
        atexit.unregister(self.close)
        shutil.rmtree(self.folder, ignore_errors=True)


def answers(url: str) -> bool:
    """Whether somebody can log in."""
    try:
        with engine(url).connect():
            return True
    except sqlalchemy.exc.OperationalError:
        return False


Database: TypeAlias = SQLiteDatabase | DatabaseServer
"""A database that can be taken away."""
