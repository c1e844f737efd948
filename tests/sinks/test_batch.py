"""The base of the item pipelines: real crawls into sinks that are away, refuse, or do not fit."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import redis
import scrapy

from lab.databases.database import SQLiteDatabase
from lab.servers import wait_until
from lab.site import Answer, Site, linked_pages
from tests.harness.command import Redisq
from tests.harness.crawl import Run

PAGES = 40
SINK = {"crawls.sinks.LinesSink": 300}


def settings(folder: Path, *faults: str, **more: Any) -> dict[str, Any]:
    return {
        "ITEM_PIPELINES": json.dumps(SINK),
        "FILE": folder / "items",
        "FAULTS": ",".join(faults),
        "REDISQ_LEASE_TTL": 3,
        **more,
    }


def turn(folder: Path, fault: str, on: bool) -> None:
    if on:
        (folder / fault).touch()
    else:
        (folder / fault).unlink()


def written(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "items").exists():
        return []
    return [json.loads(line) for line in (folder / "items").read_text().splitlines()]


def numbers(folder: Path) -> Counter[int]:
    return Counter(int(row["url"].rpartition("/")[2]) for row in written(folder))


def test_keys_stay_the_same(crawl: Run, one_client: redis.Redis, tmp_path: Path) -> None:
    """An item's key depends on its page and its place there, not on the time or the pipelines."""
    keys = []
    with Site(linked_pages(20)) as site:
        for pipelines in (SINK, {"crawls.sinks.Shuffle": 100, **SINK}):
            given = settings(tmp_path, ITEM_PIPELINES=json.dumps(pipelines))
            crawl("triple", site, given).wait()
            rows = written(tmp_path)
            keys.append({(row["url"], row["number"]): row["key"] for row in rows})
            (tmp_path / "items").unlink()
            one_client.flushall()
    assert keys[0] == keys[1]
    assert len(set(keys[0].values())) == len(keys[0]) == 61
    assert all(len(key) == 32 for key in keys[0].values())


def test_refused_rows(crawl: Run, redisq: Redisq, tmp_path: Path) -> None:
    """Only the pages of refused rows become dead letters, with the sink's words; `status` counts.

    Requeued after the fault is mended they are written, too.
    """
    refused = {n for n in range(PAGES) if n % 10 == 3}
    with Site(linked_pages(PAGES)) as site:
        given = settings(tmp_path, "unnamed", BATCH_SECONDS=0.2)
        worker = crawl("follow", site, given).wait()
        assert worker.reason == "finished"
        assert "Traceback" not in worker.log
        # One may be written again, to know whether the sink works.
        assert set(numbers(tmp_path)) == set(range(PAGES)) - refused
        state = crawl.status()
        assert (state["dead"], state["sink"]["refused"]) == (len(refused), len(refused))
        assert state["sink"]["rows"] == PAGES - len(refused)
        assert f"sink {PAGES - len(refused)} rows in " in redisq("status", "follow").out
        with crawl.frontier() as frontier:
            letters = list(frontier.dead(reason="sink"))
            assert len(letters) == len(refused)
            assert all("no threes, please" in letter.detail for letter in letters)
            assert frontier.requeue(reason="sink") == len(refused)
        crawl("follow", site, settings(tmp_path)).wait()
    assert set(numbers(tmp_path)) == set(range(PAGES))


def test_mismatch_ends_the_crawl(crawl: Run, tmp_path: Path) -> None:
    """When nothing can be written the crawl ends, and its pages stay in the frontier."""
    with Site(linked_pages(PAGES, delay=0.2)) as site:
        worker = crawl("follow", site, settings(tmp_path, BATCH_SECONDS=0.2))
        wait_until(lambda: len(written(tmp_path)) > 5, 20, "the first items")
        turn(tmp_path, "mismatch", True)
        assert worker.wait().reason == "sink_failed", worker.log
        assert worker.log.count("ERROR: Closing (sink_failed): make another file") == 1
        state = crawl.status()
        assert (state["state"], state["leased"], state["dead"]) == ("stopped", 0, 0)
        assert state["finished"] == len(written(tmp_path))
        turn(tmp_path, "mismatch", False)
        assert crawl("follow", site, settings(tmp_path)).wait().reason == "finished"
    assert numbers(tmp_path) == Counter(range(PAGES))


def test_does_not_open(crawl: Run, tmp_path: Path) -> None:
    """A sink that cannot be opened: one clear line, nothing is crawled, nobody stays behind."""
    with Site(linked_pages(PAGES)) as site:
        worker = crawl("follow", site, settings(tmp_path, "open")).wait()
        last = worker.log.strip().splitlines()[-1]
        assert "ERROR: The crawl cannot start: FILE = '…': takes a file" in last, worker.log
        assert worker.log.count("ERROR") == 1 and "Traceback" not in worker.log, worker.log
        assert worker.process.returncode != 0 or scrapy.version_info < (2, 19)
        assert site.hits == []
        state = crawl.status()
        assert (state["leased"], state["finished"], state["workers"]) == (0, 0, [])


def test_finishes_only_after_the_write(crawl: Run, tmp_path: Path) -> None:
    """With `batch_seconds` Scrapy goes on with other pages; the frontier waits for the batch.

    Scrapy holds 5 MB of responses: a page that counted until its row is written would wait for a
    row behind it.
    """
    small = linked_pages(PAGES)

    def page(path: str) -> Answer | None:
        answer = small(path)
        if answer:
            answer.body = f"{answer.body}{'x' * 250_000}"
        return answer

    with Site(page) as site:
        given = settings(tmp_path, BATCH_SECONDS=60, BATCH_ROWS=PAGES, CONCURRENT_REQUESTS=4)
        turn(tmp_path, "slow", True)
        worker = crawl("follow", site, given)
        wait_until(lambda: len(site.counts()) == PAGES, 20, "all pages")
        state = crawl.status()
        assert (state["finished"], written(tmp_path)) == (0, [])
        wait_until(lambda: crawl.status()["leased"] == PAGES, 20, "all are leased")
        turn(tmp_path, "slow", False)
        assert worker.wait().reason == "finished"
    assert {row["size"] for row in written(tmp_path)} == {PAGES}


def test_with_scrapys_own_scheduler(crawl: Run, tmp_path: Path) -> None:
    """The pipelines work under any scheduler; what is refused is then an error in the log."""
    with Site(linked_pages(PAGES)) as site:
        own = "scrapy.core.scheduler.Scheduler"
        worker = crawl("triple", site, settings(tmp_path, "named", SCHEDULER=own)).wait()
    assert worker.reason == "finished"
    assert "Traceback" not in worker.log
    assert len({row["key"] for row in written(tmp_path)}) == 3 * (PAGES - PAGES // 10) + 1
    assert worker.log.count("ERROR: Dropped: no threes, please") == 3 * PAGES // 10


def test_items_that_no_page_stands_for(crawl: Run, tmp_path: Path) -> None:
    """Of start(): written, or a line and a count each. Of a page that stays in its process:
    written, or its page is a dead letter.

    Keys of mappings may be anything.
    """
    with Site(linked_pages(4)) as site:
        given = settings(tmp_path, "halved", BATCH_SECONDS=0.2)
        worker = crawl("only_here", site, given, items=5).wait()
    assert worker.reason == "finished"
    assert sorted(row["url"] for row in written(tmp_path)) == [f"start/{n}" for n in (0, 1, 2, 4)]
    assert len({row["key"] for row in written(tmp_path)}) == 4
    assert worker.log.count("ERROR: Dropped: no threes, please") == 1
    assert worker.stats["redisq/sink/lost"] == 1
    (letter,) = crawl.letters("only_here")
    assert (letter.reason, letter.detail) == ("sink", "no threes, please")


def test_start_waits_for_the_sink(crawl: Run, tmp_path: Path) -> None:
    """While a sink is away start() yields no more items than Scrapy lets a page have there.

    They do not keep a worker that is told to end.
    """
    turn(tmp_path, "away", True)
    given = settings(tmp_path, REDISQ_CLOSE_TIMEOUT=1)
    with Site(linked_pages(4)) as site:
        worker = crawl("only_here", site, given, items=500)
        worker.wait_for("cannot write")
        worker.process.send_signal(signal.SIGTERM)
        worker.wait()
        lost = worker.stats["redisq/sink/lost"]
        assert lost == worker.stats["yielded"]
        assert 0 < lost <= 102  # a busy machine may not have got far
        assert worker.log.count("ERROR: Dropped: not written before the crawl ended") == lost
        turn(tmp_path, "away", False)
        assert crawl("only_here", site, given, items=500).wait().reason == "finished"
    assert numbers(tmp_path) == Counter([*range(500), 3])


def test_items_that_refer_to_those_of_other_pages(
    crawl: Run, sqlite_database: SQLiteDatabase
) -> None:
    """With one lease at a time pages go back until what they refer to is there, a few times."""
    sqlite_database.fresh()
    sqlite_database.execute(
        "CREATE TABLE item (url TEXT PRIMARY KEY, of TEXT REFERENCES item (url))"
    )
    table = {"table": "item", "key": ["url"], "columns": {"url": "str", "of": "str"}}
    given = {
        "ITEM_PIPELINES": json.dumps({"crawls.sinks.HastyDatabase": 300}),
        "REDISQ_DATABASE_URL": sqlite_database.url,
        "REDISQ_TABLES": json.dumps({"dict": table}),
        "CONCURRENT_REQUESTS": 1,
        "REDISQ_MAX_LEASES": 1,
    }
    with Site(linked_pages(13)) as site:
        worker = crawl("refers", site, given).wait()
        assert worker.reason == "finished"
        counts = site.counts()
    found = {int(url) for (url,) in sqlite_database.query("SELECT url FROM item")}
    assert found == set(range(12))
    (letter,) = crawl.letters("refers")
    assert letter.reason == "sink" and "FOREIGN KEY" in letter.detail
    assert counts["/12"] == 6
    assert max(count for path, count in counts.items() if path != "/12") <= 3
