"""What proves nothing against a row: others that write the same rows."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import postgresql

from scrapy_redisq.errors import RowLocked
from scrapy_redisq.pipelines.database.errors import ErrorClasses


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_conflicts_are_told_from_lost_connections(code: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    dialect = postgresql.psycopg.dialect()
    dialect.dbapi = psycopg
    error = psycopg.errors.lookup(code)("x")
    assert ErrorClasses(dialect).meaning(error) is RowLocked
