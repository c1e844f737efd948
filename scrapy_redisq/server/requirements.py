"""Requirements of a server: it keeps requests, over a full memory and over a restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis

from scrapy_redisq.errors import ServerUnsuitable
from scrapy_redisq.server.condition import Told

CONF = "(CONFIG SET, and in redis.conf)"
NOEVICTION = f"maxmemory-policy noeviction {CONF}"


class Weakness(NamedTuple):
    """A requirement that a server does not meet, why it matters, and what to set."""

    what: str
    why: str
    set: str

    def __str__(self) -> str:
        return f"{self.what}. {self.why} Set: {self.set}"


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


def check(told: Told, address: str, *, in_cluster: bool, failovers: bool) -> None:
    """Raise `ServerUnsuitable` if the server would throw requests away, or takes none.

    ``in_cluster``: it is a master of one. ``failovers``: what clients reach is another server after
    a failover. ``volatile-*`` evicts keys that have a time to live, which no key has that holds
    requests: a weakness. ``allkeys-*``, and any policy not known here, may evict a whole queue.
    """
    role = told.role
    if role[0] == b"slave" and not in_cluster:  # there it has just become one
        raise ServerUnsuitable(
            f"{address} is a replica of {role[1].decode(errors='replace')}:{role[2]}, and takes no "
            "requests: give REDISQ_URL the address of the primary, or with redis+sentinel:// of "
            "the Sentinels that know it"
        )
    if failovers:
        try:
            told.client.wait(0, 1)
        except redis.exceptions.NoPermissionError:
            raise ServerUnsuitable(
                f"{address}: the user of REDISQ_URL may not use WAIT, by which a worker knows that "
                "a failover loses nothing: ACL SETUSER … +wait"
            ) from None
    policy = _policy(told)
    if policy and policy != "noeviction" and not policy.startswith("volatile-"):
        raise ServerUnsuitable(
            f"{address}: maxmemory-policy is {policy}, which throws requests away when memory is "
            f"full: set {NOEVICTION}, or give REDISQ_URL another server"
        )


def keeps_log(told: Told) -> bool | None:
    """Whether it has an append-only file; None: it does not say."""
    said = told.setting("appendonly", "aof_enabled")
    return None if said is None else said in {"1", "yes"}


def weaknesses(told: Told, *, in_cluster: bool, failovers: bool) -> Iterator[Weakness]:
    """Requirements that are not met; see `check`."""
    unknown = []
    policy, has_log = _policy(told), keeps_log(told)
    if policy is None:
        unknown.append("its maxmemory-policy (noeviction is right)")
    elif policy.startswith("volatile-"):
        yield Weakness(
            f"maxmemory-policy is {policy}",
            "The frontier's own keys are safe from it, what shares the server may not be.",
            NOEVICTION,
        )
    save = None if has_log else told.setting("save")
    if has_log is None or (save is None and not has_log):
        unknown.append("whether it keeps data over a restart (appendonly, save)")
    elif not has_log and save is not None and not save.strip():
        yield Weakness(
            "data is kept in memory only",
            "If it restarts the frontier is lost, and the crawl must begin again.",
            f"appendonly yes {CONF}",
        )
    may_fail_over = failovers or (told.role[0] == b"master" and len(told.role[2]) > 0)
    if may_fail_over and not in_cluster and told.setting("min-replicas-to-write") in {"0", 0}:
        yield Weakness(
            "min-replicas-to-write is 0",
            "At a failover a primary that its replicas have left goes on taking what is lost with "
            "it: pages are fetched again, and what was pushed must be pushed again.",
            f"min-replicas-to-write 1, min-replicas-max-lag 2 on all of its servers {CONF}",
        )
    if unknown:
        yield Weakness(
            f"this user may not see {' or '.join(unknown)}",
            "INFO or CONFIG is denied.",
            "ACL SETUSER … +info",
        )


NO_NEW_LOG = Weakness(
    "its append-only file was not written anew since it was started, or that failed",
    "If a power cut has torn a script in that file, half of the script is applied at the next "
    "start: requests may be missing then. Workers ask for a new file when they join, where they "
    "may.",
    "BGREWRITEAOF after each start, or ACL SETUSER … +bgrewriteaof",
)


def is_log_due(info: dict[str, Any]) -> bool:
    """Whether the server, which INFO is of, has an append-only file and has not written it anew
    since its start, or failed to (no memory, no room on the disk)."""
    is_new = info.get("aof_last_rewrite_time_sec") != -1 and (
        info.get("aof_last_bgrewrite_status") != "err"
    )
    return bool(info.get("aof_enabled")) and not is_new


def renew_log(client: redis.Redis, info: dict[str, Any] | None = None) -> bool:
    """Have the server write its append-only file anew if that `is_log_due`; -> whether this user
    may ask for that. ``info``: by INFO, just now.

    A power cut may tear a script in that file. At its start the server forgets the script, but
    before Valkey 9.1 it leaves the first half in the file (redis/redis, valkey-io/valkey#4342), and
    applies that half at the start after the next write. One rewrite for each start of the server.
    """
    if info is None:
        try:
            info = client.info("persistence")
        except redis.ResponseError:  # denied
            return True
    if is_log_due(info) and not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]):
        try:
            client.bgrewriteaof()
        except redis.ResponseError as error:
            # Else another worker was faster.
            return not re.search("noperm|unknown command", f"{error!r}", re.IGNORECASE)
    return True


def _policy(told: Told) -> str | None:
    return told.setting("maxmemory-policy", "maxmemory_policy")
