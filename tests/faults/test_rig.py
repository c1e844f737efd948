"""The rig itself: it must be able to see what it is there to see."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, nullcontext

import pytest

from tests.faults.oracle import assert_survived
from tests.faults.rig import Rig


@pytest.mark.smoke
def test_oracle(rig: Rig) -> None:
    """A crawl without a fault satisfies the oracle; each thing that is wrong is noticed."""
    rig.set_up(pages=30)
    worker = rig.worker()
    rig.finish()
    assert_survived(rig, refetch=0)

    def wrong(statement: str, undo: str) -> None:
        with closing(sqlite3.connect(rig.sink, isolation_level=None)) as db:
            db.execute(statement)
            with pytest.raises(AssertionError):
                assert_survived(rig, refetch=0)
            db.execute(undo)

    row = f"VALUES ('{rig.site.url}/3', '3', 1)"
    wrong("DELETE FROM pages WHERE page = '3'", f"INSERT INTO pages {row}")
    wrong("INSERT INTO pages VALUES ('again', '3', 1)", "DELETE FROM pages WHERE url = 'again'")
    with rig.server.client() as client:
        for key in ("redisq:{fault:0}:levels:slot", "redisq:{fault:0}:unknown", "foreign"):
            client.set(key, 1)
            with pytest.raises(AssertionError):
                assert_survived(rig, refetch=0)
            client.delete(key)
        for count in ("created", "dead", "leased"):
            client.hincrby("redisq:{fault:0}:counts", count, 1)
            with pytest.raises(AssertionError):
                assert_survived(rig, refetch=0)
            client.hincrby("redisq:{fault:0}:counts", count, -1)
    rig.site.hits.append(rig.site.hits[0])
    with pytest.raises(AssertionError):
        assert_survived(rig, refetch=0)
    assert_survived(rig, refetch=1)
    log = worker.log
    starved = f"9.0 others had the processor for {rig.ttl / 2:.3f} s\n"
    fenced = "9.1 This worker's leases are void (no sign of life in time)\n"
    for text, is_starved in ((fenced, False), (fenced + starved, False), (starved + fenced, True)):
        worker.log_file.write_text(re.sub("others had .*", "", log) + text)
        with nullcontext() if is_starved else pytest.raises(AssertionError):
            assert_survived(rig, refetch=0)
    for text in ("hunter2-of-the-rig", "Traceback (most recent call last)"):
        worker.log_file.write_text(log + text)
        with pytest.raises(AssertionError):
            assert_survived(rig, refetch=1)
