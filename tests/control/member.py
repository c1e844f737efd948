"""A worker that ends all that there is, dead letters of it, and what a look at hosts may find."""

from __future__ import annotations

from typing import Any

from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.admin import Waits
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Finish
from tests.harness.worker import Worker


def some_urls(n: int, hosts: str = "abcdefghij") -> list[str]:
    return [f"https://{hosts[i % len(hosts)]}.example/{i}" for i in range(n)]


class Member(Worker):
    """A worker of a frontier as it is there, in all of its shards."""

    def __init__(self, frontier: Frontier, **options: Any) -> None:
        config = frontier.config() or FrontierConfig(backend="bitmap")
        super().__init__(frontier.client, frontier.name, config, **options)

    def end_all(self, outcome: str = "done", reason: str = "", detail: str = "") -> int:
        """Claim and end until nothing is left; -> how many."""
        n = 0
        while True:
            replies = [self.exchange(100, shard=shard) for shard in range(len(self.sessions))]
            self.complete = all(reply is not None and reply.complete for reply in replies)
            if not self.holding:
                return n
            n += len(self.holding)
            for lease, (session, _) in self.holding.items():
                session.add(Finish(lease, outcome, reason, detail))
            self.holding.clear()


def die(frontier: Frontier, name: str, count: int, reason: str = "download") -> str:
    """``count`` requests more become dead letters; -> at which worker."""
    frontier.push(f"https://a.example/{name}/{n}" for n in range(count))
    worker = Member(frontier)
    worker.end_all("dead", reason, f"by {name}")
    return worker.id


def waits(**fields: Any) -> Waits:
    """What a shard's hosts wait for, by default for nothing."""
    slots = sum(count for count, _ in fields.get("kinds", {}).values())
    values: dict[str, Any] = {
        **{"shard": 0, "slots": slots, "due": 0, "busy": 0, "next": -1, "looked": slots},
        **{"delayed": (0, 0, 0), "aside": (0, 0, 0), "paused": (0, 0, 0), "stuck": -1},
        **{"keep_alive": False, "waiting": 0, "starting": 0, "parts": 1, "kinds": {}, "starts": -1},
    }
    return Waits(**{**values, **fields})
