"""Engines for the tests of tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy

from lab.databases import Database


@pytest.fixture
def engine(each_database: Database) -> Iterator[sqlalchemy.Engine]:
    """An engine for a new database of each kind."""
    engine = sqlalchemy.create_engine(each_database.url)
    with engine.connect():  # a dialect knows its server only then
        pass
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine() -> Iterator[sqlalchemy.Engine]:
    """An SQLite database in memory."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    yield engine
    engine.dispose()
