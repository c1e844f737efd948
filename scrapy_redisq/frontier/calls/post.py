"""Posts, which stand for links to other shards until those cannot lose them: ``lua/post/``."""

from __future__ import annotations

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load


def take_posts(
    name: str, shard: int, run: str, *, most: int, hold: float
) -> Call[dict[str, bytes]]:
    """-> id of each post that is due, and what it holds. Nobody else is given them for ``hold``
    seconds."""
    data = {"run": run, "most": most, "hold": int(hold * 1e6)}

    def decode(reply: list[bytes]) -> dict[str, bytes]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {id.decode(errors="surrogateescape"): links for id, links in pairs}

    return Call.of(load("post/take"), meta_key(name, shard), data, decode)
