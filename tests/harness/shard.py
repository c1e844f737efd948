"""What a shard of a frontier really holds, and what must always hold of it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import redis

from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import parse_lease

HASHES = {"meta", "counts", "busy", "worker", "leases", "tokens", "slot", "posted", "letters"}
SORTED_SETS = {"ready", "levels", "workers", "aside", "paused", "ruled", "delayed", "post", "dead"}
NOT_READ = re.compile(
    r"seen:[\w.-]+(:.+)?|trash|ended|limits|taken|series:\d+|marks|actions|history|histories",
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
