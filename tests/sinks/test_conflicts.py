"""What proves nothing against a row: others that write the same rows, faults of another kind."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import postgresql

from scrapy_redisq.errors import WriteConflict
from scrapy_redisq.pipelines.database.errors import ErrorClasses
from scrapy_redisq.pipelines.doubt import Doubts


def test_proofs_of_time_limits_are_none_of_a_lost_connection() -> None:
    """A row that was slow often is not refused by a server that restarts then."""
    doubts: Doubts[str] = Doubts(lambda row: ("table",))
    for _ in range(10):
        assert not doubts.failed("row", others_pass=True, slow=True)
    assert not doubts.failed("row", others_pass=False, lost=True)
    assert not doubts.failed("row", others_pass=False)


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_conflicts_are_told_from_lost_connections(code: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    dialect = postgresql.psycopg.dialect()
    dialect.dbapi = psycopg
    error = psycopg.errors.lookup(code)("x")
    assert ErrorClasses(dialect).meaning(error) is WriteConflict
