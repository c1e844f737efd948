"""PostgreSQL behind a pooler, where a worker's next transaction may be in another's session."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from lab.databases.mariadb import of_system
from lab.databases.postgres import PgBouncer, PostgresServer
from scrapy_redisq.pipelines.database.server import DatabaseServer
from scrapy_redisq.pipelines.database.upsert import Record, Target, write


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    if of_system("pgbouncer") is None:
        pytest.skip("NO PgBouncer ON THIS MACHINE: see .ci/run for what to install")
    postgres_server.empty()
    with PgBouncer(postgres_server) as pooler:
        yield pooler


def _target(server: DatabaseServer, name: str, value: Any) -> Target:
    table = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("value", value),
    )
    with server.transaction() as connection:
        table.create(connection)
    return Target(table, ("key",))


def test_workers_do_not_meet_in_a_session(pooler: PgBouncer) -> None:
    """Each batch is in its own table, of its own types, in UTC, whoever has had the session."""
    zone = datetime.timezone(datetime.timedelta(hours=5))
    moment = datetime.datetime(2026, 1, 1, 1, tzinfo=zone)
    kinds: list[tuple[Any, Any, Any]] = [
        *((sa.Text, "00007", "00007"), (sa.Integer, 7, 7), (sa.LargeBinary, b"7", b"7")),
        (sa.DateTime, moment, datetime.datetime(2025, 12, 31, 20)),
    ]
    servers = [DatabaseServer(pooler.url, connect_timeout=20) for _ in kinds]
    targets = [
        _target(server, f"t{number}", kind)
        for number, (server, (kind, _, _)) in enumerate(zip(servers, kinds, strict=True))
    ]
    for batch in range(8):
        for server, target, (_, value, _) in zip(servers, targets, kinds, strict=True):
            with server.transaction() as connection:
                keys = range(10 * batch, 10 * (batch + 1))
                write(connection, [Record(target, {"key": k, "value": value}) for k in keys])
    for server, target, (_, _, stored) in zip(servers, targets, kinds, strict=True):
        with server.transaction() as connection:
            found = connection.execute(sa.select(target.table.c.value)).scalars().all()
        assert found == [stored] * 80
        server.close()
