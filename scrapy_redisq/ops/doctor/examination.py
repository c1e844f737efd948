"""All looks after one another; what one of them cannot see keeps nobody from the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError, ServerBusy
from scrapy_redisq.frontier.calls import meta_key, wake_channel
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.ops.doctor import cluster, crawl, rights, server
from scrapy_redisq.ops.doctor.report import Line, Report, note, ok, problem, warning
from scrapy_redisq.ops.doctor.speed import SPEED
from scrapy_redisq.ops.doctor.told import Told
from scrapy_redisq.server.cluster import Cluster, nodes_of
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import RedisqSettings

NOBODY = "redisq-doctor"
"""Stands for a frontier where none is named: nothing is ever stored under it."""


def examined(opened: Server, settings: RedisqSettings, name: str | None) -> Report:
    """What is to be said of the server, and of the frontier ``name``."""
    report = Report(opened.address, name)
    examine(report, opened, settings, name)
    return report


def examine(report: Report, opened: Server, settings: RedisqSettings, name: str | None) -> None:
    """Add to ``report`` what is to be said of the server, and of the frontier ``name``."""
    with Frontier(opened, name or NOBODY, dead_max=settings.dead_max) as frontier:

        def look(about: str, lines: Iterable[Line]) -> None:
            try:
                report.add(lines)  # as far as it comes
            except (redis.RedisError, RedisqError, OSError) as error:
                report.add([_unreadable(about, opened.redact(error))])

        config: FrontierConfig | None = None
        try:
            config = frontier.config() if name else None
        except (redis.RedisError, RedisqError, OSError) as error:
            report.add([_unreadable(crawl.CRAWL, opened.redact(error))])
            name = None
        shards = config.shard_numbers(frontier.name) if config else (0,)
        bloom = config is not None and config.backend == "redisbloom"
        look(server.SERVER, _servers(opened, frontier))
        look(server.SERVER, _against_settings(frontier, settings))
        look(rights.RIGHTS, _rights(opened, frontier, shards, settings, bloom, there=bool(config)))
        if isinstance(frontier.client, Cluster):
            placed = shards if config else ()
            look(
                cluster.CLUSTER,
                cluster.examine(frontier.client, name, placed, settings.lease_ttl),
            )
        if name:
            look(crawl.CRAWL, crawl.examine(frontier, settings))


def unreachable(error: object) -> Line:
    """Where there is no server to look at."""
    return problem(
        server.SERVER, str(error), "No crawl can begin.", "REDISQ_URL, or start the server"
    )


def _unreadable(about: str, error: str) -> Line:
    return problem(
        about, error, "The rest of this part could not be looked at.", "what the message says"
    )


def _servers(opened: Server, frontier: Frontier) -> Iterator[Line]:
    """Each server, and those of a cluster once where they are alike."""
    if opened.embedded is not None:
        yield note(
            server.SERVER,
            "it is the embedded server of this folder",
            "Workers on other machines cannot have it.",
            "REDISQ_URL, where there are several machines",
        )
    nodes = nodes_of(frontier.client)
    is_cluster = isinstance(frontier.client, Cluster)
    said: dict[Line, list[int]] = {}
    for number, node in enumerate(nodes):
        try:
            for line in server.examine(node, cluster=is_cluster, sentinel=opened.by_sentinels):
                said.setdefault(line, []).append(number)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            said.setdefault(_silent(opened.redact(error)), []).append(number)
    for line, numbers in said.items():
        whose = ""
        if len(numbers) < len(nodes) and isinstance(frontier.client, Cluster):
            masters = [frontier.client.router.map.masters[number] for number in numbers]
            whose = f"master {', '.join(f'{host}:{port}' for host, port in masters)}: "
        yield Line(line.level, line.about, whose + line.what, line.why, line.set)
    yield from _clocks(nodes)


def _against_settings(frontier: Frontier, settings: RedisqSettings) -> Iterator[Line]:
    """Settings that these servers make useless, or slow."""
    for node in nodes_of(frontier.client):
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            told = Told(node)
            if not told.info:
                continue
            if 0 < settings.max_memory <= 1 and not told.number("maxmemory"):
                yield warning(
                    server.SERVER,
                    f"REDISQ_MAX_MEMORY is {settings.max_memory:g}, and there is no maxmemory",
                    "A share of nothing: nobody waits.",
                    "maxmemory on the server, or REDISQ_MAX_MEMORY in bytes",
                )
                return
            replicas = int(told.number("connected_slaves"))
            if settings.wait_replicas > replicas:
                yield warning(
                    server.SERVER,
                    f"REDISQ_WAIT_REPLICAS is {settings.wait_replicas}, and {replicas} are there",
                    "Exchanges of several servers wait 100 ms each, in vain.",
                    f"REDISQ_WAIT_REPLICAS {replicas}, or more replicas",
                )
                return


def _silent(error: str) -> Line:
    return problem(
        server.SERVER,
        f"it does not answer: {error}",
        "Shards that it has stand still; those of other masters go on.",
        "the server, or its network",
    )


def _clocks(nodes: list[redis.Redis]) -> Iterator[Line]:
    if len(nodes) < 2:
        return
    ahead = []  # of the clock here, for seconds may pass until the next one is asked
    for node in nodes:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            if at := Told.ask(node.time):
                ahead.append(at[0] + at[1] / 1e6 - time.monotonic())
    if len(ahead) < 2:
        return
    if max(ahead) - min(ahead) > 1:
        yield note(
            SPEED,
            f"clocks of masters are {max(ahead) - min(ahead):.1f} s apart",
            "Delays and leases go by the clock of the shard they are on; only figures differ.",
            "NTP on all machines",
        )
    else:
        whose = "the masters' clocks"
        if len(ahead) < len(nodes):
            whose = f"the clocks of {len(ahead)} masters that answered"
        yield ok(SPEED, f"{whose} agree")


def _rights(
    opened: Server,
    frontier: Frontier,
    shards: tuple[int, ...],
    settings: RedisqSettings,
    bloom: bool,
    *,
    there: bool,
) -> Iterator[Line]:
    """Of the user, on each server that has a part of the frontier: what any of them denies is."""
    found: dict[str, bool | None] = {}
    client = frontier.client
    for shard in shards:
        key = meta_key(frontier.name, shard)
        try:
            may = rights.allowed(client, key, has_meta=there, bloom=bloom)
        except (redis.ConnectionError, redis.TimeoutError, ServerBusy, OSError):
            continue  # which is said of the server
        except redis.ResponseError as error:
            yield rights.keys_denied(opened.redact(error))
            return
        _merge(found, may)
    outside = [*rights.BY_CLIENTS]
    if opened.by_sentinels or settings.wait_replicas:
        outside += rights.WITH_WAIT
    unknown = [name for name, may in found.items() if may is None]
    key, channel = meta_key(frontier.name, 0), wake_channel(frontier.name, 0)
    for node in nodes_of(client):
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            told = rights.dry_run(node, unknown, key)
            found.update({name: may for name, may in told.items() if may is not None})
            _merge(found, rights.allowed_outside(node, outside))
            _merge(found, {"subscribe": rights.may_subscribe(node, channel)})
    yield from rights.examine(found)


def _merge(found: dict[str, bool | None], more: dict[str, bool | None]) -> None:
    for name, may in more.items():
        before = found.get(name, True)
        found[name] = (
            False if before is False or may is False else None if None in (before, may) else True
        )
