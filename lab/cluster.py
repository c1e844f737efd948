"""A cluster of own Redis or Valkey processes, and what an operator does to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from lab.servers import Closed, RedisServer, binaries, free_port, wait_until

SLOTS = 16_384

KINDS = [kind for kind in ("redis-7", "redis-8", "valkey-8", "valkey-9") if kind in binaries()]
"""Servers that a frontier on a cluster is promised for."""


class Cluster(Closed):
    """``masters`` nodes with equal shares of the hash slots in their order, and ``replicas`` of
    each of them. A context manager; it is up when it has been made, which takes two seconds:
    so long a master keeps its clients waiting after it was started.

    ``servers`` are the masters that it began with, then the replicas: of all masters the first one,
    and so on. ``node_timeout``: seconds without an answer after which a node is taken for dead.
    """

    def __init__(
        self,
        binary: Path,
        *options: str,
        masters: int = 3,
        replicas: int = 0,
        node_timeout: float = 1.0,
        password: str = "",
        aof: bool = False,
    ) -> None:
        self._password = password
        options = ("--repl-diskless-sync-delay", "0", *options)
        options = ("--cluster-node-timeout", f"{node_timeout * 1e3:.0f}", *options)
        options = ("--cluster-enabled", "yes", *options)
        self._node = functools.partial(RedisServer, binary, *options, password=password, aof=aof)
        self.servers: list[RedisServer] = []
        buses = [free_port() for _ in range(masters * (1 + replicas))]
        try:
            with ThreadPoolExecutor(len(buses)) as pool:
                ports = map(str, buses)
                self.servers += pool.map(self._node, itertools.repeat("--cluster-port"), ports)
            self._meet(buses)
            ends = [SLOTS * number // masters for number in range(masters + 1)]
            for server, first, end in zip(self.servers, ends, ends[1:], strict=False):
                self.command(server, "ADDSLOTSRANGE", first, end - 1)
            for number, server in enumerate(self.servers[masters:]):
                self.command(server, "REPLICATE", self.id_of(self.servers[number % masters]))
            self.wait_until_in_order()
        except BaseException:
            self.close()
            raise

    def _meet(self, buses: list[int]) -> None:
        for number, server in enumerate(self.servers):
            self.command(server, "SET-CONFIG-EPOCH", number + 1)
            for other, bus in zip(self.servers[:number], buses, strict=False):
                self.command(server, "MEET", "127.0.0.1", other.port, bus)
        self._wait_until_known()

    def _wait_until_known(self) -> None:
        known = str(len(self.servers))
        wait_until(
            lambda: all(self.told(server, "known_nodes") == known for server in self.servers),
            20,
            "the nodes know each other",
        )

    def wait_until_in_order(self) -> None:
        """Wait until all nodes that run agree on the map, and all replicas are in step."""
        running = [server for server in self.servers if server.running]
        wait_until(lambda: self._in_order(running), 30, "the cluster is in order")

    def _in_order(self, running: list[RedisServer]) -> bool:
        maps = set()
        for server in running:
            with server.client() as client:
                try:
                    link = client.info("replication").get("master_link_status", "up")
                    if self.told(server, "state") != "ok" or link != "up":
                        return False
                    maps.add(repr(sorted(masters(client).items())))
                except redis.RedisError:
                    return False
        return len(maps) == 1

    @property
    def url(self) -> str:
        """For REDISQ_URL: two of its nodes."""
        user = f":{self._password}@" if self._password else ""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{user}{hosts}"

    def close(self) -> None:
        for server in self.servers:
            server.close()

    # Asked

    def command(self, server: RedisServer, *words: Any) -> Any:
        """A sub command of CLUSTER, and its reply as it came."""
        with server.client() as client:
            return client.execute_command("CLUSTER", *words)

    def told(self, server: RedisServer, field: str) -> str:
        """A field of CLUSTER INFO, without ``cluster_`` before it."""
        with server.client() as client:
            return str(client.execute_command("CLUSTER INFO")[f"cluster_{field}"])

    def id_of(self, server: RedisServer) -> str:
        return str(self.command(server, "MYID"), "ascii")

    def _map(self) -> dict[tuple[int, int], RedisServer]:
        """(first hash slot, last one) -> their master, as the first node that runs says."""
        asked = next(server for server in self.servers if server.running)
        with asked.client() as client:
            return {slots: self._at(port) for slots, port in sorted(masters(client).items())}

    def master_of(self, key: str | int) -> RedisServer:
        """The master of a key, or of a slot."""
        slot = key if isinstance(key, int) else key_slot(key.encode())
        return next(node for (first, last), node in self._map().items() if first <= slot <= last)

    def masters(self) -> list[RedisServer]:
        """Those that serve slots, in the order of these."""
        return list(dict.fromkeys(self._map().values()))

    def replica_of(self, master: RedisServer) -> RedisServer:
        """Its first replica."""
        with master.client() as client:
            return self._at(client.info("replication")["slave0"]["port"])

    def _at(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    def _is_master(self, server: RedisServer) -> bool:
        with server.client() as client:
            return bool(client.info("replication")["role"] == "master")

    def flush(self) -> None:
        for server in filter(self._is_master, self.servers):
            server.flush()

    # Changed

    def fail_over(self, master: RedisServer) -> RedisServer:
        """``CLUSTER FAILOVER``: the replica takes over while nobody writes; -> the new master."""
        replica = self.replica_of(master)
        self.command(replica, "FAILOVER")
        self.wait_for_master(replica)
        return replica

    def wait_for_master(self, server: RedisServer) -> None:
        wait_until(lambda: self._is_master(server), 30, "the replica is the master")

    def begin_to_move(self, slot: int, target: RedisServer) -> RedisServer:
        """From here on new keys of the slot go to the target; -> where it is moved from."""
        source = self.master_of(slot)
        self.command(target, "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.command(source, "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def keys_of(self, slot: int, server: RedisServer) -> list[bytes]:
        return list(self.command(server, "GETKEYSINSLOT", slot, 1_000_000))

    def move_keys(self, source: RedisServer, target: RedisServer, keys: Iterable[bytes]) -> None:
        auth = ("AUTH", self._password) if self._password else ()
        with source.client() as client:
            for key in keys:
                client.execute_command(
                    "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, *auth, "KEYS", key
                )

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """All its keys have been moved: say so to the two, who tell the others."""
        for server in (target, source):
            self.command(server, "SETSLOT", slot, "NODE", self.id_of(target))

    def migrate_slot(self, slot: int, target: RedisServer) -> None:
        """``CLUSTER MIGRATESLOTS`` of Valkey 9: whole slots, in one step for their clients."""
        source = self.master_of(slot)
        self.command(source, "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target))
        wait_until(lambda: self.master_of(slot) is target, 30, "the slot has been moved")

    def add_master(self) -> RedisServer:
        """One more, without slots; -> when all others know it."""
        bus = free_port()
        added = self._node("--cluster-port", str(bus))
        self.command(self.servers[0], "MEET", "127.0.0.1", added.port, bus)
        self.servers.append(added)
        self._wait_until_known()
        wait_until(lambda: self.told(added, "state") == "ok", 20, "the new node is in order")
        return added

    def cut_off(self, master: RedisServer, cut: bool = True) -> None:
        """Nothing that other nodes say reaches it any more; clients do, and its replicas. Valkey 9
        with ``--enable-debug-command local``."""
        with master.client() as client:
            client.execute_command("DEBUG", "DROP-CLUSTER-PACKET-FILTER", -2 if cut else -1)

    def restart(self, server: RedisServer) -> None:
        """Stop it, start it, and wait until the cluster is in order."""
        server.stop()
        server.start()
        self.wait_until_in_order()


def masters(client: redis.Redis) -> dict[tuple[int, int], int]:
    """(first slot, last slot) -> port of their master, as one node says."""
    told = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    return {(entry[0], entry[1]): entry[2][1] for entry in told}
