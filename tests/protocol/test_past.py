"""What the frontier keeps of its past: samples of its counts, and marks."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
import redis
from msgspec.structs import replace

from lab.servers import full
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier import admin, calls, runs
from scrapy_redisq.frontier.operations import Finish
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import exact_member
from scrapy_redisq.frontier.terms import Terms
from tests.harness.shard import read_shard
from tests.harness.worker import EXACT, NAME, Worker, key


def pass_time(client: redis.Redis, seconds: int, shards: int = 1) -> None:
    """The frontier's clock goes on, by tens of seconds, to just after the beginning of such a time:
    no test waits for it."""
    now, fraction = client.time()
    behind = int(client.hget(key("meta"), "behind") or 0) / 1e6
    on = seconds + 0.1 - (now + fraction / 1e6 + behind) % 10
    for shard in range(shards):
        client.hset(key("meta", shard), "behind", int((behind + on) * 1e6))


def test_what_is_read_of_the_past() -> None:
    """What cannot be read is left out: nothing rests on it."""
    sample = [7, "run", *range(len(admin.COUNTED)), 2]
    known = admin.Sample(7, "run", tuple(range(len(admin.COUNTED))), 2, 0)
    stored = [sample, [*sample, 9], sample[:-1], [7, 8, *sample[2:]], "text", [*sample[:-1], 0.5]]
    msgpack = msgspec.msgpack.encode
    read = admin.series(NAME, 0, seconds=10, most=9).decode
    assert read([b"\xc1", *map(msgpack, stored)]) == [known, known._replace(memory=9)]
    mark = [7, "began", "", "run"]
    assert admin.marks(NAME).decode([msgpack(mark), msgpack(mark[1:])]) == [admin.Mark(*mark)]
    action = [7, "me", "push", "requests", 2]
    assert admin.actions(NAME).decode([msgpack(mark), msgpack(action)]) == [admin.Action(*action)]


@pytest.mark.servers("ends")
def test_samples(client: redis.Redis, frontier: Frontier, worker: Worker) -> None:
    """The first exchange in 10 s keeps the counts, the first in 120 s the memory as well; others
    keep nothing, nor does one that is replayed."""
    for n in range(3):
        pass_time(client, 10)
        for m in range(5):
            worker.enqueue(f"{n}.{m}")
        worker.sessions[0].outgoing.tally["pages"] += 2
        worker.exchange(1, lose="reply")
        worker.exchange(1)
        worker.exchange(1)
    samples = frontier.series()["samples"]
    assert [sample["created"] for sample in samples] == [5, 10, 15]
    assert [sample["pages"] for sample in samples] == [2, 4, 6]
    assert [later["at"] - sample["at"] for sample, later in pairwise(samples)] == [10, 10]
    assert {sample["run"] for sample in samples} == {worker.joined.run}
    assert all(s["queued"] + s["leased"] == s["created"] for s in samples)
    assert {sample["workers"] for sample in samples} == {1}
    assert frontier.series(most=1)["samples"] == samples[-1:]
    pass_time(client, 120)
    worker.exchange()
    hours, days = (frontier.series(seconds)["samples"] for seconds in (120, 1_800))
    assert hours[-1]["memory"] > 500_000
    assert len(hours) in {2, 3}
    assert len(days) in {1, 2}
    with pytest.raises(ValueError, match="10, 120, 1800"):
        frontier.series(11)


def test_samples_are_bounded(client: redis.Redis, worker: Worker) -> None:
    """The oldest go, and a sample takes about 100 bytes."""
    for name, most in (("series:10", 360), ("series:120", 720), ("series:1800", 1_488)):
        client.rpush(key(name), *(b"x" for _ in range(most + 5)))
        pass_time(client, 1_800)
        worker.exchange()
        assert client.llen(key(name)) == most
        assert len(client.lindex(key(name), -1)) < 120


def test_the_end_of_a_run_is_kept(client: redis.Redis, frontier: Frontier) -> None:
    """What came after the last sample is in one that is made when the run is complete; the next
    run's counts begin anew. Marks tell of both."""
    names = calls.RunTerms(name="monday"), calls.RunTerms(name="tuesday")
    for terms in names:
        worker = Worker(client, NAME, EXACT, terms=terms)
        worker.exchange()
        worker.send(["a", "b"])
        for lease in worker.claim(2):
            worker.finish(lease)
        worker.exchange_all()
        assert worker.leave()
    for resolution in (10, 120, 1_800):
        samples = frontier.series(resolution)["samples"]
        ends = {sample["run"]: sample["finished"] for sample in samples}
        assert list(ends.values()) == [2, 2]
    told = [(mark["kind"], mark["what"]) for mark in frontier.marks()]
    assert told == [(kind, run.name) for run in names for kind in ("began", "completed")]
    frontier.reset()
    assert client.keys("*") == []


def test_marks_of_releases(client: redis.Redis, frontier: Frontier) -> None:
    """A worker that joins with another release or other settings than the last one is marked, also
    in the next run; one that says nothing is not."""

    def join(id: str, release: str, settings: str) -> str:
        registration = calls.Registration(id, 60.0, release=release, settings=settings)
        joining = runs.join(Terms(NAME, EXACT, 60.0, 5, 100, 10_000), registration, calls.JUST_NOW)
        return runs.drive(lambda call: execute(client, call), joining).run

    run = join("of the run before", "0", "x")
    execute(client, calls.leave(NAME, 0, run, "of the run before"))
    client.hset(key("meta"), "seeded", 1)
    for id, release, settings in (
        *(("a", "1", "x"), ("b", "1", "x"), ("c", "2", "x"), ("d", "2", "y")),
        *(("old", "", ""), ("e", "2", "y")),
    ):
        join(id, release, settings)
    told = [(mark["kind"], mark["worker"], mark["what"]) for mark in frontier.marks()]
    assert [mark[0] for mark in told[:3]] == ["began", "completed", "began"]
    assert told[3:] == [("release", "a", "1"), ("release", "c", "2"), ("configuration", "d", "y")]


def test_several_shards_are_summed(client: redis.Redis, frontier: Frontier) -> None:
    """A shard that nobody has exchanged with in a time counts as it was before."""
    worker = Worker(client, NAME, replace(EXACT, shards=2))
    for n in range(4):
        pass_time(client, 10, shards=2)
        for host in range(8):
            worker.enqueue(f"{host}.{n}", slot=f"host{host}")
        worker.exchange(shard=0)
        if n % 2 == 0:
            worker.exchange(shard=1)
    created = [sample["created"] for sample in frontier.series()["samples"]]
    of_first = read_shard(client, NAME, 0).count("created") // 4
    assert created == [8, 8 + of_first, 24, 24 + of_first]
    assert frontier.series()["samples"][-1]["workers"] == 1


@pytest.mark.servers("ends")
def test_history(client: redis.Redis, frontier: Frontier, worker: Worker) -> None:
    """The newest are kept, each request once; a full Redis keeps none."""
    session = worker.sessions[0]
    worker.change_terms(history=4)
    known = {"method": "GET", "status": 200, "items": 2, "attempts": 1, "worker": worker.id}
    known |= {"run": worker.joined.run, "outcome": "done", "seconds": 1.5}

    def fetch(*paths: str, full: bool = False) -> None:
        for path in paths:
            worker.enqueue(path, filtered=False)
        worker.exchange()
        for path, lease in zip(paths, worker.claim(len(paths)), strict=True):
            worker.holding.pop(lease.id)
            record = msgspec.msgpack.encode({**known, "url": path})
            session.add(Finish(lease.id, "done", record=(exact_member(path.encode()), record)))
        client.config_set("maxmemory", int(full))
        worker.exchange(lose="reply")
        worker.exchange()
        client.config_set("maxmemory", 0)

    fetch("a", "b", "c")
    fetch("d", "a", "e")
    history = frontier.history()
    assert {record["url"] for record in history} > {"a", "d", "e"}
    assert len(history) == 4 == client.hlen(key("histories")) == client.zcard(key("history"))
    (last,) = frontier.history(1)
    assert last == history[0]
    assert {name: last[name] for name in known} == known
    assert last["ended"] - last["started"] == pytest.approx(1.5)
    assert frontier.history_of(0, b"a") in history
    assert None in [frontier.history_of(0, known_by) for known_by in (b"b", b"c")]
    fetch("f", full=True)
    assert frontier.history_of(0, b"f") is None
    worker.change_terms(history=1)
    fetch("g")
    assert [record["url"] for record in frontier.history()] == ["g"]
    client.hset(key("histories"), exact_member(b"g"), "x")
    for look in (frontier.history, lambda: frontier.history_of(0, b"g")):
        with pytest.raises(FrontierCorrupt):
            look()


@pytest.mark.servers("ends")
def test_actions(client: redis.Redis, frontier: Frontier) -> None:
    """What is done by somebody who says so is noted, once; what is done again at once is added."""

    def noted() -> list[tuple[str, str, int]]:
        actions = frontier.actions()
        assert {action["by"] for action in actions} <= {"me \\ud800"}
        return [(action["what"], action["on"], action["number"]) for action in actions]

    frontier.push(["https://a.example/"])
    frontier.pause("a.example")
    assert noted() == []
    frontier.by = "me \ud800"
    worker = Worker(client, NAME, frontier.config())
    frontier.push(["https://b.example/", "https://a.example/"])
    frontier.push(["https://b.example/2"])
    frontier.pause("a.example")
    frontier.resume("a.example")
    frontier.limit("a.example", delay=2, rate="30/m")
    frontier.unlimit("a.example")
    frontier.tell("quiet", [worker.id])
    frontier.tell("work")
    frontier.tell("work", ["nobody"])
    frontier.drop("b.example")
    assert noted() == [
        ("push", "requests", 2),
        ("pause", "a.example", 1),
        ("resume", "a.example", 1),
        ("limit", "a.example: delay 2, rate 30/m", 1),
        ("unlimit", "a.example", 1),
        ("quiet", worker.id, 1),
        ("work", "all workers", 1),
        ("drop", "b.example", 2),
    ]
    for lease in worker.claim(1):
        worker.finish(lease, "dead", reason="download")
    worker.exchange()
    with full(client):
        frontier.purge()
    assert noted()[-1] == ("purge", "dead letters", 1)
    client.delete(key("actions"))
    client.set(key("actions"), "foreign")
    frontier.pause("a.example")
    with pytest.raises(FrontierCorrupt, match="actions"):
        frontier.actions()
    frontier.reset(force=True)
    assert client.keys("*") == []
    assert frontier.tell("quiet") == 0
    assert client.keys("*") == []
