"""Meanings of a database's errors for a sink.

Only what is certain is told from classes and codes; all else is `WriteFailed`, and what becomes of
other rows will tell (see `scrapy_redisq.pipelines.doubt`).

Classes of SQLSTATE: PostgreSQL's manual, appendix A. Numbers: MariaDB's knowledge base, "MariaDB
Error Codes", and MySQL's "Server Error Message Reference".
"""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import exc

from scrapy_redisq.errors import (
    BatchTooLarge,
    ConnectionLost,
    ReferenceMissing,
    RowLocked,
    RowRefused,
    SinkError,
    SinkUnavailable,
    WriteFailed,
)

LONGEST_WORDS = 500
"""Characters of an error's words that are kept."""

_CODES: dict[str | int | None, type[SinkError]] = {
    # PostgreSQL: connection, authorisation, operator intervention; transaction state, rollback,
    # resources (memory), prerequisite state, system (a broken page).
    **dict.fromkeys(("08", "28", "57"), SinkUnavailable),
    **dict.fromkeys(("25006", "53100"), SinkUnavailable),  # read-only, disk full
    # These may also be of one row: they are treated as those with which a connection ends.
    **dict.fromkeys(("25", "40", "53", "55", "58"), ConnectionLost),
    "57014": BatchTooLarge,  # statement_timeout
    "25P04": BatchTooLarge,  # transaction_timeout, which ends the connection, too
    **dict.fromkeys(("40001", "40P01", "55P03"), RowLocked),  # serialisation, deadlock, lock
    # NOT NULL, out of range, RAISE: of a row, or of a column that none fills. CHECK, no partition:
    # of a row, or of all from this month on.
    **dict.fromkeys(("23502", "22003", "2200H", "P0001", "23514"), WriteFailed),
    "23503": ReferenceMissing,
    # MariaDB and MySQL: disk or memory full, deadlocks and snapshots, too many connections, going
    # down, read-only.
    **dict.fromkeys((1021, 1026, 1114), SinkUnavailable),
    **dict.fromkeys((1037, 1038, 1041), ConnectionLost),
    **dict.fromkeys((1040, 1047, 1053, 1203, 1226, 1927), SinkUnavailable),
    **dict.fromkeys((1036, 1290, 1792, 1836), SinkUnavailable),
    **dict.fromkeys((1020, 1205, 1213, 1614), RowLocked),
    # max_statement_time, max_execution_time; KILL QUERY, as of those who look for long ones.
    **dict.fromkeys((1969, 3024, 1317), BatchTooLarge),
    # NOT NULL, no default, no partition, CHECK, SIGNAL.
    **dict.fromkeys((1048, 1364, 1526, 3819, 4025, 1644), WriteFailed),
    **dict.fromkeys((1216, 1452), ReferenceMissing),
    1292: RowRefused,  # a wrong value, which PyMySQL does not count among those
}
"""Shortcuts: codes of SQLSTATE or the classes that they begin with, and numbers of MySQL."""

_SQLITE_PASSING = ("locked", "is full", "readonly", "disk I/O error", "unable to open")
"""Its codes have names from Python 3.11 on only."""

_MYSQL_REFUSED = {1044, 1045, 1049, 1130, 1251, 1524, 1698, 2026, 2054, 2059, 2061}

# What PostgreSQL says while it is coming or going, or full; all else that is FATAL stays so.
_POSTGRES_PASSING = (
    *("starting up", "shutting down", "recovery", "not yet accepting", "not accepting"),
    *("too many", "no more connections", "connection slots", "terminating"),
)


def words(error: BaseException) -> str:
    """The database's words, on one line of at most `LONGEST_WORDS`, without the statement."""
    cause: BaseException = error
    if isinstance(error, exc.StatementError) and error.orig is not None:
        cause = error.orig
    if len(cause.args) > 1 and isinstance(cause.args[0], int):  # MySQL: number and text
        text = f"{cause.args[1] or type(cause).__name__} ({cause.args[0]})"
    elif isinstance(cause, exc.SQLAlchemyError):  # str() would add the address of a web page
        text = str(cause.args[0]) if cause.args else ""
    else:
        text = str(cause)
    text = " ".join(text.split()) or type(cause).__name__
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        text = f"{type(cause).__name__}: {text}"
    return text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + "…"


class ErrorClasses:
    """Tells errors apart, by the classes of PEP 249 and a few codes."""

    def __init__(self, dialect: sqlalchemy.Dialect) -> None:
        self._dialect = dialect

    def meaning(self, error: BaseException) -> type[SinkError] | None:
        """The error to raise in its place; None: the error is not the database's.

        SQLAlchemy's errors, the driver's own, and OSError are known.
        """
        if isinstance(error, OSError):
            return SinkUnavailable
        if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
            return RowRefused  # a value that its type refuses
        driver = self._driver_error(error)
        if driver is None:
            return None
        code = self._code(driver)
        ended = isinstance(error, exc.DBAPIError) and error.connection_invalidated
        if ended and _CODES.get(code) is not BatchTooLarge:
            return ConnectionLost
        for shortcut in (code, code[:2]) if isinstance(code, str) else (code,):
            if shortcut in _CODES:
                return _CODES[shortcut]
        if self._dialect.name == "sqlite":
            return self._of_sqlite(driver)
        if self._is(driver, "IntegrityError", "DataError"):
            return RowRefused
        if code is None or (isinstance(code, int) and (code < 1 or 2000 <= code < 3000)):
            # The driver's own: the connection is broken, or it cannot bind a value.
            broken = self._is(driver, "OperationalError", "InterfaceError", "InternalError")
            return SinkUnavailable if broken else RowRefused
        return WriteFailed

    def may_come_up(self, error: BaseException) -> bool:
        """Whether a connection that failed like this may work later, without anyone's doing."""
        driver = self._driver_error(error)
        if driver is None or not self._is(driver, "OperationalError"):
            return False
        text = str(driver)
        if self._dialect.name == "sqlite":
            return "locked" in text or "busy" in text
        if self._dialect.name == "postgresql":
            if "no password supplied" in text:
                return False
            return "FATAL" not in text or any(passing in text for passing in _POSTGRES_PASSING)
        return driver.args[:1] not in {(number,) for number in _MYSQL_REFUSED}

    def _driver_error(self, error: BaseException) -> BaseException | None:
        if isinstance(error, exc.DBAPIError):
            return error.orig
        return error if self._is(error, "Error") else None

    def _is(self, error: BaseException, *names: str) -> bool:
        """Whether it is of one of these classes of PEP 249."""
        return isinstance(error, tuple(getattr(self._dialect.loaded_dbapi, name) for name in names))

    def _code(self, error: BaseException | None) -> str | int | None:
        number = error.args[0] if error and error.args else None
        if isinstance(number, int):  # of MySQL, some of whose drivers have an SQLSTATE, too
            return number
        return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)

    def _of_sqlite(self, error: BaseException) -> type[SinkError]:
        text = str(error)
        if "FOREIGN KEY" in text:
            return ReferenceMissing
        if "NOT NULL" in text or "CHECK" in text:
            return WriteFailed
        # Values that cannot be bound are programming or interface errors.
        if self._is(error, "IntegrityError", "DataError", "ProgrammingError", "InterfaceError"):
            return RowRefused
        passing = any(words in text for words in _SQLITE_PASSING)
        return SinkUnavailable if passing else WriteFailed
