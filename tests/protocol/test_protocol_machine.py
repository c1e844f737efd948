"""A crawl of a small random site in which everything goes wrong, step by step.

Hypothesis chooses what the workers do and what happens to them: replies and requests are lost,
workers die, are fenced and come back, a server goes back to an earlier point of its log. After
each step the frontier must be what the model says; in the end every page that can be reached from
the seeds must have been done, in the servers' final history.

Several shards, of which each has a log of its own, are in test_several_logs.py and the simulation.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scrapy_redisq.errors import FrontierLost
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.operations import Lease, Reply
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession
from tests.harness.model import Model, read_shard
from tests.harness.worker import NAME, Worker, as_stored, key

T = TypeVar("T")

EXAMPLES = int(os.environ.get("REDISQ_HYPOTHESIS_EXAMPLES", "0"))
"""Crawls to try instead of 8, and to shrink if one fails: 3,000 take five minutes."""

HOSTS = ["a", "x:80", "ü"]
MAX_DELIVERIES = 3
LONG = 3_600_000
"""A delay in ms: what happens must not depend on the clock, so that it can be repeated."""

SNAPSHOTS = 12
"""How many steps the server can go back."""

YEAR = 31_536_000.0

Keys = list[tuple[bytes, bytes]]

sites = st.lists(st.lists(st.integers(0, 9), max_size=1), min_size=4, max_size=10)
"""What each page links to beside the next one, modulo the number of pages. Few links, because a
link that was lost must not be found on another page."""

numbers = st.integers(0, 2)
"""Which of the workers."""


_entries = itertools.count(1)


def entry_of(page: int) -> bytes:
    """A serialised request for the page, unlike any other."""
    return b"%d /%d" % (next(_entries), page)


def page_of(lease: Lease) -> int:
    return int(lease.entry.split(b"/")[1])


class Browser(Worker):
    """A worker with a cache of seen URLs, which is void when its leases are. The crawl's model is
    told what it does."""

    crawl: Crawl
    cache: set[int]
    from_nowhere: list[bytes]
    """Entries of requests that no page stands for."""

    def _register(self, former: Sequence[ShardSession] = ()) -> calls.Joined:
        self.cache = set()
        if not former:
            self.from_nowhere = []
        return super()._register(former)

    def registered(self, joined: calls.Joined, again: bool) -> None:
        self.crawl.model.join(self.id, joined, again)

    def observed(self, session: ShardSession, reply: Reply) -> None:
        self.crawl.model.exchange(session, reply, session.outgoing.flying)

    def left(self, session: ShardSession) -> None:
        if self.joined.run == self.crawl.run():
            self.crawl.model.leave(session.worker_id)

    def concluded(self, complete: bool) -> None:
        model = self.crawl.model
        assert complete == (self.joined.run == model.run and model.conclude())


class Crawl(RuleBasedStateMachine):
    client: redis.Redis

    @initialize(
        site=sites,
        seeds=st.lists(st.integers(0, 9), min_size=1, max_size=2),
        backend=st.sampled_from(["exact", "bitmap"]),
        order=st.sampled_from(["fifo", "lifo"]),
        scheduling=st.sampled_from(["slot", "priority"]),
        filtered=st.booleans(),
    )
    def begin(
        self,
        site: list[list[int]],
        seeds: list[int],
        backend: str,
        order: str,
        scheduling: str,
        filtered: bool,
    ) -> None:
        self.client.flushall()
        self.filtered = filtered  # the start requests are
        self.links = [
            [link % len(site) for link in [*links, page + 1]] for page, links in enumerate(site)
        ]
        self.seeds = [seed % len(site) for seed in seeds]
        self.config = FrontierConfig(
            dupefilter="exact" if backend == "exact" else "bloom",
            backend=backend,
            capacity=1_000,
            scheduling=scheduling,
            order=order,
            spider="books",
        )
        self.model = Model(MAX_DELIVERIES)
        self.browser = type("Browser", (Browser,), {"crawl": self})
        self.workers: list[Browser] = []
        self.tails: list[tuple[Keys, Model]] = []
        """What the server may go back to."""
        self.steps = 0
        self.add_worker()

    # Helpers

    def host(self, page: int) -> str:
        return HOSTS[page % len(HOSTS)]

    def request(self, worker: Worker, number: int, **options: Any) -> None:
        worker.enqueue(
            f"/{number}",
            slot=self.host(number),
            priority=number % 3 - 1,
            entry=entry_of(number),
            **options,
        )

    def worker(self, number: int) -> Browser:
        if not self.workers:
            self.add_worker()
        return self.workers[number % len(self.workers)]

    def held_by(self, worker: Browser) -> list[Lease]:
        return [lease for _, lease in worker.holding.values()]

    def pick(self, number: int, lease: int) -> tuple[Browser, Lease] | None:
        """A worker that holds something, and one of its leases; None if there is nothing to do."""
        worker = self.worker(number)
        if not worker.holding:
            self.exchange(worker, 2)
        held = self.held_by(worker)
        picked = held[lease % len(held)] if held else None
        return (worker, picked) if picked else None

    def run(self) -> str:
        run: Any = self.client.hget(meta_key(NAME, 0), "run")
        return run.decode() if run else ""

    def expire(self, worker: str) -> None:
        """Make time pass for one worker: only a test writes to the keys of the frontier."""
        self.client.zadd(key("workers"), {worker: 1}, xx=True)
        if worker in self.model.expired:
            self.model.expired[worker] = True

    def promote(self) -> None:
        """Make time pass for what is delayed."""
        delayed: list[Any] = self.client.zrange(key("delayed"), 0, -1)
        if delayed:
            self.client.zadd(key("delayed"), dict.fromkeys(delayed, 1))

    def reap(self) -> None:
        """As if a second had passed since the last time."""
        self.client.delete(key("reaped"))
        call = calls.reap(NAME, 0, self.run(), MAX_DELIVERIES, 1_000)
        reclaimed, dead, left = execute(self.client, call)
        assert left == 0
        self.model.reap(reclaimed, dead)

    def exchange(self, worker: Browser, want: int, **options: Any) -> None:
        if worker not in self.workers:  # its run is over
            return
        try:
            worker.exchange(want, **options)
        except FrontierLost:
            assert worker.joined.run != self.run()
            self.workers.remove(worker)

    def browse(
        self,
        worker: Browser,
        lease: Lease,
        outcome: str = "done",
        delay: int = 0,
    ) -> None:
        """What a spider does with a page: follow its links, then be done with it."""
        if outcome == "done":
            for link in self.links[page_of(lease)]:
                if link in worker.cache:  # as the scheduler's cache of seen URLs
                    continue
                worker.cache.add(link)
                self.request(worker, link, page=lease, delay=delay)
        worker.finish(lease, outcome, reason="test", delay=delay)

    def add_worker(self) -> Browser:
        worker = self.browser(self.client, NAME, self.config, seen_ttl=YEAR)
        for number, seed in enumerate(self.seeds):
            if self.filtered:
                self.request(worker, seed)
            else:
                identity = b"%016d" % number
                options = {"identity": identity, "asked": calls.STARTS, "also": True}
                self.request(worker, seed, filtered=False, **options)
        self.workers.append(worker)
        return worker

    # What workers do

    @rule()
    @precondition(lambda self: len(self.workers) < 3)
    def join(self) -> None:
        """A worker begins or joins a run."""
        self.model.conclude()
        self.add_worker()

    @rule(
        number=numbers,
        want=st.integers(0, 4),
        slot_limit=st.integers(1, 4),
        room=st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 3), max_size=2),
        lose=st.sampled_from(["", "", "request", "reply"]),
        starting=st.booleans(),
    )
    def exchange_once(self, number: int, **options: Any) -> None:
        self.exchange(self.worker(number), **options)

    @rule(
        number=numbers,
        pages=st.integers(1, 4),
        together=st.booleans(),
        delay=st.sampled_from([0, 0, 0, LONG]),
        lose=st.sampled_from(["", "", "", "request", "reply"]),
    )
    def crawl(self, number: int, pages: int, together: bool, delay: int, lose: str) -> None:
        """Claim some pages, follow their links and be done with them, at once or one by one."""
        worker = self.worker(number)
        self.exchange(worker, pages)
        for lease in self.held_by(worker)[:pages]:
            self.browse(worker, lease, delay=delay)
            if not together and worker in self.workers:
                self.as_the_model()
                self.exchange(worker, 0)
        self.as_the_model()
        self.exchange(worker, 1, lose=lose)

    crawl_on = crawl_further = crawl  # more often than the other rules

    @rule(number=numbers, pick=st.integers(0, 3), delay=st.sampled_from([0, LONG]))
    def finish(self, number: int, pick: int, delay: int) -> None:
        """A page ends; that it did is not sent yet."""
        if picked := self.pick(number, pick):
            self.browse(*picked, delay=delay)

    @rule(
        number=numbers,
        pick=st.integers(0, 3),
        how=st.sampled_from(
            ["dead", "released", "half", "twice", "ahead", "ahead", "retried", "retried"]
        ),
        second=st.sampled_from(["done", "done", "dead", "released"]),
        delay=st.sampled_from([0, LONG]),
    )
    def finish_oddly(self, number: int, pick: int, how: str, second: str, delay: int) -> None:
        picked = self.pick(number, pick)
        if picked is None:
            return
        worker, lease = picked
        if how == "half":  # the links of a page are on their way, its end is not
            for link in self.links[page_of(lease)]:
                self.request(worker, link, page=lease)
        elif how == "twice":  # the second, in the same exchange or later, is a counted no-op
            at = worker.holding[lease.id]
            self.browse(worker, lease)
            worker.holding[lease.id] = at
            worker.finish(lease, second, reason="test")
        elif how == "ahead":  # a request past the dupefilter, of a page that takes its time: the
            # same whenever the page is fetched
            worker.enqueue(
                f"/{page_of(lease)}",
                filtered=False,
                slot=lease.slot,
                entry=entry_of(page_of(lease)),
                page=lease,
                identity=hashlib.md5(lease.entry).digest(),
                asked=calls.RECENT,
            )
        elif how == "retried":
            entry = entry_of(page_of(lease))
            worker.finish(lease, how, entry=entry, priority=lease.priority - 1, delay=delay)
        else:
            self.browse(worker, lease, how)

    @rule(number=numbers, page=st.integers(0, 9))
    def from_nowhere(self, number: int, page: int) -> None:
        """A handler of ``spider_idle`` asks for a page: no page stands for that."""
        worker, page = self.worker(number), page % len(self.links)
        entry = entry_of(page)
        worker.from_nowhere.append(entry)
        identity = hashlib.md5(entry).digest()
        options = {"filtered": False, "identity": identity, "asked": calls.RECENT}
        worker.enqueue(f"/{page}", slot=self.host(page), entry=entry, **options)

    # What happens to them

    @rule(number=numbers, how=st.sampled_from(["leave", "die", "expire", "fence", "fence"]))
    def stop(self, number: int, how: str) -> None:
        worker = self.worker(number)
        if how == "leave":
            self.workers.remove(worker)
            worker.leave()
            worker.leave()  # the reply was lost
        elif how == "die":  # never heard of again
            self.workers.remove(worker)
        else:  # it is slow, and may be heard of again
            self.expire(worker.id)
            if how == "fence":
                self.reap()

    @rule(expire=st.booleans())
    def recover(self, expire: bool) -> None:
        """Somebody reaps, perhaps when the deadlines of all the dead have passed."""
        alive = {worker.id for worker in self.workers}
        for name in sorted(self.model.expired.keys() - alive if expire else set()):
            self.expire(name)
        self.reap()
        again = calls.reap(NAME, 0, self.run(), MAX_DELIVERIES, 1_000)
        assert execute(self.client, again) == (0, 0, 0)

    @rule(back=st.integers(1, SNAPSHOTS))
    @precondition(lambda self: self.tails)
    def lose_tail(self, back: int) -> None:
        """A server has lost the end of its log."""
        del self.tails[max(1, len(self.tails) - back) :]
        keys, model = self.tails[-1]
        pipeline = self.client.pipeline(transaction=False)
        pipeline.flushdb()
        for name, dump in keys:
            pipeline.restore(name, 0, dump)
        pipeline.execute()
        self.model = copy.deepcopy(model)

    lose_another_tail = lose_tail

    @rule(what=st.sampled_from(["flush scripts", "requeue", "time passes", "rotate"]))
    def disturb(self, what: str) -> None:
        if what == "flush scripts":
            self.client.script_flush()
        elif what == "requeue":
            self.requeue()
        elif what == "rotate":
            self.rotate()
        else:
            self.promote()

    def rotate(self) -> None:
        """As if a TTL were over, once: a dupefilter that has two generations has forgotten
        nothing."""
        meta: Any = self.client.hgetall(key("meta"))
        if b"rotates" in meta and b"older" not in meta:
            self.client.hset(key("meta"), "rotates", meta[b"sign"])

    def requeue(self) -> None:
        page = execute(self.client, admin.letters(NAME, 0, most=100))
        letters = as_stored(self.client, [id for id, _ in page.letters])
        requeued = execute(self.client, admin.requeue(NAME, 0, letters))
        assert requeued == len(self.model.in_state("dead"))
        assert execute(self.client, admin.requeue(NAME, 0, letters)) == 0
        self.model.requeue()

    # What must hold

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        self.steps += 1
        shard = read_shard(self.client, NAME, 0)
        shard.check()
        self.model.check(shard)
        found: list[Any] = self.client.keys("*")
        keys = [name for name in found if not name.endswith(b":reaped")]
        pipeline = self.client.pipeline(transaction=False)
        for name in keys:
            pipeline.dump(name)
        dumps = list(zip(keys, pipeline.execute(), strict=True))
        self.tails.append((dumps, copy.deepcopy(self.model)))
        del self.tails[:-SNAPSHOTS]

    @rule()
    @precondition(lambda self: self.steps >= 10)
    def finish_the_crawl(self) -> None:
        """All workers are dead; a fresh one finishes the crawl and leaves nothing behind."""
        self.steps = 0
        for worker in [*self.workers] * 4:  # first they hear that the server has lost something
            self.exchange(worker, 0)
        self.as_the_model()
        for worker in self.workers:
            assert not worker.waiting()
            assert self.model.entries.keys() >= set(worker.from_nowhere), "what nobody asks again"
        self.workers.clear()
        for name in list(self.model.expired):
            self.expire(name)
        while self.model.expired:
            self.reap()
        self.requeue()
        worker = self.add_worker()

        for _ in range(100):
            worker.exchange_all(100)
            if worker.complete and not worker.holding:
                break
            for lease in self.held_by(worker):
                self.browse(worker, lease)
            self.promote()
        assert worker.complete, read_shard(self.client, NAME, 0)
        self.as_the_model()
        # A retry takes the place of what it is a retry of, which has followed no link.
        ended = [entry for entry in self.model.entries.values() if not entry.retried]
        done = {entry.url for entry in ended if entry.state == "done"}
        assert self.reachable(done) <= done
        assert not self.model.unfinished()
        self.workers.remove(worker)
        assert worker.leave()
        backend: str | None = self.config.backend
        while backend:
            backend = execute(self.client, calls.sweep(NAME, 0, backend))
        real = read_shard(self.client, NAME, 0)
        assert not (real.queues or real.leases or real.busy or real.delayed or real.workers)
        assert real.count("created") == real.count("finished")
        assert real.generations <= {real.meta["generation"], real.meta.get("older")}

    def reachable(self, done: set[str]) -> set[str]:
        """The pages that seeds, and links on what is ``done``, lead to."""
        reachable, todo = set(), set(self.seeds)
        while todo:
            reachable |= todo
            followed = [page for page in todo if f"/{page}" in done]
            todo = {link for page in followed for link in self.links[page]} - reachable
        return {f"/{page}" for page in reachable}

    def teardown(self) -> None:
        if sys.exc_info()[0] is None and hasattr(self, "model"):
            self.finish_the_crawl()
            self.as_the_model()


@pytest.mark.long
def test_a_crawl_in_which_everything_goes_wrong(client: redis.Redis) -> None:
    """Whatever happens, in whatever order: nothing is lost, nobody says complete too early, and
    everything ends."""

    Crawl.client = client
    run_state_machine_as_test(
        Crawl,
        settings=settings(
            max_examples=EXAMPLES or 8,
            phases=[phase for phase in Phase if EXAMPLES or phase is not Phase.shrink],
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
