"""A worker of a frontier in all of its shards, driven by hand: no Scrapy, no clock but the
server's."""

from __future__ import annotations

from typing import Any

from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier import calls, runs
from scrapy_redisq.frontier.admin import Waits
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Finish, Lease, Reply
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import Terms
from tests.harness.worker import NEVER_SUSPECT


def some_urls(n: int, hosts: str = "abcdefghij") -> list[str]:
    return [f"https://{hosts[i % len(hosts)]}.example/{i}" for i in range(n)]


class Member:
    """``ttl`` in seconds; at most ``dead_max`` dead letters are kept."""

    def __init__(
        self,
        frontier: Frontier,
        name: str = "w1",
        *,
        ttl: float = 30.0,
        terms: calls.RunTerms = calls.ANY_RUN,
        dead_max: int = 1_000,
    ) -> None:
        self.frontier = frontier
        self.name = name
        config = frontier.config() or FrontierConfig(backend="bitmap")
        info = {"host": "here", "pid": 7, "spider": "books"}
        newcomer = runs.Newcomer(calls.Registration(name, ttl, info), config, terms)
        joined = frontier._drive(runs.join(frontier.name, newcomer, f"run-of-{name}"))
        self.run = joined.run
        shared = Terms(frontier.name, config, ttl, NEVER_SUSPECT, dead_max, 0)
        nothing: Any = None
        run_session = RunSession(nothing, shared)
        self.sessions = [
            ShardSession(run_session, shard, joined, name)
            for shard in joined.config.shard_numbers(frontier.name)
        ]

    def exchange(self, session: ShardSession, **options: Any) -> Reply:
        reply = session.received(execute(self.frontier.client, session.call(**options)))
        assert reply.status == "ok"
        return reply

    def claim(self, want: int = 100) -> list[tuple[ShardSession, Lease]]:
        """Lease up to ``want`` entries of each shard."""
        return [
            (session, lease)
            for session in self.sessions
            for lease in self.exchange(session, want=want).leases
        ]

    def finish(self, outcome: str = "done", reason: str = "", detail: str = "") -> int:
        """Claim and finish until nothing is left; -> how many."""
        n = 0
        while leases := self.claim():
            for session, lease in leases:
                session.add(Finish(lease.id, outcome, reason, detail))
            for session in self.sessions:
                self.exchange(session)
            n += len(leases)
        return n

    def leave(self, *, complete: bool = True) -> bool:
        """Give back and leave as a run session does; -> the run is complete."""
        for session in reversed(self.sessions):
            call = calls.leave(self.frontier.name, session.shard, self.run, self.name)
            while self.frontier._run(call):
                pass
        return complete and self.frontier._drive(runs.complete(self.frontier.name, self.run))


def die(frontier: Frontier, name: str, count: int, reason: str = "download") -> None:
    """``count`` requests more become dead letters, at the worker ``name``."""
    frontier.push(f"https://a.example/{name}/{n}" for n in range(count))
    Member(frontier, name).finish("dead", reason, f"by {name}")


def waits(**fields: Any) -> Waits:
    """What a shard's hosts wait for, by default for nothing."""
    slots = sum(count for count, _ in fields.get("kinds", {}).values())
    values: dict[str, Any] = {
        **{"shard": 0, "slots": slots, "due": 0, "busy": 0, "next": -1, "looked": slots},
        **{"delayed": (0, 0, 0), "aside": (0, 0, 0), "paused": (0, 0, 0), "stuck": -1},
        **{"keep_alive": False, "waiting": 0, "starting": 0, "parts": 1, "kinds": {}, "starts": -1},
    }
    return Waits(**{**values, **fields})
