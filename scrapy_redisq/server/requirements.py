"""What a server must be: it keeps requests, over a full memory and over a restart."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from scrapy_redisq.errors import ServerUnsuitable

__all__ = ["ServerFacts", "Told", "ask", "assess", "check_kind", "renew_log"]


def check_kind(told: dict[str, Any], address: str) -> None:
    """Refuse a Sentinel and a node of a cluster, by what INFO has ``told``: REDISQ_URL names these
    in another way. Raises `ServerUnsuitable`."""
    if "sentinel" in {told.get("redis_mode"), told.get("server_mode")}:  # Valkey's
        names = [told[key]["name"] for key in told if re.fullmatch(r"master\d+", key)]
        raise ServerUnsuitable(
            f"{address} (REDISQ_URL) is a Sentinel, and keeps no data: write "
            f"redis+sentinel://HOST:PORT,HOST:PORT/{[*names, 'SERVICE'][0]}"
        )
    if told.get("cluster_enabled") == 1:
        scheme, *_ = address.partition("://")
        raise ServerUnsuitable(
            f"{address} (REDISQ_URL) is a node of a cluster: write "
            f"{scheme.replace('unix', 'redis')}+cluster://, and after it the hosts and ports "
            f"of one or more of its nodes, with commas between them"
        )


@dataclass(frozen=True)
class ServerFacts:
    """What a server says about keeping data. ``None``: it does not say."""

    policy: str | None
    """``maxmemory-policy``."""
    append_only: bool | None
    snapshots: bool | None
    """Whether any save point is set."""
    version: tuple[str, str] | None = None
    """What it is, such as ("Valkey", "9.1.2")."""
    primary: str | None = None
    """Of a replica: HOST:PORT of its primary."""
    min_replicas: int | None = None
    """``min-replicas-to-write``; asked only where a replica may take its place."""
    may_wait: bool = True
    """Whether WAIT is allowed; asked only where failovers are followed."""
    may_renew_log: bool = True
    """Whether BGREWRITEAOF is allowed; asked only where `renew_log` wants it."""


class Told:
    """What a server says in one round trip, as far as this user may ask. Raises what PING does."""

    def __init__(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=False) as asked:
            asked.ping()
            asked.info()
            asked.role()
            pong, info, role = asked.execute(raise_on_error=False)
        if isinstance(pong, Exception):
            raise pong
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        self.role: list[Any] = role if isinstance(role, list) else [b""]


def ask(client: redis.Redis, *, failovers: bool = False, told: Told | None = None) -> ServerFacts:
    """Ask the server behind ``client``; raises what the client does, if it goes away.

    CONFIG is asked only for what INFO leaves open: many users and hosted servers may not use it.
    ``failovers``: what clients reach is another server after a failover. ``told``: what it has just
    said.
    """
    told = told or Told(client)

    def setting(name: str, about: str = "") -> str | None:
        if about in told.info:
            return str(told.info[about])
        with contextlib.suppress(redis.ResponseError):  # denied
            return client.config_get(name).get(name)
        return None

    append_only = setting("appendonly", "aof_enabled")
    is_logged = append_only in {"1", "yes"}
    save = None if is_logged else setting("save")
    primary, replicas = _place_in_replication(told.role)
    min_replicas = setting("min-replicas-to-write") if failovers or replicas else None
    return ServerFacts(
        policy=setting("maxmemory-policy", "maxmemory_policy"),
        append_only=None if append_only is None else is_logged,
        snapshots=None if save is None else bool(save.strip()),
        version=_version(told.info),
        primary=primary,
        min_replicas=None if min_replicas is None else int(min_replicas),
        may_wait=not failovers or _may_wait(client),
        may_renew_log=renew_log(client, told.info),
    )


def _place_in_replication(role: list[Any]) -> tuple[str | None, int]:
    """(HOST:PORT of its primary if it is a replica, number of its own replicas)."""
    if role[0] == b"slave":
        return f"{role[1].decode(errors='replace')}:{role[2]}", 0
    return None, len(role[2]) if role[0] == b"master" else 0


def _may_wait(client: redis.Redis) -> bool:
    try:
        client.wait(0, 1)
    except redis.exceptions.NoPermissionError:
        return False
    return True


def renew_log(client: redis.Redis, told: dict[str, Any] | None = None) -> bool:
    """Have the server write its append-only file anew, unless it has since its start and did not
    fail (no memory, no room on the disk); -> whether this user may ask for that.

    A power cut may tear a script in that file. At its start the server forgets the script, but
    before Valkey 9.1 it leaves the first half in the file (redis/redis, valkey-io/valkey#4342), and
    applies that half at the start after the next write. INFO does not say whether that was so.
    Costs one rewrite for each start of the server; one that fails is tried again with the next
    worker. ``told``: by INFO, just now.
    """
    if told is None:
        try:
            told = client.info("persistence")
        except redis.ResponseError:  # denied
            return True
    is_new = told.get("aof_last_rewrite_time_sec") != -1 and (
        told.get("aof_last_bgrewrite_status") != "err"
    )
    is_due = told.get("aof_enabled") and not is_new
    if is_due and not (told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"]):
        try:
            client.bgrewriteaof()
        except redis.ResponseError as error:
            # Else another worker was faster.
            return not re.search("noperm|unknown command", f"{error!r}", re.IGNORECASE)
    return True


def _version(told: dict[str, Any]) -> tuple[str, str] | None:
    if valkey := told.get("valkey_version"):
        return "Valkey", str(valkey)
    return ("Redis", str(told["redis_version"])) if "redis_version" in told else None


OLDEST_OF_CLUSTER = {"Redis": 7, "Valkey": 8}
"""Older ones have no ``CLUSTER ADDSLOTSRANGE``, and nobody has tried them."""


NOEVICTION = "set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)"


def assess(facts: ServerFacts, address: str, *, cluster: bool = False) -> list[str]:
    """What to warn of; raises `ServerUnsuitable` if the server would throw requests away, or takes
    none.

    Only ``noeviction`` is right. ``volatile-*`` evicts keys that have a time to live, and no key
    that holds requests, leases or counts has one: nothing can be lost, so it is a warning.
    ``allkeys-*``, and any policy not known here, may evict a whole queue, also while
    ``maxmemory`` is not reached or not set yet: it would be when the crawl is large.
    """
    if facts.primary is not None and not cluster:  # there it has just become one
        raise ServerUnsuitable(
            f"{address} is a replica of {facts.primary}, and takes no requests: give REDISQ_URL "
            "the address of the primary, or with redis+sentinel:// of the Sentinels that know it"
        )
    if not facts.may_wait:
        raise ServerUnsuitable(
            f"{address}: the user of REDISQ_URL may not use WAIT, by which a worker knows that a "
            "failover loses nothing: ACL SETUSER … +wait"
        )
    policy = facts.policy
    if policy and policy != "noeviction" and not policy.startswith("volatile-"):
        raise ServerUnsuitable(
            f"{address}: maxmemory-policy is {policy}, which throws requests away when memory is "
            f"full: {NOEVICTION}, or give REDISQ_URL another server"
        )
    return [f"{address}{what}" for what in _weaknesses(facts, cluster=cluster)]


def _weaknesses(facts: ServerFacts, *, cluster: bool) -> Iterator[str]:
    """What is not as it should be, to stand behind the server's address."""
    unknown = []
    if facts.policy is None:
        unknown.append(f"its maxmemory-policy (if it is not noeviction, {NOEVICTION})")
    elif facts.policy.startswith("volatile-"):
        yield (
            f": maxmemory-policy is {facts.policy}. The frontier's own keys are safe from it, what "
            f"shares the server may not be: better {NOEVICTION}"
        )
    if facts.append_only is None or (not facts.append_only and facts.snapshots is None):
        unknown.append("whether it keeps data over a restart (appendonly, save)")
    elif not facts.append_only and not facts.snapshots:
        yield (
            " keeps data in memory only: if it restarts, the frontier is lost and the crawl must "
            "begin again. Set appendonly yes (CONFIG SET appendonly yes, and in redis.conf)"
        )
    if not facts.may_renew_log:
        yield (
            " has not written its append-only file anew since it was started, and this user may "
            "not ask for it. If a power cut has torn that file in the middle of a script, half of "
            "the script is applied at the next start: requests may be missing then. Say "
            "BGREWRITEAOF after each start, or ACL SETUSER … +bgrewriteaof"
        )
    name, version = facts.version or ("", "")
    if cluster and name and int(version.partition(".")[0]) < OLDEST_OF_CLUSTER[name]:
        yield (
            f" is {name} {version}: a frontier on a cluster is tested with Redis "
            f"{OLDEST_OF_CLUSTER['Redis']} and Valkey {OLDEST_OF_CLUSTER['Valkey']} or newer"
        )
    if facts.min_replicas == 0 and not cluster:
        yield (
            ": min-replicas-to-write is 0. At a failover a primary that its replicas have left "
            "goes on taking what is lost with it: pages are fetched again, and what was pushed "
            "must be pushed again. Set min-replicas-to-write 1 and min-replicas-max-lag 2 on all "
            "of its servers (CONFIG SET, and in redis.conf)"
        )
    if unknown:
        yield f" does not let this user see {' or '.join(unknown)}: INFO or CONFIG is denied"
