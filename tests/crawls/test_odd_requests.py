"""Requests that cannot be stored: fetched by one worker, and lost with none."""

from __future__ import annotations

import itertools
from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pytest
import redis
import scrapy
from scrapy.http import Request

from lab.servers import RedisServer, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.calls import RECENT, STARTS
from scrapy_redisq.frontier.operations import Claim, Reply, Settle
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.slot_names import shard_of
from scrapy_redisq.worker.shared_values import SharedValues
from tests.harness.crawl import Run
from tests.harness.worker import EXACT, NAME, Worker, fingerprint_of

PAGES = {f"/{kind}/{n}" for kind in ("page", "part", "leaf") for n in range(10)}


def test_objects_that_requests_share() -> None:
    """The second request of a page that holds the same list, set, dict, item or object is noticed;
    what cannot be changed is not, nor what Scrapy itself hands on."""

    class Counter:
        pass

    class Product(scrapy.Item):
        pass

    @dataclass(frozen=True)
    class Frozen:
        number: int

    for value in ([], {}, set(), bytearray(), Counter(), Product()):
        for first, second in itertools.product(("meta", "cb_kwargs"), repeat=2):
            shared = SharedValues()
            assert shared.find(Request("data:,", **{first: {"a": value}})) is None
            assert shared.find(Request("data:,", **{first: {"a": copy(value)}})) is None
            assert shared.find(Request("data:,", **{second: {"b": value}})) == f"{second}['b']"
    shared = SharedValues()
    for _ in range(2):
        for value in (1, "a", (), None, Frozen(1), len, Counter, Decimal(1)):
            assert shared.find(Request("data:,", meta={"a": value})) is None
        assert shared.find(Request("data:,", meta={"redirect_urls": SHARED})) is None


SHARED: list[str] = []


def left_of_claims(server: RedisServer, name: str) -> int:
    with server.client() as client:
        return int(client.hlen(f"redisq:{{{name}:0}}:kept"))  # type: ignore[arg-type]


class TestProtocol:
    """Claims of requests in the frontier."""

    def claim(
        self,
        worker: Worker,
        url: str,
        *,
        page: str = "",
        lease: str = "1.1",
        start: bool = False,
        slot: str = "host",
    ) -> Claim:
        """Hand in a claim, for the lease of ``page`` or, with "", for the request itself."""
        print_of = fingerprint_of(url)
        claim = Claim(
            slot,
            None if start else worker.seen.encode(print_of),
            print_of[:16] if start else None,
            STARTS if start else 0,
            worker.seen.encode(print_of) if start else None,
            lease if page else "",
            page.encode(),
            tag=url,
        )
        worker.sessions[shard_of(slot, len(worker.sessions))].add(claim)
        return claim

    def ask(self, worker: Worker, url: str, *, shard: int = 0, **options: object) -> str:
        """What becomes of a claim: mine, wait, or duplicate."""
        self.claim(worker, url, **options)  # type: ignore[arg-type]
        reply = worker.exchange(shard=shard)
        assert reply is not None
        return _became(reply)

    def settle(self, worker: Worker, claim: Claim, *, done: bool) -> None:
        worker.sessions[shard_of(claim.slot, len(worker.sessions))].add(Settle(claim, done))
        worker.exchange()

    def is_kept(self, client: redis.Redis) -> bool:
        return client.exists("redisq:{books:0}:kept") == 1

    @pytest.mark.parametrize("start", [False, True])
    def test_one_worker_has_it(self, client: redis.Redis, start: bool) -> None:
        """While it lives and when it is done; whoever has it alone is waited for."""
        first, second = (Worker(client, NAME, EXACT) for _ in range(2))
        page = "" if start else "page"
        mine = self.claim(first, "u", page=page, start=start)
        reply = first.exchange()
        assert reply is not None
        assert reply.claimed == [mine]
        assert self.ask(first, "u", page=page, start=start) == "duplicate"
        # What a page stands for is asked for again when the first one's start request is.
        assert self.ask(second, "u", page="other", start=start) == "duplicate"
        assert self.ask(second, "u", start=start) == ("wait" if start else "duplicate")
        assert second.send(["u"]).duplicates
        self.settle(first, mine, done=True)
        assert self.ask(second, "u", start=start) == "duplicate"
        assert self.ask(second, "u", page=page, start=start) == "duplicate"
        assert not self.is_kept(client)

    def test_it_is_free_when_its_worker_is_gone(self, client: redis.Redis) -> None:
        """Dead, or gone by itself; what its worker says of it later changes nothing."""
        dead = Worker(client, NAME, EXACT, ttl=0.1)
        claims = [self.claim(dead, url) for url in ("u", "v")]
        dead.exchange()
        second = Worker(client, NAME, EXACT)

        def reaped() -> bool:
            second.exchange()
            client.delete("redisq:{books:0}:reaped")
            execute(client, calls.reap(NAME, 0, second.joined.run, 5, 10))
            return client.zcard("redisq:{books:0}:workers") == 1

        wait_until(reaped, 10, "the first one is dead")
        assert self.ask(second, "u") == "mine"
        dead.rejoin()
        for claim, done in zip(claims, (True, False), strict=True):
            self.settle(dead, claim, done=done)
        assert self.ask(dead, "u", page="other") == "duplicate"
        assert self.ask(dead, "v") == "mine"
        dead.leave()
        assert self.ask(second, "v") == "mine"

    def test_it_is_free_when_its_worker_is_not_in_the_run(self, client: redis.Redis) -> None:
        """`workers` says who is: one that it has lost dies, and nobody waits for that one."""
        dead, second = (Worker(client, NAME, EXACT) for _ in range(2))
        self.claim(dead, "u")
        dead.exchange()
        assert self.ask(second, "u") == "wait"
        client.zrem("redisq:{books:0}:workers", dead.id)
        assert self.ask(second, "u") == "mine"

    def test_what_was_dealt_with_by_one_thought_dead(self, client: redis.Redis) -> None:
        """It is done, unless another one has it by now."""
        first, second = (Worker(client, NAME, EXACT) for _ in range(2))
        claims = [self.claim(first, url) for url in ("u", "v")]
        first.exchange()
        first.rejoin()
        assert self.ask(second, "v") == "mine"
        for claim in claims:
            self.settle(first, claim, done=True)
        assert self.ask(second, "u") == "duplicate"
        assert self.ask(first, "v") == "wait"

    def test_it_is_free_when_it_was_given_up(self, client: redis.Redis) -> None:
        """Before its page is, so that who has the page has it, too."""
        first, second = (Worker(client, NAME, EXACT) for _ in range(2))
        mine = self.claim(first, "u", page="page")
        first.exchange()
        self.settle(first, mine, done=False)
        assert self.ask(second, "u", page="page") == "mine"
        assert self.ask(first, "u", page="other") == "duplicate"

    def test_it_goes_with_its_page(self, client: redis.Redis) -> None:
        """Whoever fetches the page again has what it asks for, though the worker that had both
        lives, or comes back; once within one fetch. What stays in a process is such a page, too."""
        first, second = (Worker(client, NAME, EXACT) for _ in range(2))
        for lease in ("1.1", ""):
            url = f"u{lease}"
            mine = self.claim(first, url, page="page", lease=lease)
            assert _became(first.send()) == "mine"
            assert self.ask(first, url, page="page", lease=lease) == "duplicate"
            assert self.ask(second, url, page="page", lease=lease and "1.2") == "mine"
            assert self.ask(second, url, page="page", lease=lease and "1.2") == "duplicate"
            self.settle(first, mine, done=False)
            assert self.ask(first, url, page="other") == "duplicate"
        assert self.ask(second, "u1.1", page="page", lease="1.3") == "mine"

    def test_it_goes_with_its_page_to_another_shard(self, client: redis.Redis) -> None:
        """Where its worker is not known to be dead yet."""
        config = replace(EXACT, shards=2)
        first, second = (Worker(client, NAME, config) for _ in range(2))
        there = next(slot for slot in map(str, range(20)) if shard_of(slot, 2) == 1)
        options = {"slot": there, "shard": 1, "page": "page"}
        assert self.ask(first, "u", **options) == "mine"
        execute(client, calls.leave(NAME, 0, first.joined.run, first.id))
        assert self.ask(second, "u", **options, lease="1.2") == "mine"

    def test_no_claim_of_a_page_that_is_lost(self, client: redis.Redis) -> None:
        """What a worker had asked for when it was taken for dead is others' by now: it comes back
        without."""
        first, second = (Worker(client, NAME, EXACT) for _ in range(2))
        session = first.sessions[0]
        self.claim(first, "u", page="page")
        client.zadd("redisq:{books:0}:workers", {first.id: 0})
        first.exchange()
        assert (len(session), session.enqueued) == (0, session.acknowledged)
        first.exchange()
        assert self.ask(second, "u", page="page", lease="1.2") == "mine"
        assert self.ask(first, "u", page="other") == "duplicate"

    def test_a_key_in_the_way(self, client: redis.Redis) -> None:
        """Nothing that goes with a claim is stored before all sets were asked, or it would be
        stored each time that it is sent."""
        worker = Worker(client, NAME, EXACT)
        client.set("redisq:{books:0}:seen:recent:0", "x")
        worker.enqueue("page")
        worker.sessions[0].add(Claim("host", None, b"i" * 16, RECENT, tag="u"))
        for _ in range(3):
            with pytest.raises(FrontierCorrupt, match="recent:0"):
                worker.exchange()
        client.delete("redisq:{books:0}:seen:recent:0")
        assert _became(worker.send()) == "mine"
        assert client.llen("redisq:{books:0}:queue:host:0") == 1

    def test_a_full_redis(self, client: redis.Redis) -> None:
        """What is given up is sent, before the end of its page; so is what was dealt with, unless
        something that came of it waits. Claims wait, as requests do."""
        worker = Worker(client, NAME, EXACT)
        worker.send(["page", "with links"])
        lease, with_links = worker.claim(2)
        session = worker.sessions[0]
        mine, done = (self.claim(worker, url, page="page", lease=lease.id) for url in ("u", "done"))
        mother = self.claim(worker, "mother", page="with links", lease=with_links.id)
        start = self.claim(worker, "start", start=True)
        worker.exchange()
        session.full = True
        for url, page in (("link", with_links), ("link of start", None)):
            worker.enqueue(url, page=page)
        self.claim(worker, "v", page="page", lease=lease.id)
        session.add(Settle(mine, done=False))
        for claim in (done, mother, start):
            session.add(Settle(claim, done=True))
        worker.finish(lease, "released")
        worker.exchange()
        left = [getattr(item, "claim", item) for item in session.unsent]
        assert [getattr(item, "tag", None) for item in left] == [
            "link",
            "link of start",
            "v",
            "mother",
            "start",
        ]
        (again,) = worker.claim(1)
        second = Worker(client, NAME, EXACT)
        assert self.ask(second, "u", page="page", lease=again.id) == "mine"

    def test_a_lost_answer(self, client: redis.Redis) -> None:
        """The answer comes again, not another one."""
        first = Worker(client, NAME, EXACT)
        self.claim(first, "u")
        assert first.exchange(lose="reply") is None
        reply = first.exchange()
        assert reply is not None
        assert (reply.status, _became(reply)) == ("replayed", "mine")

    def test_a_new_run(self, client: redis.Redis) -> None:
        """It knows nothing of claims of the one before."""
        first = Worker(client, NAME, EXACT)
        self.claim(first, "u")
        first.exchange(starting=False)
        first.complete = True
        assert first.leave()
        second = Worker(client, NAME, EXACT)
        assert not self.is_kept(client)
        assert self.ask(second, "u") == "mine"

    def test_a_new_run_that_keeps_what_was_seen(self, client: redis.Redis) -> None:
        """What nobody dealt with is not seen; what was dealt with leaves nothing behind."""
        terms = calls.RunTerms(keep_seen=True)
        first = Worker(client, NAME, EXACT, terms=terms)
        claims = [self.claim(first, url, page="page") for url in ("done", "failed", "left")]
        first.exchange()
        for claim, done in zip(claims[:2], (True, False), strict=True):
            self.settle(first, claim, done=done)
        first.exchange(starting=False)
        first.complete = True
        assert first.leave()
        second = Worker(client, NAME, EXACT, terms=terms)
        assert second.joined.run != first.joined.run
        answers = [self.ask(second, url, page="page") for url in ("done", "failed", "left")]
        assert answers == ["duplicate", "mine", "mine"]
        for claim in claims[1:]:
            self.settle(second, claim, done=True)
        assert not self.is_kept(client)


def _became(reply: Reply) -> str:
    if reply.claimed:
        return "mine"
    return "wait" if reply.waits else "duplicate" if reply.duplicates else "nothing"


class TestCrawls:
    @pytest.mark.parametrize("spider", ["odd", "odd_start"])
    def test_two_workers(self, crawl: Run, redis_server: RedisServer, spider: str) -> None:
        """Each page is fetched once, by one of them; counted as Scrapy does."""
        with Site(lambda path: Answer("x", delay=0.05)) as site:
            workers = crawl.fleet(2, spider, site, {"REDISQ_RETRY_DELAYS": "0"})
            for worker in workers:
                assert worker.wait().reason == "finished", worker.log
            counts = {path: n for path, n in site.counts().items() if "list" not in path}
            assert counts == dict.fromkeys(PAGES, 1), workers[0].log
        assert sum(len(worker.items()) for worker in workers) == 30
        stats = [worker.stats for worker in workers]
        for name in ("enqueued", "dequeued"):
            assert sum(each.get(f"scheduler/{name}/memory", 0) for each in stats) == 20
        assert left_of_claims(redis_server, spider) == 0
        with Frontier.from_url(redis_server.url, spider) as frontier:
            assert frontier.status()["dead"] == 0
        assert "make it" not in workers[0].log  # a lock is nothing to be stored
        assert any("give plain values in its place" in worker.log for worker in workers)

    def test_slots_that_are_no_names(self, redis_server: RedisServer, crawl: Run) -> None:
        """The downloader refuses them: each is a dead letter of its own, and no worker stops."""
        slots = [["a"], {"a": 1}, [[]]]
        with (
            Site(linked_pages(3)) as site,
            Frontier.from_url(redis_server.url, "follow") as frontier,
        ):
            frontier.push(
                {"url": f"{site.url}/1?{number}", "meta": {"download_slot": slot}}
                for number, slot in enumerate(slots)
            )
            assert crawl("follow", site).wait().reason == "finished"
            assert [letter.reason for letter in frontier.dead()] == ["download"] * len(slots)
            assert frontier.status()["state"] == "complete"

    @pytest.mark.parametrize(
        ("spider", "ends"), [("odd", "killed"), ("odd", "terminated"), ("odd_start", "killed")]
    )
    def test_a_worker_ends(
        self, crawl: Run, redis_server: RedisServer, spider: str, ends: str
    ) -> None:
        """What stayed in it comes to the other one."""

        def page(path: str) -> Answer:
            return Answer("x", delay=0.3)

        with Site(page) as site:
            settings = {
                "REDISQ_LEASE_TTL": 1,
                "CONCURRENT_REQUESTS": 2,
                "REDISQ_RETRY_DELAYS": "0",
            }
            workers = crawl.fleet(2, spider, site, settings)
            wait_until(lambda: sum("part" in path for path in site.counts()) >= 2, 30, "some parts")
            held = [worker for worker in workers if worker.running]
            victim = max(held, key=lambda worker: worker.log.count("unserializable"))
            if ends == "killed":
                victim.kill()
            else:
                victim.terminate()
                victim.wait()
            (other,) = (worker for worker in workers if worker is not victim)
            assert other.wait().reason == "finished"
            if site.counts().keys() < PAGES:  # it had finished when the other one was ended
                assert crawl(spider, site, settings).wait().reason == "finished"
            assert site.counts().keys() >= PAGES, other.log
        with Frontier.from_url(redis_server.url, spider) as frontier:
            assert frontier.status()["dead"] == 0

    def test_priority(self, crawl: Run) -> None:
        """Among what can be stored and what cannot."""
        with Site(lambda path: Answer("x", delay=0.02)) as site:
            settings = {"CONCURRENT_REQUESTS": 1, "REDISQ_MAX_LEASES": 20}
            assert crawl("odd_priority", site, settings).wait().reason == "finished"
            order = [int(hit.path[6:]) for hit in site.hits if hit.path.startswith("/page/")]
        late = sum(a < b for a, b in itertools.pairwise(order))
        assert late <= 3, order
        assert sorted(order) == list(range(20))

    def test_the_same_object_again(self, crawl: Run, redis_server: RedisServer) -> None:
        """A middleware or a callback hands in the very object that is being dealt with: each time
        it is another request."""
        with Site(lambda path: "x") as site:
            worker = crawl("odd_again", site).wait(30)
        assert worker.reason == "finished"
        items = Counter(item["url"].rpartition("/")[2] for item in worker.items())
        assert items == {"0": 1, "1": 1, "2": 2, "3": 2}
        with Frontier.from_url(redis_server.url, "odd_again") as frontier:
            status = frontier.status()
        assert (status["state"], status["dead"]) == ("complete", 0)

    def test_failures_are_dead_letters(self, crawl: Run, redis_server: RedisServer) -> None:
        """Of the page that stands for them; requeued it asks for them again."""
        broken = {"/page/3", "/part/4"}
        with Site(lambda path: Answer("", 500) if path in broken else Answer("x")) as site:
            settings = {"RETRY_TIMES": 0}
            assert crawl("odd", site, settings).wait().reason == "finished"
            with Frontier.from_url(redis_server.url, "odd") as frontier:
                letters = list(frontier.dead())
                assert {letter.reason for letter in letters} == {"retries"}
                assert any("which stayed in its process" in letter.detail for letter in letters)
                broken.clear()
                frontier.requeue()
            assert crawl("odd", site, settings).wait().reason == "finished"
            assert site.counts().keys() >= PAGES
        with Frontier.from_url(redis_server.url, "odd") as frontier:
            assert frontier.status()["dead"] == 0

    def test_tools(self, crawl: Run, tmp_path: Path) -> None:
        """Scrapy's engine status counts what waits; JOBDIR, and an object that requests of a page
        share, are warned of, each once."""
        with Site(lambda path: "x") as site:
            worker = crawl("tools", site, {"JOBDIR": tmp_path / "job"}).wait()
            assert worker.reason == "finished"
        assert worker.log.count("JOBDIR is of no use here") == 1
        assert worker.log.count("holds an object in meta['rows']") == 1
        statuses = [item["status"] for item in worker.items()]
        assert all(isinstance(number, int) for status in statuses for number in status)
        assert max(status[0] for status in statuses) > 5
        assert max(status[1] for status in statuses) > 0

    def test_idle_handlers_come_again(self, crawl: Run) -> None:
        """At once, also when they have asked for what is known; that alone keeps no crawl open."""
        with Site(lambda path: "x") as site:
            worker = crawl("idle", site).wait(30)
            assert worker.reason == "finished"
            assert len(site.counts()) == 6
        assert worker.stats["elapsed_time_seconds"] < 20
