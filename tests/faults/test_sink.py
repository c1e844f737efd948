"""Databases that are away, slow, or refuse, and workers that die beside them."""

from __future__ import annotations

import csv
import json
import re
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from lab.databases.database import PASSWORD, Database
from lab.servers import wait_until
from lab.site import Answer
from tests.conftest import DATABASE_FIXTURES
from tests.faults.oracle import assert_survived
from tests.faults.rig import FACTS, MOST_LEASES, Rig
from tests.harness.crawl import Crawl, constants, wait_until_joined

GROWTH = 4_000_000
"""Bytes by which a worker may grow while the database is away or slow, once it holds its pages."""


@pytest.fixture(params=DATABASE_FIXTURES)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A new empty database."""
    database: Database = request.getfixturevalue(DATABASE_FIXTURES[request.param])
    database.fresh()
    yield database
    database.start()


def facts(database: Database) -> Counter[tuple[int, int]]:
    return Counter((row[0], row[1]) for row in database.query("SELECT page, number FROM fact"))


def smoke_with(kind: str) -> pytest.MarkDecorator:
    """With one kind of database in `make test`, with each in `make faults`."""
    kinds = [
        pytest.param(each, marks=pytest.mark.smoke) if each == kind else each
        for each in DATABASE_FIXTURES
    ]
    return pytest.mark.parametrize("database", kinds, indirect=True)


def assert_all_facts(rig: Rig, database: Database) -> None:
    """Each page's facts are there once, and no password is in a log."""
    expected = {(page, number) for page in range(rig.pages) for number in range(FACTS)}
    found = facts(database)
    rig.measured["missing"] = float(rig.measured["missing"]) + len(expected - set(found))
    rig.measured["duplicates"] = float(rig.measured["duplicates"]) + found.total() - len(found)
    assert set(found) == expected, sorted(expected ^ set(found))[:20]
    assert found.total() == len(found)
    for worker in rig.workers:
        assert PASSWORD not in worker.log


def memory(rig: Rig) -> list[int]:
    return [psutil.Process(worker.process.pid).memory_info().rss for worker in rig.survivors()]


def assert_flat(rig: Rig, before: list[int]) -> None:
    grown = max(now - then for now, then in zip(memory(rig), before, strict=True))
    rig.measured["memory grown (bytes)"] = max(0, grown)
    assert grown < GROWTH


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_f01b_kill_at_random_with_a_database(rig: Rig, database: Database) -> None:
    """F01 with three items a page in PostgreSQL: each of them is there once."""
    rig.set_up(delay=rig.size.pick(0.3, 0.15), hold=True, database=database)
    assert rig.kill_at_random(rig.size.pick(4, 66)) >= rig.size.pick(3, 30)
    rig.finish()
    assert_survived(rig, refetch=len(rig.gone) * MOST_LEASES)
    assert_all_facts(rig, database)


@smoke_with("postgres")
def test_f39_database_down(rig: Rig, database: Database) -> None:
    """The database is away for a while: leases are held, nothing is claimed, nothing is lost."""
    rig.set_up(delay=rig.size.pick(0.4, 0.05), database=database)
    fleet = rig.under_way(0.2)

    def all_write() -> bool:
        return sum(worker["pages"] > 0 for worker in rig.status()["workers"]) == len(fleet)

    wait_until(all_write, 40, "all write")
    database.kill()
    for worker in rig.workers:
        worker.wait_for("cannot write", 40)
    claimed = rig.status()["claimed"]
    rig.stay(2)  # until the pages that are held have arrived
    before = memory(rig)
    rig.stay(rig.size.pick(1 + rig.ttl, 28))
    status = rig.status()
    assert status["claimed"] == claimed
    assert 0 < status["leased"] <= rig.size.workers * MOST_LEASES
    assert_flat(rig, before)
    database.start()
    rows, began = len(rig.rows()), time.monotonic()
    wait_until(lambda: len(rig.rows()) > rows, 30, "rows are written again")
    rig.measured["seconds"] = time.monotonic() - began
    rig.finish()
    assert assert_survived(rig, refetch=0)["reclaimed"] == 0
    assert_all_facts(rig, database)
    for worker in rig.workers:
        assert worker.log.count("cannot write") == worker.log.count("writes again") == 1


def test_f40_slow_database(rig: Rig, database: Database) -> None:
    """A second per batch: nothing is reclaimed, and memory stays flat."""
    rig.set_up(pages=int(rig.size.pick(100, 10_000)), ttl=2, database=database)
    rig.fleet(environment={"FAULT_SLOW": "1"})
    # Of a small site the first pages are the start of the process, which is still growing.
    rig.wait_for_pages(rig.size.pick(0.5, 0.3))
    before = memory(rig)
    rig.wait_for_pages(0.9, 600)
    assert_flat(rig, before)
    rig.finish()
    assert assert_survived(rig, refetch=0)["reclaimed"] == 0
    assert_all_facts(rig, database)
    for worker in rig.workers:
        stats = worker.stats
        assert stats["redisq/sink/seconds"] >= stats["redisq/sink/batches"]


@smoke_with("sqlite")
def test_f41_killed_after_the_commit(rig: Rig, database: Database) -> None:
    """Workers die between the commit and the finish: the same rows are written again."""
    runs = int(rig.size.pick(4, 30))
    rig.set_up(pages=int(rig.size.pick(125, 3_000)), ttl=2, hold=True, database=database)
    rig.crash_again_and_again(
        lambda: f"commit:{rig.random.randint(1, 6)}", number=2, runs=runs, until=lambda: False
    )
    rig.finish()
    assert assert_survived(rig, refetch=len(rig.gone) * MOST_LEASES)["reclaimed"] > 0
    assert_all_facts(rig, database)


def test_f42_refused_row(rig: Rig, database: Database) -> None:
    """One row of 500 breaks a constraint: the others are stored, its page is a dead letter."""
    rig.set_up(pages=1, page=lambda path: Answer() if path == "/0" else None, database=database)
    database.execute(
        "CREATE TABLE fact (redisq_key CHAR(32) PRIMARY KEY, page BIGINT NOT NULL, "
        "number BIGINT NOT NULL, CONSTRAINT not_250 CHECK (number <> 250))"
    )
    rig.worker(facts=500, settings={"CONCURRENT_ITEMS": 600})
    rig.finish()
    status = assert_survived(rig, refetch=0, dead=1)
    assert set(facts(database)) == {(0, number) for number in range(500) if number != 250}
    assert (status["sink"]["rows"], status["sink"]["refused"]) == (500, 1)
    with rig.frontier() as frontier:
        (letter,) = frontier.dead()
    assert letter.reason == "sink"
    assert re.search(r"(?i)check constraint|constraint .*not_250.* failed", letter.detail)
    assert "not_250" in letter.detail
    rig.measured["stored"] = len(facts(database))


SECONDS = "scrapy_redisq.pipelines.file_batch.FilePipeline.batch_seconds"


def killed_while_it_puts_together(rig: Rig, worker: Crawl, seconds: float) -> None:
    """It is killed so long after it has begun; the data set is none or whole."""
    wait_until(lambda: LAST in worker.log or "Nothing to do" in worker.log, 60, "the end")
    rig.stay(seconds)
    rig.kill(worker)
    assert not (rig.folder / "all.csv").exists() or len(items(rig)) == rig.pages


LAST = "this was the last worker to leave"


def items(rig: Rig) -> list[str]:
    """The pages in the data set."""
    with (rig.folder / "all.csv").open(newline="") as file:
        return [row["page"] for row in csv.DictReader(file)]


def test_f77_data_set(rig: Rig) -> None:
    """Workers that write a data set are killed again and again, and so are those that put it
    together: each item is there once."""
    sinks = {"crawls.sink.SQLiteSink": 1, "scrapy_redisq.pipelines.DatasetPipeline": 300}
    out = rig.folder / "all.csv"
    rig.set_up(
        pages=int(rig.size.pick(300, 3_000)),
        delay=rig.size.pick(0.3, 0.15),
        ttl=2,
        hold=True,
        ITEM_PIPELINES=json.dumps(sinks),
        REDISQ_DATASET=out,
        REDISQ_RUN="once",
        **constants({SECONDS: 1.0}),
    )
    assert rig.kill_at_random(rig.size.pick(4, 30)) >= rig.size.pick(3, 12)
    wait_until_joined(rig.survivors())
    rig.released.set()
    running = rig.survivors()
    wait_until(lambda: any(LAST in worker.log for worker in running), 120, "the end")
    (last,) = [worker for worker in running if LAST in worker.log]
    killed_while_it_puts_together(rig, last, rig.random.uniform(0, 0.1))
    together = out.with_name("all.csv.parts") / "_together"
    for _ in range(int(rig.size.pick(2, 8))):
        together.unlink(missing_ok=True)  # as if it had died before
        seconds = rig.random.uniform(0, rig.size.pick(0.04, 1.0))
        killed_while_it_puts_together(rig, rig.worker(), seconds)
    together.unlink(missing_ok=True)
    rig.worker()
    for worker in rig.survivors():
        worker.wait()
    assert_survived(rig, refetch=None)
    assert sorted(map(int, items(rig))) == [*range(rig.pages)]
    assert not [path for path in rig.folder.iterdir() if path.name.endswith(".tmp")]
