"""The keys of scrapy-redis, and of Scrapy-Redis-BloomFilter: what is there, and reading the queue.

By default ``SPIDER:requests`` (a sorted set, or a list of FifoQueue and LifoQueue),
``SPIDER:dupefilter`` (a set) or ``SPIDER:bloomfilter`` (the bits of a Bloom filter),
``SPIDER:start_urls`` and ``SPIDER:items``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import redis
from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.errors import FrontierError, SettingError
from scrapy_redisq.server.url import redact

BATCH = 100
"""Requests that are read at a time: each may have megabytes."""

SEEN_BATCH = 300

_SIZES = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD", "stream": "XLEN", "string": "STRLEN"}
_DUPEFILTERS = ("%(spider)s:dupefilter", "%(spider)s:bloomfilter")
_FINGERPRINT = re.compile(rb"[0-9a-f]{40}")


class Entry(NamedTuple):
    """One of the queue: the pickle, and its score in a sorted set."""

    data: bytes
    score: float | None


class OldKey(NamedTuple):
    """A key: its name, its type (``none``), and how many it holds (of a text, bytes)."""

    name: str
    kind: str
    size: int


class OldFrontier:
    """A frontier of scrapy-redis. ``address`` is for people."""

    def __init__(self, client: redis.Redis, address: str, names: dict[str, str]) -> None:
        self._client: Any = client
        self.address = address
        self.queue = self._key(names["requests"])
        self.seen = self._key(names["seen"])
        if self.seen.kind == "none" and "other seen" in names:
            self.seen = self._key(names["other seen"])
        self.start_urls = self._key(names["start_urls"])
        self.items = self._key(names["items"])
        if self.queue.kind not in {"none", "list", "zset"}:
            raise FrontierError(
                f"{self.queue.name} is a {self.queue.kind}: a queue of scrapy-redis is a list or a "
                f"sorted set"
            )

    def _key(self, name: str) -> OldKey:
        kind = self._client.type(name).decode()
        size = self._client.execute_command(_SIZES[kind], name) if kind in _SIZES else 0
        return OldKey(name, kind, size)

    def now(self, key: OldKey) -> int:
        """How many a key holds by now."""
        return self._key(key.name).size

    def batches(self) -> Iterator[list[Entry]]:
        """The queue, in the order in which its requests came or are due. What is deleted of a batch
        must be so before the next one is asked for."""
        name, kept = self.queue.name, 0
        while True:
            if self.queue.kind == "zset":
                found = self._client.zrange(name, kept, kept + BATCH - 1, withscores=True)
                batch = [Entry(data, score) for data, score in found]
            else:  # LPUSH puts what is new in front
                found = self._client.lrange(name, -kept - BATCH, -kept - 1)
                batch = [Entry(data, None) for data in reversed(found)]
            if not batch:
                return
            self._deleted = 0
            yield batch
            kept += len(batch) - self._deleted

    def delete(self, entries: Sequence[Entry]) -> None:
        """Take entries of the batch at hand out of the queue."""
        with self._client.pipeline(transaction=False) as pipeline:
            for entry in entries:
                if self.queue.kind == "zset":
                    pipeline.zrem(self.queue.name, entry.data)
                else:
                    pipeline.lrem(self.queue.name, -1, entry.data)
            self._deleted += sum(pipeline.execute())

    # What was seen

    def knows_any(self, fingerprints: Sequence[bytes]) -> bool:
        """Whether the old set has one of these."""
        with self._client.pipeline(transaction=False) as pipeline:
            for one in fingerprints:
                pipeline.sismember(self.seen.name, one.hex())
            return any(pipeline.execute())

    def fingerprints(self) -> Iterator[list[bytes]]:
        """The members of the old set, some of them more than once; what is no SHA-1 is left out."""
        cursor = -1
        while cursor:
            cursor, found = self._client.sscan(self.seen.name, max(0, cursor), count=SEEN_BATCH)
            members = [one for one in found if _FINGERPRINT.fullmatch(one)]
            for at in range(0, len(members), SEEN_BATCH):  # a small set comes in one piece
                yield [bytes.fromhex(one.decode()) for one in members[at : at + SEEN_BATCH]]

    def forget(self, fingerprints: Sequence[bytes]) -> None:
        """Take members out of the old set."""
        if fingerprints:
            self._client.srem(self.seen.name, *(one.hex() for one in fingerprints))


# Where it is


def key_names(settings: BaseSettings, spider: type[Spider], name: str) -> dict[str, str]:
    """The names of the keys of the spider that is called ``name``, by the settings of scrapy-redis.
    Raises `SettingError`."""
    patterns = {
        "requests": ("SCHEDULER_QUEUE_KEY", "%(spider)s:requests"),
        "seen": ("SCHEDULER_DUPEFILTER_KEY", _DUPEFILTERS[0]),
        "start_urls": ("REDIS_START_URLS_KEY", "%(name)s:start_urls"),
        "items": ("REDIS_ITEMS_KEY", "%(spider)s:items"),
    }
    names = {}
    for what, (setting, default) in patterns.items():
        pattern = settings.get(setting) or default
        if what == "start_urls":
            pattern = getattr(spider, "redis_key", None) or pattern
        try:
            names[what] = str(pattern) % {"spider": name, "name": name}
        except (TypeError, ValueError, KeyError) as error:
            raise SettingError(setting, pattern, "a key's name with %(spider)s") from error
    if not settings.get("SCHEDULER_DUPEFILTER_KEY"):
        names["other seen"] = _DUPEFILTERS[1] % {"spider": name}
    return names


PLACES = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS")
_OURS = ("redis_cls", "decode_responses", "encoding", "retry_on_timeout")


def old_client(settings: BaseSettings) -> tuple[redis.Redis, str]:
    """A client of scrapy-redis' server, by its settings, and the address for people. Raises
    `SettingError`."""
    params = dict(settings.getdict("REDIS_PARAMS"))
    if cls := params.get("redis_cls"):
        takes = "none here: -s REDIS_PARAMS={} -s REDIS_URL=redis://… says where it is"
        raise SettingError("REDIS_PARAMS['redis_cls']", cls, takes)
    params = {name: value for name, value in params.items() if name not in _OURS}
    for name in ("host", "port", "db"):
        if value := settings.get(f"REDIS_{name.upper()}"):
            params[name] = value
    url = settings.get("REDIS_URL") or params.pop("url", None)
    timeouts = {"socket_timeout": 30, "socket_connect_timeout": 30}
    try:
        if url:
            return redis.Redis.from_url(url, **{**timeouts, **params}), redact(str(url))
        host, port = params.get("host", "localhost"), params.get("port", 6_379)
        address = f"redis://{host}:{port}/{params.get('db', 0)}"
        return redis.Redis(**{**timeouts, **params}), address
    except (ValueError, TypeError) as error:
        raise SettingError(
            "REDIS_URL" if url else "REDIS_PARAMS", "…", f"what redis-py does ({error})"
        ) from error
