"""What an error of a database means to a sink: is it about rows, or does it pass?

Classes of SQLSTATE: PostgreSQL's manual, appendix A. Numbers: MariaDB's knowledge base, "MariaDB
Error Codes", and MySQL's "Server Error Message Reference".
"""

from __future__ import annotations

import collections
import enum
import time

import sqlalchemy
from sqlalchemy import exc

__all__ = ["ErrorClasses", "Kind", "words"]

LONGEST_WORDS = 500
"""Characters of an error's words that are kept."""

UNKNOWN_TIMES = 5
UNKNOWN_SECONDS = 60.0
"""An error of an unknown kind that came so often within this time is one of rows."""


class Kind(enum.Enum):
    """What an error is about."""

    ROW = "row"
    """The rows: others can be written."""
    AWAY = "away"
    """The database, for now: it passes, or someone can change it from outside."""
    OTHER = "other"
    """Not the database."""


# Cardinality, data, integrity, a view's CHECK OPTION, limits of a row or index, RAISE in PL/pgSQL.
_POSTGRES_ROW = {"21", "22", "23", "44", "54", "P0"}
# A value of a type that the column does not take: the row's fault, or the table has been changed.
_POSTGRES_UNKNOWN = {"42804", "42846"}
# Connection, transaction state (read-only), authorisation, catalogue and schema names, rollback
# (deadlock, serialisation), syntax or access (no such table or column, no right), resources (disk
# full), prerequisite state (locks), operator intervention, system.
_POSTGRES_AWAY = {"08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58"}

_MYSQL_ROW = {
    *(1048, 1364),  # NULL, or nothing, where there must be a value
    *(1062, 1169, 1586, 1761, 1762),  # a duplicate of another unique index
    *(1216, 1217, 1451, 1452),  # foreign keys
    *(1264, 1265, 1292, 1366, 1367, 1411, 1416, 1441, 1690),  # does not fit the column's type
    *(1300, 1406, 3140, 3141),  # characters, length, JSON
    *(3819, 4025),  # CHECK
    *(139, 1118, 1153, 1301, 1713),  # too large
    *(1526, 1748),  # no partition for it
    *(1644,),  # SIGNAL in a trigger
}
_MYSQL_AWAY = {
    *(1021, 1028, 1030, 1037, 1038, 1041, 1114),  # disk, memory, table full
    *(1020, 1205, 1213, 1614),  # locks, deadlocks, snapshots
    *(
        1040,
        1053,
        1077,
        1078,
        1079,
        1129,
        1203,
        1226,
        1317,
        1969,
        3024,
    ),  # too many, shutdown, killed
    *(1042, 1043, 1047, 1158, 1159, 1160, 1161, 1184, 1927),  # network
    *(1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1524, 1698),  # rights
    *(1036, 1290, 1792, 1836),  # read-only
    *(1054, 1109, 1146, 1932, 1034, 1194, 1195),  # no such table or column, broken table
}
_MYSQL_REFUSED = {1044, 1045, 1049, 1130, 1251, 1524, 1698, 2026, 2054, 2059, 2061}

# What PostgreSQL says while it is coming or going, or full; all else that is FATAL stays so.
_POSTGRES_PASSING = (
    *("starting up", "shutting down", "recovery", "not yet accepting", "not accepting"),
    *("too many", "connection slots", "terminating"),
)


def words(error: BaseException) -> str:
    """What the database said, on one line of at most `LONGEST_WORDS`, without the statement."""
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
    """Tells errors apart, by the codes of PostgreSQL, MySQL, MariaDB and SQLite.

    An error whose code says nothing counts as passing; but if it came `UNKNOWN_TIMES` within
    `UNKNOWN_SECONDS` it is taken for one of rows, so that a single row cannot hold up all others
    for ever.
    """

    def __init__(self, dialect: sqlalchemy.Dialect) -> None:
        self._dialect = dialect
        self._unknown: dict[object, collections.deque[float]] = {}

    def kind(self, error: BaseException) -> Kind:
        """What the error is about. SQLAlchemy's errors, the driver's own, and OSError are known."""
        if isinstance(error, OSError):
            return Kind.AWAY
        if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
            return Kind.ROW  # a value that its type refuses
        driver = self._driver_error(error)
        if driver is None:
            return Kind.OTHER
        known = {
            "postgresql": self._postgres,
            "mysql": self._mysql,
            "mariadb": self._mysql,
            "sqlite": self._sqlite,
        }.get(self._dialect.name, self._any)(driver)
        return self._counted(driver) if known is None else known

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

    def _postgres(self, error: BaseException) -> Kind | None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state is None:  # the driver's: a broken connection, or a value that it cannot bind
            return self._any(error) or Kind.ROW
        if state[:2] in _POSTGRES_ROW:
            return Kind.ROW
        known = state[:2] in _POSTGRES_AWAY and state not in _POSTGRES_UNKNOWN
        return Kind.AWAY if known else None

    def _mysql(self, error: BaseException) -> Kind | None:
        number = error.args[0] if error.args else None
        if not isinstance(number, int):
            return self._any(error)
        if number in _MYSQL_ROW:
            return Kind.ROW
        # 2000 to 2999 are the client's: no connection, connection lost.
        return Kind.AWAY if number in _MYSQL_AWAY or number < 1 or 2000 <= number < 3000 else None

    def _sqlite(self, error: BaseException) -> Kind | None:
        # Its codes have names from Python 3.11 on only. Values that cannot be bound are programming
        # or interface errors; locked, full, read-only, no such table: all are operational.
        if self._is(error, "IntegrityError", "DataError", "ProgrammingError", "InterfaceError"):
            return Kind.ROW
        return Kind.AWAY

    def _any(self, error: BaseException) -> Kind | None:
        if self._is(error, "IntegrityError", "DataError"):
            return Kind.ROW
        if self._is(error, "OperationalError", "InterfaceError", "InternalError"):
            return Kind.AWAY
        return None

    def _counted(self, error: BaseException) -> Kind:
        code = getattr(error, "sqlstate", None) or (error.args or (None,))[0]
        times = self._unknown.setdefault(code, collections.deque(maxlen=UNKNOWN_TIMES))
        now = time.monotonic()
        often = len(times) == UNKNOWN_TIMES and now - times[0] < UNKNOWN_SECONDS
        times.append(now)
        return Kind.ROW if often else Kind.AWAY
