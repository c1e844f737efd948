"""How the shards of a frontier lie on the masters of a cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import redis
from redis.crc import key_slot

from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.ops.doctor.server_info import Told
from scrapy_redisq.server.cluster import Cluster


def examine(client: Cluster, name: str, shards: Sequence[int], lease_ttl: float) -> Iterator[Line]:
    """All that is to be said of the cluster; raises what its client does."""
    masters = client.masters()
    one = _that_answers(masters)
    known = Told.ask(one.execute_command, "CLUSTER INFO") or {}
    covered = int(known.get("cluster_slots_assigned", 0))
    if known and (known.get("cluster_state") != "ok" or covered < 16_384):
        yield problem(
            f"state {known.get('cluster_state')}, {covered:,} of 16,384 hash slots covered",
            "Shards in hash slots that nobody has stand still.",
            "redis-cli --cluster check, and fix",
        )
    else:
        yield ok(f"{len(masters)} masters, all slots covered")
    timeout = Told.ask(one.config_get, "cluster-node-timeout") or {}
    failover = int(timeout.get("cluster-node-timeout", 0)) / 1_000 + 2
    if timeout and failover > lease_ttl:
        yield warning(
            f"a failover takes about {failover:.0f} s (cluster-node-timeout), and"
            f" REDISQ_LEASE_TTL is {lease_ttl:.0f} s",
            "Leases of living workers end meanwhile, and pages are fetched twice.",
            f"REDISQ_LEASE_TTL above {failover:.0f}",
        )
    if shards:
        yield _balance(client, name, shards)


def _that_answers(masters: Sequence[redis.Redis]) -> redis.Redis:
    """One of them, the last one if none does."""
    for master in masters:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            master.ping()
            return master
    return masters[-1]


def _balance(client: Cluster, name: str, shards: Sequence[int]) -> Line:
    masters = len(client.hash_slots.map.masters)
    owners = client.hash_slots.map.owners
    homes = (owners[key_slot(meta_key(name, shard).encode())] for shard in shards)
    has = Counter(filter(None, homes))
    most = max(has.values(), default=0)
    text = f"{len(shards)} shards on {len(has)} of {masters} masters"
    is_idle = len(has) < masters
    if len(shards) >= masters and (is_idle or most > -(-len(shards) // masters) + 1):
        return warning(
            f"{text}, up to {most} on one",
            "That master does the work of several, others none.",
            "equal ranges of slots (redis-cli --cluster rebalance); a new run lays its shards anew",
        )
    if is_idle:
        return note(
            text,
            "The other masters have no part in this crawl.",
            f"REDISQ_SHARDS None, or {masters}, for the next run",
        )
    return ok(text)
