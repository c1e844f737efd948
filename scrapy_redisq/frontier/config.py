"""Configuration that all workers of a run share, kept in the frontier's ``meta`` hash; and
defaults that each worker has for itself."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier.shards import shard_numbers, shard_of

FORMAT = 4
"""Version of the keys and entries in Redis; another one is refused."""

BACKENDS = ("redisbloom", "bitmap", "exact")
"""Ways to keep the dupefilter in Redis."""

PRIORITY_SLOT = "*"
"""The one slot of all requests with ``REDISQ_SCHEDULING = "priority"``."""

MOST_SHARDS = 64
"""More than 64 shards: not written by this package."""

DEAD_MAX = 10_000
"""Dead letters that are kept."""

REWIND = 30.0
"""Seconds for which what no page stands for can be sent again."""

SLOT_TTL = 3_600.0
"""Seconds for which a slot with limits is remembered when nothing happens: FORGOTTEN in
lua/shared/slots/state.lua."""


class FrontierConfig(msgspec.Struct, frozen=True):
    """Configuration of one run.

    ``dupefilter`` is "bloom", "exact", or the import path of a foreign filter (then the frontier
    itself only keeps start requests apart, exactly). ``backend`` is what keeps it in Redis:
    "redisbloom", "bitmap" or "exact"; the worker that begins a run chooses it for all.
    ``error_rate`` concerns Bloom filters only. ``spider`` may be "" for producers. ``arguments``
    are the spider's: a digest, a space, and the words that people are shown; "" for producers, and
    for workers whose arguments are not compared.
    ``limits_name``: crawls that have the same one share their slots' limits; "": none do.
    ``spread``: the shards are on several servers. ``any_shards`` is not stored: a run that has
    another number of shards is taken as it is.
    """

    dupefilter: str = "bloom"
    backend: str = "bitmap"
    error_rate: float = 1e-6
    capacity: int = 1_000_000
    scheduling: str = "slot"
    order: str = "fifo"
    shards: int = 1
    spread: bool = False
    fingerprinter: str = "scrapy.utils.request.RequestFingerprinter"
    spider: str = ""
    arguments: str = ""
    limits_name: str = ""
    any_shards: bool = False

    @property
    def has_several_logs(self) -> bool:
        """There are several shards, on several servers."""
        return self.spread and self.shards > 1

    def to_meta(self) -> dict[str, str]:
        """As text, which is how ``meta`` keeps it and how two configurations are compared."""
        return {name: str(getattr(self, name)) for name in STORED}

    @classmethod
    def from_meta(cls, meta: dict[str, str]) -> FrontierConfig:
        """Raises `FrontierCorrupt` if something is missing or cannot be."""
        try:
            stored = {name: meta[name] for name in STORED}
            config = msgspec.convert(stored, cls, strict=False)
            if config.backend not in BACKENDS or not 1 <= config.shards <= MOST_SHARDS:
                raise ValueError(f"backend {config.backend!r}, {config.shards} shards")
            return config
        except (KeyError, ValueError) as error:
            raise FrontierCorrupt(
                f"field config:… of the frontier's meta key is missing or has been changed by "
                f"something else: {error}; delete the frontier's keys or use another "
                f"REDISQ_FRONTIER"
            ) from None

    def laid_out(self, masters: int) -> FrontierConfig:
        """This configuration on a cluster of so many masters; 0: on one server."""
        if not masters:
            return replace(self, spread=False, any_shards=False)
        shards = self.shards
        if self.any_shards:
            shards = 1 if self.scheduling == "priority" else min(masters, MOST_SHARDS)
        return replace(self, shards=shards, spread=True)

    def shard_numbers(self, name: str) -> tuple[int, ...]:
        """Numbers of the shards of frontier ``name`` in its keys."""
        return shard_numbers(name, self.shards, self.spread)

    def shard_of(self, name: str, slot: str) -> int:
        """The number of the shard of frontier ``name`` that keeps ``slot``."""
        return self.shard_numbers(name)[shard_of(slot, self.shards)]


def shown_arguments(stored: str) -> str:
    """Of ``arguments`` the words that people are shown, quoted as a shell takes them."""
    return stored.partition(" ")[2]


STORED = set(FrontierConfig.__struct_fields__) - {"any_shards"}
"""The fields that are kept in ``meta``."""

SETTING_OF = {
    "dupefilter": "DUPEFILTER_CLASS",
    "error_rate": "REDISQ_DUPEFILTER_ERROR_RATE",
    "capacity": "REDISQ_DUPEFILTER_CAPACITY",
    "scheduling": "REDISQ_SCHEDULING",
    "order": "REDISQ_ORDER",
    "shards": "REDISQ_SHARDS",
    "spread": "REDISQ_URL",
    "fingerprinter": "REQUEST_FINGERPRINTER_CLASS",
    "spider": "the spider",
    "arguments": "-a",
    "limits_name": "REDISQ_LIMITS_NAME",
}
"""The setting behind each field, for messages."""
