"""`scrapy redisq doctor`: what it finds on servers of all kinds, and leaves as it was."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
import redis
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from lab.cluster import Cluster
from lab.servers import RedisServer, any_server, configured
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.ops.doctor import Level, Line, crawl, project, rights
from scrapy_redisq.settings.settings import RedisqSettings
from tests.docs.test_readme import acl, blocks
from tests.harness.command import Redisq
from tests.harness.worker import url_of


def told(lines: Iterable[Line], level: str = "") -> list[str]:
    """What was found, of one level."""
    return [line.what for line in lines if level in ("", line.level.name.lower())]


def doctor(redisq: Redisq, *args: str, **settings: Any) -> dict[str, tuple[str, str]]:
    """What the command finds, each with what it is about, and its level."""
    lines = json.loads(redisq("doctor", "--json", *args, **settings).out)["lines"]
    return {line["what"]: (line["about"], line["level"]) for line in lines}


def everything(client: redis.Redis) -> dict[bytes, Any]:
    """All keys, as they are stored."""
    return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.servers("every")
def test_every_kind_of_server(redisq: Redisq, each_server: RedisServer) -> None:
    """A look at a frontier on it ends well, finds what the tests' servers are like, and changes
    nothing."""
    with Frontier.from_url(each_server.url, "books") as frontier, each_server.client() as client:
        frontier.push(f"https://a.example/{n}" for n in range(100))
        before = everything(client)
        ran = redisq("doctor", "--json", REDISQ_URL=each_server.url)
        assert everything(client) == before
    found = json.loads(ran.out)
    assert (found["frontier"], found["level"], ran.code) == ("books", "warning", 1)
    text = {level: [] for level in ("problem", "warning", "note", "ok")}
    for line in found["lines"]:
        text[line["level"]].append(line["what"])
        assert line["level"] == "ok" or line["why"]
    assert any("in memory only" in what for what in text["warning"])
    assert any("No worker is alive" in what for what in text["note"])
    assert any(re.search(r"^memory \d.* [KM]iB: .*queues", what) for what in text["ok"])
    assert any(re.search(r"^\d\d commands are allowed", what) for what in text["ok"])
    assert text["problem"] == []


def test_a_server_as_the_readme_has_it(redisq: Redisq) -> None:
    """Is all right: 0, for people as well."""
    (conf,) = blocks("docs/operate/redis.md", "conf")
    options = [part for line in conf.splitlines() for part in f"--{line}".split()]
    with RedisServer(any_server(), *options) as server:
        ran = redisq("doctor", REDISQ_URL=server.url)
    assert ran.code == 0, ran.out
    assert "0 problems, 0 warnings" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100


def test_a_bad_server(redisq: Redisq, one_client: redis.Redis) -> None:
    """A policy that evicts, a full memory, appendfsync no, are found, and what to set."""
    bad = {"maxmemory-policy": "allkeys-lru", "maxmemory": "1mb", "timeout": 5}
    with configured(one_client, bad):
        found = doctor(redisq)
    problems = [what for what, (_, level) in found.items() if level == "problem"]
    assert any("maxmemory-policy is allkeys-lru" in what for what in problems)
    assert any("(maxmemory) used" in what for what in problems)


BUSY = """
local sum = 0
for i = 1, 4e7 do sum = sum + i end
for i = 1, 300 do
  local row = {}
  for n = 1, 1000 do row[n] = n * 7919 % 1000 .. ":" .. i end
  redis.call('RPUSH', KEYS[1], unpack(row))
end
"""
"""Takes over 0.1 s, and makes a list that is sorted in more than 10 ms."""


@pytest.mark.servers("ends")
def test_what_holds_a_server_up(
    redisq: Redisq, each_server: RedisServer, client: redis.Redis
) -> None:
    """Latency spikes, slow calls and slow scripts are told."""
    with configured(client, {"latency-monitor-threshold": 50, "slowlog-log-slower-than": 10_000}):
        client.eval(BUSY, 1, "rows")
        client.sort("rows", alpha=True)
        found = doctor(redisq, REDISQ_URL=each_server.url)
    client.execute_command("LATENCY RESET")
    client.slowlog_reset()
    (spike,) = (what for what in found if what.startswith("latency spikes (command"))
    slow = [what.partition(",")[0] for what in found if what.startswith("slow calls")]
    assert found[spike] == ("Server", "warning")
    assert re.search(r"of up to [\d,]{3,} ms, the last \d+(\.\d)? s ago$", spike)
    # A busy machine makes others slow, too.
    assert {"slow calls: EVAL", "slow calls: SORT"} <= set(slow)


def test_a_clock_that_is_off(redisq: Redisq, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by how much, and which way; else that it agrees."""
    assert "its clock agrees with that of this machine" in doctor(redisq)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600)
    assert "its clock is 60 min behind that of this machine" in doctor(redisq)


def test_settings_that_this_server_makes_useless(redisq: Redisq, one_client: redis.Redis) -> None:
    """A share of no maxmemory, replicas that are not there; and an empty server stays empty."""
    for given, text in (
        ({"REDISQ_MAX_MEMORY": 0.5}, "REDISQ_MAX_MEMORY is 0.5, and there is no maxmemory"),
        ({"REDISQ_WAIT_REPLICAS": 2}, "REDISQ_WAIT_REPLICAS is 2, and 0 are there"),
    ):
        assert doctor(redisq, **given)[text][1] == "warning"
    assert one_client.dbsize() == 0


def test_no_server(redisq: Redisq) -> None:
    """Is a problem, told like the others."""
    ran = redisq(
        "doctor", "--json", REDISQ_URL="redis://user:secret@127.0.0.1:1/0", REDISQ_CONNECT_TIMEOUT=0
    )
    found = json.loads(ran.out)
    assert (ran.code, found["level"]) == (1, "problem")
    assert "no Redis server could be used" in found["lines"][0]["what"]
    assert "secret" not in ran.out


@pytest.mark.parametrize("key", ["meta", "limits", "ready"])
def test_keys_of_another_hand(redisq: Redisq, frontier: Frontier, key: str) -> None:
    """They are a problem of the crawl's, and the other parts are looked at all the same."""
    frontier.push(["https://a.example/"])
    frontier.client.set(f"redisq:{{books:0}}:{key}", "x")
    found = doctor(redisq, "books")
    bad = {what: about for what, (about, level) in found.items() if level == "problem"}
    assert set(bad.values()) == {"Crawl"}
    assert all(f"redisq:{{books:0}}:{key}" in what for what in bad)
    assert {"Server", "Rights", "Settings"} <= {about for about, _ in found.values()}


# Rights


@pytest.mark.servers("ends")
def test_rights_one_by_one(
    redisq: Redisq, each_server: RedisServer, client: redis.Redis, frontier: Frontier
) -> None:
    """The documented user has all rights; each one that is taken away is missed by name."""
    frontier.push(["https://a.example/"])
    client.execute_command("ACL", "SETUSER", *acl())
    url = each_server.url.replace("://", "://crawler:PASSWORD@")
    config = frontier.config()
    assert config is not None
    if config.backend == "redisbloom":
        more = (f"+{name}" for name in rights.OF_BLOOM)
        client.execute_command("ACL SETUSER", "crawler", *more)

    def denied() -> dict[str, str]:
        found = doctor(redisq, REDISQ_URL=url).items()
        said = " is denied"
        return {what[: -len(said)].lower(): level for what, (_, level) in found if said in what}

    optional = {"memory usage", "config get", "latency latest", "slowlog get"}
    assert denied() == dict.fromkeys(optional, "note")
    for name in rights.IN_SCRIPTS:
        client.execute_command("ACL SETUSER", "crawler", f"-{name}")
        with Frontier.from_url(url, "books") as as_crawler:
            key = "redisq:{books:0}:meta"
            found = rights.allowed(as_crawler.client, key, has_meta=True, bloom=False)
        assert [each for each, may in found.items() if not may] == [name]
        client.execute_command("ACL SETUSER", "crawler", f"+{name}")
    for name in ("info", "role", "scan", "publish", "zadd"):
        client.execute_command("ACL SETUSER", "crawler", f"-{name}")
    expected = {"zadd": "problem", **dict.fromkeys(("info", "role", "publish"), "warning")}
    assert denied().items() >= expected.items()
    client.execute_command("ACL DELUSER", "crawler")


def test_a_user_of_other_keys(redisq: Redisq, one_client: redis.Redis) -> None:
    """He may call everything, and no key of the frontier: said in a line."""
    rules = ["on", ">x", "~other:*", "&*", "+@all"]
    one_client.execute_command("ACL", "SETUSER", "stranger", *rules)
    url = url_of(one_client).replace("://", "://stranger:x@")
    found = doctor(redisq, REDISQ_URL=url)
    one_client.execute_command("ACL DELUSER stranger")
    (bad,) = (what for what, of in found.items() if of == ("Rights", "problem"))
    assert "no script on keys redisq:*" in bad


def test_a_cluster(redisq: Redisq, cluster: Cluster) -> None:
    """Its masters are looked at, and how the shards lie on them."""
    # Other tests move slots of the frontier "books".
    with Frontier.from_url(cluster.url, "shelves") as frontier:
        frontier.push(f"https://a{n}.example/" for n in range(30))
    found = doctor(redisq, "shelves", REDISQ_URL=cluster.url)
    assert "3 shards on 3 of 3 masters, up to 1 on one" in found
    assert any("it has no replica" in what for what in found)


# The crawl


def test_what_a_crawl_has_lost() -> None:
    """Pages that ended too late, dead letters, a filter that errs, a worker that is silent."""
    settings = RedisqSettings.read({"REDISQ_DEAD_MAX": 10})
    status = {
        **absent("books"),
        **{"finished": 100, "dead": 30, "stale": 2, "reclaimed": 5, "foreign": 1, "seen": 50},
        "dupefilter": {
            **{"kind": "bloom", "backend": "bitmap", "error_rate": 1e-6, "fill": 2.0},
            **{"expected_loss": 1e-3, "capacity": 25},
        },
        "workers": [{"alive": True, "seen_ago": 40.0, "blocked_seconds": 31.04}],
    }
    lines = [crawl.seen(status), *crawl.ends(status, settings), *crawl.workers(status, settings)]
    assert told(lines, "warning") == [
        "50 seen URLs, 200% of what the Bloom filter has room for; 1 new URL in 1,000 is taken for "
        "seen",
        "30 dead letters, 30.0% of what is finished",
        "only the last 10 of them are kept",
        "2 pages ended when their worker had been taken for dead",
        "1 dead letter of something that nobody enqueued",
        "1 worker alive, each heard of within 40 s; no callback has let nothing else run for "
        "longer than 31.0 s, and REDISQ_LEASE_TTL is 60",
    ]
    assert all(line.why and line.set for line in lines)


def test_memory_that_will_not_do() -> None:
    """A forecast of less than a day, an average request that is large, a key that is."""
    parts = {"queues": {"bytes": 3_000_000, "keys": 3}, "seen": {"bytes": 0, "keys": 0}}
    known = {
        **{"problem": "", "parts": parts, "bytes": 3_000_000},
        **{"bytes_per_request": 5_000, "bytes_per_url": 9.7, "full_in": 7_200},
        **{"largest": {"key": "queue:a:0", "bytes": 2 * 10**8}, "room_requests": 10},
    }

    def said(**changes: Any) -> list[Line]:
        return [*crawl.memory({**known, **changes})]

    lines = said()
    assert told(lines, "warning") == ["maxmemory is reached in 2.0 h at the pace of the last hours"]
    assert told(lines, "note") == [
        "a request that waits takes 5,000 bytes",
        "queue:a:0 takes 190.7 MiB",
    ]
    assert told(said(full_in=60), "problem")
    (line,) = said(problem="the user lacks a right: +scan")
    assert (line.level, "+scan" in line.why) == (Level.NOTE, True)


# Settings


def of_settings(**given: Any) -> list[Line]:
    """What is said of a project with the add-on and these settings."""
    crawler = Crawler(Spider, Settings({"ADDONS": {"scrapy_redisq.Addon": 500}, **given}))
    crawler.addons.load_settings(crawler.settings)
    settings = RedisqSettings.read(crawler.settings)
    return list(project.examine(crawler.settings, settings, Spider))


FINE = {"ROBOTSTXT_OBEY": True}

OTHER_FILTER = "scrapy.dupefilters.RFPDupeFilter"
NO_BACK_OFF = {"ADDONS": {}, "SCHEDULER": "scrapy_redisq.Scheduler"}

FIGHTS: list[tuple[dict[str, Any], str, str]] = [
    ({"DOWNLOAD_DELAY": 2}, "warning", "DOWNLOAD_DELAY is 2 and REDISQ_FLEET_LIMITS False"),
    ({"CONCURRENT_REQUESTS_PER_DOMAIN": 2}, "note", "CONCURRENT_REQUESTS_PER_DOMAIN is 2"),
    ({"AUTOTHROTTLE_ENABLED": True}, "warning", "AUTOTHROTTLE_ENABLED is True"),
    ({"COOKIES_ENABLED": True}, "note", "COOKIES_ENABLED is True"),
    ({"FEEDS": {"items.jl": {}}}, "warning", "the feed items.jl is one for all"),
    ({"FEEDS": {"%(worker)s.jl": {}}}, "note", "items go to feeds, and to no sink"),
    ({"JOBDIR": "jobs"}, "warning", "JOBDIR is set"),
    ({"REDIS_URL": "redis://me:pw@h/0"}, "warning", "REDIS_URL is redis://me:***@h/0, and REDISQ"),
    ({"SCHEDULER_FLUSH_ON_START": True}, "warning", "SCHEDULER_FLUSH_ON_START is True"),
    ({"DUPEFILTER_CLASS": OTHER_FILTER}, "warning", f"DUPEFILTER_CLASS is {OTHER_FILTER}"),
    ({"REDISQ_MAX_LEASES": 8}, "warning", "REDISQ_MAX_LEASES is 8, CONCURRENT_REQUESTS 16"),
    ({"REDISQ_LEASE_TTL": 5}, "warning", "REDISQ_LEASE_TTL is 5, an answer may take 5 s"),
    ({"REDISQ_LEASETTL": 5}, "warning", "REDISQ_LEASETTL is no setting of scrapy-redisq"),
    ({"REDISQ_ENABLED": False}, "note", "REDISQ_ENABLED is False"),
    ({"ROBOTSTXT_OBEY": False}, "note", "ROBOTSTXT_OBEY is False"),
    ({"ADDONS": {}}, "problem", "SCHEDULER is scrapy.core.scheduler.Scheduler"),
    (NO_BACK_OFF, "warning", "RedisqBackOffMiddleware is missing"),
    (NO_BACK_OFF, "warning", "RetryMiddleware is Scrapy's"),
    (NO_BACK_OFF, "warning", "RobotsTxtMiddleware is Scrapy's"),
]


@pytest.mark.parametrize(("given", "level", "text"), FIGHTS, ids=lambda value: str(value)[:40])
def test_settings_that_fight(given: dict[str, Any], level: str, text: str) -> None:
    """Each is found, with why it matters."""
    lines = of_settings(**{**FINE, **given})
    assert any(what.startswith(text) for what in told(lines, level)), lines
    assert all(line.why for line in lines)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"DOWNLOAD_DELAY": 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 2, "REDISQ_FLEET_LIMITS": True},
        {"CONCURRENT_REQUESTS": 0, "REDISQ_MAX_LEASES": 150},
        {"REDIS_URL": "redis://h/0", "REDISQ_URL": "redis://h/0"},
        {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"},
        {"REDISQ_AUTOTHROTTLE": True, "DOWNLOAD_DELAY": 1},
    ],
)
def test_settings_that_do_not(given: dict[str, Any]) -> None:
    """Nothing is said of a project that sets these things for the whole fleet."""
    assert told(of_settings(**FINE, **given)) == ["nothing in them fights each other"]


def test_a_scheduler_beside_the_add_on() -> None:
    """The cure is the line that is missing, or that is one too many."""
    given = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}
    (cure,) = (line.set for line in of_settings(**given) if "SCHEDULER" in line.what)
    assert "no SCHEDULER" in cure
    (cure,) = (line.set for line in of_settings(**given, ADDONS={}) if "SCHEDULER" in line.what)
    assert "ADDONS = " in cure


def test_a_robots_txt_that_nobody_heeds() -> None:
    """Scrapy's middleware for it fetches nothing then."""
    lines = of_settings(**NO_BACK_OFF, ROBOTSTXT_OBEY=False)
    assert not any(what.startswith("RobotsTxtMiddleware") for what in told(lines))
