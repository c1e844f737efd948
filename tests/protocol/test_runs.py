"""How runs begin, end and follow each other: several workers, several shards, and who dies when.

Procedures are generators of calls (`scrapy_redisq.frontier.runs`), so that a test can stop one
after any call, as a kill does, or let several go on in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from msgspec.structs import replace

from lab.servers import wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import (
    ConfigurationMismatch,
    FrontierError,
    FrontierLost,
    RunMismatch,
    RunOver,
    ShardLost,
)
from scrapy_redisq.frontier import calls, runs
from scrapy_redisq.frontier.calls import Registration, RunTerms
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.growth import GrowthLimit
from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute, load
from scrapy_redisq.frontier.shards import shard_of
from scrapy_redisq.frontier.terms import NOTHING, Terms
from tests.harness.shard import read_shard
from tests.harness.worker import EXACT, NAME, OneServer, Worker, expire, key, now, reap, url_of

THREE = replace(EXACT, shards=3)
HOSTS = [next(host for host in map(str, range(99)) if shard_of(host, 3) == n) for n in range(3)]
"""One host for each of three shards."""

KEEP_SEEN = RunTerms(keep_seen=True)
KEEP_ALIVE = RunTerms(keep_alive=True)
ANEW = RunTerms(resume=False)

_numbers = itertools.count()


@pytest.fixture
def frontier(client: redis.Redis) -> Iterator[Frontier]:
    """As a producer with the workers' configuration sees it."""
    with Frontier.from_url(url_of(client), NAME, config=EXACT) as frontier:
        yield frontier


@pytest.fixture(params=[1, 3])
def config(request: pytest.FixtureRequest) -> FrontierConfig:
    """Of one shard, and of three. Producers have one on one server: their tests use `EXACT`."""
    return replace(EXACT, shards=request.param)


def join(client: redis.Redis, config: FrontierConfig, **options: Any) -> Worker:
    return Worker(client, NAME, config, **options)


def named(client: redis.Redis, config: FrontierConfig, run: str, **options: Any) -> Worker:
    return join(client, config, terms=RunTerms(run, **options))


def send(worker: Worker, *urls: str) -> int:
    """Enqueue URLs, one host after the other; -> how many were new."""
    for n, url in enumerate(urls):
        worker.enqueue(url, slot=HOSTS[n % 3])
    accepted = 0
    for session in worker.sessions:
        reply = worker.exchange(shard=session.shard)
        assert reply is not None
        accepted += len(reply.accepted)
    return accepted


def claim(worker: Worker) -> list[Lease]:
    for session in worker.sessions:
        worker.exchange(100, shard=session.shard)
    return [lease for _, lease in worker.holding.values()]


def crawl(worker: Worker, *, dead: str = "") -> list[str]:
    """Finish all there is, with dead letters of the URLs in ``dead``; -> the URLs.

    Each shard is as it should be then.
    """
    urls = []
    while leases := claim(worker):
        for lease in leases:
            url = lease.entry.decode("utf-8", "replace")
            urls.append(url)
            worker.finish(lease, "dead" if url in dead.split() else "done", reason="test")
        worker.exchange_all()
    worker.exchange_all()
    check(worker.client, len(worker.sessions))
    return sorted(urls)


def complete(
    client: redis.Redis, config: FrontierConfig, *urls: str, dead: str = "", **options: Any
) -> Worker:
    """A worker that has crawled all there is, and left."""
    worker = join(client, config, **options)
    send(worker, *urls)
    crawl(worker, dead=dead)
    assert worker.leave()
    return worker


def shift(client: redis.Redis, name: str, seconds: float) -> None:
    """Move a time in meta: what happens must not depend on how fast the test is."""
    client.hincrby(key("meta"), name, int(seconds * 1e6))


def state(client: redis.Redis) -> str:
    value: Any = client.hget(key("meta"), "state")
    return value.decode() if value else "absent"


def check(client: redis.Redis, shards: int = 1) -> None:
    for shard in range(shards):
        read_shard(client, NAME, shard).check()


# --- who belongs to which run ------------------------------------------------------------------


class TestAge:
    def test_started_before_the_end(self, client: redis.Redis, config: FrontierConfig) -> None:
        """It belongs to the run that the others have completed; a later one begins another."""
        first = complete(client, config, "a", "b", "c")
        shift(client, "ended", -5)
        with pytest.raises(RunOver, match=r"5 s ago, after this one had been started. To crawl"):
            join(client, config, age=8)
        assert state(client) == "complete"
        late = join(client, config, age=4)
        assert late.joined.new
        assert late.joined.run != first.joined.run

    @pytest.mark.parametrize("lag", [10, 0])
    def test_started_after_a_step_back(self, client: redis.Redis, lag: float) -> None:
        """The clock has gone back since the end, and also since the last sign of life if that was
        as late: nobody knows what was before, and the crawl begins."""
        first = complete(client, EXACT, "a")
        shift(client, "ended", 10)
        client.hset(key("meta"), "sign", client.hget(key("meta"), "ended"))  # it says it seldom
        shift(client, "sign", -lag)
        assert join(client, EXACT, age=8).joined.run != first.joined.run

    def test_one_of_another_crawl(self, client: redis.Redis) -> None:
        """With other arguments it does not belong to the run that is complete, and begins its own;
        one of which they are not known does. Where the complete run has its name it is refused: it
        would end as if all that it was to fetch were there."""
        of_uk, of_de = (replace(EXACT, arguments=text) for text in ("1 uk", "2 de"))
        complete(client, of_uk, "a")
        shift(client, "ended", -5)
        for same in (of_uk, EXACT):
            with pytest.raises(RunOver):
                join(client, same, age=8)
        assert join(client, of_de, age=8).joined.config.arguments == "2 de"
        client.flushall()
        of_today = RunTerms("today")
        complete(client, of_uk, "a", terms=of_today)
        with pytest.raises(ConfigurationMismatch, match="'uk' there and 'de' here"):
            join(client, of_de, terms=of_today)
        with pytest.raises(RunOver):
            join(client, of_uk, terms=of_today)

    def test_a_join_that_is_on_its_way_for_long(self, client: redis.Redis) -> None:
        """The worker looks no younger by it: a run that was completed meanwhile is its own."""

        class Slow(redis.asyncio.Redis):
            async def evalsha(self, sha: str, *args: Any) -> Any:
                if sha == load("run/join").sha and not client.exists(key("meta")):
                    complete(client, EXACT, "a")
                    ended = int(client.hget(key("meta"), "ended"))  # type: ignore[arg-type]
                    wait_until(lambda: now(client) > ended + 300_000, 10, "it is on its way")
                return await super().evalsha(sha, *args)

        async def join_slowly() -> None:
            options = client.connection_pool.connection_kwargs
            async with Slow(host=options["host"], port=options["port"]) as slow:
                await RunSession(slow, terms, OneServer()).join()

        terms = Terms(NAME, EXACT, lease_ttl=60.0, max_deliveries=5, dead_max=9, max_entry_bytes=9)
        with pytest.raises(RunOver):
            asyncio.run(join_slowly())

    def test_a_killed_worker_ended_long_ago(
        self, client: redis.Redis, config: FrontierConfig
    ) -> None:
        """A run ends with the last sign of life, not when somebody comes to look."""
        worker = join(client, config, ttl=60)
        send(worker, "a", "b", "c")
        crawl(worker)
        for shard in range(config.shards):  # the last sign was 100 s ago
            client.zadd(key("workers", shard), {worker.id: now(client) - 40_000_000})
        shift(client, "began", -200)
        with pytest.raises(RunOver, match=r"10[0-3] s ago"):
            join(client, config, age=110)
        assert join(client, config, age=90).joined.new


class TestNamed:
    def test_a_complete_run(self, client: redis.Redis, config: FrontierConfig) -> None:
        """It never begins again, whatever the configuration is by now."""
        complete(client, config, "a", "b", "c", terms=RunTerms("monday"))
        changed = replace(config, order="lifo", dupefilter="bloom", backend="bitmap")
        for given in (config, changed):
            for terms in (RunTerms("monday"), RunTerms("monday", resume=False, keep_seen=True)):
                with pytest.raises(RunOver, match=r"'monday'.*give REDISQ_RUN another name"):
                    join(client, given, terms=terms)
        assert state(client) == "complete"
        assert named(client, changed, "tuesday").joined.new

    def test_an_unfinished_run(self, client: redis.Redis, frontier: Frontier) -> None:
        """Its name is that of the first worker that has one; another name is refused."""
        first = join(client, EXACT)
        send(first, "a", "b", "c")
        assert frontier.status()["run_name"] is None
        second = named(client, EXACT, "monday")
        assert second.joined.run == first.joined.run
        assert frontier.status()["run_name"] == "monday"
        with pytest.raises(RunMismatch, match=r"'monday'.*'tuesday'.*REDISQ_RESUME=False"):
            named(client, EXACT, "tuesday")
        with pytest.raises(RunMismatch):
            named(client, EXACT, "tuesday", resume=False)
        expire(client, first, second)
        with pytest.raises(RunMismatch):
            named(client, EXACT, "tuesday")
        shift(client, "began", -5)
        anew = named(client, EXACT, "tuesday", resume=False)
        assert anew.joined.new
        assert anew.joined.name == frontier.status()["run_name"] == "tuesday"
        assert crawl(anew) == []

    def test_a_name_that_is_forgotten(self, client: redis.Redis) -> None:
        """A server has lost it with its last words: who returns says again what it said."""
        worker = join(client, THREE, terms=RunTerms("monday", keep_alive=True))
        client.hdel(key("meta"), "name", "keep_alive")
        worker.rejoin()
        assert client.hmget(key("meta"), "name", "keep_alive") == [b"monday", b"1"]

    def test_what_newer_workers_have_said(self, client: redis.Redis) -> None:
        """Who returns says nothing against them, and brings nothing back that they took away."""
        terms = RunTerms("monday", growth=GrowthLimit(0, 5))
        old = join(client, EXACT, terms=terms, limits={"*": "0 0 1 0"})
        client.hdel(key("meta"), "name")
        terms = RunTerms("tuesday", growth=GrowthLimit(900, 0), feeds='["f"]', keep_seen=True)
        limits = {"*": "2000000 0 1 0"}
        new = join(client, EXACT, terms=terms, limits=limits, throttle="1 0 0 1", seen_ttl=60.0)
        fields = ("name", "max_pending", "feeds", "keep_seen", "max_memory", "throttle", "seen_ttl")
        said = client.hmget(key("meta"), *fields)
        old.rejoin()
        assert said == [b"tuesday", b"900", b'["f"]', b"1", None, b"1 0 0 1", b"60000000"]
        assert client.hmget(key("meta"), *fields) == said
        assert client.hgetall(key("limits")) == {b"*": b"2000000 0 1 0"}
        client.hset(key("limits"), "*", "0 0 1 0")  # as if what came last were lost
        client.hset(key("meta"), "limits_since", old.since)
        new.rejoin()
        assert client.hgetall(key("limits")) == {b"*": b"2000000 0 1 0"}


# --- what a run has of the one before ----------------------------------------------------------


class TestKeepSeen:
    def test_dead_letters_live_on(self, client: redis.Redis, frontier: Frontier) -> None:
        """They are no page that was fetched: the next runs keep them, and can requeue them."""
        complete(client, EXACT, "a", "b", "c", dead="a b", terms=KEEP_SEEN)
        for new in ("x", "y"):
            worker = join(client, EXACT, terms=KEEP_SEEN)
            assert worker.joined.new
            assert send(worker, "a", "b", "c", new) == 1
            crawl(worker)
            status = frontier.status()
            assert (status["dead"], status["done"], status["queued"]) == (2, 1, 0)
            assert len(list(frontier.dead())) == 2
            assert worker.leave()
        assert frontier.requeue() == 2
        again = join(client, EXACT, terms=KEEP_SEEN)
        assert crawl(again) == ["a", "b"]
        status = frontier.status()
        assert (status["dead"], status["created"]) == (0, status["finished"])

    def test_a_lost_run_that_others_have(self, client: redis.Redis) -> None:
        """Shard 0 has lost it, and its heir was begun while the others were away: what waits on
        these goes on, as it is not asked for again."""
        old = join(client, THREE, terms=KEEP_SEEN)
        send(old, *"abcdef")
        expire(client, old)
        aside = [k for n in (1, 2) for k in client.keys(key("*", n))]
        for name in aside:
            client.rename(name, b"aside:" + name)
        client.delete(*client.keys(key("*", 0)))
        first = join(client, THREE, terms=KEEP_SEEN)
        client.delete(*client.keys(key("*", 1)), *client.keys(key("*", 2)))
        for name in aside:
            client.rename(b"aside:" + name, name)
        heir = join(client, THREE, terms=KEEP_SEEN)
        assert heir.joined.run == first.joined.run
        assert send(heir, *"abcdef") == 2
        assert crawl(heir) == [*"abcdef"]

    def test_a_shard_whose_meta_is_deleted(self, client: redis.Redis) -> None:
        """It is no shard that may begin again, though it had not begun the run for good."""
        send(join(client, THREE), *"abcdef")
        client.delete(key("meta", 1))
        with pytest.raises(ShardLost):
            join(client, THREE)

    def test_a_reset_that_ends_halfway(self, client: redis.Redis) -> None:
        """Nothing of the run comes back, though most shards do not know of the reset."""
        send(join(client, THREE, terms=KEEP_SEEN), *"abcdef")
        reset = Under(client, runs.reset(NAME, range(3), force=True))
        while state(client) != "resetting" or client.hexists(key("meta"), "generation"):
            assert reset.go(1)
        assert client.hget(key("meta", 1), "state") == b"open"
        heir = join(client, THREE, terms=KEEP_SEEN)
        assert send(heir, *"abz") == 3
        assert crawl(heir) == [*"abz"]

    def test_a_reset_by_a_clock_that_is_behind(self, client: redis.Redis) -> None:
        """It leaves no shard: a run that goes on after a loss may have begun later than now."""
        send(join(client, THREE), *"abcdef")
        for shard in range(3):
            client.hincrby(key("meta", shard), "began", 5_000_000)
        Under(client, runs.reset(NAME, range(3), force=True)).go()
        assert [client.keys(key("*", shard)) for shard in range(3)] == [[], [], []]

    @pytest.mark.parametrize("shards", [1, 3])
    def test_a_forgetting_that_ends_halfway(self, client: redis.Redis, shards: int) -> None:
        """What it has not fetched is not known to who begins in its place."""
        config = replace(EXACT, shards=shards)
        worker = join(client, config, terms=KEEP_SEEN)
        send(worker, *"abcdef")
        expire(client, worker)
        shift(client, "began", -5)
        registration = Registration("anew", 60.0, {"host": "h", "pid": 1, "spider": "books"})
        terms = Terms(NAME, config, 60.0, 5, 100, 10_000, ANEW)
        since, _ = worker.do(runs.first_look(terms))
        forgetting = Under(client, runs.join(terms, registration, since, run="run"))
        while state(client) != "resetting":
            assert forgetting.go(1)
        heir = join(client, config, terms=KEEP_SEEN)
        assert send(heir, *"abcdef") == 6
        assert crawl(heir) == [*"abcdef"]

    def test_what_resume_false_forgets(self, client: redis.Redis, frontier: Frontier) -> None:
        """A filter cannot forget: what was not fetched goes over into the new run."""
        first = join(client, EXACT, terms=KEEP_SEEN)
        send(first, "a", "b", "c", "d", "e", "f")
        ended = claim(first)[:3]
        for lease in ended:
            first.finish(lease, "dead" if lease.entry == b"a" else "done", reason="test")
        first.exchange_all()
        done = {lease.entry.decode() for lease in ended}
        first.enqueue("later", slot=HOSTS[0], delay=1)
        first.exchange()
        expire(client, first)  # with leases
        shift(client, "began", -5)
        anew = join(client, EXACT, terms=RunTerms(resume=False, keep_seen=True))
        assert anew.joined.new
        check(client)
        assert send(anew, "a", "b", "c", "d", "e", "f") == 0
        reap(client, anew)
        urls = set(crawl(anew))
        while "later" not in urls:
            urls |= set(crawl(anew))
        assert urls == {"a", "b", "c", "d", "e", "f", "later"} - done
        status = frontier.status()
        assert (status["done"], status["dead"]) == (len(urls), len(list(frontier.dead())))
        assert anew.leave()
        with pytest.raises(FrontierLost):
            first.exchange()


class TestKeepAlive:
    def test_restarted_while_idle(self, client: redis.Redis, frontier: Frontier) -> None:
        """Dead letters and the dupefilter stay, whether a worker left or was killed."""
        workers = [join(client, EXACT, terms=KEEP_ALIVE) for _ in range(2)]
        for worker in workers:
            send(worker, "a", "b", "c")
        crawl(workers[0], dead="a")
        workers[1].exchange_all()
        expire(client, workers[0])
        assert not workers[1].leave()
        assert frontier.status()["state"] == "stopped"
        assert push(frontier) == 3
        again = join(client, EXACT, terms=KEEP_ALIVE)
        assert not again.joined.new
        assert send(again, "a", "b", "c") == 0
        assert len(list(frontier.dead())) == 1
        assert len(crawl(again)) == 3


# --- how a run ends ----------------------------------------------------------------------------


class TestEnd:
    def test_killed_while_it_leaves(self, client: redis.Redis, config: FrontierConfig) -> None:
        """After any number of calls; who comes back then has not lost what he adds."""
        for calls_made in itertools.count():
            client.flushall()
            worker, slow = join(client, config), join(client, config)
            send(worker, "a", "b", "c")
            slow.exchange_all()
            crawl(worker)
            expire(client, slow)
            for session in reversed(worker.sessions):
                worker._give_back(session)
            made = Under(client, runs.conclude(NAME, worker.joined.run)).go(calls_made)
            check(client, config.shards)
            assert send(slow, "x", "y", "z") + send(slow) == 3
            slow.leave()
            heir = join(client, config)
            assert not heir.joined.new
            assert crawl(heir) == ["x", "y", "z"]
            assert heir.leave()
            assert join(client, config).joined.new
            if made < calls_made:
                break
        assert calls_made == (2 if config.shards == 1 else 5)

    @pytest.mark.parametrize("how", ["push", "push by one who joined before", "requeue"])
    def test_a_push_meanwhile(self, client: redis.Redis, frontier: Frontier, how: str) -> None:
        """Nothing that was accepted is in a complete run, wherever the push gets in between."""
        for calls_made in range(5):
            client.flushall()
            worker = join(client, EXACT)
            send(worker, "a", "b", "c")
            crawl(worker, dead="a b c")
            for session in reversed(worker.sessions):
                worker._give_back(session)
            joined = frontier._begin() if "before" in how else None
            conclusion = Under(client, runs.conclude(NAME, worker.joined.run))
            conclusion.go(calls_made)
            assert (frontier.requeue() if how == "requeue" else push(frontier, joined)) == 3
            conclusion.go()
            assert state(client) == "open"
            check(client)
            heir = join(client, EXACT)
            assert not heir.joined.new
            assert len(crawl(heir)) == 3
            assert heir.leave()

    def test_a_sealed_shard_takes_nothing(self, client: redis.Redis) -> None:
        """What a worker that has just joined wants to add to a shard that was looked at for the
        last time is not taken before the shard has been opened."""
        former = join(client, THREE)
        former.exchange_all()
        expire(client, former)
        first = execute(client, calls.complete(NAME, 0))
        seal = calls.complete(NAME, 1, run=first.run, seal=first.number)
        assert (first.what, execute(client, seal).what) == ("sealed", "sealed")
        worker = join(client, THREE, terms=KEEP_ALIVE)
        worker.enqueue("late", slot=HOSTS[1])
        session = worker.sessions[1]
        reply = execute(client, session.call(0, NOTHING))
        assert (reply.status, reply.accepted) == ("sealed", [])
        session.received(reply)
        worker.exchange(shard=1)
        assert [lease.entry for lease in worker.claim(1, shard=1)] == [b"late"]


# --- how a run begins --------------------------------------------------------------------------


class TestBegin:
    @pytest.mark.parametrize("terms", [RunTerms(), KEEP_SEEN])
    def test_sets_of_the_run_before(
        self, client: redis.Redis, config: FrontierConfig, terms: RunTerms
    ) -> None:
        """What start requests were known by is deleted, also where what was seen is kept."""
        first = join(client, config, terms=terms)
        for host in HOSTS:
            first.enqueue(host, slot=host, filtered=False, identity=b"16 bytes exactly", asked=1)
        first.exchange_all()
        crawl(first)
        assert first.leave()
        sets = [key(f"seen:{first.joined.run}.starts*", n) for n in range(config.shards)]
        assert all(map(client.keys, sets))
        second = join(client, config, terms=terms)
        second.do(runs.sweep(NAME, second.joined))
        assert not any(map(client.keys, sets))

    def test_shards_that_it_does_not_have(self, client: redis.Redis, frontier: Frontier) -> None:
        """Keys of the other shards are deleted in the background, by whoever is there."""
        complete(client, THREE, *"abcdef", dead="b c")
        first, second = join(client, EXACT), join(client, EXACT)
        assert first.joined.former_shards == second.joined.former_shards == 3
        sweep = Under(client, runs.sweep(NAME, first.joined))
        sweep.go(4)
        second.do(runs.sweep(NAME, second.joined))
        sweep.go()
        assert client.keys(key("*", 1)) + client.keys(key("*", 2)) == []
        assert join(client, EXACT).joined.former_shards == 0
        assert send(first, "a") == 1

    @pytest.mark.parametrize("seed", range(3))
    def test_anew_by_three_at_once(
        self, client: redis.Redis, config: FrontierConfig, seed: int
    ) -> None:
        """REDISQ_RESUME=False: the unfinished run is forgotten once, and all are in the new one."""
        old = join(client, config)
        send(old, *"abcdefghi")
        claim(old)
        expire(client, old)
        shift(client, "began", -60)
        began = now(client)
        joins, terms = [], Terms(NAME, config, 3_600.0, 5, 100, 10_000, ANEW)
        for n in range(3):
            worker = Registration(f"w{n}", 3_600.0, {"host": "here", "pid": 1})
            joins.append(runs.join(terms, worker, began - n * 1_000_000))
        joined = in_turn(client, joins, random.Random(seed))
        assert len({run.run for run in joined}) == 1
        assert sum(run.new for run in joined) == 1
        assert joined[0].run != old.joined.run
        for shard in range(config.shards):
            real = read_shard(client, NAME, shard)
            real.check()
            assert set(real.workers) == {"w0", "w1", "w2"}
            assert real.queues == {}
            assert real.meta["run"] == joined[0].run


# --- reset -------------------------------------------------------------------------------------


class TestReset:
    def test_interrupted_after_any_call(self, client: redis.Redis, config: FrontierConfig) -> None:
        """Nothing that the next run has is of the old one, and its filter is not swept away. Of
        several shards every fifth place is tried."""
        for calls_made in itertools.count(step=1 if config.shards == 1 else 5):
            client.flushall()
            worker = join(client, config)
            send(worker, *"abcdef")
            for lease in claim(worker)[:4]:
                worker.finish(lease)
            worker.exchange_all()
            reset = Under(client, runs.reset(NAME, range(config.shards), force=True))
            made = reset.go(calls_made)
            if calls_made:
                with pytest.raises(FrontierLost):
                    worker.exchange_all()
            heir = join(client, config)
            assert heir.joined.new == (calls_made > 0)
            if calls_made:
                assert send(heir, *"abcdef") == 6
                reset.go()  # it was only slow
                heir.do(runs.sweep(NAME, heir.joined))
                check(client, config.shards)
                assert send(heir, *"abcdef") == 0
                assert crawl(heir) == [*"abcdef"]
                for shard in range(config.shards):
                    assert read_shard(client, NAME, shard).generations <= {heir.joined.run}
            if made < calls_made:
                break
        assert calls_made > 4


# --- helpers -----------------------------------------------------------------------------------


class Under:
    """A procedure under way: it goes on when it is told to, call by call."""

    def __init__(self, client: redis.Redis, steps: runs.Steps[Any]) -> None:
        self.client = client
        self.steps = steps
        self.over = False
        self.result: Any = None
        self._next = self._advance(lambda: next(steps))

    def _advance(self, go_on: Callable[[], calls.Call[Any]]) -> calls.Call[Any] | None:
        try:
            return go_on()
        except StopIteration as end:
            self.over, self.result = True, end.value
            return None

    def go(self, number: int = 1_000) -> int:
        """Make so many calls, or all that are left; -> how many there were."""
        for made in range(number):
            if self._next is None:
                return made
            try:
                reply = execute(self.client, self._next)
            except FrontierError as error:
                self._next = self._advance(lambda error=error: self.steps.throw(error))  # type: ignore[misc]
            else:
                self._next = self._advance(lambda reply=reply: self.steps.send(reply))  # type: ignore[misc]
        return number


def in_turn(client: redis.Redis, all_steps: list[runs.Steps[Any]], choose: random.Random) -> Any:
    """Run several procedures, one call of any of them at a time; -> what each returned."""
    procedures = [Under(client, steps) for steps in all_steps]
    while under_way := [procedure for procedure in procedures if not procedure.over]:
        choose.choice(under_way).go(1)
    return [procedure.result for procedure in procedures]


def push(frontier: Frontier, joined: calls.Joined | None = None) -> int:
    """Push a request to each host; ``joined``: what the producer was told of the run before."""
    begin = frontier._begin
    if joined is not None:
        told = iter([joined])
        frontier._begin = lambda: next(told, None) or begin()  # type: ignore[method-assign]
    seeds = [
        {"url": f"http://h/{next(_numbers)}", "meta": {"download_slot": host}} for host in HOSTS
    ]
    try:
        return frontier.push(seeds).accepted
    finally:
        frontier._begin = begin  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["come back", "stay away"])
@pytest.mark.parametrize("idle", [True, False])
def test_workers_that_were_cut_off(
    client: redis.Redis, frontier: Frontier, how: str, idle: bool
) -> None:
    """After an outage longer than the TTL a worker with REDISQ_RESUME=False may come first: those
    who were in the run have a while to come back before it is forgotten. So have those who have
    nothing left to do, and are kept open all the same (DontCloseSpider), before it is completed: a
    producer waits for them, too."""
    terms = calls.ANY_RUN if idle else ANEW
    worker = join(client, EXACT, ttl=1.0)
    send(worker, "a", "b")
    if idle:
        crawl(worker)
    expire(client, worker)
    shift(client, "sign", -60)
    for _ in range(2):
        with pytest.raises(calls.MayComeBack):
            join(client, EXACT, terms=terms, ttl=1.0)
    if how == "come back":
        send(worker, "c")
    elif idle:
        assert frontier.push(["http://a/d"]).accepted == 1
    else:
        shift(client, "patient", -0.6)
    second = join(client, EXACT, terms=terms, ttl=1.0)
    assert (second.joined.run == worker.joined.run) == (how == "come back")
