"""All looks after one another; what one of them cannot see keeps nobody from the others."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import redis
from redis.crc import key_slot

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.ops.doctor import crawl, redis_server, rights
from scrapy_redisq.ops.doctor.report import Line, Report, note, ok, problem, warning
from scrapy_redisq.server.cluster import Cluster, nodes_of
from scrapy_redisq.server.condition import Told
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import RedisqSettings

NOBODY = "redisq-doctor"
"""Stands for a frontier where none is named: nothing is ever stored under it."""


def examine(report: Report, opened: Server, settings: RedisqSettings, name: str | None) -> None:
    """Add to ``report`` what is to be said of the server, and of the frontier ``name``."""
    with Frontier(opened, name or NOBODY) as frontier:

        def look(about: str, lines: Iterable[Line]) -> None:
            try:
                report.add(about, lines)
            except (redis.RedisError, RedisqError, OSError) as error:
                why = "The rest of this part could not be looked at."
                lines = [problem(opened.redact(error), why, "what the message says")]
                report.add(about, lines)

        if opened.embedded is not None:
            text, why = "it is the embedded server of this folder", "Other machines cannot have it."
            report.add("Server", [note(text, why, "REDISQ_URL, where there are several machines")])
        look("Server", _of_each(opened, frontier, settings))
        look("Rights", _rights(frontier, named=name is not None))
        if name:
            look("Crawl", _of_crawl(frontier, settings))


def unreachable(error: object) -> Line:
    """Where there is no server to look at."""
    return problem(str(error), "No crawl can begin.", "REDISQ_URL, or start the server")


def _of_crawl(frontier: Frontier, settings: RedisqSettings) -> Iterator[Line]:
    config = frontier.config()
    if isinstance(frontier.client, Cluster) and config:
        yield _balance(frontier.client, frontier.name, config)
    yield from crawl.examine(frontier, settings)


def _rights(frontier: Frontier, *, named: bool) -> Iterator[Line]:
    """Of the user, on the server of shard 0: they are the same on all."""
    config = None
    with contextlib.suppress(RedisqError):  # which is said of the crawl
        config = frontier.config() if named else None
    yield from rights.examine(
        frontier.client,
        nodes_of(frontier.client)[0],
        meta_key(frontier.name, 0),
        has_meta=config is not None,
        bloom=config is not None and config.backend == "redisbloom",
    )


def _of_each(opened: Server, frontier: Frontier, settings: RedisqSettings) -> Iterator[Line]:
    """Lines about each server; of a cluster's servers once where they are alike."""
    client = frontier.client
    nodes = nodes_of(client)
    said: dict[Line, list[int]] = {}
    for number, node in enumerate(nodes):
        try:
            found = redis_server.examine(
                Told(node),
                settings,
                opened.address,
                in_cluster=opened.is_cluster,
                failovers=opened.by_sentinels,
            )
            for line in found:
                said.setdefault(line, []).append(number)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            text = f"it does not answer: {opened.redact(error)}"
            why = "Shards that it has stand still; those of other masters go on."
            said.setdefault(problem(text, why, "the server, or its network"), []).append(number)
    for line, numbers in said.items():
        whose = ""
        if len(numbers) < len(nodes) and isinstance(client, Cluster):
            masters = [client.hash_slots.map.masters[number] for number in numbers]
            whose = f"master {', '.join(f'{host}:{port}' for host, port in masters)}: "
        yield replace(line, what=whose + line.what)


def _balance(client: Cluster, name: str, config: FrontierConfig) -> Line:
    """How the shards lie on the masters."""
    shards: Sequence[int] = config.shard_numbers(name)
    known = client.hash_slots.map
    homes = (known.owners[key_slot(meta_key(name, shard).encode())] for shard in shards)
    has = Counter(filter(None, homes))
    masters, most = len(known.masters), max(has.values(), default=0)
    text = f"{len(shards)} shards on {len(has)} of {masters} masters, up to {most} on one"
    if len(has) < min(masters, len(shards)):
        return warning(
            text,
            "That master does the work of several, others none.",
            "equal ranges of slots (redis-cli --cluster rebalance); a new run lays its shards anew",
        )
    return ok(text)
