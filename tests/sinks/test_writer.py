"""Records into databases: upserts, what an error is about, and databases that go away."""

from __future__ import annotations

import decimal
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from lab.databases.database import PASSWORD, Database, SQLiteDatabase
from scrapy_redisq.errors import RowRefused, SettingError, SinkUnavailable, WriteFailed
from scrapy_redisq.pipelines.database.server import DatabaseServer
from scrapy_redisq.pipelines.database.upsert import Record, Target, write


def _url(database: Database) -> str:
    """Its URL; a locked SQLite file counts as away soon."""
    return f"{database.url}?timeout=0.1" if isinstance(database, SQLiteDatabase) else database.url


@pytest.fixture
def server(each_database: Database) -> Iterator[DatabaseServer]:
    """The database as a sink sees it, open."""
    server = DatabaseServer(_url(each_database), connect_timeout=10)
    server.open()
    yield server
    server.close()


def _books(server: DatabaseServer, *more: Any) -> sa.Table:
    """A new table of books."""
    table = sa.Table(
        "books",
        sa.MetaData(),
        sa.Column("url", sa.String(100), primary_key=True),
        sa.Column("title", sa.String(50)),
        sa.Column("stock", sa.Integer),
        sa.Column("version", sa.Integer),
        *more,
    )
    _create(server, table)
    return table


def _create(server: DatabaseServer, *tables: sa.Table) -> None:
    with server.transaction() as connection:
        for table in tables:
            table.create(connection)


def _write(server: DatabaseServer, target: Target, *rows: dict[str, Any]) -> None:
    with server.transaction() as connection:
        write(connection, [Record(target, row) for row in rows])


def _rows(server: DatabaseServer, table: sa.Table) -> list[tuple[Any, ...]]:
    with server.transaction() as connection:
        query = sa.select(table).order_by(*table.primary_key.columns)
        return [tuple(row) for row in connection.execute(query)]


# Upserts


def test_a_row_written_again_takes_the_new_values(server: DatabaseServer) -> None:
    """One row for a key, with the last values."""
    target = Target(table := _books(server), ("url",))
    for stock in 1, 2:
        _write(server, target, {"url": "a", "title": "A", "stock": stock}, {"url": "b"})
    assert _rows(server, table) == [("a", "A", 2, None), ("b", None, None, None)]


def test_ignore_keeps_the_row_that_is_there(server: DatabaseServer) -> None:
    """With "ignore" the first row of a key stays, within a batch and across batches."""
    target = Target(table := _books(server), ("url",), "ignore")
    _write(server, target, {"url": "a", "stock": 1}, {"url": "a", "stock": 2})
    _write(server, target, {"url": "a", "stock": 3, "title": "A"}, {"url": "b"})
    assert _rows(server, table) == [("a", None, 1, None), ("b", None, None, None)]


def test_a_version_guards_the_update(server: DatabaseServer) -> None:
    """An older version changes nothing, in one batch as in two; NULL is older than all others."""
    target = Target(table := _books(server), ("url",), version="version")
    for first, second, kept in (
        *((1, 2, 2), (2, 1, 1), (1, 1, 2)),
        *((None, 1, 2), (1, None, 1), (None, None, 2)),
    ):
        rows = [
            {"url": "a", "title": "1", "stock": 1, "version": first},
            {"url": "a", "title": "2", "stock": 2, "version": second},
        ]
        expected = (str(kept), kept, first if kept == 1 else second)
        for row in rows:
            _write(server, target, row)
        _write(server, target, *({**row, "url": "b"} for row in rows))
        assert _rows(server, table) == [("a", *expected), ("b", *expected)]
        with server.transaction() as connection:
            connection.execute(table.delete())


def test_rows_of_one_key_are_merged_field_by_field(server: DatabaseServer) -> None:
    """A field that only an earlier row of the batch has is kept; of those that several have the
    last one's is."""
    target = Target(table := _books(server), ("url",))
    _write(
        server,
        target,
        *({"url": "a", "title": "A"}, {"url": "b", "stock": 1}),
        *({"url": "a", "stock": 2}, {"url": "b", "stock": 3, "version": 4}),
        {"url": "b", "stock": 5},
    )
    assert _rows(server, table) == [("a", "A", 2, None), ("b", None, 5, 4)]


def test_parents_are_written_before_their_children(server: DatabaseServer) -> None:
    """Whatever the order of the records, foreign keys hold at each statement."""
    metadata = sa.MetaData()
    shops = sa.Table("shops", metadata, sa.Column("name", sa.String(20), primary_key=True))
    books = sa.Table(
        "books",
        metadata,
        sa.Column("url", sa.String(20), primary_key=True),
        sa.Column("shop", sa.ForeignKey(shops.c.name), nullable=False),
        sa.Column("sequel_of", sa.ForeignKey("books.url")),
    )
    _create(server, shops, books)
    shop, book = Target(shops, ("name",)), Target(books, ("url",))
    with server.transaction() as connection:
        write(
            connection,
            [
                Record(book, {"url": "z", "shop": "s", "sequel_of": None}),
                Record(book, {"url": "a", "shop": "s", "sequel_of": "z"}),
                Record(shop, {"name": "s"}),
            ],
        )
    assert _rows(server, books) == [("a", "s", "z"), ("z", "s", None)]


# What an error is about


REFUSED = {
    "CHECK": ({"stock": -1}, "stock_not_negative"),
    "NOT NULL": ({"title": None}, "title"),
    "foreign key": ({"shop": "none"}, "(?i)foreign key"),
    "too long": ({"title": "longer than that"}, "(?i)too long"),
    "out of range": ({"price": decimal.Decimal(1000)}, "(?i)overflow|out of range"),
    "too large": ({"stock": 2**70}, "(?i)out of range|too large"),
    "no date": ({"day": "no date"}, "(?i)date"),
    "not a value": ({"stock": object()}, "(?i)object|type|out of range|incorrect"),
    "half a character": ({"title": "\ud800"}, "(?i)surrogate|invalid byte sequence"),
    "half a key": ({"url": None}, "url"),
}


def test_rows_that_the_database_refuses(server: DatabaseServer) -> None:
    """The error has the database's words on one line, the others can be written after."""
    metadata = sa.MetaData()
    shops = sa.Table("shops", metadata, sa.Column("name", sa.String(20), primary_key=True))
    table = sa.Table(
        "strict",
        metadata,
        sa.Column("url", sa.String(20), primary_key=True),
        sa.Column("stock", sa.Integer),
        sa.Column("title", sa.String(5), nullable=False),
        sa.Column("shop", sa.ForeignKey(shops.c.name)),
        sa.Column("price", sa.Numeric(4, 2)),
        sa.Column("day", sa.Date),
        sa.CheckConstraint("stock >= 0", name="stock_not_negative"),
    )
    _create(server, shops, table)
    target = Target(table, ("url",))
    good = {"stock": 1, "title": "t", "shop": None, "price": 1, "day": None}
    others = [{"url": f"u{i}", **good} for i in range(3)]
    stored = (
        {"too long", "out of range", "half a key"} if server.dialect.name == "sqlite" else set()
    )
    for why in REFUSED.keys() - stored:
        values, said = REFUSED[why]
        with pytest.raises((RowRefused, WriteFailed), match=said) as refused:
            _write(server, target, *others, {"url": "bad", **good, **values})
        assert _rows(server, target.table) == [], why
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) <= 600
        assert "INSERT" not in str(refused.value)
        assert "sqlalche.me" not in str(refused.value)
    _write(server, target, *others, {"url": "good", **good})
    assert len(_rows(server, target.table)) == 4


def test_a_value_that_another_row_must_have_alone(server: DatabaseServer) -> None:
    """It is refused, also by MariaDB, whose upsert knows no key; the other row stays as it is."""
    table = _books(server, sa.UniqueConstraint("title"))
    for on_conflict, version in ("update", None), ("update", "version"), ("ignore", None):
        target = Target(table, ("url",), on_conflict, version, also_unique=True)
        for _ in range(2):
            _write(server, target, {"url": "a", "title": "same", "stock": 1, "version": 1})
        with pytest.raises((RowRefused, WriteFailed), match=r"(?i)unique.*title|subquery"):
            _write(server, target, {"url": "b", "title": "same", "stock": 2, "version": 2})
        assert _rows(server, table) == [("a", "same", 1, 1)]


def test_what_someone_can_put_right_is_waited_for(
    server: DatabaseServer, each_database: Database
) -> None:
    """A column that is gone is no row's fault; back again, it takes the rows."""
    target = Target(table := _books(server), ("url",))
    row = {"url": "a", "title": "A", "stock": 1, "version": 1}
    each_database.execute("ALTER TABLE books RENAME COLUMN stock TO x")
    with pytest.raises(SinkUnavailable, match="REDISQ_DATABASE_URL"):
        _write(server, target, row)
    each_database.execute("ALTER TABLE books RENAME COLUMN x TO stock")
    _write(server, target, row)
    assert _rows(server, table) == [tuple(row.values())]


# Databases that go away


def test_writers_of_the_same_keys_in_opposite_order(
    server: DatabaseServer, each_database: Database
) -> None:
    """One of two that wait for each other is told to try again, and both succeed."""
    target = Target(table := _books(server), ("url",))
    met = threading.Barrier(2, timeout=20)
    retries = []

    def work(name: str, keys: list[str]) -> None:
        own = DatabaseServer(each_database.url, connect_timeout=10)
        for attempt in range(20):
            try:
                with own.transaction() as connection:
                    for key in keys:
                        write(connection, [Record(target, {"url": key, "title": name})])
                        if attempt == 0 and key == keys[0] and each_database.kind != "sqlite":
                            met.wait()
                break
            except SinkUnavailable as error:
                retries.append(error)
        own.close()

    threads = [
        threading.Thread(target=work, args=("one", ["a", "b"])),
        threading.Thread(target=work, args=("two", ["b", "a"])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    rows = _rows(server, table)
    assert [row[0] for row in rows] == ["a", "b"]
    assert len({row[1] for row in rows}) == 1, "both of the same writer"
    assert bool(retries) == (each_database.kind != "sqlite"), "they did not wait for each other"


# At start


def test_a_server_that_is_not_there(
    each_database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting and the address, not the password. One that is still coming up is
    waited for: one warning says so, and the crawl begins when it is there."""
    each_database.stop()
    server = DatabaseServer(_url(each_database), connect_timeout=0.3)
    with pytest.raises(SinkUnavailable, match=r"refused|locked") as away:
        server.open()
    server.close()
    assert str(away.value).startswith(f"REDISQ_DATABASE_URL: {server.address}: ")
    _no_password(str(away.value))
    if isinstance(each_database, SQLiteDatabase):
        return
    caplog.clear()

    class Starts(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logger.removeHandler(self)
            each_database.start()

    logger = logging.getLogger("scrapy_redisq")
    monkeypatch.setattr(logger, "handlers", [Starts()])
    server = DatabaseServer(each_database.url, connect_timeout=60)
    server.open()
    server.close()
    assert len(caplog.records) == 1
    assert "waiting 60 s" in caplog.text
    _no_password(caplog.text)


def test_what_waiting_does_not_change(
    each_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password or database is an error at once, which shows no password."""
    if isinstance(each_database, SQLiteDatabase):
        pytest.skip("has no server")
    right = sa.make_url(each_database.url)
    for wrong in ({"password": PASSWORD + "x"}, {"database": "gone"}, {"username": "gone"}):
        url = right.set(**wrong).render_as_string(hide_password=False)  # type: ignore[arg-type]
        server = DatabaseServer(url, connect_timeout=600)
        with pytest.raises(SinkUnavailable, match=r"(?i)fatal|denied|unknown database") as refused:
            server.open()
        server.close()
        _no_password(str(refused.value))
    assert caplog.text == ""


def _no_password(text: str) -> None:
    for form in (PASSWORD, "pa ss", "w@rd", "w%40rd", "%2541", "pa%20ss", "pa+ss"):
        assert form not in text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql://u:secret@host:port/db",
        "postgresql://u:se@cret@host/db",
        "postgresql://u:x@secret?y@host/db",
        "oracle://u:secret@host/db",
        "postgresql+nosuch://u:secret@host/db",
        "sqlite+aiosqlite:///secret",
        None,
    ],
)
def test_urls_that_cannot_be_used(url: Any) -> None:
    """The error names the setting and what it takes, and shows no password."""
    with pytest.raises(SettingError, match="REDISQ_DATABASE_URL") as refused:
        DatabaseServer(url, connect_timeout=1)
    if "+aio" not in str(url):
        assert "secret" not in str(refused.value)
        assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://h/d", "psycopg", "postgres"),
        ("postgres://h/d", "psycopg", "postgres"),
        ("mysql://h/d", "pymysql", "mysql"),
        ("mariadb+pymysql://h/d", "pymysql", "mysql"),
    ],
)
def test_a_driver_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str
) -> None:
    """The error names the extra that installs it; a URL without a driver means that one."""
    assert DatabaseServer(url, connect_timeout=1).dialect.driver == driver
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(SettingError, match=rf"pip install scrapy-redisq\[{extra}\]"):
        DatabaseServer(url, connect_timeout=1)


def test_an_sqlite_file_without_its_folder(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error; a relative path begins in the current folder; in memory is a warning."""
    server = DatabaseServer(f"sqlite:///{tmp_path}/none/items.db", connect_timeout=600)
    with pytest.raises(SettingError, match=r"folder that exists: .*none"):
        server.open()
    monkeypatch.chdir(tmp_path)
    server = DatabaseServer("sqlite:///items.db", connect_timeout=600)
    server.open()
    server.close()
    assert (tmp_path / "items.db").exists()
    (tmp_path / "text.db").write_text("no database " * 100)
    server = DatabaseServer("sqlite:///text.db", connect_timeout=600)
    with pytest.raises(SinkUnavailable, match="not a database"):
        server.open()
    assert caplog.records == []
    server = DatabaseServer("sqlite://", connect_timeout=1)
    server.open()
    server.close()
    assert caplog.record_tuples[0][1] == logging.WARNING


def test_redact_hides_the_password_in_all_its_forms() -> None:
    """As it is, quoted as in URLs or in Python, and a short one only where it is a word."""
    url = sa.URL.create("postgresql", "u", PASSWORD, "h", 1, "d", {"sslpassword": "key word"})
    server = DatabaseServer(url.render_as_string(hide_password=False), connect_timeout=1)
    text = f"{PASSWORD} {url.render_as_string(hide_password=False)} {PASSWORD!r} key word"
    shown = server.redact(text)
    _no_password(shown)
    assert "key word" not in shown
    assert server.address == "postgresql+psycopg://u@h:1/d"
    short = DatabaseServer("postgresql://u:p@h/d", connect_timeout=1)
    assert short.redact("p, 'p' and :p@ not please") == "***, '***' and :***@ not please"


def test_sessions(server: DatabaseServer, each_database: Database) -> None:
    """Each database is told what no row shows here: UTC, strictness, commits that survive a power
    cut."""
    asked: dict[str, dict[str, object]] = {
        "sqlite": {"PRAGMA journal_mode": "wal", "PRAGMA synchronous": 2},
        "postgres": {"SHOW timezone": "UTC"},
        "mariadb": {
            "SELECT @@time_zone": "+00:00",
            "SELECT @@sql_mode LIKE '%%STRICT_ALL_TABLES%%'": 1,
        },
    }
    with server.transaction() as connection:
        for sql, answer in asked[each_database.kind].items():
            assert connection.exec_driver_sql(sql).scalar_one() == answer, sql


def test_a_wrong_setting_is_not_said_to_be_of_the_url(sqlite_database: SQLiteDatabase) -> None:
    """What is wrong with REDISQ_TABLES is only known once there is a connection."""

    def prepare() -> None:
        raise SettingError("REDISQ_TABLES", {}, "something else")

    server = DatabaseServer(sqlite_database.url, connect_timeout=10)
    with pytest.raises(SettingError, match=r"^REDISQ_TABLES"):
        server.open(prepare)
    server.close()
