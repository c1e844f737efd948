"""What a shard of a frontier really holds, what must always hold of it, and a model of it.

The model is the protocol of one shard without Redis: a dictionary of entries and what became of
each. It is fed with what the server was sent and answered, also where the worker never heard the
answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Enqueue, Finish, Reply, parse_lease
from scrapy_redisq.frontier.shard_session import ShardSession

HASHES = {"meta", "counts", "busy", "worker", "leases", "tokens", "slot", "posted", "letters"}
SORTED_SETS = {"ready", "levels", "workers", "aside", "paused", "ruled", "delayed", "post", "dead"}
NOT_READ = re.compile(
    r"reaped|seen:[\w.-]+(:.+)?|trash|ended|limits|taken|series:\d+|marks|actions|history|histories",
    re.DOTALL,
)
"""With these the keys in the head of ``lua/shared/keys.lua``."""


class Shard:
    """All of one shard's keys, read at once: ``values`` by their names. ``expires`` are names of
    those that are forgotten when nothing happens."""

    def __init__(self, values: dict[str, Any], expires: set[str]) -> None:
        def of(kind: str) -> dict[str, Any]:
            names = [name for name in values if name.partition(":")[0] == kind]
            return {name.partition(":")[2]: values[name] for name in names}

        def scores(name: str) -> dict[str, float]:
            return {member.decode(): score for member, score in values.get(name, ())}

        def members(name: str) -> set[str]:
            return {member.decode() for member in values.get(name, ())}

        self.meta = _texts(values.get("meta", {}))
        self.counts = _numbers(values.get("counts", {}))
        self.ready = scores("ready")
        self.levels = {slot: scores(f"levels:{slot}") for slot in of("levels")}
        self.queues: dict[tuple[str, ...], list[bytes]] = {
            tuple(rest.rsplit(":", 1)): queue for rest, queue in of("queue").items()
        }
        self.delayed: list[bytes] = [
            member.partition(b":")[2] for member, _ in values.get("delayed", ())
        ]
        self.leases: dict[str, dict[str, bytes]] = {
            worker: {id.decode(): record for id, record in held.items()}
            for worker, held in of("leases").items()
        }
        self.workers = scores("workers")
        self.info = {worker: _texts(value) for worker, value in of("worker").items()}
        self.busy = _numbers(values.get("busy", {}))
        self.dead, self.letters = set(scores("dead")), members("letters")
        seen = {rest.partition(":")[0] for rest in of("seen")}
        self.generations = {
            name for name in seen if name != "recent" and not name.endswith(".starts")
        }
        self.tokens = {worker: _numbers(value) for worker, value in of("tokens").items()}
        self.slots = {slot: _texts(value) for slot, value in of("slot").items()}
        self.posts, self.posted = set(scores("post")), members("posted")
        self.expires = {name.partition(":")[2] for name in expires if name.startswith("slot:")}
        self.aside, self.paused, self.ruled = map(set, map(scores, ("aside", "paused", "ruled")))
        self.unknown = [
            name
            for name in values
            if name.partition(":")[0] not in HASHES | SORTED_SETS | {"queue"}
            and not NOT_READ.fullmatch(name)
        ]

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def waiting(self) -> list[bytes]:
        """The entries in queues and among the delayed, each with its byte of deliveries."""
        delayed = (parse_lease("", record) for record in self.delayed)
        return [entry for queue in self.queues.values() for entry in queue] + [
            bytes((lease.deliveries,)) + lease.entry for lease in delayed
        ]

    def leased(self) -> dict[tuple[str, str], bytes]:
        """(Worker, lease) -> entry."""
        return {
            (worker, id): parse_lease(id, record).entry
            for worker, held in self.leases.items()
            for id, record in held.items()
        }

    def check(self) -> None:
        """What holds after every step, whatever happened before."""
        assert not self.unknown, "undocumented keys"
        queued = sum(map(len, self.queues.values()))
        leased = sum(map(len, self.leases.values()))
        created, finished = self.count("created"), self.count("finished")
        assert queued + len(self.delayed) + leased + finished == created
        assert self.count("dead") + self.count("dropped") <= finished
        assert self.count("leased") == leased
        held = [lease for leases in self.leases.values() for lease in leases.items()]
        assert self.busy == Counter(parse_lease(id, record).slot for id, record in held)
        by_levels = {(slot, level) for slot, levels in self.levels.items() for level in levels}
        assert by_levels == set(self.queues), "levels are the queues that are not empty"
        assert set(self.ready) == set(self.levels), "ready are the slots that have levels"
        for levels in self.levels.values():
            assert all(score == -int(level) for level, score in levels.items())
        assert set(self.leases) <= set(self.workers), "a lease that nobody would reap"
        assert set(self.info) == set(self.workers)
        for flag in ("starting", "waiting"):
            assert self.count(flag) == sum(info.get(flag) == "1" for info in self.info.values())
        assert self.dead == self.letters
        assert self.posts == self.posted
        assert self.count("posted") == len(self.posts)
        self._check_slots()

    def _check_slots(self) -> None:
        out = Counter[str]()
        for worker, tokens in self.tokens.items():
            assert worker in self.workers, "tokens that nobody would give back"
            assert all(n > 0 for n in tokens.values())
            out.update(tokens)
        assert out == {slot: int(s["out"]) for slot, s in self.slots.items() if "out" in s}
        for slot, state in self.slots.items():
            if {"out", "held", "own"} & state.keys():
                assert slot not in self.expires, "forgotten while it matters"
        assert self.paused == {slot for slot, s in self.slots.items() if "held" in s}
        assert self.ruled == {slot for slot, s in self.slots.items() if "own" in s}
        assert not self.paused & self.aside, "the crawl would end beside it"


def read_shard(client: redis.Redis, name: str, shard: int) -> Shard:
    """Read every key under the shard's prefix. ``client`` must return bytes."""
    prefix = key_prefix(name, shard)
    found: list[Any] = client.keys(prefix.replace("{", "\\{") + "*")
    paths = [key.decode().removeprefix(prefix) for key in found]
    pipeline = client.pipeline(transaction=False)
    for path in paths:
        kind = path.partition(":")[0]
        if kind in HASHES:
            pipeline.hgetall(prefix + path)
        elif kind in SORTED_SETS:
            pipeline.zrange(prefix + path, 0, -1, withscores=True)
        elif kind == "queue":
            pipeline.lrange(prefix + path, 0, -1)
        else:
            pipeline.exists(prefix + path)
        pipeline.pttl(prefix + path)
    replies = pipeline.execute()
    values: dict[str, Any] = dict(zip(paths, replies[::2], strict=True))
    return Shard(
        values, {path for path, left in zip(paths, replies[1::2], strict=True) if left >= 0}
    )


def _texts(value: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): text.decode() for name, text in value.items()}


def _numbers(value: dict[bytes, bytes]) -> dict[str, int]:
    return {name: int(text) for name, text in _texts(value).items()}


ENDED = {"done", "dead"}


@dataclass
class Entry:
    """One accepted request and what became of it."""

    url: str
    slot: str
    priority: int
    retried: bool = False
    state: str = "waiting"  # in a queue or delayed; "leased", or one of ENDED
    holder: str = ""
    lease: str = ""
    deliveries: int = 0


@dataclass
class Model:
    """A frontier with exact duplicates, as dictionaries. Entries are identified by their bytes."""

    max_deliveries: int
    entries: dict[bytes, Entry] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """URLs."""
    identities: set[tuple[int, bytes]] = field(default_factory=set)
    """(Which set, identity) of requests that the dupefilter is not asked about."""
    expired: dict[str, bool] = field(default_factory=dict)
    """Registered workers, and whether they are past their deadline."""
    state: str = ""
    """"open" or "complete"."""
    run: str = ""
    seeded: bool = False
    """Some worker has added all its start requests."""
    applied: Counter[str] = field(default_factory=Counter)
    """Exchanges by worker; the number of the last one is what the server keeps."""

    def held_by(self, worker: str) -> dict[str, Entry]:
        return {
            entry.lease: entry
            for entry in self.in_state("leased").values()
            if entry.holder == worker
        }

    def in_state(self, state: str) -> dict[bytes, Entry]:
        return {name: entry for name, entry in self.entries.items() if entry.state == state}

    def unfinished(self) -> int:
        return sum(entry.state not in ENDED for entry in self.entries.values())

    # What scripts do

    def conclude(self) -> bool:
        """Somebody completes the run, if that can be. -> is it complete by that?"""
        alive = not all(self.expired.values())
        if self.state != "open" or not self.seeded or alive or self.unfinished():
            return False
        self.expired.clear()
        self.state = "complete"
        return True

    def join(self, worker: str, joined: calls.Joined, again: bool) -> None:
        """``again``: into the same run."""
        if again:
            assert joined.run == self.run
        else:
            self.conclude()
            assert joined.new == (self.state != "open")
            if joined.new:
                self.entries.clear()
                self.seen.clear()
                self.identities.clear()
                self.expired.clear()
                self.run = joined.run
            self.state = "open"
        self.expired[worker] = False

    def enqueue(self, item: Enqueue, is_new: bool) -> None:
        url = item.entry.split()[-1].decode()  # what is sent again has no tag any more
        identity = item.asked, item.identity or b""
        duplicate = (
            url in self.seen
            if item.fingerprint is not None
            else bool(item.asked) and identity in self.identities
        )
        assert is_new == (not duplicate), f"{url} was taken for {'new' if is_new else 'seen'}"
        self.identities |= {identity} if item.asked else set()
        if item.fingerprint is not None or item.also is not None:
            self.seen.add(url)
        if duplicate:
            return
        assert item.entry not in self.entries, f"{item.entry!r} was enqueued twice"
        self.entries[item.entry] = Entry(url, item.slot, item.priority)

    def finish(self, worker: str, item: Finish) -> None:
        entry = self.held_by(worker).get(item.lease)
        if entry is None:
            return
        entry.retried = item.ending == "retried"
        entry.state = {"done": "done", "dead": "dead", "retried": "done"}.get(
            item.ending, "waiting"
        )
        if entry.retried:
            assert item.entry not in self.entries
            self.entries[item.entry] = Entry(entry.url, entry.slot, item.priority)

    def exchange(
        self, session: ShardSession, reply: Reply, operations: Iterable[Enqueue | Finish]
    ) -> None:
        """Take in what the server answered to ``operations``."""
        worker = session.worker_id
        if worker not in self.expired:
            assert reply.status in {"gone", "lost"}
            return
        ahead = self.applied[worker] - session.outgoing.acked
        assert reply.status == ("rewound" if ahead < 0 else "replayed" if ahead else "ok")
        if ahead < 0:
            return
        self.expired[worker] = False
        if reply.status == "replayed":
            known = {lease.id for lease in reply.leases} | set(session.held)
            assert known >= set(self.held_by(worker))
            return
        self.applied[worker] += 1
        accepted = {id(item) for item in reply.accepted}
        if accepted:
            self.state = "open"
        operations = list(operations)
        for item in operations:
            if isinstance(item, Enqueue):
                self.enqueue(item, id(item) in accepted)
        order = ["done", "dead", "released", "retried"]
        finishes = [item for item in operations if isinstance(item, Finish)]
        for item in sorted(finishes, key=lambda item: order.index(item.ending)):
            self.finish(worker, item)
        for lease in reply.leases:
            entry = self.entries[lease.entry]
            assert entry.state == "waiting", f"claimed what is {entry.state}"
            assert (entry.slot, entry.priority) == (lease.slot, lease.priority)
            assert entry.deliveries == lease.deliveries
            entry.state, entry.holder, entry.lease = "leased", worker, lease.id

    def reap(self, reclaimed: int, dead: int) -> None:
        expected = Counter[str]()
        # At most 10 workers a call; those with the same deadline in the order of their names.
        late = sorted(worker for worker, late in self.expired.items() if late)
        for worker in late[:10]:
            for entry in self.held_by(worker).values():
                entry.deliveries += 1
                entry.state = "dead" if entry.deliveries >= self.max_deliveries else "waiting"
                expected[entry.state] += 1
            del self.expired[worker]
        assert (reclaimed, dead) == (expected["waiting"], expected["dead"])

    def leave(self, worker: str) -> None:
        for entry in self.held_by(worker).values():
            entry.state = "waiting"
        self.expired.pop(worker, None)

    def requeue(self) -> None:
        for entry in self.in_state("dead").values():
            entry.state, entry.deliveries = "waiting", 0
            self.state = "open"

    # What the server must hold

    def check(self, real: Shard) -> None:
        """The frontier in Redis is what the model says, to the entry."""
        assert real.meta["state"] == self.state
        if self.state == "complete":
            assert not self.unfinished(), "complete although something is unfinished"
        self.seeded = "seeded" in real.meta
        waiting = self.in_state("waiting").items()
        assert sorted(real.waiting()) == sorted(bytes((e.deliveries,)) + n for n, e in waiting)
        leased = self.in_state("leased").items()
        assert real.leased() == {(entry.holder, entry.lease): name for name, entry in leased}
        assert real.count("created") == len(self.entries)
        assert real.count("dead") == len(self.in_state("dead"))
        assert real.workers.keys() == self.expired.keys()
