"""A frontier as it is stored: its name, its scripts, and the configuration it was begun with."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from scrapy_redisq.control.frontier_status import config_of
from scrapy_redisq.errors import FrontierCorrupt, FrontierError, RedisqError
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.config import FORMAT, FrontierConfig
from scrapy_redisq.frontier.names import meta_key, pairs
from scrapy_redisq.frontier.scripts import Call, execute
from scrapy_redisq.server.connection import Client

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_NOTED = 300
"""Characters of each text of the action log."""


class StoredFrontier:
    """What all parts of `Frontier` stand on."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client

    by = ""
    """Who acts by this, for the action log: what changes something is noted there. "": nobody notes
    anything."""

    _known_config: FrontierConfig | None = None
    """What `for_many` has read."""

    def note(self, what: str, on: str, number: int) -> None:
        """One line for many things that were done by a `Frontier` without ``by``."""
        self._note(what, on, number)

    def _note(self, what: str, on: str = "", number: int = 1) -> None:
        """Note what was done, if anything was. It was done, also if that cannot be noted."""
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
        same._known_config = self.config()
        return same

    def config(self) -> FrontierConfig | None:
        """The configuration that the frontier was begun with; None if there is none."""
        if self._known_config is not None:
            return self._known_config
        meta = self._meta(self._status(0))
        return config_of(meta) if meta else None

    def _run(self, call: Call[T]) -> T:
        return execute(self.client, call)

    def _status(self, shard: int) -> dict[str, Any]:
        # Lua cannot tell an empty map from an empty array, which is what comes for no shard.
        return self._run(calls.status(self.name, shard)) or {}

    def _run_id(self) -> str:
        return self._meta(self._status(0)).get("run", "")

    @contextlib.contextmanager
    def _making_sense(self) -> Iterator[None]:
        """For what is made of statuses: raises `FrontierCorrupt` if that fails."""
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
