"""Crawls that are fed: any client of Redis fills a key, and the fleet crawls it."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
import redis

from lab.servers import RedisServer, any_server, full, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.frontier.feed_lines import count_lines, take_lines
from scrapy_redisq.frontier.scripts import execute
from tests.harness.command import Redisq
from tests.harness.crawl import Run, constants, wait_until_joined


def feeds(*keys: str, **options: Any) -> dict[str, str]:
    """The setting of a crawl whose feeds are these."""
    return {"REDISQ_FEEDS": json.dumps(dict.fromkeys(keys, options))}


def page(path: str) -> Answer:
    return Answer(path)


def left_of(server: RedisServer) -> list[bytes]:
    """Keys of feeds and beside them."""
    with server.client() as client:
        return [key for key in client.scan_iter() if not key.startswith(b"redisq:")]


def test_each_type_and_bad_lines(redis_server: RedisServer, crawl: Run) -> None:
    """URLs and JSON in a list, a set, a sorted set and a stream; each is fetched once. A line that
    is no request is a dead letter with the line; a key of another type is warned of, once. The
    crawl ends when all of it was idle for so long."""
    with Site(page) as site, redis_server.client() as client:
        urls = {kind: [f"{site.url}/{kind}{n}" for n in range(20)] for kind in "lszx"}
        client.rpush("l", *urls["l"], urls["l"][0], json.dumps({"url": "ftp://a.example/"}))
        client.rpush("l", b"\xff\xfe", "nonsense", '{"url": ', "[1]", "", "x" * 5_000_000)
        client.rpush("l", json.dumps({"url": f"{site.url}/no", "callback": "parse_none"}))
        client.sadd(
            "s", *(json.dumps({"url": url, "meta": {"row": {"n": 1}}}) for url in urls["s"])
        )
        client.zadd("z", {url: -n for n, url in enumerate(urls["z"])})
        for url in urls["x"]:
            client.xadd("x", {"url": url, "method": "GET"})
        client.xadd("x", {"line": json.dumps({"url": f"{site.url}/x", "callback": "parse_other"})})
        client.set("text", "a")
        given = {**feeds("l", "s", "z", "x", "text", batch=7), "LOG_LEVEL": "INFO"}
        worker = crawl("fed_plain", settings={**given, "MAX_IDLE_TIME_BEFORE_CLOSE": 1})
        wait_until(lambda: len(site.hits) == 81, 20, "all are fetched")
        time.sleep(1.2)
        assert worker.running  # not idle: nobody knows what is in the key of another type
        client.delete("text")
        assert worker.wait(10).reason == "finished"
        sorted_set = [hit.path for hit in site.hits if hit.path.startswith("/z")]
    assert sum(site.counts().values()) == len(site.counts()) == 81
    first, second = sorted_set[:7], sorted_set[7:14]
    assert {*first} == {f"/z{n}" for n in range(7)}
    assert {*second} == {f"/z{n}" for n in range(7, 14)}
    items = worker.items()
    assert sum("n" in item for item in items) == 20
    assert sum("other" in item for item in items) == 1
    (warned,) = [line for line in worker.log.splitlines() if "'text'" in line and "WARN" in line]
    assert "the key is a string; it takes a list, set, zset, stream" in warned
    details = [letter.detail for letter in crawl.letters("fed_plain")]
    assert len(details) == 8
    for line in (r"\xff\xfe", "nonsense", '{"url": ', "[1]", "ftp://a.example/", "parse_none"):
        assert any(f"line of 'l': {line}" in one or line in one for one in details), line
    assert worker.stats["redisq/dead/line"] == 8
    assert left_of(redis_server) == [b"x"]


def test_a_worker_dies_before_it_deletes_a_batch(redis_server: RedisServer, crawl: Run) -> None:
    """Its lines are read again, also unfiltered ones: they are known by batch and place. An idle
    fleet wakes within two seconds, and reads a list from the left."""
    batches = "{moved:start_urls}:redisq:moved:batches"
    with Site(page) as site, redis_server.client() as client:
        client.rpush("moved:start_urls", *(f"{site.url}/{n}" for n in range(10)))
        aside = execute(client, take_lines("moved:start_urls", "moved", most=4, ttl=0))
        assert [line for _, line in aside.lines] == [f"{site.url}/{n}".encode() for n in range(4)]
        ((batch, _),) = client.zscan_iter(batches)
        worker = crawl("moved", settings={"MAX_IDLE_TIME_BEFORE_CLOSE": 60, "max_idle_time": 60})
        wait_until(lambda: len(site.hits) == 10, 20, "the batch, too")
        wait_until(lambda: left_of(redis_server) == [], 5, "all is deleted")
        client.zadd(batches, {batch: 0})  # as if it had died before
        pushed = time.monotonic()
        client.lpush("moved:start_urls", f"{site.url}/last")
        wait_until(lambda: site.counts()["/last"] == 1, 10, "it wakes")
        assert time.monotonic() - pushed < 2
        wait_until(lambda: left_of(redis_server) == [], 5, "all is deleted")
        worker.terminate().wait()
    assert sum(site.counts().values()) == 11


def test_another_server(redis_server: RedisServer, crawl: Run, redisq: Redisq) -> None:
    """A feed may be on another Redis. While that is away the crawl goes on with the first feed, and
    one line says so. Lines that wait in a feed of the frontier's server are counted, and are work
    for a worker."""
    with RedisServer(any_server()) as other, Site(page) as site, redis_server.client() as client:
        other.kill()
        odd = {"url": "redis://no..host:6379"}
        sources = {"far": {"url": other.url}, "odd": odd, "near": {}}
        given = {"REDISQ_FEEDS": json.dumps(sources)}
        worker = crawl("fed_plain", settings=given)
        wait_until_joined([worker])
        client.rpush("near", f"{site.url}/near")
        wait_until(lambda: site.counts()["/near"] == 1, 20, "the near one is fetched")
        other.start()
        with other.client() as far:
            far.rpush("far", f"{site.url}/far")
        wait_until(lambda: site.counts()["/far"] == 1, 20, "the far one is fetched")
        worker.wait_for("The feed 'far' is read again")
        wait_until(lambda: left_of(other) == [], 5, "it is deleted there")
        worker.terminate().wait()
        with crawl.frontier("fed_plain") as frontier:
            assert frontier.status()["feeds"] == {"near": 0}
            assert frontier.wanted_workers().workers == 0
            client.rpush("near", *"abc")
            assert frontier.wanted_workers().workers == 1
            shown = redisq("status", "fed_plain").out
            assert "feeds lines that wait: 3 in near" in shown
            assert "stats " in shown
            assert "bytes received" in shown
    for name in ("far", "odd"):
        assert worker.log.count(f"The feed '{name}' (REDISQ_FEEDS) is not read") == 1


def test_a_host_that_does_not_answer_keeps_no_crawl_open(
    one_client: redis.Redis, crawl: Run
) -> None:
    """With `max_idle_time` a crawl whose feed is empty closes as any other does that has nothing
    left but slots that are set aside; without it the crawl stays."""
    with Site(lambda path: Answer("", 503)) as site:
        given = {
            **feeds("l"),
            "REDISQ_SLOT_GIVE_UP": 1,
            **constants({"scrapy_redisq.frontier.shard_session.LONGEST_PAUSE": 0.2}),
            "REDISQ_SET_ASIDE_WAIT": 0.3,
        }
        one_client.rpush("l", f"{site.url}/1")
        stays = crawl("fed_plain", settings=given)
        wait_until(lambda: len(site.hits) > 0, 20, "it is fetched")
        time.sleep(1.5)
        assert stays.running
        ends = crawl("fed_plain", settings={**given, "MAX_IDLE_TIME_BEFORE_CLOSE": 0.5})
        assert ends.wait(15).reason == "slots_set_aside"
        stays.terminate().wait()


def test_spiders_of_scrapy_redis(redis_server: RedisServer, crawl: Run) -> None:
    """With another import they do what they did: fetch each line, also twice; other fields are form
    data; `redis_key`, a method of their own, rules; and end by `max_idle_time`."""
    with Site(linked_pages(5)) as site, redis_server.client() as client:
        form = {"url": f"{site.url}/0?form", "method": "POST", "meta": {"job": 7}, "shop": "uk"}
        client.rpush("moved:start_urls", *[f"{site.url}/0"] * 2, json.dumps(form), '{"shop": "uk"}')
        client.rpush("rules:start_urls", f"{site.url}/0?rules")
        client.rpush("own:start_urls", json.dumps({"site": f"{site.url}/1?"}), "null", "{}")
        client.rpush("own:urgent", json.dumps({"site": f"{site.url}/2?"}))
        workers = {name: crawl(name) for name in ("moved", "moved_rules", "own")}
        wait_until(lambda: left_of(redis_server) == [], 20, "all is read")
        for name in ("moved", "moved_rules"):
            assert workers[name].wait(20).reason == "finished"
        workers["own"].terminate().wait()
    assert Counter(hit.path for hit in site.hits)["/0"] >= 2
    (posted,) = [hit for hit in site.hits if hit.method == "POST"]
    assert posted.body == b"shop=uk"
    assert sorted(item["job"] or 0 for item in workers["moved"].items()) == [0, 0, 7]
    assert len(workers["moved_rules"].items()) >= 4
    own = [hit.path for hit in site.hits if hit.path.endswith(("/a", "/b"))]
    assert sorted(own[:2]) == ["/2?/a", "/2?/b"]
    assert sorted(own[2:]) == ["/1?/a", "/1?/b"]
    (letter,) = crawl.letters("moved")
    assert letter.reason == "line" and "'url'" in letter.detail
    assert len(crawl.letters("own")) == 1


def test_the_client_and_hooks_of_scrapy_redis(crawl: Run) -> None:
    """A spider has `server` from `setup_redis` to `closed`. A `next_requests` of its own is warned
    of, and not called."""
    with Site(page) as site:
        worker = crawl("served", settings={"SITE": site.url, "LOG_LEVEL": "INFO"}).wait(20)
    assert worker.reason == "finished"
    assert site.counts() == {"/0": 1, "/00": 1}
    assert "left: []" in worker.log
    assert worker.log.count("WARNING: The spider has a next_requests() of its own. No worker") == 1
    assert "Traceback" not in worker.log


@pytest.mark.servers("every")
def test_lines_are_copied_before_they_are_removed(client: redis.Redis) -> None:
    """On each kind of server: a full one refuses, and has lost nothing. Of large lines a few are
    taken at a time."""
    client.rpush("l", *[b"x" * 3_000_000] * 3)
    client.sadd("s", "a", "b")
    client.zadd("z", {"a": 1, "b": 2})
    client.xadd("x", {"url": "a"})
    with full(client):
        for key in "lszx":
            with pytest.raises(Exception, match="maxmemory"):
                execute(client, take_lines(key, "crawl", most=10, ttl=5))
    kinds = {"l": "list", "s": "set", "z": "zset", "x": "stream"}

    def count(key: str) -> int | None:
        return execute(client, count_lines(key, "crawl"))

    assert [*map(count, ["l", "s", "z", "x", "none"])] == [3, 2, 2, 1, 0]
    for key, number in {"l": 2, "s": 2, "z": 2, "x": 1}.items():
        taken = execute(client, take_lines(key, "crawl", most=10, ttl=5))
        assert (taken.type, len(taken.lines), taken.aside > 0) == (kinds[key], number, True)
        assert count(key) == 1 + (key == "l"), "a batch, and the third line"
        again = execute(client, take_lines(key, "crawl", most=10, ttl=5, done=taken.done))
        assert len(again.lines) == (key == "l")
        last = execute(client, take_lines(key, "crawl", most=0, ttl=5, done=again.done))
        assert (last.lines, last.aside) == ([], 0)
    assert client.keys() == [b"x"]
    assert count("x") == 0
    client.xadd("x", {"url": "b"})
    client.set("text", "a")
    assert (count("x"), count("text")) == (1, None)
    client.slowlog_reset()  # other tests look into it


@pytest.mark.servers("every")
def test_what_is_gone_while_a_batch_is_aside(client: redis.Redis) -> None:
    """Entries of a stream that are trimmed hide no other ones, and are aside no longer: Redis 6.2
    keeps them pending. A key that got another type in the meantime still lets go of the lines."""
    for number in range(6):
        client.xadd("x", {"url": number})
    execute(client, take_lines("x", "crawl", most=3, ttl=0))
    client.xtrim("x", maxlen=4, approximate=False)
    lines, taken = [], None
    for _ in range(4):
        taken = execute(client, take_lines("x", "crawl", most=2, ttl=0, done=taken and taken.done))
        lines += [line for _, line in taken.lines]
    assert (sorted(lines), taken and taken.aside) == ([b"2", b"3", b"4", b"5"], 0)
    client.xadd("x", {"url": "a"})
    entries = execute(client, take_lines("x", "crawl", most=1, ttl=5))
    client.delete("x")
    client.rpush("x", "b")
    batch = execute(client, take_lines("x", "crawl", most=1, ttl=5, done=entries.done))
    assert [line for _, line in batch.lines] == [b"b"]
    client.xadd("x", {"url": "c"})
    last = execute(client, take_lines("x", "crawl", most=0, ttl=5, done=batch.done))
    assert (last.type, last.aside, client.keys()) == ("stream", 0, [b"x"])
