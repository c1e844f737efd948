"""How the shards of a frontier lie on the masters of a cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import redis
from redis.crc import key_slot

from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.ops.doctor.server_info import Told
from scrapy_redisq.server.cluster import Cluster


def examine(
    client: Cluster, name: str | None, shards: Sequence[int], lease_ttl: float
) -> Iterator[Line]:
    """All that is to be said of the cluster; raises what its client does."""
    masters = client.masters()
    nodes = list(client.hash_slots.map.masters)
    one = _that_answers(masters)
    told = Told(one)
    info = told.ask(told.client.execute_command, "CLUSTER INFO")
    known = _fields(info) if info else {}
    covered = int(known.get("cluster_slots_assigned", 0) or 0)
    if known and (known.get("cluster_state") != "ok" or covered < 16_384):
        yield problem(
            f"state {known.get('cluster_state')}, {covered:,} of 16,384 slots covered",
            "Shards in slots that nobody has stand still.",
            "redis-cli --cluster check, and fix",
        )
    else:
        yield ok(f"{len(masters)} masters, all slots covered")
    timeout = told.ask(one.config_get, "cluster-node-timeout") or {}
    if seconds := int(timeout.get("cluster-node-timeout", 0)) / 1_000:
        failover = seconds + 2
        if failover > lease_ttl:
            yield warning(
                f"a failover takes about {failover:.0f} s (cluster-node-timeout), and"
                f" REDISQ_LEASE_TTL is {lease_ttl:.0f} s",
                "Leases of living workers end meanwhile, and pages are fetched twice.",
                f"REDISQ_LEASE_TTL above {failover:.0f}",
            )
    if name is not None and shards:
        yield from _balance(client, name, shards, nodes)


def _that_answers(masters: Sequence[redis.Redis]) -> redis.Redis:
    """One of them, the last one if none does."""
    for master in masters:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            master.ping()
            return master
    return masters[-1]


def _balance(
    client: Cluster, name: str, shards: Sequence[int], nodes: Sequence[tuple[str, int]]
) -> Iterator[Line]:
    has: Counter[tuple[str, int]] = Counter()
    for shard in shards:
        if master := client.hash_slots.master_of(key_slot(meta_key(name, shard).encode())):
            has[master] += 1
    empty = [node for node in nodes if not has[node]]
    most = max(has.values(), default=0)
    text = f"{len(shards)} shards on {len(has)} of {len(nodes)} masters"
    if len(shards) >= len(nodes) and (empty or most > -(-len(shards) // len(nodes)) + 1):
        yield warning(
            f"{text}, up to {most} on one",
            "That master does the work of several, others none.",
            "equal ranges of slots (redis-cli --cluster rebalance); a new run lays its shards anew",
        )
    elif empty:
        yield note(
            text,
            "The other masters have no part in this crawl.",
            f"REDISQ_SHARDS None, or {len(nodes)}, for the next run",
        )
    else:
        yield ok(text)


def _fields(info: object) -> dict[str, str]:
    if isinstance(info, Mapping):  # redis-py has read it
        return {str(name): str(value) for name, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else str(info)
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, _, value in pairs if value}
