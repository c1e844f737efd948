"""An SQLAlchemy engine whose sessions are fit for a sink."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import event, exc

from scrapy_redisq.errors import SettingError
from scrapy_redisq.pipelines.database.url import SETTING, TAKES

_DATABASES = ("sqlite", "postgresql", "mariadb", "mysql")
"""Those that rows can be written to; other databases have other upserts, or none."""

_EXTRAS = {"psycopg": "postgres", "pymysql": "mysql"}
"""The extras of this package that install a driver."""

# Seconds, unless the URL says otherwise.
CONNECT_SECONDS = 10
"""For one attempt to connect."""
SILENT_SECONDS = 30
"""Until a server that does not even acknowledge packets counts as away (PostgreSQL)."""
ANSWER_SECONDS = 120
"""Until a server that does not answer counts as away (MySQL)."""
LOCK_SECONDS = 5
"""Until a lock that is not given counts as away."""

_BEGIN = {
    # The lock now: a transaction that has read cannot wait for it later.
    "sqlite": "BEGIN IMMEDIATE",
    # For the transaction alone: behind a pooler the session is other clients', too. A time-out that
    # the URL or an administrator has set stays.
    "postgresql": (
        "SELECT set_config('TimeZone', 'UTC', true), set_config('lock_timeout',"
        " coalesce(nullif(current_setting('lock_timeout'), '0'),"
        f" '{LOCK_SECONDS}s'), true)"
    ),
}
"""How a transaction begins."""

_CLOSES = not sqlalchemy.__version__.startswith("2.0.")
"""Whether SQLAlchemy closes a connection that cannot be prepared. PyMySQL takes it amiss if it is
closed twice, and that would be logged with fifty lines."""


def engine(url: sqlalchemy.URL, shown: str, connect_timeout: float) -> sqlalchemy.Engine:
    """An engine for ``url``, which errors call ``shown``; it does not connect yet.

    Options of the URL go before those that are set here. Raises `SettingError`.
    """
    seconds = max(1, int(min(connect_timeout, CONNECT_SECONDS)))
    driver = url.drivername.partition("+")[2]
    defaults: dict[str, Any] = {}
    if driver == "psycopg":
        defaults = {
            "application_name": "scrapy-redisq",
            "client_encoding": "utf8",  # SQLAlchemy takes no bytes, as SQL_ASCII would give
            "prepare_threshold": None,  # a pooler hands the next transaction to another session
            "connect_timeout": seconds,
            "keepalives": 1,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": (SILENT_SECONDS - 10) // 5,
            "tcp_user_timeout": SILENT_SECONDS * 1000,
        }
    elif driver == "pymysql":
        defaults = {
            "connect_timeout": seconds,
            "read_timeout": ANSWER_SECONDS,
            "write_timeout": ANSWER_SECONDS,
            "charset": "utf8mb4",
        }
    elif url.drivername in {"sqlite", "sqlite+pysqlite"}:
        defaults = {"timeout": LOCK_SECONDS, "check_same_thread": False}
    options: dict[str, Any] = {"hide_parameters": True, "poolclass": sqlalchemy.NullPool}
    options["connect_args"] = {
        name: value for name, value in defaults.items() if name not in url.query
    }
    if url.get_backend_name() not in _DATABASES:
        raise SettingError(SETTING, shown, f"one of {', '.join(_DATABASES)}; {TAKES}")
    try:
        made = sqlalchemy.create_engine(url, **options)
    except exc.NoSuchModuleError:
        raise SettingError(SETTING, shown, f"a dialect that is installed; {TAKES}") from None
    except ImportError as error:
        extra = _EXTRAS.get(driver)
        install = f"pip install scrapy-redisq[{extra}]" if extra else "install it"
        raise SettingError(
            SETTING, shown, f"a driver, which is missing ({error}): {install}"
        ) from None
    except (exc.ArgumentError, TypeError, ValueError):
        raise SettingError(SETTING, shown, TAKES) from None
    if made.dialect.is_async:
        raise SettingError(SETTING, shown, "a driver that is not asynchronous, such as psycopg")
    prepare: dict[str, Callable[[Any], None]] = {
        "sqlite": _prepare_sqlite,
        "mysql": _prepare_mysql,
        "mariadb": _prepare_mysql,
    }
    if made.dialect.name in prepare:
        _on_connect(made, prepare[made.dialect.name])
    if made.dialect.name in _BEGIN:

        @event.listens_for(made, "begin")
        def begin(connection: sqlalchemy.Connection) -> None:
            connection.exec_driver_sql(_BEGIN[connection.dialect.name])

    return made


def _on_connect(engine: sqlalchemy.Engine, prepare: Callable[[Any], None]) -> None:
    @event.listens_for(engine, "connect")
    def connected(driver_connection: Any, _record: Any) -> None:
        try:
            prepare(driver_connection)
        except BaseException:
            if not _CLOSES:
                driver_connection.close()
            raise


def _execute(connection: Any, sql: str) -> Any:
    """The first value of the answer."""
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None
    finally:
        cursor.close()


def _prepare_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy begins, not the driver
    deadline = time.monotonic() + _execute(connection, "PRAGMA busy_timeout") / 1000
    while True:
        try:
            # Does not wait when several workers do so at the same moment.
            _execute(connection, "PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
    _execute(connection, "PRAGMA synchronous=FULL")
    _execute(connection, "PRAGMA foreign_keys=ON")


def _prepare_mysql(connection: Any) -> None:
    # A zero is a zero, not the next number.
    modes = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
    timeouts = ("innodb_lock_wait_timeout", "lock_wait_timeout")  # of rows, of tables
    waits = ", ".join(f"{name} = LEAST(@@{name}, {LOCK_SECONDS})" for name in timeouts)
    _execute(connection, f"SET SESSION sql_mode = '{modes}', time_zone = '+00:00', {waits}")
