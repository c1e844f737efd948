"""The three ways to keep what was seen: one contract, and what is particular to each."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.servers import RedisServer, configured, full
from scrapy_redisq.frontier import admin, calls, runs
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.scripts import execute, raw_string, source
from scrapy_redisq.frontier.seen import SeenCache, SeenFilter, SeenStatus, probe
from tests.harness.shard import read_shard
from tests.harness.worker import EXACT, NAME, Clock, Worker, fingerprint_of

META = "redisq:{books:0}:meta"
BASE = "redisq:{books:0}:seen:3"
ANYWHERE = ["redisq:{probe}:"]
BENT = """
local real = redis
local redis = {pcall = real.pcall, call = function(command, ...)
  local reply = real.call(command, ...)
  if string.sub(command, 1, 4) == 'BF.M' then reply[#reply] = ANSWER end
  return reply
end}
"""


def fingerprint(value: object) -> bytes:
    """20 bytes, as Scrapy's, or, as a project's fingerprinter may give, 32 or few."""
    name = repr(value).encode()
    if name.endswith(b"7"):
        return hashlib.sha256(name).digest()
    return name if name.endswith(b"8") else hashlib.sha1(name).digest()


SWEEP = resources.files("scrapy_redisq.frontier").joinpath("lua/seen/sweep.lua").read_text()
DROP_KEYS = re.findall(r"^local function drop_keys.*?^end$", SWEEP, re.M | re.S)[0]


class Filter:
    """One dupefilter on a server, driven as the frontier's scripts drive it."""

    def __init__(self, client: redis.Redis, seen: SeenFilter, before: str = "") -> None:
        self.client = client
        self.seen = seen
        self._before = before

    def run(self, body: str, encoded: Sequence[bytes | str] = (), limit: int = 0) -> Any:
        text = source(f"seen=shared/seen/{self.seen.name}", body=f"{DROP_KEYS}\nreturn {body}")
        items = [raw_string(item) if isinstance(item, bytes) else item for item in encoded]
        data = {"base": BASE, "params": self.seen.parameters(), "items": items, "limit": limit}
        script = self.client.register_script(self._before + text)
        return script([META], [msgspec.msgpack.encode(data)])

    def _encoded(self, values: Sequence[object]) -> list[bytes | str]:
        return [self.seen.encode(fingerprint(value)) for value in values]

    def add(self, values: Sequence[object], batch: int = 300) -> list[int]:
        answers: list[int] = []
        for first in range(0, len(values), batch):
            answers += self.add_encoded(self._encoded(values[first : first + batch]))
        return answers

    def add_encoded(self, encoded: Sequence[bytes | str]) -> list[int]:
        return list(self.run("seen().add(input.base, input.params, input.items)", encoded))

    def known(self, values: Sequence[object]) -> list[int]:
        ask = "seen().has(input.base, input.params, input.items)"
        return list(self.run(ask, self._encoded(values)))

    def drop(self, limit: int) -> bool:
        return bool(self.run("drop_keys(seen(), input.base, input.limit)", limit=limit))

    def status(self) -> SeenStatus:
        return SeenStatus.from_reply(self.run("seen().status(input.base, input.params)"))


def make(client: redis.Redis, backend: str, rate: float = 1e-6, capacity: int = 100_000) -> Filter:
    if backend == "redisbloom" and not probe(client, ANYWHERE):
        pytest.skip("a server without RedisBloom")
    return Filter(client, SeenFilter(backend, rate, capacity))


pytestmark = pytest.mark.servers("newest")
backends = pytest.mark.parametrize("backend", ["redisbloom", "bitmap", "exact"])
bloom_backends = pytest.mark.parametrize("backend", ["redisbloom", "bitmap"])


# --- the contract ------------------------------------------------------------------------------


@backends
def test_as_a_set(client: redis.Redis, backend: str) -> None:
    """Calls of any sizes and repeats answer as a Python set would, and the status counts what was
    recorded. To ask for it makes nothing."""
    seen = make(client, backend, rate=1e-9)
    assert (seen.status().count, client.dbsize()) == (0, 0)

    @settings(
        max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(st.lists(st.lists(st.integers(0, 400), max_size=450), max_size=6))
    def check(batches: list[list[int]]) -> None:
        client.flushdb()
        model: set[int] = set()
        for batch in batches:
            expected = []
            for value in batch:
                expected.append(0 if value in model else 1)
                model.add(value)
            assert seen.add(batch, batch=500) == expected
        assert seen.status().count == len(model)

    check()


@backends
def test_drop_in_bounded_steps(client: redis.Redis, backend: str) -> None:
    """Dropping deletes at most so many keys a call, in the end all, and no other filter's."""
    seen = make(client, backend, capacity=1000)
    seen.add(range(5_000))
    client.set(f"{BASE}1", "another filter")
    before = client.dbsize()
    calls = 1
    while not seen.drop(7):
        remaining = client.dbsize()
        assert before - 7 <= remaining <= before
        before = remaining
        calls += 1
        assert calls < 200
    assert client.keys() == [f"{BASE}1".encode()]
    assert seen.drop(7)
    assert seen.add(["a"]) == [1]


@pytest.mark.servers("ends")
@backends
def test_refused_whole_at_maxmemory(client: redis.Redis, backend: str) -> None:
    """A full Redis refuses a call before anything of it is recorded, or applies all of it."""
    seen = make(client, backend, capacity=1000)
    for first in (0, 1000):  # when the filter is made, and later
        with full(client):
            with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
                seen.add(range(first, first + 300))
            assert seen.known([first - 1, first]) == [int(first > 0), 0]
        assert seen.add(range(first, first + 1000)).count(0) == 0


@pytest.mark.parametrize("answer", ["nil", "2", "{err = 'ERR no memory'}"])
def test_other_answers_are_errors(client: redis.Redis, answer: str) -> None:
    """What a command says that is neither yes nor no makes no request a known one. valkey-bloom
    answers for fewer fingerprints, and with an error, where a filter would pass 128 MB."""
    make(client, "redisbloom", capacity=1000).add(range(10))
    bent = Filter(client, SeenFilter("redisbloom"), BENT.replace("ANSWER", answer))
    for ask in (bent.add, bent.known):
        with pytest.raises(redis.ResponseError, match=r"BF\.M.* has answered"):
            ask(["new", 3])


@backends
def test_other_settings_go_on(client: redis.Redis, backend: str) -> None:
    """A kept filter keeps what it was made with when the settings change."""
    make(client, backend, rate=1e-3, capacity=1000).add(range(4000))
    changed = make(client, backend, rate=1e-6, capacity=50_000)
    assert changed.add(range(4000)).count(1) == 0
    assert changed.add([f"later {i}" for i in range(2500)]).count(0) <= 10
    assert changed.status().expected_loss <= 1e-3


# --- Bloom filters -----------------------------------------------------------------------------


@bloom_backends
@pytest.mark.parametrize("times", [1, 5])
def test_false_positives(client: redis.Redis, backend: str, times: int) -> None:
    """At the designed size and after growing past it, false positives stay below the rate."""
    rate, capacity, probes = 0.01, 3000 if times < 5 else 1000, 3000
    seen = make(client, backend, rate=rate, capacity=capacity)
    seen.add(range(times * capacity))
    # Probing records, too: so few that the fill hardly changes.
    lost = seen.add([f"fresh {i}" for i in range(probes)]).count(0)
    assert lost <= rate * probes + 4 * math.sqrt(rate * probes)
    assert seen.add(range(times * capacity)).count(1) == 0


def blocked_bloom_error(load: float) -> float:
    """False-positive rate of a blocked Bloom filter with ``load`` fingerprints a block on average.

    Each sets 16 bits of a block, 4 in each of its four quarters of 256 bits. A block holds j
    fingerprints with Poisson probability (Putze, Sanders and Singler, "Cache-, Hash- and
    Space-Efficient Bloom Filters", 2007, section 3). In a quarter that took m bits at random, d
    given bits are all set with probability Σᵢ (-1)ⁱ C(d, i) (1 - i/256)ᵐ. A new fingerprint asks
    for d different bits of its 4 with probability S(4, d) 256! / (256 - d)! / 256⁴ (S: Stirling
    numbers of the second kind).
    """
    different = {d: s * math.perm(256, d) / 256**4 for d, s in ((1, 1), (2, 7), (3, 6), (4, 1))}
    probability, total = math.exp(-load), 0.0
    for j in range(600):
        empty = [(-1) ** i * (1 - i / 256) ** (4 * j) for i in range(5)]
        quarter = sum(
            share * sum(math.comb(d, i) * empty[i] for i in range(d + 1))
            for d, share in different.items()
        )
        total += probability * max(0.0, quarter) ** 4
        probability *= load / (j + 1)
    return total


class Layer(NamedTuple):
    """A layer of a bitmap filter, as its hash has it."""

    blocks: int
    blocks_per_segment: int
    hashes: int
    capacity: int
    error: float

    @property
    def bytes(self) -> int:
        return self.blocks * 128


def layers_of(client: redis.Redis, rate: float, capacity: int, number: int) -> list[Layer]:
    """The first layers of a filter, each of which is made when the one before is full."""
    seen, shapes = make(client, "bitmap", rate, capacity), [""]
    for n in range(number):
        if n:
            client.hset(BASE, "newest", 10**12)
        seen.add([f"the first one of layer {n}"])
        shapes = client.hget(BASE, "layers").decode().split(";")  # type: ignore[union-attr]
        client.unlink(*client.keys(f"{BASE}:*"))
    parts = (one.split() for one in shapes)
    return [Layer(int(a), int(b), int(c), int(d), float(e)) for a, b, c, d, e in parts]


@pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e-3, 0.1])
def test_bitmap_shape(client: redis.Redis, rate: float) -> None:
    """Layers hold what was asked for, and their errors together stay below the rate."""
    layers = layers_of(client, rate, 1_000_000, 30)
    assert layers[0].capacity >= 1_000_000
    assert sum(layer.error for layer in layers) < rate
    for layer in layers:
        assert layer.blocks_per_segment * 128 <= 32 * 1024 * 1024
    for layer in layers[:5]:
        error = min(layer.error, 0.01)
        assert 0.8 < blocked_bloom_error(layer.capacity / layer.blocks) / error <= 1
    assert sum(layer.capacity for layer in layers) > 1_000_000_000


@pytest.mark.parametrize("capacity", [100_000, 1_000_000, 10_000_000])
def test_bitmap_size(client: redis.Redis, capacity: int) -> None:
    """At 1e-6: 5 bytes a URL at the designed size, 9 when a layer was just made."""
    layers = layers_of(client, 1e-6, capacity, 7)
    assert layers[0].bytes / capacity <= 5
    for made in (layers[:n] for n in range(2, 8)):
        full_ones = sum(layer.capacity for layer in made[:-1])
        assert sum(layer.bytes for layer in made) / full_ones <= 9


# --- exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("intset_entries", [512, 64])
def test_exact_grows(one_client: redis.Redis, intset_entries: int) -> None:
    """Far past its capacity no fingerprint is lost by the splits, and none is taken for another,
    whatever kind the sets are; as integer sets they take 10 bytes a URL."""
    with configured(one_client, {"set-max-intset-entries": intset_entries}):
        seen = make(one_client, "exact", capacity=1000)
        for first in range(0, 8_000, 2_000):
            assert seen.add(range(first, first + 2_000)).count(0) == 0
            assert seen.add(range(first + 2_000)).count(1) == 0
        buckets = list(one_client.scan_iter(f"{BASE}:*"))
        sizes = [one_client.scard(bucket) for bucket in buckets]
        assert sum(sizes) == seen.status().count == 8_000
        assert len(sizes) == pytest.approx(8_000 / 192, abs=2)
        assert max(sizes) <= 512
        if intset_entries == 512:
            taken = sum(one_client.memory_usage(bucket) or 0 for bucket in buckets)
            assert taken / 8_000 <= 10.5


def test_exact_at_the_ends(client: redis.Redis) -> None:
    """The smallest and the largest 64-bit integers have buckets like all others."""
    numbers = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
    raw = [number.to_bytes(8, "big", signed=True) + b"\0" * 12 for number in numbers]
    seen = make(client, "exact")
    assert seen.seen.encode(raw[0]) == str(-(2**63))
    encoded = [seen.seen.encode(value) for value in raw]
    assert seen.add_encoded(encoded) == [1] * len(numbers)
    seen.add(range(5000))
    assert seen.add_encoded(encoded) == [0] * len(numbers)


# --- generations -------------------------------------------------------------------------------

TTL = 100.0
KEEP_SEEN = calls.RunTerms(keep_seen=True)


def wait(client: redis.Redis, seconds: float) -> None:
    """Move the frontier's clock on."""
    client.hincrby(META, "behind", int(seconds * 1e6))


def is_new(worker: Worker, *urls: str, **options: Any) -> bool:
    return len(worker.send(urls, **options).accepted) == len(urls)


def sweep(client: redis.Redis, backend: str) -> set[str]:
    """Delete what nobody asks any more; -> the generations that are left."""
    left: str | None = backend
    while left:
        left = execute(client, calls.sweep(NAME, 0, left))
    return read_shard(client, NAME, 0).generations


def known(client: redis.Redis, worker: Worker, url: str) -> bool | None:
    ask_it = admin.ask_seen(NAME, 0, worker.joined.run, fingerprint_of(url), worker.seen)
    return execute(client, ask_it).seen


@backends
def test_from_one_to_two_ttls(client: redis.Redis, backend: str) -> None:
    """A URL is a duplicate for one TTL and no longer than two, however often and how seldom it is
    asked for; there are never more than two generations, and a reset deletes both."""
    make(client, backend)
    kind = "exact" if backend == "exact" else "bloom"
    config = FrontierConfig(dupefilter=kind, backend=backend, capacity=1_000)
    worker = Worker(client, NAME, config, seen_ttl=TTL)
    chance, now, accepted = random.Random(backend), 0.0, dict[str, float]()
    for _ in range(120):
        pause = chance.choice([0.0, 1.0, 10.0, 10.0, 40.0, 250.0])
        wait(client, pause)
        now += pause
        urls = [f"{chance.randrange(20)}" for _ in range(chance.choice([1, 5, 20]))]
        new = [one.entry.decode() for one in worker.send(urls).accepted]
        for url in {*urls}:
            age = now - accepted.get(url, -math.inf)
            assert age > TTL - 1 if url in new else age < 2 * TTL + 1
        accepted |= dict.fromkeys(new, now)
        assert len(new) == len({*new})
        assert len(sweep(client, backend)) <= 2
        assert client.llen(f"{META[:-4]}trash") == 0
    assert execute(client, admin.seen_status(NAME, 0, worker.seen)).count >= 1
    worker.do(runs.reset(NAME, [0], force=True))
    assert client.dbsize() == 0


def end(worker: Worker) -> None:
    """Finish all that there is; the run is complete then."""
    for lease in worker.claim(100):
        worker.finish(lease)
    worker.exchange()
    assert worker.leave()


def test_runs_and_other_ttls(client: redis.Redis) -> None:
    """A run with KEEP_SEEN goes on with both generations and their time; any other throws them
    away. With another TTL all that is known counts from then on; without one it is known for
    good. What can be asked and forgotten is in either generation."""
    first = Worker(client, NAME, EXACT, seen_ttl=TTL)
    assert is_new(first, "old")
    wait(client, 0.9 * TTL)
    assert is_new(first, "new")
    wait(client, 0.2 * TTL)
    assert is_new(first, "newer")
    end(first)
    second = Worker(client, NAME, EXACT, terms=KEEP_SEEN, seen_ttl=TTL)
    assert second.joined.new
    assert not second.send(["old", "new", "newer"]).accepted
    assert execute(client, admin.seen_status(NAME, 0, second.seen)).count == 3
    for url in ("old", "newer"):
        assert known(client, second, url)
        run = second.joined.run
        members = [second.seen.encode(fingerprint_of(url))]
        assert execute(client, admin.forget_seen(NAME, 0, run, members)) == [True]
        assert not known(client, second, url)
    wait(client, TTL)
    assert is_new(second, "new")
    Worker(client, NAME, EXACT, seen_ttl=2 * TTL)
    wait(client, 1.9 * TTL)
    assert not is_new(second, "new")
    Worker(client, NAME, EXACT)
    wait(client, 100 * TTL)
    assert not is_new(second, "new")
    client.zremrangebyrank(f"{META[:-4]}workers", 0, -1)
    client.hset(f"{META[:-4]}counts", "starting", 0)
    third = Worker(client, NAME, EXACT, seen_ttl=TTL)
    end(third)
    fourth = Worker(client, NAME, EXACT)
    assert fourth.joined.trash == 3
    assert sweep(client, "exact") == set()
    assert client.hmget(META, "older", "rotates", "seen_ttl") == [None] * 3


def test_the_memory_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets in a tenth of the TTL, also what it is asked about all the time. It is bounded."""
    clock = Clock()
    monkeypatch.setattr("scrapy_redisq.frontier.seen.time", clock)
    with_ttl, without = SeenCache(ttl=TTL), SeenCache()
    for cache in (with_ttl, without):
        cache.add("a")
        assert "a" in cache
    for _ in range(4):
        clock.ahead += TTL / 30
    assert "a" not in with_ttl
    assert "a" in without
    small = SeenCache(size=10)
    for n in range(35):
        small.add(n)
    assert all(n in small for n in range(25, 35))
    assert sum(n in small for n in range(35)) <= 20


# --- which backend -----------------------------------------------------------------------------


@pytest.mark.servers("every")
def test_probe(each_server: RedisServer, client: redis.Redis) -> None:
    """Probing runs the commands, tells servers with RedisBloom from others, full ones too, and
    leaves nothing."""
    loaded = any(
        module[b"name"] == b"bf" if isinstance(module, dict) else b"bf" in module
        for module in client.module_list()
    )
    assert probe(client, ANYWHERE) == loaded
    with full(client):
        assert probe(client, ANYWHERE) == loaded
    assert client.dbsize() == 0


def test_probe_under_acl(client: redis.Redis, each_server: RedisServer) -> None:
    """A user who may not add to a RedisBloom filter gets bitmaps, not an error."""
    if not probe(client, ANYWHERE):
        pytest.skip("a server without RedisBloom")
    client.execute_command("ACL", "SETUSER", "crawler", "on", ">secret", "~*", "+@all", "-bf.madd")
    try:
        with each_server.client(username="crawler", password="secret") as crawler:
            assert probe(crawler, ANYWHERE) is False
        assert client.dbsize() == 0
    finally:
        client.execute_command("ACL", "DELUSER", "crawler")
