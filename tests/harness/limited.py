"""Workers that keep the limits of slots, with a clock that a test moves on, and what must hold.

The clock of the workers' `Turns` is a `Clock`. To let time pass is to move it, and to move all
times that the frontier keeps of slots back by as much.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Lease, Reply, TurnReport
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.slot_names import shard_of
from scrapy_redisq.worker.politeness.allowance import Allowance
from scrapy_redisq.worker.politeness.turns import Turns
from tests.harness.worker import Worker

HOUR = 3_600_000_000
"""In us, as in the texts of limits: long enough that it never passes by itself."""

LIMITS = {
    "one at a time": "0 0 1 1",
    "three at a time": "0 0 1 3",
    "delay": f"{HOUR} 0 1 0",
    "rate": f"0 {HOUR} 2 0",
    "delay and two": f"{HOUR} 0 1 2",
}
"""As ``slots/state.lua`` has them: "DELAY INTERVAL BURST CONCURRENCY"."""

TIMES = ("last", "tat", "ends", "wanted", "parked", "failed", "trouble", "told")
"""What the frontier keeps of a slot that is a time."""

EARLY = 250_000
"""Microseconds before its next start that a slot may be claimed, as in ``slots/state.lua``."""

WORTH = 4
"""Entries of one slot that a worker wants at most."""


@dataclass
class Clock:
    """In the place of the module ``time``: seconds of a clock that a test moves on."""

    ahead: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Starts:
    """When downloads began, by slot, since that could last be told."""

    clock: Clock
    at: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def check(self, slot: str, limit: str) -> None:
        """One begins now: neither delay nor rate forbid it."""
        delay, interval, burst, _ = (int(part) for part in limit.split())
        now, before = self.clock.monotonic(), self.at[slot]
        if before:
            assert now - before[-1] >= delay / 1e6 - 1, f"{slot}: after {now - before[-1]} s"
        for n, began in enumerate(reversed(before), start=1):
            allowed = burst + (now - began) * 1e6 / max(1, interval)
            assert not interval or n < allowed + 1, f"{slot}: {n + 1} in {now - began} s"
        before.append(now)

    def forget(self, slot: str = "") -> None:
        """The limit has changed, or the frontier has forgotten what there was."""
        for known in [slot] if slot else list(self.at):
            self.at.pop(known, None)


class LimitedWorker(Worker):
    """A worker that begins downloads when the limits of their slots allow it.

    ``downloads`` are those under way: lease -> slot, turn, when it began, and whether its token is
    the worker's still.
    """

    clock: Clock
    turns: Turns
    downloads: dict[str, tuple[str, Allowance | None, float]]
    void: set[str]
    """Downloads whose tokens are others' by now."""
    valid_until: dict[int, float]
    """By shard, see `Turns`."""

    def _register(self, former: Sequence[ShardSession] = ()) -> calls.Joined:
        if not former:
            self.valid_until = {}
            self.turns = Turns(lambda slot: self.valid_until.get(self._shard_of(slot), math.inf))
            self.downloads, self.void = {}, set()
        return super()._register(former)

    def _shard_of(self, slot: str) -> int:
        return shard_of(slot, len(self.sessions))

    def _is_of(self, slot: str, shard: int) -> bool:
        return self._shard_of(slot) == shard

    def to_start(self) -> list[Lease]:
        """What it holds and has not begun to download."""
        return [lease for _, lease in self.holding.values() if lease.id not in self.downloads]

    def begin(self, lease: Lease) -> bool:
        """Begin to download it, if that is allowed; -> whether it is under way now."""
        if lease.id in self.downloads:
            return False
        if self.turns.wait(lease.slot) > 0:
            return False
        now, turn = self.clock.monotonic(), self.turns._turns.get(lease.slot)
        if turn is not None:
            turn.begin(now)
        self.downloads[lease.id] = lease.slot, turn, now
        return True

    def finish(self, lease: Lease, *args: Any, **options: Any) -> None:
        _, turn, began = self.downloads.pop(lease.id, ("", None, 0.0))
        if turn is not None:
            self.turns.ended(turn, began)
        self.void.discard(lease.id)
        super().finish(lease, *args, **options)

    def lose_tokens(self) -> None:
        """Others have them, or may have."""
        self.valid_until = {session.shard: 0.0 for session in self.sessions}
        self.void |= self.downloads.keys()

    def lose_turns(self) -> None:
        """It has to ask before it begins anything."""
        for slot in list(self.turns._turns):
            self.turns.suspend(slot, 0.0)

    def rejoin(self, sessions: Sequence[ShardSession] = ()) -> None:
        super().rejoin(sessions)

        def is_void(slot: str) -> bool:
            return not sessions or any(self._is_of(slot, session.shard) for session in sessions)

        for lease, (slot, turn, began) in list(self.downloads.items()):
            if is_void(slot):
                del self.downloads[lease]
                self.void.discard(lease)
                if turn is not None:
                    self.turns.ended(turn, began)
        self.turns.forgotten(is_void)

    def exchange(  # type: ignore[override]
        self,
        want: int = 0,
        *,
        shard: int = 0,
        turns: Sequence[TurnReport] | None = None,
        **options: Any,
    ) -> Reply | None:
        """As `Worker.exchange`, with what `Turns` reports."""
        if turns is not None:  # once more, as the shard was sealed
            return super().exchange(want, shard=shard, turns=turns, **options)
        told = self.turns.report(
            Counter(lease.slot for lease in self.to_start()),
            lambda slot, stock: min(WORTH, stock),
            lambda slot: self._is_of(slot, shard),
        )
        sent_at = self.clock.monotonic()
        reply = super().exchange(want, shard=shard, turns=told, **options)
        if reply is not None and reply.status in {"ok", "replayed"}:
            self.valid_until[shard] = sent_at + self.ttl
            refused = self.turns.received(reply.turns, told, sent_at)
            self.give_up(lease for lease in self.to_start() if lease.slot in refused)
        return reply

    def give_up(self, leases: Iterable[Lease]) -> None:
        """Others may be able to start them."""
        for lease in list(leases):
            self.finish(lease, "released")

    def hears(self, slot: str) -> None:
        """Something about the slot has changed."""
        if any(lease.slot == slot for _, lease in self.holding.values()):
            self.turns.suspend(slot, 0.0, told=True)


def let_time_pass(client: redis.Redis, name: str, shards: int, clock: Clock, hours: int) -> None:
    """For limits, parking and turns; not for deadlines and delayed requests."""
    clock.ahead += hours * HOUR / 1e6
    for shard in range(shards):
        prefix = key_prefix(name, shard)
        found: list[Any] = client.keys(prefix.replace("{", "\\{") + "slot:*")
        for key in found:
            for field_name, value in zip(TIMES, client.hmget(key, TIMES), strict=True):  # type: ignore
                if value is not None:
                    client.hincrby(key, field_name, -hours * HOUR)
        ready: Any = client.zrange(prefix + "ready", 0, -1, withscores=True)
        if ready:
            scores = {slot: score - hours * HOUR for slot, score in ready}
            client.zadd(prefix + "ready", scores)


def check_claims(client: redis.Redis, name: str, worker: str, shard: int, reply: Reply) -> None:
    """What the exchange that has just been answered brought it may begin soon."""
    prefix = key_prefix(name, shard)
    now: Any = client.time()
    for slot, n in Counter(lease.slot for lease in reply.leases).items():
        known: Any = client.hgetall(f"{prefix}slot:{slot}")
        state = {field.decode(): value.decode() for field, value in known.items()}
        assert "held" not in state, "claimed of a slot that is paused"
        left = int(state.get("parked", 0)) - (now[0] * 1_000_000 + now[1])
        assert left <= EARLY, f"claimed of a slot that is parked for {left} us"
        turns = {turn.slot: turn for turn in reply.turns}
        if slot not in turns:
            assert "fails" not in state, "claimed without a turn"
            continue
        turn = turns[slot]
        tokens = turn.tokens
        assert turn.left != 0 or tokens != 0, "claimed without a turn or a token"
        if turn.left > 0:
            assert state["owner"] == worker
        if tokens >= 0:
            held: Any = client.hget(f"{prefix}tokens:{worker}", slot)
            assert tokens == int(held or 0), "told of tokens that it does not have"
            assert n <= max(WORTH, 2 * tokens)
        if turn.delay >= HOUR or turn.interval >= HOUR:
            assert n <= 2, "claimed more than can begin soon"
