"""Engines for the tests of tables, and an object store for those of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
import sqlalchemy

from lab.databases.database import Database
from lab.servers import free_port
from scrapy_redisq.pipelines import doubt, writer

if TYPE_CHECKING:
    import s3fs

SECRET = "wJalrXUtnFEMIK7MDENG"


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that let a test try often."""
    monkeypatch.setattr(writer, "RETRY_LAST", 0.02)
    monkeypatch.setattr(doubt, "PROOFS", 3)
    monkeypatch.setattr(doubt, "FIRST", 0.01)
    monkeypatch.setattr(doubt, "FIRST_OF_SLOW", 0.01)
    monkeypatch.setattr(doubt, "LAST", 0.02)


class Store:
    """A local S3 server. To import it and its client takes longer than all else that tests import:
    only the processes whose tests need them do."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415

        self.port = free_port()
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @property
    def settings(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "AKIA",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION_NAME": "us-east-1",
        }

    def client(self) -> s3fs.S3FileSystem:
        import s3fs  # noqa: PLC0415

        return s3fs.S3FileSystem(
            key="AKIA",
            secret=SECRET,
            endpoint_url=self.settings["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
            use_listings_cache=False,
        )


@pytest.fixture(scope="session")
def one_store() -> Iterator[Store]:
    store = Store()
    yield store
    store.stop()


@pytest.fixture
def store(one_store: Store) -> Store:
    """An S3 server with the empty bucket ``books``."""
    reset = Request(f"{one_store.settings['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")
    with urlopen(reset):
        pass
    one_store.client().mkdir("books")
    return one_store
