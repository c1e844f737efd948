"""The primary by its Sentinels: bad input, following it, and being certain of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.sentinels import SERVICE, WORKERS_SIDE, Sentinel, Sentinels
from lab.servers import RedisServer, any_server, configured, free_port, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import ServerBusy, ServerError
from scrapy_redisq.server.address import SentinelService, parse
from scrapy_redisq.server.connection import Server, open_server
from scrapy_redisq.server.sentinel import finder as finder_module
from scrapy_redisq.server.sentinel import server as server_module
from scrapy_redisq.server.sentinel.finder import Finder, Place, PrimaryUnknown, View
from scrapy_redisq.server.sentinel.server import SentinelServer
from scrapy_redisq.tasks import cancel


@pytest.fixture(scope="module")
def group() -> Iterator[Sentinels]:
    """One for all tests that change nothing."""
    with Sentinels(any_server(), password="pw") as group:
        yield group


def failure(url: str, **options: Any) -> str:
    """What is said of an address that leads nowhere."""
    opened = open_server(url, connect_timeout=0.3, **options)
    with opened as server, pytest.raises(ServerError) as caught:
        server.wait()
        server.check()
    assert "REDISQ_URL" in str(caught.value)
    return str(caught.value)


def test_what_is_wrong_with_an_address_is_said(group: Sentinels, redis_server: RedisServer) -> None:
    """Another service, no Sentinel, one that is a server, a Sentinel as a server, a replica: each
    is named, with REDISQ_URL and what it should be."""
    port = group.sentinels[0].port
    said = failure(f"redis+sentinel://:pw@127.0.0.1:{port}/other")
    assert f"knows no 'other', but {SERVICE}" in said
    ports = [free_port(), free_port()]
    said = failure(f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{SERVICE}")
    assert all(f"127.0.0.1:{port}" in said for port in ports)
    said = failure(f"redis+sentinel://127.0.0.1:{redis_server.port}/{SERVICE}")
    assert "is no Sentinel, but a Redis server" in said
    said = failure(f"redis://127.0.0.1:{port}")
    assert f"redis+sentinel://HOST:PORT,HOST:PORT/{SERVICE}" in said
    said = failure(f"redis://:pw@127.0.0.1:{group.servers[1].port}")
    assert f"is a replica of 127.0.0.1:{group.servers[0].port}" in said
    said = failure(group.url().replace("//:pw@", "//:s3cret@"))
    assert "Check user, password and database in REDISQ_URL" in said
    assert "s3cret" not in said


@pytest.mark.servers("newest")
def test_users_and_passwords_of_sentinels(each_binary: Any) -> None:
    """Wrong, missing, or of a user that may not ask: said, with what to change. Right: it works."""
    with Sentinels(each_binary, password="pw", sentinel_password="s3cret") as group:
        right = group.url()
        with open_server(right) as server:
            server.wait()
            server.check()
            asyncio.run(server.confirm_primary())
        for wrong in (right.partition("?")[0], right.replace("s3cret", "s3cre7")):
            said = failure(wrong)
            assert "sentinel_password" in said
            assert "s3cre" not in said
        for sentinel in group.sentinels:
            with sentinel.client() as client:
                rules = ["on", ">s3cret", "+sentinel|get-master-addr-by-name"]
                client.execute_command("ACL", "SETUSER", "eve", *rules)
        said = failure(f"{right}&sentinel_username=eve")
        assert "+sentinel|master" in said
        rights = re.search(r"ACL SETUSER … (.*\+sentinel\|myid)", said)
        assert rights is not None
        for sentinel in group.sentinels:
            with sentinel.client() as client:
                client.execute_command("ACL", "SETUSER", "eve", *rights[1].split())
        with group.servers[0].client() as client:
            rules = ["on", ">pw", "~*", "&*", "+@all", "-role"]
            client.execute_command("ACL", "SETUSER", "bob", *rules)
        bobs = right.replace("//:", "//bob:") + "&sentinel_username=eve"
        assert "+role +wait" in failure(bobs)
        with group.servers[0].client() as client:
            client.execute_command("ACL", "SETUSER", "bob", "+role", "+wait")
        with open_server(bobs) as server:
            server.wait()
            server.check()
            asyncio.run(server.confirm_primary())


def test_min_replicas_is_asked_for(group: Sentinels, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with what to set; not where it is set."""
    with open_server(group.url()) as server:
        (said,) = [text for text in server.check() if "replicas" in text]
        assert "min-replicas-to-write 1" in said
        wanted = {"min-replicas-to-write": 1}
        with group.servers[0].client() as client, configured(client, wanted):
            assert not [text for text in server.check() if "replicas" in text]


@pytest.mark.servers("newest")
def test_a_producer_follows_the_primary(each_binary: Any) -> None:
    """A planned failover: an open client and a `Frontier` are at the new primary soon after; what
    was the primary is not used any more. Workers at failovers are F61 and F66."""
    # Nobody dies: a primary that a busy machine keeps waiting must not be taken for dead.
    with Sentinels(each_binary, down_after=60) as group, open_server(group.url()) as server:
        server.wait()
        with server.client() as client, Frontier.from_url(group.url(), "books") as frontier:
            assert frontier.push(["https://books.example/1"]).accepted == 1
            group.fail_over()
            group.wait_for_another(group.servers[0])
            wait_until(lambda: pushed(frontier, "https://books.example/2"), 20, "it is followed")
            assert frontier.status()["queued"] == 2
            assert int(client.info("server")["tcp_port"]) == group.primary().port


def test_who_follows_can_be_stopped_at_any_moment(group: Sentinels) -> None:
    """Also just when it sends: redis-py loses a cancellation then, on Python 3.10 and 3.11."""

    async def stop_after(turns: int, server: Server) -> None:
        following = asyncio.ensure_future(server.follow())
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(cancel(following), 10)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with open_server(group.url()) as server:
        server.wait()
        for turns in range(30):
            asyncio.run(stop_after(turns, server))


def pushed(frontier: Frontier, url: str) -> bool:
    with contextlib.suppress(ServerBusy, redis.RedisError):
        return bool(frontier.push([url]).accepted)
    return False


@pytest.fixture
def own_group() -> Iterator[Sentinels]:
    """One that the test may break."""
    with Sentinels(any_server("redis-7"), password="pw", fronts=True) as group:
        yield group


def set_up_anew(sentinel: redis.Redis, primary: Place) -> None:
    sentinel.execute_command("SENTINEL", "REMOVE", SERVICE)
    sentinel.execute_command("SENTINEL", "MONITOR", SERVICE, *primary, 2)


def uncertain(server: Server) -> str:
    with pytest.raises(ServerBusy) as caught:
        asyncio.run(server.confirm_primary())
    assert "REDISQ_URL" in str(caught.value)
    return str(caught.value)


def test_what_makes_the_primary_uncertain(own_group: Sentinels) -> None:
    """Without a majority of all Sentinels, or with a replica that may have left, nothing is
    believed; one Sentinel in the URL is enough, as the others are learned from it."""
    group, replicas = own_group, own_group.servers[1:]
    url = f"redis+sentinel://:pw@127.0.0.1:{group.sentinels[0].port}/{SERVICE}"
    with open_server(url) as server:
        server.wait()
        asyncio.run(server.confirm_primary())
        vouched = server.primary_vouched()
        assert vouched > 0
        for way in group.ways[1:]:
            way.cut(WORKERS_SIDE)
        assert "only 1 of 3 Sentinels answer" in uncertain(server)
        assert server.primary_vouched() == vouched
        for way in group.ways[1:]:
            way.mend(WORKERS_SIDE)
        wait_until(lambda: is_certain(server), 20, "the majority is back")
        with replicas[0].client() as client:  # as in a planned failover, before anybody is told
            client.replicaof("NO", "ONE")
        assert "1 of its 2 replicas may be without the last writes" in uncertain(server)
        with replicas[0].client() as client:
            client.replicaof("127.0.0.1", group.front.port)
        wait_until(lambda: is_certain(server), 20, "the replica is back")
        for sentinel in group.sentinels:
            sentinel.kill()
        assert "no Sentinel answers" in uncertain(server)
        with server.client() as client:  # the one that is known goes on
            assert client.ping()


def is_certain(server: Server) -> bool:
    with contextlib.suppress(ServerBusy, redis.RedisError):
        asyncio.run(server.confirm_primary())
        return True
    return False


@pytest.fixture
def divided(redis_server: RedisServer) -> Iterator[list[Sentinel]]:
    """Three Sentinels that cannot reach each other; the last knows of a later failover, to
    127.0.0.1:2, the others of the one before, to 127.0.0.1:1."""
    with ExitStack() as stack:
        ids = [secrets.token_hex(20) for _ in range(3)]
        sentinels = []
        for own, port, epoch in zip(ids, (1, 1, 2), (1, 1, 2), strict=True):
            lines = [f"sentinel myid {own}", f"sentinel monitor {SERVICE} 127.0.0.1 {port} 2"]
            lines.append(f"sentinel config-epoch {SERVICE} {epoch}")
            for other in ids:
                if other != own:
                    lines.append(f"sentinel known-sentinel {SERVICE} 127.0.0.1 3 {other}")
            sentinels.append(Sentinel(redis_server.binary, lines, port=free_port()))
            stack.callback(sentinels[-1].close)
        yield sentinels


FIRST, SECOND, THIRD = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)


def url_of(*ports: int) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{SERVICE}"


def finder_at(*ports: int) -> contextlib.closing[Finder]:
    address = parse(url_of(*ports))
    assert isinstance(address, SentinelService)
    options = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}
    return contextlib.closing(Finder(address, options))


def view(
    sentinel: str, primary: Place = FIRST, epoch: int = 1, others: dict[str, Place] | None = None
) -> View:
    """Of one of three Sentinels."""
    return View(sentinel, primary, epoch, False, others or {}, 3, 0)


def test_a_majority_that_has_not_heard_of_a_failover(
    divided: list[Sentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two failovers at once, as Sentinels that are short of time may begin them: for seconds most
    name the primary of the first. Whoever knows of the second does not go back and forth, nor
    because the one that knows of it misses a question."""
    with finder_at(*(sentinel.port for sentinel in divided)) as finder:
        finder.find()
        assert finder.primary == FIRST
        finder.find(all_of_them=True)
        assert finder.primary == SECOND
        with monkeypatch.context() as patched:
            patched.setattr(finder_module, "FORGOTTEN_AFTER", 0.0)
            finder.find()
            assert finder.primary == SECOND
        divided[2].stop()
        finder.find()
        assert finder.primary == SECOND
        # The one that knew of it is gone for longer, as where all were set up anew.
        monkeypatch.setattr(finder_module, "FORGOTTEN_AFTER", 0.0)
        finder.find()
        assert finder.primary == FIRST


@contextlib.contextmanager
def access_by(sentinels: list[Sentinel]) -> Iterator[Any]:
    address = parse(url_of(*(sentinel.port for sentinel in sentinels)))
    assert isinstance(address, SentinelService)
    with SentinelServer(address, connect_timeout=5.0, socket_timeout=5.0) as access:
        yield access


def test_a_failover_that_most_have_not_heard_of_is_not_certain(divided: list[Sentinel]) -> None:
    """All answer, and one names the server that is used; without that one nobody does. Nor is it
    certain if most name it, but not the one that has heard of more."""
    with access_by(divided) as access:
        access.finder._take([view("x", FIRST, 3)])
        with pytest.raises(ServerBusy, match="last failover names another server"):
            access._confirm()
    with access_by(divided) as access:
        with pytest.raises(ServerBusy, match="only 1 of 3 Sentinels name it"):
            access._confirm()
        assert access.finder.primary == SECOND
        divided[2].stop()
        with pytest.raises(ServerBusy, match="only 0 of 3 Sentinels name it"):
            access._confirm()


def test_a_primary_that_most_do_not_name_is_told_of(
    divided: list[Sentinel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with how many name it and what to do, and once that it is over."""
    monkeypatch.setattr(server_module, "POLL", 0.02)
    monkeypatch.setattr(server_module, "MOST_UNVOUCHED", 5)

    async def follow(access: SentinelServer, until: str) -> None:
        following = asyncio.ensure_future(access.follow())
        while not said(until):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # for a second time
        await cancel(following)

    def said(text: str) -> int:
        return sum(text in message for message in caplog.messages)

    with access_by(divided) as access:
        access.find()
        divided[1].stop()
        asyncio.run(asyncio.wait_for(follow(access, "Only 1 of 3"), 20))
        assert said("Only 1 of 3 Sentinels name 127.0.0.1:2 as the primary") == 1
        assert said(f"SENTINEL RESET {SERVICE}") == said("without them in REDISQ_URL") == 1
        assert not said("Most Sentinels name")
        with divided[0].client() as client:
            set_up_anew(client, SECOND)
        asyncio.run(asyncio.wait_for(follow(access, "Most Sentinels name"), 20))
        assert said("Most Sentinels name 127.0.0.1:2 as the primary again") == 1
        assert said("Only 1 of 3 Sentinels") == 1


def test_a_sentinel_that_was_reset_is_no_majority(divided: list[Sentinel]) -> None:
    """It knows nobody beside itself: neither a worker that has heard of the others nor one that
    begins now is certain by it alone, and it does not move anybody to what it was set up with."""
    with access_by(divided) as access:
        access.finder.find(all_of_them=True)
        for sentinel in divided[1:]:
            sentinel.stop()
        with divided[0].client() as client:
            client.execute_command("SENTINEL", "RESET", SERVICE)
        with access_by(divided) as begins:
            for each in (access, begins):
                with pytest.raises(ServerBusy, match="only 1 of 3 Sentinels answer"):
                    each._confirm()
            assert begins.primary_vouched() == -inf
        with divided[0].client() as client:
            set_up_anew(client, THIRD)
        access.finder.find()
        assert access.finder.primary == SECOND


def test_primaries_at_the_same_epoch() -> None:
    """What most name, or else the one that is known: two Sentinels that were set up differently
    do not send workers back and forth."""
    with finder_at(1, 2, 3) as finder:
        finder._take([view("a"), view("b", SECOND)])
        known = finder.primary
        finder._take([view("b", SECOND), view("a")])
        assert finder.primary == known == FIRST
        for primary in (SECOND, THIRD):
            finder._take([view("b", primary)])
            assert finder.primary == FIRST
        finder._take([view("a"), view("b", SECOND), view("c", SECOND)])
        assert finder.primary == SECOND
        finder._take([view("a", FIRST, 2)])
        assert finder.primary == FIRST


def test_sentinels_that_move_or_are_no_more(divided: list[Sentinel]) -> None:
    """Those that are not in REDISQ_URL are where a majority says that they are; one without a
    majority only tells of others. A Sentinel that answers in the place of another is not asked."""
    a, b = ("127.0.0.1", 26001), ("127.0.0.1", 26002)
    moved = ("127.0.0.1", divided[2].port)
    with finder_at(1) as finder:
        listed = [*finder.places]
        finder._take([view("x", others={"a": a, "b": b})])
        assert finder.places == [*listed, a, b]
        finder._take([view("x", others={"b": b})])
        assert finder.places == [*listed, a, b]
        finder._take([view("x", others={"b": moved}), view("y")])
        assert finder.places == [*listed, moved]
        finder.find()  # another one answers there, that knows of a later failover
        assert finder.primary == FIRST


def test_who_knows_of_the_last_failover_is_not_forgotten() -> None:
    """The others may be cut off from it, and not have heard of the failover: they do not say what
    is no more. After that they do."""
    place = ("127.0.0.1", 26001)
    with finder_at(1, 2) as finder:
        finder._take([view("a", others={"c": place}), view("b")])
        finder._take([view("c", SECOND, 2)])
        finder._take([view("a"), view("b")])
        assert place in finder.places
        assert finder.primary == SECOND
        finder._take([view("a", SECOND, 2), view("b", SECOND, 2)])
        assert place not in finder.places


def test_a_replica_with_two_addresses() -> None:
    """Sentinel lists it under both for ever, and it is one that has to have the last writes."""
    master = ["flags", "master", "config-epoch", "1"]
    replica = ["flags", "slave", "slave-priority", "100", "runid"]
    places = [["ip", "10.0.0.1", "port", "1"], ["ip", "10.0.0.2", "port", "1"]]
    for ids, number in ((["a", "a"], 1), (["a", "b"], 2), (["", ""], 2)):
        replicas = [[*replica, own, *place] for own, place in zip(ids, places, strict=True)]
        assert finder_module._view(["x", master, FIRST, [], replicas]).promotable == number


def test_a_sentinel_refuses_and_others_do_not_answer(redis_server: RedisServer) -> None:
    """They may name a primary when they are back; nobody will where all refuse."""
    for ports, final in [((redis_server.port,), True), ((redis_server.port, free_port()), False)]:
        with finder_at(*ports) as finder, pytest.raises(PrimaryUnknown) as caught:
            finder.find()
        assert caught.value.final is final


def test_one_address_that_has_become_a_replica(redis_server: RedisServer) -> None:
    """Nothing that it says last is believed."""
    with (
        RedisServer(any_server()) as server,
        open_server(server.url) as opened,
        server.client() as client,
    ):
        asyncio.run(opened.confirm_primary())
        client.replicaof("127.0.0.1", redis_server.port)
        assert "is a replica now" in uncertain(opened)
