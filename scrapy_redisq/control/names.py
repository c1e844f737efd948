"""Which frontiers a server has."""

from __future__ import annotations

import contextlib

import redis

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.names import EVERY_META, name_in
from scrapy_redisq.server.cluster import nodes_of
from scrapy_redisq.server.connection import Client
from scrapy_redisq.settings.settings import check_frontier_name

SCAN_BATCH = 1_000
SCAN_BATCHES = 1_000
"""A search for frontiers looks at a million keys at most, about a second of Redis' time."""


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
