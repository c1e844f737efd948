"""What stands for a run's session where only `listen` is tried."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from scrapy_redisq.frontier.names import wake_channel

CHANNEL = wake_channel("books", 0)


class Listening(SimpleNamespace):
    """Listens with ``client`` at `CHANNEL`; ``woken`` is called at each wake-up."""

    def __init__(self, client: Any, woken: Callable[[], None] = lambda: None) -> None:
        self.pace = SimpleNamespace(listening=False, woken=False)
        super().__init__(
            client=client,
            terms=SimpleNamespace(name="books"),
            joined=SimpleNamespace(config=SimpleNamespace(limits_name="")),
            sessions=[SimpleNamespace(shard=0, pace=self.pace)],
            warnings=SimpleNamespace(may_warn=lambda about: True),
            wake=woken,
        )
