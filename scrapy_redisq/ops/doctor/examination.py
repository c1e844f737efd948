"""All looks after one another; what one of them cannot see keeps nobody from the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError, ServerBusy
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import meta_key, wake_channel
from scrapy_redisq.ops.doctor import cluster, crawl, redis_server, rights
from scrapy_redisq.ops.doctor.report import Line, Report, note, problem
from scrapy_redisq.ops.doctor.server_info import Told
from scrapy_redisq.ops.doctor.speed import speed
from scrapy_redisq.server.cluster import Cluster, nodes_of
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import RedisqSettings

NOBODY = "redisq-doctor"
"""Stands for a frontier where none is named: nothing is ever stored under it."""


def examine(report: Report, opened: Server, settings: RedisqSettings, name: str | None) -> None:
    """Add to ``report`` what is to be said of the server, and of the frontier ``name``."""
    with Frontier(opened, name or NOBODY) as frontier:

        def unreadable(error: Exception) -> Line:
            why = "The rest of this part could not be looked at."
            return problem(opened.redact(error), why, "what the message says")

        def look(about: str, lines: Iterable[Line]) -> None:
            try:
                report.add(about, lines)
            except (redis.RedisError, RedisqError, OSError) as error:
                report.add(about, [unreadable(error)])

        config: FrontierConfig | None = None
        try:
            config = frontier.config() if name else None
        except (redis.RedisError, RedisqError, OSError) as error:
            report.add("Crawl", [unreadable(error)])
            name = None
        client = frontier.client
        is_cluster = isinstance(client, Cluster)

        def of_server(told: Told) -> Iterator[Line]:
            yield from redis_server.examine(
                told, settings, cluster=is_cluster, sentinel=opened.by_sentinels
            )

        if opened.embedded is not None:
            text, why = "it is the embedded server of this folder", "Other machines cannot have it."
            report.add("Server", [note(text, why, "REDISQ_URL, where there are several machines")])
        look("Server", _of_each(opened, frontier, of_server))
        look("Speed", _of_each(opened, frontier, speed))
        look("Rights", _rights(opened, frontier, settings, config))
        if isinstance(client, Cluster):
            shards = config.shard_numbers(frontier.name) if config else ()
            look("Cluster", cluster.examine(client, frontier.name, shards, settings.lease_ttl))
        if name:
            look("Crawl", crawl.examine(frontier, settings))
        if config:
            look("Memory", crawl.memory(frontier))


def unreachable(error: object) -> Line:
    """Where there is no server to look at."""
    return problem(str(error), "No crawl can begin.", "REDISQ_URL, or start the server")


def _of_each(
    opened: Server, frontier: Frontier, look: Callable[[Told], Iterable[Line]]
) -> Iterator[Line]:
    """What is to be said of each server; of a cluster's once where they are alike."""
    nodes = nodes_of(frontier.client)
    said: dict[Line, list[int]] = {}
    for number, node in enumerate(nodes):
        try:
            for line in look(Told(node)):
                said.setdefault(line, []).append(number)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            text = f"it does not answer: {opened.redact(error)}"
            why = "Shards that it has stand still; those of other masters go on."
            said.setdefault(problem(text, why, "the server, or its network"), []).append(number)
    for line, numbers in said.items():
        whose = ""
        if len(numbers) < len(nodes) and isinstance(frontier.client, Cluster):
            masters = [frontier.client.hash_slots.map.masters[number] for number in numbers]
            whose = f"master {', '.join(f'{host}:{port}' for host, port in masters)}: "
        yield replace(line, what=whose + line.what)


def _rights(
    opened: Server, frontier: Frontier, settings: RedisqSettings, config: FrontierConfig | None
) -> Iterator[Line]:
    """Of the user, on each server that has a part of the frontier: what any of them denies is."""
    found: dict[str, bool] = {}
    bloom = config is not None and config.backend == "redisbloom"

    def take(more: dict[str, bool]) -> None:
        found.update({name: may and found.get(name, True) for name, may in more.items()})

    for shard in config.shard_numbers(frontier.name) if config else (0,):
        key = meta_key(frontier.name, shard)
        try:
            take(rights.allowed(frontier.client, key, has_meta=config is not None, bloom=bloom))
        except (redis.ConnectionError, redis.TimeoutError, ServerBusy, OSError):
            continue  # which is said of the server
        except redis.ResponseError as error:
            yield rights.keys_denied(opened.redact(error))
            return
    outside = [*rights.BY_CLIENTS]
    if opened.by_sentinels or settings.wait_replicas:
        outside += rights.WAIT
    channel = wake_channel(frontier.name, 0)
    for node in nodes_of(frontier.client):
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            take(rights.allowed_outside(node, outside))
            take({"subscribe": rights.may_subscribe(node, channel)})
    yield from rights.examine(found)
