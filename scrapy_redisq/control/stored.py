"""Frontiers as they are stored: which there are, and what each of them was begun with."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.exceptions import RedisError

from scrapy_redisq.control.frontier_status import config_of
from scrapy_redisq.errors import FrontierCorrupt, FrontierError, RedisqError, SettingError
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.config import FORMAT, FrontierConfig
from scrapy_redisq.frontier.names import EVERY_META, meta_key, name_in, pairs
from scrapy_redisq.frontier.runs import Steps, drive
from scrapy_redisq.frontier.scripts import Call, execute
from scrapy_redisq.server.cluster import nodes_of
from scrapy_redisq.server.connection import Client
from scrapy_redisq.settings.settings import check_frontier_name

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_NOTED = 300
"""Characters of each text of the action log."""

SCAN_BATCH = 1_000
SCAN_BATCHES = 1_000
"""A search looks at a million keys at most, about a second of Redis' time."""


def frontier_names(client: Client) -> tuple[list[str], str]:
    """The names of all frontiers on the server or cluster, and why there may be others: "" if all
    keys were searched. Masters that do not answer are left out, unless none does."""
    names = set()
    away = []
    nodes = nodes_of(client)
    total = len(nodes)
    cursor = 0
    for _ in range(SCAN_BATCHES):
        try:
            cursor, keys = nodes[-1].scan(cursor, match=EVERY_META, count=SCAN_BATCH)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            away.append(str(error))
            if len(away) == total:
                raise
            cursor, keys = 0, []
        for key in keys:
            # What is no name of a frontier can be no frontier.
            with contextlib.suppress(UnicodeDecodeError, SettingError):
                if found := name_in(key.decode() if isinstance(key, bytes) else key):
                    names.add(check_frontier_name(found))
        if cursor == 0:
            nodes.pop()
        if not nodes:
            break
    why = "The server has too many keys to search all" if nodes else ""
    return sorted(names), "; ".join(filter(None, [why, *away]))


class StoredFrontier:
    """The base of all parts of `Frontier`."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client

    by = ""
    """Who acts by this, for the action log: what changes something is noted there. "": nobody notes
    anything."""

    _read_config: FrontierConfig | None = None
    """Frontiers that `for_many` has read."""

    def note(self, what: str, on: str = "", number: int = 1) -> None:
        """Note what was done ``number`` times, if ``by`` says who did it. A failure to note it is
        logged."""
        if not self.by or not number:
            return
        by, what, on = (
            text.encode("utf-8", "backslashreplace").decode()[:MOST_NOTED]
            for text in (self.by, what, on)
        )
        try:
            self._run(admin.note(self.name, by, what, on, number))
        except (RedisError, RedisqError, OSError) as error:
            logger.warning("It was done, but not noted in the action log: %s", error)

    def for_many(self) -> Self:
        """The same, which has read the configuration: for one thing after the other in a row. To
        read it each time costs Redis more than most of them, where there are many workers."""
        same = copy.copy(self)
        same._read_config = self.config()
        return same

    def config(self) -> FrontierConfig | None:
        """The configuration that the frontier was begun with; None if there is none."""
        if self._read_config is not None:
            return self._read_config
        meta = self._meta(self._status(0))
        return config_of(meta) if meta else None

    def _known_config(self) -> FrontierConfig:
        """The same; raises `FrontierError` if there is none."""
        config = self.config()
        if config is None:
            raise self._absent()
        return config

    def _absent(self) -> FrontierError:
        return FrontierError(f"there is no frontier {self.name!r}")

    def _shards(self) -> tuple[int, ...]:
        """The numbers of its shards; none if there is no frontier."""
        config = self.config()
        return config.shard_numbers(self.name) if config else ()

    def _run(self, call: Call[T]) -> T:
        return execute(self.client, call)

    def _drive(self, steps: Steps[T]) -> T:
        return drive(self._run, steps)

    def _status(self, shard: int) -> dict[str, Any]:
        # Lua cannot tell an empty map from an empty array, which is what comes for no shard.
        return self._run(calls.status(self.name, shard)) or {}

    @contextlib.contextmanager
    def _making_sense(self) -> Iterator[None]:
        """Makes errors of what is read there a `FrontierCorrupt`."""
        try:
            yield
        except (ValueError, TypeError, LookupError, ArithmeticError, OSError) as error:
            raise FrontierCorrupt(
                f"what {meta_key(self.name, 0)} or a key beside it says makes no sense "
                f"({error}): something else than scrapy-redisq has written to it"
            ) from error

    def _meta(self, status: Mapping[str, Any]) -> dict[str, str]:
        """``meta`` of a shard's status; raises `FrontierError` if it cannot be read here."""
        meta = pairs(status.get("meta", []))
        if meta and "format" not in meta:
            raise FrontierCorrupt(
                f"key {meta_key(self.name, 0)} is not a frontier's: something else than "
                f"scrapy-redisq wrote it; delete it or use another name"
            )
        if meta and meta["format"] != str(FORMAT):
            raise FrontierError(
                f"frontier {self.name!r} has format {meta['format']}, this release of "
                f"scrapy-redisq reads format {FORMAT}: use the release that began it"
            )
        return meta
