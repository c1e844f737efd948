"""Everything that REDISQ_URL is for, on a cluster; and servers that cannot be used."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from scrapy import Request
from scrapy.settings import Settings

from lab.cluster import KINDS, Cluster
from lab.servers import RedisServer, binaries, configured, free_port
from lab.site import Answer, Site, address
from scrapy_redisq.control import Frontier, Pushed
from scrapy_redisq.control.frontier import PUSH_BATCH
from scrapy_redisq.dupefilter import BloomDupeFilter, scrapy_redis_fingerprint
from scrapy_redisq.errors import ServerBusy, ServerError, ServerUnsuitable, ShardAway, ShardLost
from scrapy_redisq.frontier.names import key_prefix, meta_key
from scrapy_redisq.frontier.resend import NO_REPLICA
from scrapy_redisq.pipelines import RedisPipeline
from scrapy_redisq.server.connection import open_server
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.connect import WorkerConnection
from tests.control.member import Member
from tests.crawls.test_dupefilter import opened as opened_dupefilter
from tests.docs.test_readme import acl
from tests.harness.command import Redisq
from tests.harness.crawl import Run
from tests.harness.in_loop import in_a_loop
from tests.harness.pipelines import opened as opened_pipeline

URLS = [f"https://{host}.example/{page}" for host in "abcdefgh" for page in range(3)]


def clients(cluster: Cluster) -> Iterator[redis.Redis]:
    """One of each node."""
    for server in cluster.servers:
        with server.client() as client:
            yield client


@pytest.fixture
def at_cluster(redisq: Redisq, cluster: Cluster) -> Redisq:
    """``scrapy redisq`` on the cluster."""

    def run(*args: str, **settings: Any) -> Any:
        return redisq(*args, REDISQ_URL=cluster.url, **settings)

    return run


def test_every_command_works_on_a_cluster(at_cluster: Redisq, cluster: Cluster) -> None:
    """One shard a master by itself; frontiers are found on all masters, and one that is reset
    leaves no key on any."""
    where = {cluster.master_of(meta_key(f"f{n}", 0)): f"f{n}" for n in range(50)}
    names = sorted(where.values())
    assert len(names) == 3
    name, *_ = names
    for each in names:
        assert at_cluster("push", each, *URLS).code == 0
    status = json.loads(at_cluster("status", name, "--json").out)
    assert (status["queued"], status["shards"], status["state"]) == (len(URLS), 3, "stopped")
    told = [json.loads(line) for line in at_cluster("status", "--json").out.splitlines()]
    assert [(one["frontier"], one["queued"]) for one in told] == [
        (each, len(URLS)) for each in names
    ]
    assert all(client.dbsize() > 0 for client in clients(cluster))
    slots = json.loads(f"[{','.join(at_cluster('slots', name, '--json').out.splitlines())}]")
    assert {slot["slot"] for slot in slots} == {f"{host}.example" for host in "abcdefgh"}
    with Frontier.from_url(cluster.url, name) as frontier:
        worker = Member(frontier)
        worker.end_all("dead", "spider_error", "KeyError")
        dead = len(list(frontier.dead()))
        assert dead == len(URLS)
        worker.leave()
    assert at_cluster("dead", "list", name, "--limit", "0").out.count("https://") == dead
    assert at_cluster("dead", "requeue", name, "--all").code == 0
    assert json.loads(at_cluster("status", name, "--json").out)["queued"] == len(URLS)
    for host in "abcdefgh":
        assert at_cluster("slots", "drop", name, f"{host}.example", "--yes").code == 0
    assert json.loads(at_cluster("status", name, "--json").out)["dropped"] == len(URLS)
    for each in names:
        assert at_cluster("reset", each, "--yes").code == 0
    assert not any(client.keys() for client in clients(cluster))


def test_a_crawl_ends_when_no_master_can_lose_anything(cluster: Cluster, crawl: Run) -> None:
    """Shard after shard is given its last request. One look says of all that they have no replicas,
    so that the crawl is over some 2.5 s after the last of them."""
    hosts = 9

    def page(path: str) -> Answer:
        following = int(path[1:]) + 1
        link = f'<a href="//{address(following)}:{site.port}/{following}">'
        return Answer(link if following < hosts else "", delay=0.1)

    with Site(page, hosts=hosts) as site:
        worker = crawl("follow", site, {"REDISQ_URL": cluster.url}).wait()
        ended = time.monotonic()
    assert (worker.stats["finish_reason"], len(site.hits)) == ("finished", hosts)
    assert ended - site.hits[-1].at < NO_REPLICA + 2


def test_migrate_to_a_cluster(
    at_cluster: Redisq, cluster: Cluster, redis_server: RedisServer
) -> None:
    """Requests of a frontier of scrapy-redis, and what it has seen, go to the shards of their
    slots; again, nothing is added."""
    old = redis_server.client()
    for url in URLS:
        request = Request(url)
        old.sadd("books:dupefilter", scrapy_redis_fingerprint(request).hex())
        old.zadd("books:requests", {pickle.dumps(request.to_dict()): 0})
    old.sadd("books:dupefilter", scrapy_redis_fingerprint(Request("https://z.example/")).hex())
    given = {
        "REDIS_URL": redis_server.url,
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_redisq.ScrapyRedisFingerprinter",
    }
    migrate = ("migrate", "books", "--seen", "fingerprinter")
    for taken in (len(URLS), 0):
        ran = at_cluster(*migrate, **given)
        assert (ran.code, ran.err) == (0, "")
        assert re.search(rf"books:requests +{len(URLS)} +{taken} +{len(URLS) - taken} ", ran.out)
    assert at_cluster("push", "books", *URLS, "https://z.example/", **given).out == (
        f"books: 0 new requests, {len(URLS) + 1} duplicates\n"
    )
    status = json.loads(at_cluster("status", "books", "--json").out)
    assert (status["queued"], status["shards"]) == (len(URLS), 3)


def test_a_reset_of_what_a_cluster_has_left(at_cluster: Redisq, cluster: Cluster) -> None:
    """Shard 0 comes back empty: what refuses to begin over the rest says how to delete it, and that
    does, however many shards there were. Until then nothing is deleted, and nothing is there after
    it."""
    assert at_cluster("push", "books", *URLS, REDISQ_SHARDS=5).code == 0
    with cluster.master_of(meta_key("books", 0)).client() as master:
        master.flushall()
    refused = at_cluster("push", "books", *URLS, REDISQ_SHARDS=5)
    assert refused.code == 1 and "'scrapy redisq reset books --yes'" in refused.err
    for _ in range(2):
        ran = at_cluster("reset", "books")
        assert (ran.code, ran.out) == (1, "")
        assert "shard 0 has lost" in ran.err and "--yes" in ran.err
    assert at_cluster("reset", "books", "--yes") == (0, "books: deleted\n", "")
    assert not any(client.keys() for client in clients(cluster))
    assert at_cluster("reset", "books", "--yes").out == "books: there is no such frontier\n"
    assert at_cluster("push", "books", *URLS, REDISQ_SHARDS=5).code == 0


def test_a_young_run_of_a_server_without_a_log(cluster: Cluster) -> None:
    """A server that came back empty after five seconds has lost links that other shards took for
    safe: the run is begun anew only where such a server keeps a log, and so lost only its end."""
    settings = RedisqSettings.read(Settings({"REDISQ_URL": cluster.url}))
    first_shard, *others = (meta_key("books0", shard) for shard in (0, 2, 3))
    config = settings.frontier_config(
        dupefilter="exact", backend="exact", fingerprinter="any", spider="books", arguments=""
    )

    async def join() -> str:
        connection = WorkerConnection(settings)
        try:
            session = await connection.open(
                "books0", config, started=time.monotonic(), release="", digest=""
            )
            return session.joined.run
        finally:
            await connection.close()

    run = asyncio.run(join())
    for key in others:
        with cluster.master_of(key).client() as client:
            assert client.hincrby(key, "began", -5_000_000) > 0
    with cluster.master_of(first_shard).client() as client:
        client.delete(*client.keys(key_prefix("books0", 0) + "*"))
    with pytest.raises(ShardLost):
        asyncio.run(join())
    try:
        for client in clients(cluster):
            client.config_set("appendonly", "yes")
        assert asyncio.run(join()) != run
    finally:
        for client in clients(cluster):
            client.config_set("appendonly", "no")


@pytest.mark.parametrize("which", ["first", "other"])
def test_a_push_while_a_server_is_away(cluster: Cluster, which: str) -> None:
    """It ends, says how many requests were pushed, and may be tried again; one that begins then
    adds nothing."""
    urls = [f"https://{host}.example/{page}" for page in range(60) for host in "abcdefgh"]
    with Frontier.from_url(f"{cluster.url}?socket_timeout=1", "books") as frontier:
        frontier.push(urls[:1])
        config = frontier.config()
        assert config is not None
        masters = [
            cluster.master_of(meta_key("books", shard)) for shard in config.shard_numbers("books")
        ]
        # Where other tests have moved slots, it may have several.
        others = (master for master in masters if master != masters[0])
        with (masters[0] if which == "first" else next(others)).client() as master:

            def until_it_is_away() -> Iterator[str]:
                yield from urls[:PUSH_BATCH]
                master.client_pause(60_000, all=False)
                yield from urls[PUSH_BATCH:]

            pushed = Pushed()
            try:
                with pytest.raises(ShardAway, match=r"'books' .*: \d+ of the requests were pushed"):
                    frontier.push(until_it_is_away(), result=pushed)
                with pytest.raises(ShardAway, match=": 0 of the requests were pushed"):
                    frontier.push(["https://x.example/"])
            finally:
                master.client_unpause()
        assert PUSH_BATCH - 1 <= pushed.accepted < len(urls) - 1
        assert pushed.errors == []
        frontier.push(urls)
        assert frontier.status()["queued"] == len(urls)


def test_a_dupefilter_by_itself(cluster: Cluster) -> None:
    """Two processes share one, also after its slot has moved."""
    with (
        opened_dupefilter(BloomDupeFilter, cluster.url) as first,
        opened_dupefilter(BloomDupeFilter, cluster.url) as two,
    ):
        assert not first.request_seen(Request(URLS[0]))
        move(cluster, key_slot(meta_key("books", 0).encode()))
        assert two.request_seen(Request(URLS[0]))
        assert not two.request_seen(Request(URLS[1]))
        assert first.request_seen(Request(URLS[1]))


def move(cluster: Cluster, slot: int) -> None:
    """To another master."""
    here = cluster.master_of(slot)
    target = next(server for server in cluster.servers if server is not here)
    source = cluster.begin_to_move(slot, target)
    cluster.move_keys(source, target, cluster.keys_of(slot, source))
    cluster.end_move(slot, source, target)


@in_a_loop
async def test_items_of_a_pipeline_follow_their_key(cluster: Cluster) -> None:
    """A transaction is done where the key is by then; while it is on its way items wait."""
    key = "books:items"
    async with opened_pipeline(
        RedisPipeline, REDISQ_URL=cluster.url, REDISQ_ITEMS_TYPE="stream"
    ) as pipeline:
        rows = [pipeline.row({"n": n}, f"{n:032}") for n in range(3)]
        await pipeline.write(rows[:1])
        await asyncio.to_thread(move, cluster, key_slot(key.encode()))
        await pipeline.write(rows[1:])
    with open_server(cluster.url) as server, server.client() as client:
        assert client.execute_command("XLEN", key) == 3


# What cannot be used


def refused(url: str, **options: Any) -> str:
    """What a server is refused with, after half a second of patience."""
    with open_server(url, connect_timeout=0.5, **options) as server:
        with pytest.raises(ServerError) as caught:
            server.wait()
        return str(caught.value)


def test_addresses_that_lead_elsewhere(cluster: Cluster, redis_server: RedisServer) -> None:
    """Nobody answers, a server is no node of a cluster, a node is taken for a server, also by
    Frontier and commands, and before a key is there: said at once, with the scheme to use."""
    said = refused(f"redis+cluster://bob:s3cret@127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    assert "REDISQ_URL" in said and "REDISQ_CONNECT_TIMEOUT" in said and "s3cret" not in said
    said = refused(redis_server.url.replace("redis://", "redis+cluster://"))
    assert "that it is a node of a cluster (else write redis://" in said
    url = cluster.servers[0].url
    assert "redis+cluster://" in refused(url)
    with pytest.raises(ServerUnsuitable, match="redis\\+cluster://"):
        Frontier.from_url(url, "books")


def test_one_seed_is_enough(cluster: Cluster) -> None:
    """The others may be away, or no node at all."""
    port = cluster.servers[2].port
    with open_server(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{port}") as server:
        server.wait()
        assert server.masters == 3


def test_a_cluster_out_of_order() -> None:
    """Half of its slots are nobody's: said with how many, and nothing is written."""
    with Cluster(binaries()[KINDS[-1]], masters=1) as cluster:
        cluster.command(cluster.servers[0], "DELSLOTSRANGE", 8192, 16383)
        said = refused(cluster.url)
        assert "8192 of 16384" in said and "REDISQ_URL" in said
        with cluster.servers[0].client() as client:
            assert client.dbsize() == 0


def test_a_user_who_may_not_ask_for_the_map(cluster: Cluster) -> None:
    """At once, with what to allow."""
    for client in clients(cluster):
        client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-cluster")
    said = refused(cluster.url.replace("://", "://bob:pw@"))
    assert "ACL SETUSER" in said and "+cluster|slots" in said and "+cluster|info" in said


def test_the_rights_that_the_readme_names_suffice(cluster: Cluster) -> None:
    """For a frontier on all masters, also while one of its slots is on its way."""
    rights = [*acl(), "+cluster|info", "+cluster|slots"]
    for client in clients(cluster):
        client.execute_command("ACL", "SETUSER", *rights)
    slot = key_slot(meta_key("books", 0).encode())
    target = next(server for server in cluster.servers if server is not cluster.master_of(slot))
    with Frontier.from_url(cluster.url.replace("://", "://crawler:PASSWORD@"), "books") as frontier:
        assert frontier.push(URLS).accepted == len(URLS)
        source = cluster.begin_to_move(slot, target)
        cluster.move_keys(source, target, cluster.keys_of(slot, source))
        with pytest.raises(ServerBusy):
            frontier.status()
        cluster.end_move(slot, source, target)
        assert frontier.status()["queued"] == len(URLS)
        frontier.reset()
    entries = [entry for client in clients(cluster) for entry in client.acl_log()]
    assert [entry["object"] for entry in entries if entry["username"] == "crawler"] == []


def test_each_master_is_checked(caplog: pytest.LogCaptureFixture, cluster: Cluster) -> None:
    """One that would throw requests away is named."""
    with open_server(cluster.url) as server:
        (warning,) = server.check()
        assert "data is kept in memory only" in warning  # once, for all of them
        with (
            cluster.servers[1].client() as client,
            configured(client, {"maxmemory-policy": "allkeys-lru"}),
            pytest.raises(ServerUnsuitable) as caught,
        ):
            server.check()
    assert f"127.0.0.1:{cluster.servers[1].port}" in str(caught.value)
