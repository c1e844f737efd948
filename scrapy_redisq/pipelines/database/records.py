"""What an item becomes: one row of one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy


@dataclass(eq=False)
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
    also_unique: bool = False
    """Whether the table has other unique indexes."""


@dataclass(frozen=True)
class Record:
    """One row to be: ``values`` has a value for each of the columns that the item fills."""

    target: Target
    values: dict[str, Any]
