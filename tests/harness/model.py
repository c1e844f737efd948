"""What a shard of a frontier really holds, what must always hold of it, and a model of it.

The model is the protocol without Redis: a dictionary of entries and what became of each. It is
fed with what the server was sent and answered, also where the worker never heard the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Enqueue, Finish, Reply, parse_lease
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.slot_names import shard_of

DOCUMENTED = re.compile(
    r"meta|ready|levels:.*|queue:.*:-?\d+|delayed|leases:.+|workers|worker:.+|busy|counts|dead"
    r"|letters|reaped|seen:[\w.-]+(:.+)?|trash|ended|limits|aside|paused|ruled|slot:.*|tokens:.+"
    r"|post|posted|series:\d+|marks|actions|history|histories",
    re.DOTALL,
)
"""The keys in the head of ``lua/shared/keys.lua``."""


@dataclass
class Shard:
    """All of one shard's keys, read at once."""

    meta: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    queues: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    delayed: list[bytes] = field(default_factory=list)
    leases: dict[str, dict[str, bytes]] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    info: dict[str, dict[str, str]] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    generations: set[str] = field(default_factory=set)
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    slots: dict[str, dict[str, str]] = field(default_factory=dict)
    posts: dict[str, float] = field(default_factory=dict)
    posted: list[str] = field(default_factory=list)
    expires: set[str] = field(default_factory=set)
    """Slots that are forgotten when nothing happens."""
    aside: dict[str, float] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    ruled: dict[str, float] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def waiting(self) -> list[bytes]:
        """The entries in queues and among the delayed, each with its byte of deliveries."""
        delayed = (parse_lease("", record) for record in self.delayed)
        return [entry for queue in self.queues.values() for entry in queue] + [
            bytes((lease.deliveries,)) + lease.entry for lease in delayed
        ]

    def check(self) -> None:
        """What holds after every step, whatever happened before."""
        assert not self.unknown, "undocumented keys"
        queued = sum(map(len, self.queues.values()))
        leased = sum(map(len, self.leases.values()))
        created, finished = self.count("created"), self.count("finished")
        assert queued + len(self.delayed) + leased + finished == created
        assert self.count("dead") + self.count("dropped") <= finished
        assert self.count("leased") == leased
        assert self.busy == Counter(
            parse_lease(id, record).slot
            for held in self.leases.values()
            for id, record in held.items()
        )
        by_levels = {(slot, level) for slot, levels in self.levels.items() for level in levels}
        assert by_levels == set(self.queues), "levels are the queues that are not empty"
        assert set(self.ready) == set(self.levels), "ready are the slots that have levels"
        for levels in self.levels.values():
            assert all(score == -int(level) for level, score in levels.items())
        assert set(self.leases) <= set(self.workers), "a lease that nobody would reap"
        assert set(self.info) == set(self.workers)
        for flag in ("starting", "waiting"):
            flags = [info.get(flag) == "1" for info in self.info.values()]
            assert self.count(flag) == sum(flags), flag
        assert sorted(self.dead) == sorted(self.letters)
        assert sorted(self.posts) == sorted(self.posted)
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
        assert set(self.paused) == {slot for slot, s in self.slots.items() if "held" in s}
        assert set(self.ruled) == {slot for slot, s in self.slots.items() if "own" in s}
        assert not self.paused.keys() & self.aside.keys(), "the crawl would end beside it"


def read_shard(client: redis.Redis, name: str, shard: int) -> Shard:
    """Read every key under the shard's prefix. ``client`` must return bytes."""
    prefix = key_prefix(name, shard)
    found: list[Any] = client.keys(prefix.replace("{", "\\{") + "*")
    keys = [key.decode() for key in found]
    real = Shard()
    readers: list[Callable[[Any], None]] = []
    pipeline = client.pipeline(transaction=False)

    def texts(flat: dict[bytes, bytes]) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in flat.items()}

    def scores(members: list[tuple[bytes, float]]) -> dict[str, float]:
        return {member.decode(): score for member, score in members}

    for key in keys:
        kind, _, rest = key.removeprefix(prefix).partition(":")
        if not DOCUMENTED.fullmatch(key.removeprefix(prefix)):
            real.unknown.append(key)
        elif kind in {"meta", "counts", "busy", "worker", "leases"}:
            pipeline.hgetall(key)

            def hash_read(value, kind=kind, rest=rest):  # type: ignore[no-untyped-def]
                if kind == "leases":
                    real.leases[rest] = {id.decode(): record for id, record in value.items()}
                elif kind == "worker":
                    real.info[rest] = texts(value)
                elif kind == "meta":
                    real.meta = texts(value)
                else:
                    setattr(real, kind, {n: int(v) for n, v in texts(value).items()})

            readers.append(hash_read)
        elif kind in {"tokens", "slot"}:
            pipeline.hgetall(key)

            def slot_read(value, kind=kind, rest=rest):  # type: ignore[no-untyped-def]
                if kind == "slot":
                    real.slots[rest] = texts(value)
                else:
                    real.tokens[rest] = {slot: int(n) for slot, n in texts(value).items()}

            readers.append(slot_read)
            if kind == "slot":
                pipeline.pttl(key)
                readers.append(lambda left, slot=rest: left >= 0 and real.expires.add(slot))  # type: ignore[misc]
        elif kind in {"ready", "levels", "workers", "aside", "paused", "ruled"}:
            pipeline.zrange(key, 0, -1, withscores=True)

            def zset_read(value, kind=kind, rest=rest):  # type: ignore[no-untyped-def]
                if kind == "levels":
                    real.levels[rest] = scores(value)
                else:
                    setattr(real, kind, scores(value))

            readers.append(zset_read)
        elif kind == "queue":
            pipeline.lrange(key, 0, -1)
            slot, _, priority = rest.rpartition(":")
            readers.append(lambda value, at=(slot, priority): real.queues.update({at: value}))  # type: ignore[misc]
        elif kind == "delayed":
            pipeline.zrange(key, 0, -1)
            readers.append(
                lambda value: real.delayed.extend(member.partition(b":")[2] for member in value)
            )
        elif kind == "post":
            pipeline.zrange(key, 0, -1, withscores=True)
            readers.append(lambda value: real.posts.update(scores(value)))
        elif kind == "posted":
            pipeline.hkeys(key)
            readers.append(lambda value: real.posted.extend(id.decode() for id in value))
        elif kind == "dead":
            pipeline.zrange(key, 0, -1)
            readers.append(lambda value: real.dead.extend(id.decode() for id in value))
        elif kind == "letters":
            pipeline.hkeys(key)
            readers.append(lambda value: real.letters.extend(id.decode() for id in value))
        elif kind == "seen":
            generation = rest.partition(":")[0]
            if generation != "recent" and not generation.endswith(".starts"):
                real.generations.add(generation)
    for reader, value in zip(readers, pipeline.execute(), strict=True):
        reader(value)
    return real


ENDS = {"done": "done", "dead": "dead"}
"""Outcomes that end a request for good."""


@dataclass
class Entry:
    """One accepted request and what became of it."""

    url: str
    shard: int
    slot: str
    priority: int
    retried: bool = False
    state: str = "waiting"  # in a queue or delayed; "leased"; "done"; "dead"; "dropped"
    holder: str = ""
    lease: str = ""
    deliveries: int = 0


@dataclass
class Model:
    """A frontier with exact duplicates, as dictionaries. Entries are identified by their bytes."""

    shards: int
    max_deliveries: int
    entries: dict[bytes, Entry] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    starts: set[tuple[int, bytes]] = field(default_factory=set)
    recent: set[tuple[int, bytes]] = field(default_factory=set)
    """(Shard, identity) of start requests, and of others that the dupefilter is not asked about."""
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    expired: dict[tuple[int, str], bool] = field(default_factory=dict)
    """Registered workers, and whether they are past their deadline."""
    state: str = ""
    """"open" or "complete"; shard 0 keeps it."""
    run: str = ""
    name: str = ""
    ended: set[str] = field(default_factory=set)
    seeded: set[int] = field(default_factory=set)
    """Shards that know that some worker has added all its start requests."""
    began: int = 0
    paused: set[tuple[int, str]] = field(default_factory=set)
    ruled: dict[tuple[int, str], str] = field(default_factory=dict)
    """(Shard, slot) that a person has paused, or given a limit, which is kept through all runs."""
    applied: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Exchanges by worker; the number of the last one is what the server keeps."""
    torn: bool = False
    """One shard has lost the end of its log, and the run was not completed since."""
    has_posts: Callable[[int], bool] = lambda shard: False
    completed: Callable[[], None] = lambda: None
    """Called when the run is complete."""

    def held_by(self, worker: str, shard: int) -> dict[str, Entry]:
        return {
            entry.lease: entry
            for entry in self.entries.values()
            if entry.state == "leased" and entry.holder == worker and entry.shard == shard
        }

    def unfinished(self) -> int:
        return sum(
            entry.state not in {"done", "dead", "dropped"} for entry in self.entries.values()
        )

    def alive(self) -> bool:
        """Is any worker registered and before its deadline?"""
        return any(not expired for expired in self.expired.values())

    # What scripts do

    def could_be_sealed(self, shard: int) -> bool:
        """Whether nothing is left on a shard, and nobody alive is there."""
        return (
            not self.has_posts(shard)
            and not any(
                entry.shard == shard and entry.state in {"waiting", "leased"}
                for entry in self.entries.values()
            )
            and not any(at == shard and not late for (at, _), late in self.expired.items())
        )

    def sealed(self, shard: int) -> None:
        """Nobody is a worker of this shard any more without having gone by shard 0."""
        for at, worker in list(self.expired):
            if at == shard:
                del self.expired[at, worker]

    def conclude(self) -> bool:
        """Somebody completes the run, if that can be. -> is it complete by that?"""
        if self.state != "open" or 0 not in self.seeded:
            return False
        for shard in range(self.shards):
            if not self.could_be_sealed(shard):
                return False
            self.sealed(shard)
        self.state, self.torn = "complete", False
        self.ended |= {self.name} - {""}
        self.completed()
        return True

    def rewind(self, shard: int, before: Model, shard_of_url: Callable[[str], int]) -> None:
        """This shard alone is again as it was ``before``."""
        others = {name: entry for name, entry in self.entries.items() if entry.shard != shard}
        back = {name: entry for name, entry in before.entries.items() if entry.shard == shard}
        self.entries = others | back
        self.seen = {url for url in self.seen if shard_of_url(url) != shard}
        self.seen |= {url for url in before.seen if shard_of_url(url) == shard}
        for ours, theirs in (
            (self.starts, before.starts),
            (self.recent, before.recent),
            (self.paused, before.paused),
        ):
            ours -= {item for item in ours if item[0] == shard}
            ours |= {item for item in theirs if item[0] == shard}  # type: ignore[arg-type]
        mappings: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
            (self.counts, before.counts),
            (self.expired, before.expired),
            (self.ruled, before.ruled),
            (self.applied, before.applied),
        ]
        for our_values, their_values in mappings:
            for key in [key for key in our_values if key[0] == shard]:
                del our_values[key]
            our_values.update({k: v for k, v in their_values.items() if k[0] == shard})
        if shard == 0:
            self.state, self.name, self.ended = before.state, before.name, before.ended
        self.torn = True

    def join(
        self,
        worker: str,
        joined: calls.Joined,
        again: bool = False,
        name: str = "",
        shards: Sequence[int] = (),
    ) -> None:
        """``worker`` is "" for a producer; ``again``: into the same run; ``shards`` that it is a
        worker of then."""
        if again:
            assert joined.run == self.run
        else:
            self.conclude()
            reopens = not worker and self.name != ""
            assert joined.new == (self.state != "open" and not (self.state and reopens))
            if joined.new:
                self.entries.clear()
                self.seen.clear()
                self.starts.clear()
                self.recent.clear()
                self.counts.clear()
                self.expired.clear()
                self.seeded.clear()
                self.began += 1
                self.run, self.name = joined.run, ""
            self.state = "open"
            self.name = self.name or name
        if worker:
            for shard in shards:
                self.expired[shard, worker] = False

    def enqueue(self, item: Enqueue, shard: int, is_new: bool) -> None:
        url = item.entry.split()[-1].decode()  # what is sent again has no tag any more
        known = {calls.STARTS: self.starts}.get(item.asked, self.recent)
        identity = shard, item.identity or b""
        duplicate = url in self.seen if item.fingerprint is not None else identity in known
        if item.asked in {calls.STARTS, calls.RECENT}:
            known.add(identity)
        if item.also is not None:
            self.seen.add(url)
        assert is_new == (not duplicate), f"{url} was taken for {'new' if is_new else 'seen'}"
        if duplicate:
            self.counts[shard, "duplicates"] += 1
            return
        if item.fingerprint is not None:
            self.seen.add(url)
        assert item.entry not in self.entries, f"{item.entry!r} was enqueued twice"
        assert shard == shard_of(item.slot, self.shards)
        self.entries[item.entry] = Entry(url, shard, item.slot, item.priority)
        self.counts[shard, "created"] += 1

    def finish(self, worker: str, item: Finish, shard: int) -> None:
        entry = self.held_by(worker, shard).get(item.lease)
        if entry is None:
            self.counts[shard, "stale"] += 1
            return
        retried = item.ending == "retried"
        entry.retried = retried
        entry.state = "done" if retried else ENDS.get(item.ending, "waiting")
        if retried:
            new = Entry(entry.url, shard, entry.slot, item.priority)
            assert item.entry not in self.entries
            self.entries[item.entry] = new
            self.counts[shard, "created"] += 1
        if item.ending in {"done", "dead", "retried"}:
            self.counts[shard, "finished"] += 1
            self.counts[shard, "dead"] += item.ending == "dead"
        self.counts[shard, "released"] += item.ending == "released"

    def _applied(self, session: ShardSession) -> int:
        """How many of its exchanges its shard has; -1: it does not know the worker."""
        place = (session.shard, session.worker)
        return self.applied[place] if place in self.expired else -1

    def exchange(
        self,
        worker: str,
        session: ShardSession,
        reply: Reply,
        operations: Iterable[Enqueue | Finish],
        duplicates: int,
    ) -> None:
        """Take in what the server answered to ``operations``."""
        shard = session.shard
        if (shard, worker) not in self.expired:
            assert reply.status in {"gone", "lost"}
            return
        if reply.status == "sealed":
            # Shard 0, too: for a worker that came back while the others were being sealed.
            assert any(isinstance(item, Enqueue) for item in operations)
            return
        ahead = self.applied[shard, worker] - session._acked
        if reply.status == "rewound":
            assert ahead < 0, "the server has all that the worker has heard of"
        assert reply.status == ("rewound" if ahead < 0 else "replayed" if ahead else "ok")
        if ahead < 0:
            return
        self.expired[shard, worker] = False
        if reply.status == "replayed":
            known = {lease.id for lease in reply.leases} | set(session.held)
            assert known >= set(self.held_by(worker, shard))
            return
        self.applied[shard, worker] += 1
        accepted = {id(item) for item in reply.accepted}
        if accepted and self.state == "complete":
            assert shard == 0 or self.torn, "no other one takes anything while the run is complete"
            self.state = "open" if shard == 0 else self.state
        operations = list(operations)
        for item in operations:
            if isinstance(item, Enqueue):
                self.enqueue(item, shard, id(item) in accepted)
        self.counts[shard, "duplicates"] += duplicates
        order = ["done", "dead", "released", "retried"]
        finishes = [item for item in operations if isinstance(item, Finish)]
        for item in sorted(finishes, key=lambda item: order.index(item.ending)):
            self.finish(worker, item, shard)
        for lease in reply.leases:
            entry = self.entries[lease.entry]
            assert entry.state == "waiting", f"claimed what is {entry.state}"
            assert (entry.slot, entry.priority) == (lease.slot, lease.priority)
            assert entry.deliveries == lease.deliveries
            entry.state, entry.holder, entry.lease = "leased", worker, lease.id
        self.counts[shard, "claimed"] += len(reply.leases)

    def reap(self, shard: int, reclaimed: int, dead: int) -> None:
        expected = Counter[str]()
        # At most 10 workers a call; those with the same deadline in the order of their names.
        for worker in sorted(w for (at, w), late in self.expired.items() if late and at == shard)[
            :10
        ]:
            for entry in self.held_by(worker, shard).values():
                entry.deliveries += 1
                gone = entry.deliveries >= self.max_deliveries
                entry.state = "dead" if gone else "waiting"
                expected[entry.state] += 1
            del self.expired[shard, worker]
        assert (reclaimed, dead) == (expected["waiting"], expected["dead"])
        self.counts[shard, "reclaimed"] += reclaimed
        self.counts[shard, "finished"] += dead
        self.counts[shard, "dead"] += dead

    def leave(self, worker: str, shard: int) -> None:
        for entry in self.held_by(worker, shard).values():
            entry.state = "waiting"
            self.counts[shard, "released"] += 1
        self.expired.pop((shard, worker), None)

    def requeue(self, entries: Iterable[bytes]) -> None:
        for name in entries:
            entry = self.entries[name]
            assert entry.state == "dead"
            entry.state, entry.deliveries = "waiting", 0
            self.counts[entry.shard, "dead"] -= 1
            self.counts[entry.shard, "finished"] -= 1
            self.state = "open"

    def drop(self, slot: str, dropped: int) -> None:
        """A person has given up what waits in a slot."""
        waiting = [e for e in self.entries.values() if e.slot == slot and e.state == "waiting"]
        assert dropped == len(waiting)
        for entry in waiting:
            entry.state = "dropped"
            self.counts[entry.shard, "dropped"] += 1
            self.counts[entry.shard, "finished"] += 1

    # What the server must hold

    def check(self, shards: list[Shard]) -> None:
        """The frontier in Redis is what the model says, to the entry."""
        assert shards[0].meta["state"] == self.state
        assert shards[0].meta.get("name", "") == self.name
        if self.state == "complete" and not self.torn:
            assert not self.unfinished(), "complete although something is unfinished"
            assert all("sealed" in real.meta for real in shards[1:])
        self.seeded = {number for number, real in enumerate(shards) if "seeded" in real.meta}
        for number, real in enumerate(shards):
            entries = {n: e for n, e in self.entries.items() if e.shard == number}
            waiting = [
                bytes((entry.deliveries,)) + name
                for name, entry in entries.items()
                if entry.state == "waiting"
            ]
            assert sorted(real.waiting()) == sorted(waiting)
            leased = {
                (worker, lease): parse_lease(lease, record).entry
                for worker, held in real.leases.items()
                for lease, record in held.items()
            }
            assert leased == {
                (entry.holder, entry.lease): name
                for name, entry in entries.items()
                if entry.state == "leased"
            }
            for name in [
                "created",
                "finished",
                "dead",
                "dropped",
                "duplicates",
                "claimed",
                "released",
                "reclaimed",
            ]:
                assert real.count(name) == self.counts[number, name], name
            assert real.count("stale") == self.counts[number, "stale"]
            assert set(real.workers) == {w for shard, w in self.expired if shard == number}
            assert set(real.paused) == {slot for shard, slot in self.paused if shard == number}
            own = {slot: state["own"] for slot, state in real.slots.items() if "own" in state}
            assert own == {slot: t for (shard, slot), t in self.ruled.items() if shard == number}
