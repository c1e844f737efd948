"""What a server must be: it keeps requests, over a full memory and over a restart."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from scrapy_redisq.errors import ServerUnsuitable

__all__ = ["Examination", "Told", "check_kind", "renew_log"]


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


NOEVICTION = "set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)"


@dataclass(frozen=True)
class Examination:
    """One server, looked at by ``client``; ``told``: what it has just said. Its methods raise what
    the client does, if the server goes away.

    CONFIG is asked only for what INFO leaves open: many users and hosted servers may not use it.
    ``in_cluster``: it is a master of one. ``failovers``: what clients reach is another server after
    a failover.
    """

    client: redis.Redis
    told: Told
    in_cluster: bool = False
    failovers: bool = False

    def check(self, address: str) -> None:
        """Raise `ServerUnsuitable` if the server would throw requests away, or takes none.

        Only ``noeviction`` is right. ``volatile-*`` evicts keys that have a time to live, and no
        key that holds requests, leases or counts has one: nothing can be lost, so it is a warning.
        ``allkeys-*``, and any policy not known here, may evict a whole queue, also while
        ``maxmemory`` is not reached or not set yet: it would be when the crawl is large.
        """
        role = self.told.role
        if role[0] == b"slave" and not self.in_cluster:  # there it has just become one
            raise ServerUnsuitable(
                f"{address} is a replica of {role[1].decode(errors='replace')}:{role[2]}, and "
                "takes no requests: give REDISQ_URL the address of the primary, or with "
                "redis+sentinel:// of the Sentinels that know it"
            )
        if self.failovers:
            try:
                self.client.wait(0, 1)
            except redis.exceptions.NoPermissionError:
                raise ServerUnsuitable(
                    f"{address}: the user of REDISQ_URL may not use WAIT, by which a worker knows "
                    "that a failover loses nothing: ACL SETUSER … +wait"
                ) from None
        policy = self._policy()
        if policy and policy != "noeviction" and not policy.startswith("volatile-"):
            raise ServerUnsuitable(
                f"{address}: maxmemory-policy is {policy}, which throws requests away when memory "
                f"is full: {NOEVICTION}, or give REDISQ_URL another server"
            )

    def keeps_log(self) -> bool | None:
        """Whether it has an append-only file; None: it does not say."""
        said = self._setting("appendonly", "aof_enabled")
        return None if said is None else said in {"1", "yes"}

    def weaknesses(self) -> Iterator[str]:
        """What is not as it should be, to stand behind the server's address."""
        unknown = []
        policy = self._policy()
        if policy is None:
            unknown.append(f"its maxmemory-policy (if it is not noeviction, {NOEVICTION})")
        elif policy.startswith("volatile-"):
            yield (
                f": maxmemory-policy is {policy}. The frontier's own keys are safe from it, what "
                f"shares the server may not be: better {NOEVICTION}"
            )
        keeps_log = self.keeps_log()
        save = None if keeps_log else self._setting("save")
        if keeps_log is None or (save is None and not keeps_log):
            unknown.append("whether it keeps data over a restart (appendonly, save)")
        elif not keeps_log and save is not None and not save.strip():
            yield (
                " keeps data in memory only: if it restarts, the frontier is lost and the crawl "
                "must begin again. Set appendonly yes (CONFIG SET appendonly yes, and in "
                "redis.conf)"
            )
        if not renew_log(self.client, self.told.info):
            yield (
                " has not written its append-only file anew since it was started, and this user "
                "may not ask for it. If a power cut has torn that file in the middle of a script, "
                "half of the script is applied at the next start: requests may be missing then. "
                "Say BGREWRITEAOF after each start, or ACL SETUSER … +bgrewriteaof"
            )
        role = self.told.role
        may_fail_over = self.failovers or (role[0] == b"master" and len(role[2]) > 0)
        if (
            may_fail_over
            and not self.in_cluster
            and self._setting("min-replicas-to-write") in {"0", 0}
        ):
            yield (
                ": min-replicas-to-write is 0. At a failover a primary that its replicas have left "
                "goes on taking what is lost with it: pages are fetched again, and what was pushed "
                "must be pushed again. Set min-replicas-to-write 1 and min-replicas-max-lag 2 on "
                "all of its servers (CONFIG SET, and in redis.conf)"
            )
        if unknown:
            yield f" does not let this user see {' or '.join(unknown)}: INFO or CONFIG is denied"

    def _policy(self) -> str | None:
        return self._setting("maxmemory-policy", "maxmemory_policy")

    def _setting(self, name: str, about: str = "") -> str | None:
        """What a setting is; None: this user may not ask. ``about``: what INFO calls it."""
        if about in self.told.info:
            return str(self.told.info[about])
        with contextlib.suppress(redis.ResponseError):  # denied
            return self.client.config_get(name).get(name)
        return None
