"""A primary, two replicas, and three Sentinels that watch them, as processes of one test."""

from __future__ import annotations

import contextlib
import functools
import secrets
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from lab.proxy import Proxy
from lab.servers import RedisServer, free_port, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

SERVICE = "frontier"
"""What the Sentinels call the primary."""

MAJORITY_SIDE, WORKERS_SIDE = "127.0.0.2", "127.0.0.1"
"""Where replicas and Sentinels of a group with ``fronts`` come from, and where workers do, so that
`Proxy.cut` can tell them apart."""


class Sentinel(RedisServer):
    """One Sentinel. It keeps what it learns in its configuration file, over restarts too."""

    def __init__(self, binary: Path, config: str, *, port: int, password: str = "") -> None:
        self.binary = binary
        self.folder = Path(tempfile.mkdtemp(prefix="redisq-"))
        self.port = port
        self._password = password
        self.url = self.url_through(port)
        (self.folder / "sentinel.conf").write_text(config, "utf-8")
        self._command = [str(binary), str(self.folder / "sentinel.conf"), "--sentinel"]
        self._command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        if password:
            self._command += ["--requirepass", password]
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self.start()


class Sentinels:
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
        self._stack = ExitStack()
        try:
            self._password, self._sentinel_password = password, sentinel_password
            self.servers: list[RedisServer] = []
            self.front: Proxy | None = None
            self.ways: list[Proxy] = []
            given = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "16mb", *options]
            if min_replicas:
                given += ["--min-replicas-to-write", str(min_replicas)]
                given += ["--min-replicas-max-lag", "2"]
            self._start_servers(binary, given, aof=aof, fronts=fronts)
            self.sentinels = self._start_sentinels(binary, down_after, fronts=fronts)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def _start_servers(self, binary: Path, given: list[str], *, aof: bool, fronts: bool) -> None:
        def start(*more: str) -> RedisServer:
            server = RedisServer(binary, *given, *more, password=self._password, aof=aof)
            self._stack.callback(server.close)
            self.servers.append(server)
            return server

        primary = start()
        self._port = primary.port
        origin = []
        if fronts:
            self.front = self._stack.enter_context(Proxy(primary.port))
            self._port = self.front.port
            with primary.client() as client:
                client.config_set("replica-announce-port", self._port)
            origin = ["--bind-source-addr", MAJORITY_SIDE]
        for _ in range(2):
            start("--replicaof", "127.0.0.1", str(self._port), *origin)
        for replica in self.servers[1:]:
            wait_until(functools.partial(in_step, replica), 20, "the replicas are in step")

    def _start_sentinels(self, binary: Path, down_after: float, *, fronts: bool) -> list[Sentinel]:
        ports = [free_port() for _ in range(3)]
        if fronts:
            self.ways = [self._stack.enter_context(Proxy(port)) for port in ports]
        announced = [way.port for way in self.ways] or ports
        known = [(port, secrets.token_hex(20)) for port in announced]
        started = []
        for own_port, (port, myid) in zip(ports, known, strict=True):
            lines = [f"sentinel myid {myid}"]
            lines.append(f"sentinel monitor {SERVICE} 127.0.0.1 {self._port} 2")
            lines.append(f"sentinel down-after-milliseconds {SERVICE} {int(down_after * 1000)}")
            lines.append(f"sentinel failover-timeout {SERVICE} 6000")
            if self._password:
                lines.append(f"sentinel auth-pass {SERVICE} {self._password}")
            if self._sentinel_password:
                lines.append(f"sentinel sentinel-pass {self._sentinel_password}")
            # Told, because to find each other takes some seconds.
            for replica in self.servers[1:]:
                lines.append(f"sentinel known-replica {SERVICE} 127.0.0.1 {replica.port}")
            for other, id_of_other in known:
                if other != port:
                    lines.append(
                        f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {id_of_other}"
                    )
            if fronts:
                lines.append(f"bind-source-addr {MAJORITY_SIDE}")
                lines.append("sentinel announce-ip 127.0.0.1")
                lines.append(f"sentinel announce-port {port}")
            config = "\n".join([*lines, ""])
            sentinel = Sentinel(binary, config, port=own_port, password=self._sentinel_password)
            self._stack.callback(sentinel.close)
            started.append(sentinel)
        for sentinel in started:
            wait_until(functools.partial(sees_all, sentinel), 20, "the Sentinels see all")
        return started

    def url(self, *, by_ways: bool = False) -> str:
        """REDISQ_URL; the Sentinels by their own ports, or by those of the proxies."""
        user = f":{self._password}@" if self._password else ""
        doors = self.ways if by_ways else self.sentinels
        hosts = ",".join(f"127.0.0.1:{door.port}" for door in doors)
        query = f"?sentinel_password={self._sentinel_password}" if self._sentinel_password else ""
        return f"redis+sentinel://{user}{hosts}/{SERVICE}/0{query}"

    def named(self, sentinel: Sentinel | None = None) -> int:
        """The port that a Sentinel names now."""
        with (sentinel or self.sentinels[0]).client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    def primary(self, sentinel: Sentinel | None = None) -> RedisServer:
        """The server that a Sentinel names now."""
        return self._at(self.named(sentinel))

    def _at(self, port: int) -> RedisServer:
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

    def wait_for_another(self, than: RedisServer, seconds: float = 30) -> RedisServer:
        """Wait until all Sentinels that answer name another primary; -> that."""

        found: list[RedisServer] = []

        def another() -> bool:
            ports = set()
            for sentinel in self.sentinels:
                with contextlib.suppress(redis.RedisError):
                    ports.add(self.named(sentinel))
            found[:] = map(self._at, ports)
            return len(found) == 1 and found[0] is not than

        wait_until(another, seconds, "all Sentinels name another primary")
        return found[0]


def in_step(replica: RedisServer) -> bool:
    with replica.client() as client:
        told = client.info("replication")
    return bool(told.get("master_link_status") == "up")


def sees_all(sentinel: Sentinel) -> bool:
    """Whether it has links to the primary, both replicas and both other Sentinels."""
    with sentinel.client() as client:
        told: list[Any] = [client.sentinel_master(SERVICE)]
        told += client.sentinel_slaves(SERVICE)
        told += client.sentinel_sentinels(SERVICE)
    down = any(one["is_sdown"] or one["is_disconnected"] for one in told)
    return len(told) == 5 and not down
