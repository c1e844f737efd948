"""A crawl of a small random site in which everything goes wrong, step by step.

Hypothesis chooses what the workers do and what happens to them: replies and requests are lost,
workers die, are fenced and come back, a server goes back to an earlier point of its log. After
each step the frontier must be what the model says; in the end every page that can be reached from
the seeds must have been done, in the servers' final history.

There is one shard, or there are three of which each has a log of its own: then any of them goes
back alone, and nobody takes the crawl for complete before all of it was done.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
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

from lab.servers import RedisServer
from scrapy_redisq.errors import FrontierLost
from scrapy_redisq.frontier import admin, calls, resend, runs, shard_session
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import key_prefix, meta_key
from scrapy_redisq.frontier.operations import Lease, Reply
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.slot_names import shard_of
from tests.harness.model import Model, read_shard
from tests.harness.worker import Clock, Worker, as_stored

T = TypeVar("T")

EXAMPLES = int(os.environ.get("REDISQ_HYPOTHESIS_EXAMPLES", "0"))
"""Crawls to try instead of 16 or 8, and to shrink if one fails: 3,000 take five minutes."""

NAME = "books6"
"""Of several names the first whose shards are called 0, 1 and 2 also on several servers."""
HOSTS = ["a", "x:80", "ü"]
"""One of each shard."""
MAX_DELIVERIES = 3
LONG = 3_600_000
"""A delay in ms: what happens must not depend on the clock, so that it can be repeated."""

SNAPSHOTS = 12
"""How many steps the server can go back."""

YEAR = 31_536_000.0

REWIND = 30.0
"""Seconds: what was acknowledged longer ago than that no shard of several loses."""

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


def ids_of(worker: Worker) -> set[str]:
    """What it is called on the shards: it may have joined one of them again alone."""
    return {session.worker_id for session in worker.sessions}


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

    def registered(self, joined: calls.Joined, again: bool, shards: Sequence[int]) -> None:
        self.crawl.model.join(self.id, joined, again, shards)

    def observed(self, session: ShardSession, reply: Reply) -> None:
        self.crawl.model.exchange(session, reply, session.outgoing.flying)
        self.crawl.note_what_is_done()

    def left(self, session: ShardSession) -> None:
        if self.joined.run == self.crawl.run():
            self.crawl.model.leave(session.worker_id, session.shard)

    def concluded(self, complete: bool) -> None:
        model = self.crawl.model
        assert complete == (self.joined.run == model.run and model.conclude())


class Crawl(RuleBasedStateMachine):
    client: redis.Redis
    clock = Clock()
    spread = False
    """Each shard has a log of its own."""

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
        self.clock.ahead = 0.0
        self.filtered = filtered  # the start requests are
        self.links = [
            [link % len(site) for link in [*links, page + 1]] for page, links in enumerate(site)
        ]
        self.seeds = [seed % len(site) for seed in seeds]
        shards = 3 if self.spread else 1
        scheduling = "slot" if self.spread else scheduling
        self.config = FrontierConfig(
            dupefilter="exact" if backend == "exact" else "bloom",
            backend=backend,
            capacity=1_000,
            scheduling=scheduling,
            order=order,
            shards=shards,
            spread=self.spread,
            spider="books",
        )
        self.model = Model(shards, MAX_DELIVERIES)
        self.browser = type("Browser", (Browser,), {"crawl": self})
        self.workers: list[Browser] = []
        self.tails: list[list[tuple[float, Keys, Model]]] = [[] for _ in range(shards)]
        """Of each shard what it was like, and when."""
        self.run_of_tails = ""
        self.ever_done: set[str] = set()
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

    def note_what_is_done(self) -> None:
        if self.spread:
            self.begin_anew()
        done = [entry for entry in self.model.entries.values() if entry.state == "done"]
        self.ever_done |= {entry.url for entry in done if not entry.retried}

    def worker(self, number: int) -> Browser:
        if not self.workers:
            self.add_worker()
        return self.workers[number % len(self.workers)]

    def held_by(self, worker: Browser) -> list[Lease]:
        return [lease for _, lease in worker.holding.values()]

    def pick(self, number: int, lease: int) -> tuple[Browser, Lease] | None:
        """A worker that holds something, and one of its leases; None if there is nothing to do."""
        worker = self.worker(number)
        for shard in range(self.config.shards):
            if not worker.holding:
                self.exchange(worker, 2, shard)
        held = self.held_by(worker)
        picked = held[lease % len(held)] if held else None
        return (worker, picked) if picked else None

    def shard_of(self, lease: Lease) -> int:
        return shard_of(lease.slot, self.config.shards)

    def run(self) -> str:
        run: Any = self.client.hget(meta_key(NAME, 0), "run")
        return run.decode() if run else ""

    def expire(self, worker: str) -> None:
        """Make time pass for one worker: only a test writes to the keys of the frontier."""
        for shard in range(self.config.shards):
            workers = key_prefix(NAME, shard) + "workers"
            self.client.zadd(workers, {worker: 1}, xx=True)
            if (shard, worker) in self.model.expired:
                self.model.expired[shard, worker] = True

    def promote(self) -> None:
        """Make time pass for what is delayed, and for posts."""
        for shard in range(self.config.shards):
            delayed: list[Any] = self.client.zrange(key_prefix(NAME, shard) + "delayed", 0, -1)
            if delayed:
                key = key_prefix(NAME, shard) + "delayed"
                self.client.zadd(key, dict.fromkeys(delayed, 1))
            posts: list[Any] = self.client.zrange(key_prefix(NAME, shard) + "post", 0, -1)
            if posts:
                self.client.zadd(key_prefix(NAME, shard) + "post", dict.fromkeys(posts, 1))

    def reap(self, shard: int) -> None:
        """As if a second had passed since the last time."""
        self.client.delete(key_prefix(NAME, shard) + "reaped")
        call = calls.reap(NAME, shard, self.run(), MAX_DELIVERIES, 1_000)
        reclaimed, dead, left = execute(self.client, call)
        assert left == 0
        self.model.reap(shard, reclaimed, dead)

    def drive(self, steps: runs.Steps[T]) -> T:
        return runs.drive(lambda call: execute(self.client, call), steps)

    def exchange(self, worker: Browser, want: int, shard: int, **options: Any) -> None:
        if worker not in self.workers:  # its run is over
            return
        try:
            worker.exchange(want, shard=shard, **options)
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

    def unfiltered(self, lease: Lease, asked: int) -> dict[str, Any]:
        """Options of a request past the dupefilter for the page itself: the same whenever the page
        is fetched."""
        return {
            "filtered": False,
            "slot": lease.slot,
            "entry": entry_of(page_of(lease)),
            "page": lease,
            "identity": hashlib.md5(lease.entry).digest(),
            "asked": asked,
        }

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

    @rule(shard=st.integers(0, 2))
    @precondition(lambda self: self.spread)
    def begin_to_conclude(self, shard: int) -> None:
        """Somebody seals some shards, and dies."""
        model, number = self.model, 0
        for at in range(shard + 1):
            found = execute(self.client, calls.complete(NAME, at, run=model.run, seal=number))
            number = found.number
            if at == 0 and not (model.state == "open" and model.seeded):
                assert found.what == "unfinished"
            else:
                assert (found.what == "sealed") == model.could_be_sealed(at)
            if found.what != "sealed":
                break
            model.sealed(at)

    @rule(
        number=numbers,
        shard=st.integers(0, 2),
        want=st.integers(0, 4),
        slot_limit=st.integers(1, 4),
        room=st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 3), max_size=2),
        lose=st.sampled_from(["", "", "request", "reply"]),
        starting=st.booleans(),
    )
    def exchange_once(self, number: int, shard: int, **options: Any) -> None:
        self.exchange(self.worker(number), shard=shard % self.config.shards, **options)

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
        for shard in range(self.config.shards):
            self.exchange(worker, pages, shard)
        for lease in self.held_by(worker)[:pages]:
            self.browse(worker, lease, delay=delay)
            if not together and worker in self.workers:
                self.as_the_model()
                self.exchange(worker, 0, self.shard_of(lease))
        self.as_the_model()
        for shard in range(self.config.shards):
            self.exchange(worker, 1, shard, lose=lose)

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
        elif how == "ahead":  # a request past the dupefilter, of a page that takes its time
            worker.enqueue(f"/{page_of(lease)}", **self.unfiltered(lease, calls.RECENT))
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
            for name in ids_of(worker):
                self.expire(name)
            for shard in range(self.config.shards if how == "fence" else 0):
                self.reap(shard)

    @rule(shard=st.integers(0, 2), expire=st.booleans())
    def recover(self, shard: int, expire: bool) -> None:
        """Somebody reaps, perhaps when the deadlines of all the dead have passed."""
        alive = {name for worker in self.workers for name in ids_of(worker)}
        for name in sorted({name for _, name in self.model.expired} - alive if expire else set()):
            self.expire(name)
        shard %= self.config.shards
        self.reap(shard)
        again = calls.reap(NAME, shard, self.run(), MAX_DELIVERIES, 1_000)
        assert execute(self.client, again) == (0, 0, 0)

    @rule(back=st.integers(1, SNAPSHOTS), shard=st.integers(0, 2))
    @precondition(lambda self: self.tails[0])
    def lose_tail(self, back: int, shard: int = 0) -> None:
        """A server has lost the end of its log."""
        self.lose(shard % self.config.shards, back)

    lose_another_tail = lose_tail

    @rule(number=numbers, pages=st.integers(1, 4), shard=st.integers(0, 2), back=st.integers(1, 3))
    @precondition(lambda self: self.spread)
    def lose_it_with_the_worker(self, number: int, pages: int, shard: int, back: int) -> None:
        """A worker has just finished pages, and dies; another shard has lost what it has sent."""
        self.crawl(number, pages, together=False, delay=0, lose="")  # type: ignore[call-arg]
        worker = self.worker(number)
        for one in worker.sessions:
            self.exchange(worker, 0, one.shard)
            self.as_the_model()
        if worker in self.workers:
            self.workers.remove(worker)
        self.lose(shard, back)

    lose_it_with_another_worker = lose_it_with_the_worker

    def lose(self, shard: int, back: int) -> None:
        tails = self.tails[shard]
        oldest = self.clock.monotonic() - REWIND / 2
        while back > 0 and len(tails) > 1 and (not self.spread or tails[-2][0] > oldest):
            del tails[-1]
            back -= 1
        if not tails:
            return
        _, dumps, model = tails[-1]
        found: list[Any] = self.client.keys(key_prefix(NAME, shard) + "*")
        pipeline = self.client.pipeline(transaction=False)
        pipeline.delete(*found, "none")
        for key, dump in dumps:
            pipeline.restore(key, 0, dump)
        pipeline.execute()
        if self.spread:
            self.model.rewind(shard, copy.deepcopy(model))
        else:
            self.model = copy.deepcopy(model)

    @rule(seconds=st.sampled_from([1, 10, 40]))
    @precondition(lambda self: self.spread)
    def seconds_pass(self, seconds: int) -> None:
        """What was acknowledged before may be safe now."""
        self.clock.ahead += seconds

    @rule()
    @precondition(lambda self: self.spread)
    def posts_are_due(self) -> None:
        self.promote()

    @rule(number=numbers, shard=st.integers(-3, 2), back=st.integers(1, SNAPSHOTS))
    @precondition(lambda self: self.spread)
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
            if looks == 4 and shard >= 0:
                self.lose(shard, back)
            return execute(self.client, call)

        workers = [session.worker_id for session in worker.sessions]
        if runs.drive(run, runs.is_idle(NAME, (0, 1, 2), workers)):
            self.all_was_done()

    def all_was_done(self) -> None:
        """Somebody has said that the crawl is complete."""
        entries = self.model.entries.values()
        given_up = {e.url for e in entries if e.state == "dead" or e.retried}
        reachable = self.reachable(self.ever_done - given_up)
        assert reachable <= self.ever_done | given_up, "complete too early"

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
        for shard in range(self.config.shards):
            meta: Any = self.client.hgetall(meta_key(NAME, shard))
            if b"rotates" in meta and b"older" not in meta:
                self.client.hset(meta_key(NAME, shard), "rotates", meta[b"sign"])

    def requeue(self) -> None:
        for shard in range(self.config.shards):
            page = execute(self.client, admin.letters(NAME, shard, most=100))
            letters = as_stored(self.client, [id for id, _ in page.letters], shard, NAME)
            requeued = execute(self.client, admin.requeue(NAME, shard, letters))
            if requeued < 0:
                self.drive(runs.open_shard(NAME, shard, self.run()))
                self.model.state = "open"
                requeued = execute(self.client, admin.requeue(NAME, shard, letters))
            assert requeued == len(self.model.of_shard(shard, "dead"))
            assert execute(self.client, admin.requeue(NAME, shard, letters)) == 0
            self.model.requeue(shard)

    # What must hold

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        self.steps += 1
        shards = [read_shard(self.client, NAME, n) for n in range(self.config.shards)]
        for shard in shards:
            shard.check()
        self.model.check(shards)
        self.remember()

    def remember(self) -> None:
        """What the servers may go back to."""
        if self.spread:
            self.begin_anew()
            # Functions, which copies of the model share.
            self.model.has_posts = lambda shard: self.has_posts(shard)  # noqa: PLW0108
            self.model.completed = lambda: self.all_was_done()  # noqa: PLW0108
        model, now = copy.deepcopy(self.model), self.clock.monotonic()
        for shard, tails in enumerate(self.tails):
            found: list[Any] = self.client.keys(key_prefix(NAME, shard) + "*")
            keys = [key for key in found if not key.endswith(b":reaped")]
            pipeline = self.client.pipeline(transaction=False)
            for key in keys:
                pipeline.dump(key)
            tails.append((now, list(zip(keys, pipeline.execute(), strict=True)), model))
            del tails[:-SNAPSHOTS]

    def begin_anew(self) -> None:
        """What begins a run is not lost where there are several logs."""
        if self.run() != self.run_of_tails:
            self.tails, self.run_of_tails = [[], [], []], self.run()
            self.ever_done.clear()

    def has_posts(self, shard: int) -> bool:
        return bool(self.client.exists(key_prefix(NAME, shard) + "post"))

    @rule()
    @precondition(lambda self: self.steps >= 10)
    def finish_the_crawl(self) -> None:
        """All workers are dead; a fresh one finishes the crawl and leaves nothing behind."""
        self.steps = 0
        for worker in [*self.workers] * 4:  # first they hear that the server has lost something
            for shard in range(self.config.shards):
                self.exchange(worker, 0, shard)
        self.as_the_model()
        for worker in self.workers:
            assert not worker.waiting()
            assert self.model.entries.keys() >= set(worker.from_nowhere), "what nobody asks again"
        self.workers.clear()
        for _, name in list(self.model.expired):
            self.expire(name)
        while self.model.expired:
            for shard in range(self.config.shards):
                self.reap(shard)
        self.requeue()
        worker = self.add_worker()

        for _ in range(100):
            worker.exchange_all(100)
            if worker.complete and not worker.holding:
                break
            for lease in self.held_by(worker):
                self.browse(worker, lease)
            self.promote()
            self.clock.ahead += REWIND + 1
        assert worker.complete, [read_shard(self.client, NAME, n) for n in range(3)]
        self.as_the_model()
        # A retry takes the place of what it is a retry of, which has followed no link.
        ended = [entry for entry in self.model.entries.values() if not entry.retried]
        done = {entry.url for entry in ended if entry.state == "done"}
        assert self.reachable(done) <= done
        assert not self.model.unfinished()
        self.workers.remove(worker)
        assert worker.leave()
        for shard in range(self.config.shards):
            backend: str | None = self.config.backend
            while backend:
                backend = execute(self.client, calls.sweep(NAME, shard, backend))
            real = read_shard(self.client, NAME, shard)
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


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.mark.long
@pytest.mark.parametrize("several_logs", [False, True])
def test_a_crawl_in_which_everything_goes_wrong(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, several_logs: bool
) -> None:
    """Whatever happens, in whatever order: nothing is lost, nobody says complete too early, and
    everything ends."""

    class CrawlHere(Crawl):
        spread = several_logs

    CrawlHere.client = client
    for module in (shard_session, resend) if several_logs else ():
        monkeypatch.setattr(module, "time", Crawl.clock)
    run_state_machine_as_test(
        CrawlHere,
        settings=settings(
            max_examples=EXAMPLES or (4 if several_logs else 8),
            phases=[phase for phase in Phase if EXAMPLES or phase is not Phase.shrink],
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
