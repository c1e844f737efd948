"""MariaDB."""

from __future__ import annotations

import os
import shutil

import psutil

from lab.databases.database import PASSWORD, DatabaseServer


def of_system(name: str) -> str | None:
    """The path of a program that may be for administrators alone."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def mariadb_binaries() -> tuple[str, str] | None:
    """The paths of mariadbd and mariadb-install-db."""
    server, install = of_system("mariadbd"), of_system("mariadb-install-db")
    return (server, install) if server and install else None


class MariaServer(DatabaseServer):
    """MariaDB with password authentication (mysql_native_password)."""

    kind = "mariadb"
    driver = "mysql+pymysql"

    def _install(self) -> None:
        binaries = mariadb_binaries()
        assert binaries is not None, "mariadb-server is not installed"
        self._server, install = binaries
        self._common = [
            "--no-defaults",
            f"--user={psutil.Process().username()}",
            f"--datadir={self.folder / 'data'}",
            # Several servers that start at once delete each other's temporary tables in /tmp.
            f"--tmpdir={self.folder}",
            "--innodb-log-file-size=16M",
            "--innodb-buffer-pool-size=16M",
        ]
        normal = "--auth-root-authentication-method=normal"
        self._make([install, *self._common, "--skip-test-db", normal])
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
            *(self._server, *self._common),
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
            *(f"--socket={self.folder / 'sock'}", f"--pid-file={self.folder / 'pid'}"),
            *(f"--init-file={self.folder / 'init.sql'}", "--skip-log-bin"),
            "--character-set-server=utf8mb4",  # Debian's configuration
            *("--key-buffer-size=1M", "--aria-pagecache-buffer-size=8M", "--max-connections=20"),
            *self._options,
        ]
