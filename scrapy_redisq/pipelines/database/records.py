"""What an item becomes: records, each of them one row of one table."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy

from scrapy_redisq.pipelines.database.columns import Form


@dataclass(frozen=True, eq=False)
class Target:
    """A table and how rows get into it.

    ``key`` are the names of columns with a unique constraint; a row whose key is there already
    takes its place (``on_conflict`` "update"), unless its ``version`` column is older, or is left
    out ("ignore").
    """

    table: sqlalchemy.Table
    key: tuple[str, ...]
    on_conflict: str = "update"
    version: str | None = None
    found: dict[str, Form] = field(default_factory=dict)
    """What columns can hold as they are in the database, where they are described otherwise."""
    also_unique: list[str] = field(default_factory=list)
    """The names of the table's other unique indexes."""
    left: set[str] = field(default_factory=set)
    """Columns that take no values: the database alone fills them."""


@dataclass(frozen=True)
class Record:
    """One row to be: ``values`` has a value for each of the columns that the item fills."""

    target: Target
    values: dict[str, Any]


def references(
    table: sqlalchemy.Table,
) -> dict[sqlalchemy.ForeignKeyConstraint, sqlalchemy.Table]:
    """The table's foreign keys, and the tables that they refer to, which are described, too."""
    found = {}
    for constraint in table.foreign_key_constraints:
        with contextlib.suppress(sqlalchemy.exc.NoReferenceError):
            found[constraint] = constraint.referred_table
    return found
