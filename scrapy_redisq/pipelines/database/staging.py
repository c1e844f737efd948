"""Many rows into PostgreSQL: COPY into a temporary table, and one statement from there.

Twice as fast as a statement a row from some hundred rows on, and slower below: it takes two
exchanges more, and the temporary table is emptied at each commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import JsonText

__all__ = ["Staging", "forget"]

_TYPES: tuple[tuple[type[Any], set[str]], ...] = (
    (sqlalchemy.String, {"str"}),
    (sqlalchemy.Integer, {"int"}),
    (sqlalchemy.Float, {"float", "int"}),
    (sqlalchemy.Numeric, {"Decimal", "int"}),
    (sqlalchemy.Boolean, {"bool"}),
    (sqlalchemy.DateTime, {"datetime"}),
    (sqlalchemy.Date, {"date"}),
    (sqlalchemy.Uuid, {"UUID"}),
    (sqlalchemy.LargeBinary, {"Binary"}),
    (sqlalchemy.JSON, {"Json", "Jsonb"}),
    (JsonText, {"str"}),
)
"""What values become of these types, by COPY and by the cast of a statement alike.

Others may not: COPY reads what is written of a value, be it 1.5 or ``t`` into an integer column.
"""

_INFO = "redisq_staging"
"""What is known of a connection's temporary tables, in its ``info``."""

_numbers = itertools.count(1)


def forget(connection: sqlalchemy.Connection) -> None:
    """Know nothing of this connection's temporary tables: a rollback may have removed them."""
    connection.info.pop(_INFO, None)


@dataclass(frozen=True)
class Staging:
    """A temporary table for some columns of a table, in each connection that needs it."""

    table: sqlalchemy.Table
    allowed: tuple[set[str], ...]
    """For each column the names of the types that its values may have."""
    source: sqlalchemy.Select[Any]
    upsert: Any

    @classmethod
    def of(
        cls,
        columns: Sequence[sqlalchemy.Column[Any]],
        dialect: sqlalchemy.Dialect,
        upsert: Callable[[sqlalchemy.Select[Any]], Any],
    ) -> Staging | None:
        """None if there is a column of a type that COPY might read in another way.

        ``upsert`` makes the statement that writes the rows of a SELECT of the temporary table.
        """
        allowed = []
        for column in columns:
            implementation = column.type.dialect_impl(dialect)
            if isinstance(implementation, sqlalchemy.types.TypeDecorator):
                implementation = implementation.impl_instance
            for kind, names in _TYPES:
                if isinstance(implementation, kind):
                    allowed.append(names | {"NoneType"})
                    break
            else:
                return None
        stage = sqlalchemy.Table(
            f"redisq_stage_{next(_numbers)}",
            sqlalchemy.MetaData(),
            *(sqlalchemy.Column(f"c{i}", column.type) for i, column in enumerate(columns)),
            schema="pg_temp",
        )
        source = sqlalchemy.select(*(column.label(f"c{i}") for i, column in enumerate(columns)))
        return cls(stage, tuple(allowed), source, upsert(sqlalchemy.select(stage)))

    def takes(self, connection: sqlalchemy.Connection, columns: Sequence[Sequence[Any]]) -> bool:
        """Whether this user may do so with these values of each column, as the driver has them."""
        for values, allowed in zip(columns, self.allowed, strict=True):
            if not {kind.__name__ for kind in set(map(type, values))} <= allowed:
                return False
        known = connection.info.setdefault(_INFO, {})
        if "allowed" not in known:
            known["allowed"] = connection.exec_driver_sql(
                "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
            ).scalar_one()
        return bool(known["allowed"])

    def write(self, connection: sqlalchemy.Connection, columns: Sequence[Sequence[Any]]) -> None:
        """Write the values, which `takes` has agreed to. After a rollback call `forget`."""
        name = self.table.name
        known = connection.info.setdefault(_INFO, {})
        if name not in known:
            # Dropped first, in case it is known no more: the types of columns may have changed.
            select = self.source.compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS pg_temp.{name}")
            connection.exec_driver_sql(
                f"CREATE TEMPORARY TABLE {name} ON COMMIT DELETE ROWS AS {select} WITH NO DATA"
            )
            known[name] = True
        driver: Any = connection.connection
        with driver.cursor() as cursor, cursor.copy(f"COPY pg_temp.{name} FROM STDIN") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)
        connection.execute(self.upsert)
