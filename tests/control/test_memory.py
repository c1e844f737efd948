"""What takes the memory: parts of a real frontier, and what follows from them."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import redis
from msgspec.structs import replace

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from scrapy_redisq.control import memory as memory_module
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.memory import Found, growth_of, summary
from scrapy_redisq.errors import FrontierError
from scrapy_redisq.server.condition import Condition
from tests.harness.worker import EXACT, NAME, Worker, ask

CONFIG = replace(EXACT, capacity=1_000)


@pytest.mark.servers("ends")
def test_parts(
    each_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take about what all keys take, asked one by one; of a server with too many keys
    nothing is told."""
    with Frontier.from_url(each_server.url, NAME, config=CONFIG) as f:
        with pytest.raises(FrontierError, match="no frontier"):
            f.memory()
        hosts = {f"h{k}.example": 100 if k < 3 else 1 for k in range(300)}
        f.push(f"https://{host}/catalogue/{n}" for host in hosts for n in range(hosts[host]))
        worker = Worker(client, NAME, CONFIG)
        ask(worker, 50)
        whole = sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter())
        told = f.memory()
        assert told["problem"] == ""
        assert {part for part, size in told["parts"].items() if size["bytes"]} >= {
            *("queues", "leases", "seen", "run")
        }
        assert told["bytes"] == pytest.approx(whole, rel=0.2)
        assert 50 < told["bytes_per_request"] < 700
        assert 8 < told["bytes_per_url"] < 100
        assert told["parts"]["queues"]["keys"] > 500
        client.set("another", 1)
        monkeypatch.setattr(memory_module, "SCAN_BATCH", 100)
        monkeypatch.setattr(memory_module, "SCAN_BATCHES", 2)
        part = f.memory()
        assert (part["parts"], part["problem"]) == (None, memory_module.TOO_MANY)


@pytest.mark.parametrize("right", ["memory", "scan"])
def test_who_may_not_ask(each_server: RedisServer, client: redis.Redis, right: str) -> None:
    """He is told what he lacks, and all that is known without it."""
    rights = ["on", ">x", "~*", "&*", "+@all", f"-{right}"]
    client.execute_command("ACL", "SETUSER", "blind", *rights)
    with Frontier.from_url(each_server.url.replace("://", "://blind:x@"), NAME) as frontier:
        frontier.push(["https://a.example/"])
        told = frontier.memory()
    client.execute_command("ACL", "DELUSER", "blind")
    assert f"+{right}" in told["problem"]
    assert (told["parts"], told["bytes"], told["bytes_per_url"]) == (None, None, None)
    assert told["used_bytes"] > 0


def test_forecast() -> None:
    """What is left of maxmemory, in requests and in time; unknown without a limit or samples."""
    found = Found()
    found.bytes.update(queues=10_000, seen=2_000)
    status = {**absent(NAME), "queued": 90, "delayed": 10, "seen": 100}
    samples = [{"at": 7_200 + n, "memory": 500 + n} for n in range(0, 1_201, 120)]
    told = summary(found, status, [Condition(400, 1_600)], samples)
    assert (told["bytes_per_request"], told["bytes_per_url"]) == (100, 20)
    assert (told["room_requests"], told["bytes_per_hour"], told["full_in"]) == (10, 3_600, 1_200)
    told = summary(found, status, [Condition(400, 0)], samples[:2])
    assert (told["room_requests"], told["bytes_per_hour"], told["full_in"]) == (None, None, None)
    assert growth_of([{"at": 1, "memory": None}]) is None


def test_each_key_has_its_part() -> None:
    """The parts name the keys that the Lua documents, and those of the history."""
    lua = resources.files("scrapy_redisq.frontier") / "lua" / "shared" / "keys.lua"
    documented = re.findall(
        r"^--   ([a-z_]+)[\w:.]* +(?:hash|zset|list|set|string|the)\b", lua.read_text("utf-8"), re.M
    )
    known = {word for words in memory_module.PARTS.values() for word in words}
    assert set(documented) <= known
    assert known - set(documented) <= {"actions", "history", "histories"}
