"""The robots.txt of a host: ``lua/robots.lua``."""

from __future__ import annotations

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, raw_string


def robots_txt(
    name: str, shard: int, run: str, host: str, *, text: bytes | None = None, ttl: float = 0.0
) -> Call[tuple[str, bytes, float]]:
    """Ask for a host's robots.txt, or keep its ``text`` for ``ttl`` seconds (0: say that this
    worker does not fetch it).

    -> ("known", text, seconds for which it is valid), or "fetch", "wait" or "lost" with nothing.
    """
    data = {
        "run": run,
        "host": host,
        "text": False if text is None else raw_string(text),
        "ttl": int(ttl * 1000),
    }
    return Call.of(
        load("robots"),
        meta_key(name, shard),
        data,
        lambda reply: (reply[0].decode(), reply[1], reply[2] / 1000),
    )
