"""Own database servers, each in a temporary folder, on a free port; SQLite files beside them.

All have the same surface, so that a test can run on each of them: ``url`` of the current database,
``fresh()`` for a new one, ``query()``, and ways to take the database away and bring it back.
"""

from lab.databases.database import PASSWORD, Database, DatabaseServer, SQLiteDatabase
from lab.databases.mariadb import MariaServer, mariadb_binaries
from lab.databases.postgres import PgBouncer, PostgresServer, pgbouncer_binary, postgres_binaries

__all__ = [
    "PASSWORD",
    "Database",
    "DatabaseServer",
    "MariaServer",
    "PgBouncer",
    "PostgresServer",
    "SQLiteDatabase",
    "mariadb_binaries",
    "pgbouncer_binary",
    "postgres_binaries",
]
