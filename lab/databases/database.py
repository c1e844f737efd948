"""What all databases have in common: SQLite's files, and what all servers are."""

from __future__ import annotations

import abc
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

from lab.servers import ServerProcess, free_port

PASSWORD = "pa ss:w@rd/%41?#"
"""Of the servers' user: whatever shows it, as it is or as it stands in a URL, has leaked it."""


@functools.lru_cache(maxsize=16)
def engine(url: str) -> sqlalchemy.Engine:
    """An engine that keeps no connections and commits each statement."""
    # pymysql would read all certificates of the machine for each connection.
    options = {"ssl_disabled": True} if "pymysql" in url else {}
    return sqlalchemy.create_engine(
        url, connect_args=options, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT"
    )


class _Asked(abc.ABC):
    """A database that is asked by SQL."""

    _databases = 0

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

    execute = query


class SQLiteDatabase(_Asked):
    """A file. It has no server: while it is "away", another connection holds its write lock."""

    kind = "sqlite"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
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


class DatabaseServer(_Asked, ServerProcess):
    """A server process of our own. ``abandon`` lets it take its shared memory along."""

    kind: ClassVar[str]
    driver: ClassVar[str]
    user = "redisq"
    # A session of its own: Ctrl-C is for the tests, which then end the server.
    started_with: ClassVar[dict[str, Any]] = {"start_new_session": True}

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.database = ""
        self._options = options
        self._paused: list[psutil.Process] = []
        self._install()
        self.start()
        self.fresh()

    @abc.abstractmethod
    def _install(self) -> None:
        """Make the data folder and its user."""

    @abc.abstractmethod
    def empty(self) -> None:
        """Remove everything from the current database, which takes less time than a new one."""

    def _make(self, command: list[str]) -> None:
        """Let ``command`` make the folder ``data``."""
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, **self.started_with}
        subprocess.run(command, check=True, cwd=self.folder, **options)

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

    def _answers(self) -> bool:
        return answers(self.url)

    def _processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.pid)
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

    def kill(self) -> None:
        """SIGKILL to all of its processes, as a crash would."""
        if not self.running:
            return
        # Held first, so that it neither begins children meanwhile nor tells them to end in order.
        self.signal(signal.SIGSTOP)
        _, *children = processes = self._processes()
        for process in reversed(children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        super().kill()
        psutil.wait_procs(processes, 15)

    def close(self) -> None:
        self.resume()
        super().close()


def answers(url: str) -> bool:
    """Whether somebody can log in."""
    try:
        with engine(url).connect():
            return True
    except sqlalchemy.exc.OperationalError:
        return False


Database: TypeAlias = SQLiteDatabase | DatabaseServer
"""A database that can be taken away."""
