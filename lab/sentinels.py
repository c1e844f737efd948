"""A primary, two replicas, and three Sentinels that watch them, as processes of one test."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from lab.proxy import Proxy
from lab.servers import Closed, RedisServer, free_port, wait_until

SERVICE = "frontier"
"""What the Sentinels call the primary."""

MAJORITY_SIDE, WORKERS_SIDE = "127.0.0.2", "127.0.0.1"
"""Where replicas and Sentinels of a group with ``fronts`` come from, and where workers do, so that
`Proxy.cut` can tell them apart."""


class Sentinel(RedisServer):
    """One Sentinel. It keeps what it learns in its configuration file, over restarts too."""

    def __init__(self, binary: Path, lines: Iterable[str], port: int, password: str = "") -> None:
        super(RedisServer, self).__init__()
        self.binary, self.port = binary, port
        self._password = password
        self.url = self.url_through(port)
        file = self.folder / "sentinel.conf"
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        self._words = [str(binary), str(file), "--sentinel", "--bind", "127.0.0.1"]
        self._words += ["--dir", str(self.folder)]
        if password:
            self._words += ["--requirepass", password]
        self.start()


class Sentinels(Closed):
    """``servers`` are the first primary and two replicas, in step; ``sentinels`` three Sentinels
    that know all of them and each other. A context manager.

    ``down_after``: seconds without an answer after which a server is taken for dead. ``fronts``:
    proxies stand before the first primary, and before each Sentinel (``ways``); all others know
    these by them alone. That needs a ``password``: without one servers talk to 127.0.0.1 only.
    """

    def __init__(
        self,
        binary: Path,
        *options: str,
        password: str = "",
        sentinel_password: str = "",
        down_after: float = 0.5,
        min_replicas: int = 0,
        aof: bool = False,
        fronts: bool = False,
    ) -> None:
        with ExitStack() as stack:
            self._password, self._sentinel_password = password, sentinel_password
            self.servers: list[RedisServer] = []
            self.front: Proxy | None = None
            self.ways: list[Proxy] = []
            given = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "16mb", *options]
            given += ["--min-replicas-to-write", str(min_replicas), "--min-replicas-max-lag", "2"]

            def start(*more: str) -> RedisServer:
                server = RedisServer(binary, *given, *more, password=password, aof=aof)
                self.servers.append(stack.enter_context(server))
                return server

            primary = start()
            self._port = primary.port
            origin = []
            if fronts:
                self.front = stack.enter_context(Proxy(primary.port))
                self._port = self.front.port
                with primary.client() as client:
                    client.config_set("replica-announce-port", self._port)
                origin = ["--bind-source-addr", MAJORITY_SIDE]
            for _ in range(2):
                start("--replicaof", "127.0.0.1", str(self._port), *origin)
            for replica in self.servers[1:]:
                wait_until(functools.partial(in_step, replica), 20, "the replicas are in step")
            self.sentinels: list[Sentinel] = []
            for _ in range(3):
                port = announced = free_port()
                if fronts:
                    self.ways.append(stack.enter_context(Proxy(port)))
                    announced = self.ways[-1].port
                config = self._config(announced, down_after)
                sentinel = Sentinel(binary, config, port=port, password=sentinel_password)
                self.sentinels.append(stack.enter_context(sentinel))
            for sentinel in self.sentinels:
                wait_until(functools.partial(sees_all, sentinel), 20, "the Sentinels see all")
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def _config(self, own: int, down_after: float) -> Iterator[str]:
        """Of the Sentinel that the others know by the port ``own``; they find each other."""
        yield f"sentinel monitor {SERVICE} 127.0.0.1 {self._port} 2"
        yield f"sentinel down-after-milliseconds {SERVICE} {int(down_after * 1000)}"
        yield f"sentinel failover-timeout {SERVICE} 6000"
        if self._password:
            yield f"sentinel auth-pass {SERVICE} {self._password}"
        if self._sentinel_password:
            yield f"sentinel sentinel-pass {self._sentinel_password}"
        if self.ways:
            yield "sentinel announce-ip 127.0.0.1"
            yield f"sentinel announce-port {own}"
            yield f"bind-source-addr {MAJORITY_SIDE}"

    def url(self, *, by_ways: bool = False) -> str:
        """REDISQ_URL; the Sentinels by their own ports, or by those of the proxies."""
        user = f":{self._password}@" if self._password else ""
        doors = self.ways if by_ways else self.sentinels
        hosts = ",".join(f"127.0.0.1:{door.port}" for door in doors)
        query = f"?sentinel_password={self._sentinel_password}" if self._sentinel_password else ""
        return f"redis+sentinel://{user}{hosts}/{SERVICE}/0{query}"

    def primary(self, sentinel: Sentinel | None = None) -> RedisServer:
        """The server that a Sentinel names now."""
        with (sentinel or self.sentinels[0]).client() as client:
            _, port = client.sentinel_get_master_addr_by_name(SERVICE)
        if self.front is not None and port == self.front.port:
            return self.servers[0]
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> None:
        """A planned failover, as ``SENTINEL FAILOVER`` begins it. It takes some seconds. A Sentinel
        that has just waited for a busy replica is asked again, as it finds none to promote."""

        def begun() -> bool:
            with self.sentinels[0].client() as client:
                try:
                    client.execute_command("SENTINEL", "FAILOVER", SERVICE)
                except redis.ResponseError as error:
                    if "NOGOODSLAVE" not in str(error):
                        raise
                    return False
            return True

        wait_until(begun, 30, "a replica can be promoted")

    def wait_for_another(self, than: RedisServer) -> RedisServer:
        """Wait until all Sentinels that answer name another primary; -> that."""

        def another() -> RedisServer | None:
            found = set()
            for sentinel in self.sentinels:
                with contextlib.suppress(redis.RedisError):
                    found.add(self.primary(sentinel))
            return found.pop() if len(found) == 1 and than not in found else None

        primary: RedisServer = wait_until(another, 30, "all Sentinels name another primary")
        return primary


def in_step(replica: RedisServer) -> bool:
    with replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def sees_all(sentinel: Sentinel) -> bool:
    """Whether it has links to the primary, both replicas and both other Sentinels."""
    with sentinel.client() as client:
        told: list[Any] = [client.sentinel_master(SERVICE)]
        told += client.sentinel_slaves(SERVICE)
        told += client.sentinel_sentinels(SERVICE)
    down = any(one["is_sdown"] or one["is_disconnected"] for one in told)
    return len(told) == 5 and not down
