"""Is RedisBloom there?"""

from __future__ import annotations

from collections.abc import Iterable

from scrapy_redisq.frontier.scripts import Call, Client, execute, load

ANYWHERE = ("redisq:{probe}:",)
"""On one server it is all the same."""


def clock_and_probe(prefix: str) -> Call[tuple[int, bool]]:
    """-> the time of the shard whose keys have this ``prefix``, in us since 1970, and whether it
    can keep filters of RedisBloom."""
    return Call.of(
        load("run/clock"), f"{prefix}meta", {"probe": 1}, lambda told: (int(told[0]), told[1] == 1)
    )


def probe(client: Client, prefixes: Iterable[str] = ANYWHERE) -> bool:
    """Can this server, with this user's rights, run the RedisBloom backend?

    In a cluster those nodes that have keys with these ``prefixes``: all must. Raises as `execute`.
    """
    return all(execute(client, clock_and_probe(prefix))[1] for prefix in prefixes)
