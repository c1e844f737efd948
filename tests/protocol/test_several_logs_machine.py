"""The crawl in which everything goes wrong, on three shards of which each has a log of its own.

Any shard goes back to an earlier point of its log alone, and any worker dies. Nothing is lost, and
nobody takes the crawl for complete before all of it was done.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from lab.servers import RedisServer
from scrapy_redisq.frontier import calls, runs, shard_session, unsafe
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Reply
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.worker.politeness import turns
from tests.harness.model import Model
from tests.harness.worker import Worker
from tests.protocol.test_protocol_machine import NAME, SNAPSHOTS, Browser, Crawl, numbers

EXAMPLES = int(os.environ.get("REDISQ_HYPOTHESIS_EXAMPLES", "0"))
"""Crawls to try instead of 15, and to shrink if one fails."""

REWIND = 30.0
"""Seconds: what was acknowledged longer ago than that no shard loses."""

Keys = list[tuple[bytes, bytes]]


class CrawlOfSeveralLogs(Crawl):
    spread = True

    @initialize()
    def begin_to_look(self) -> None:
        self.tails: list[list[tuple[float, Keys, Model]]] = [[], [], []]
        self.run_of_tails = ""
        self.ever_done: set[str] = set()

    # What is remembered of each shard

    def remember(self) -> None:
        if not hasattr(self, "tails"):
            return
        self.begin_anew()
        # Functions, which copies of the model share.
        self.model.has_posts = lambda shard: self.has_posts(shard)  # noqa: PLW0108
        self.model.completed = lambda: self.all_was_done()  # noqa: PLW0108
        model = copy.deepcopy(self.model)
        now = self.clock.monotonic()
        for shard, tails in enumerate(self.tails):
            tails.append((now, self.keys_of(shard), model))
            del tails[:-SNAPSHOTS]

    def begin_anew(self) -> None:
        """What begins a run is not lost here."""
        if self.run() != self.run_of_tails:
            self.tails, self.run_of_tails = [[], [], []], self.run()
            self.ever_done.clear()

    def keys_of(self, shard: int) -> Keys:
        found: list[Any] = self.client.keys(key_prefix(NAME, shard) + "*")
        keys = [key for key in found if not key.endswith(b":reaped")]
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key)
        return list(zip(keys, pipeline.execute(), strict=True))

    def has_posts(self, shard: int) -> bool:
        return bool(self.client.exists(key_prefix(NAME, shard) + "post"))

    def observe(self, worker: Worker, session: ShardSession, reply: Reply) -> None:
        super().observe(worker, session, reply)
        if not hasattr(self, "tails"):
            return
        self.begin_anew()
        self.ever_done |= {
            entry.url
            for entry in self.model.entries.values()
            if entry.state == "done" and not entry.retried
        }

    def all_was_done(self) -> None:
        """Somebody has said that the crawl is complete."""
        given_up = {
            entry.url
            for entry in self.model.entries.values()
            if entry.state in {"dropped", "dead"} or entry.retried
        }
        # A page that was done may have been lost with a tail, and dropped before it came again.
        reachable = self.reachable(self.ever_done - given_up)
        assert reachable <= self.ever_done | given_up, "complete too early"

    @rule(back=st.integers(1, SNAPSHOTS), shard=st.integers(0, 2))
    @precondition(lambda self: getattr(self, "tails", None) and self.tails[0])
    def lose_tail(self, back: int, shard: int = 0) -> None:
        """One shard has lost the end of its log."""
        self.lose(shard, back)

    lose_another_tail = lose_tail

    @rule(number=numbers, pages=st.integers(1, 4), shard=st.integers(0, 2), back=st.integers(1, 3))
    def lose_it_with_the_worker(self, number: int, pages: int, shard: int, back: int) -> None:
        """A worker has just finished pages, and dies; another shard has lost what it has sent."""
        self.crawl(number, pages, together=False, delay=0, lose="")  # type: ignore[call-arg]
        worker = self.worker(number)
        for one in worker.sessions:
            self.exchange(worker, 0, one.shard)
            self.as_the_model()
        if worker in self.workers:
            self.workers.remove(worker)
        if self.tails[shard]:
            self.lose(shard, back)

    lose_it_with_another_worker = lose_it_with_the_worker

    def lose(self, shard: int, back: int) -> None:
        tails = self.tails[shard]
        oldest = self.clock.monotonic() - REWIND / 2
        while back > 0 and len(tails) > 1 and tails[-2][0] > oldest:
            del tails[-1]
            back -= 1
        _, dumps, model = tails[-1]
        found: list[Any] = self.client.keys(key_prefix(NAME, shard) + "*")
        if found:
            self.client.delete(*found)
        self.restore(dumps)
        self.model.rewind(shard, copy.deepcopy(model), self.shard_of_url)
        self.forget()

    def shard_of_url(self, url: str) -> int:
        return self.config.shard_of(NAME, self.host(int(url[1:])))

    @rule(seconds=st.sampled_from([1, 10, 40]))
    def seconds_pass(self, seconds: int) -> None:
        """What was acknowledged before may be safe now."""
        self.clock.ahead += seconds

    @rule()
    def posts_are_due(self) -> None:
        self.promote()

    @rule(number=numbers, shard=st.integers(-3, 2), back=st.integers(1, SNAPSHOTS))
    def look_for_the_end(self, number: int, shard: int, back: int) -> None:
        """A worker looks whether the crawl is complete, and a shard loses its tail meanwhile."""
        worker = self.worker(number)
        for one in worker.sessions:
            self.exchange(worker, 0, one.shard)
        if worker not in self.workers or worker.waiting():
            return
        looks = 0

        def run(call: calls.Call[Any]) -> Any:
            nonlocal looks
            looks += 1
            if looks == 4 and shard >= 0 and self.tails[shard]:
                self.lose(shard, back)
            return execute(self.client, call)

        workers = [session.worker for session in worker.sessions]
        if runs.drive(run, runs.is_idle(NAME, (0, 1, 2), workers)):
            self.all_was_done()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.mark.long
def test_several_logs_of_which_any_loses_its_end(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, nobody says complete too early, and everything ends."""

    class CrawlHere(CrawlOfSeveralLogs):
        pass

    CrawlHere.client = client
    for module in (turns, shard_session, unsafe):
        monkeypatch.setattr(module, "time", Browser.clock)
    run_state_machine_as_test(
        CrawlHere,
        settings=settings(
            max_examples=EXAMPLES or 15,
            phases=[phase for phase in Phase if EXAMPLES or phase is not Phase.shrink],
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
