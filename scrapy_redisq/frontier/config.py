"""What all workers of a run must agree on, kept in the frontier's ``meta`` hash."""

from __future__ import annotations

from dataclasses import dataclass, fields

from scrapy_redisq.errors import FrontierCorrupt

FORMAT = 1
"""Version of the keys and entries in Redis; another one is refused."""

BACKENDS = frozenset({"redisbloom", "bitmap", "exact"})
"""What keeps the dupefilter in Redis."""

PRIORITY_SLOT = "*"
"""The one slot of all requests with ``REDISQ_SCHEDULING = "priority"``."""

MOST_SHARDS = 64
"""More of them are of another hand."""


@dataclass(frozen=True)
class FrontierConfig:
    """Configuration of one run.

    ``dupefilter`` is "bloom", "exact", or the import path of a foreign filter (then the frontier
    itself only keeps start requests apart, exactly). ``backend`` is what keeps it in Redis:
    "redisbloom", "bitmap" or "exact"; the worker that begins a run chooses it for all.
    ``error_rate`` concerns Bloom filters only. ``spider`` may be "" for producers.
    """

    dupefilter: str = "bloom"
    backend: str = "bitmap"
    error_rate: float = 1e-6
    capacity: int = 1_000_000
    scheduling: str = "slot"
    order: str = "fifo"
    shards: int = 1
    fingerprinter: str = "scrapy.utils.request.RequestFingerprinter"
    spider: str = ""

    def to_meta(self) -> dict[str, str]:
        """As text, which is how ``meta`` keeps it and how two configurations are compared."""
        return {field.name: str(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_meta(cls, meta: dict[str, str]) -> FrontierConfig:
        """Raises `FrontierCorrupt` if something is missing or is no number."""
        try:
            known = {name: meta[name] for name in (field.name for field in fields(cls))}
            if known["backend"] not in BACKENDS:
                raise ValueError(f"no dupefilter is called {known['backend']!r}")
            shards = int(known["shards"])
            if not 1 <= shards <= MOST_SHARDS:
                raise ValueError(f"{shards} shards")
            return cls(
                **{
                    **known,
                    "error_rate": float(known["error_rate"]),
                    "capacity": int(known["capacity"]),
                    "shards": shards,
                }  # type: ignore[arg-type]
            )
        except (KeyError, ValueError) as error:
            raise FrontierCorrupt(
                f"field config:… of the frontier's meta key is missing or has been changed by "
                f"something else: {error}; delete the frontier's keys or use another "
                f"REDISQ_FRONTIER"
            ) from None


SETTING_OF = {
    "dupefilter": "DUPEFILTER_CLASS",
    "error_rate": "REDISQ_DUPEFILTER_ERROR_RATE",
    "capacity": "REDISQ_DUPEFILTER_CAPACITY",
    "scheduling": "REDISQ_SCHEDULING",
    "order": "REDISQ_ORDER",
    "shards": "REDISQ_SHARDS",
    "fingerprinter": "REQUEST_FINGERPRINTER_CLASS",
    "spider": "the spider",
}
"""The setting behind each field, for messages."""
