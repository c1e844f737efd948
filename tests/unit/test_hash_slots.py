"""The map of a cluster, and where commands go: without any network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import ClusterDownError, MovedError

from scrapy_redisq.server.cluster.hash_slots import SLOTS, HashSlots, Node, Send, SlotMap, Steps, T

A, B, C, D = (("10.0.0.1", port) for port in (1, 2, 3, 4))
OK = b"cluster_enabled:1\r\ncluster_state:ok\r\n"
FAIL = b"cluster_state:fail\r\n"
KEY = "{shop:0}"
"""In the first half of the slots."""

Answer = Callable[[Send], Any]


def entry(first: int, last: int, *nodes: Node) -> list[Any]:
    """As CLUSTER SLOTS has it."""
    return [first, last, *([host.encode(), port, b"id", []] for host, port in nodes)]


def halves(first: Node, second: Node) -> list[Any]:
    return [entry(0, SLOTS // 2 - 1, first), entry(SLOTS // 2, SLOTS - 1, second)]


class Net:
    """Answers in the place of all nodes, and notes what they were sent."""

    def __init__(self, seen: list[Any] | None = None) -> None:
        self.seen = halves(A, B) if seen is None else seen
        self.state = OK
        self.answers: list[Any] = []
        self.away: set[Node] = set()
        self.slow = 0.0
        self.replicated = 1
        self.sent: list[Send] = []
        self.looks: list[Node] = []
        self.now = 100.0
        self.hash_slots = HashSlots([C], lambda: self.now)

    def run(self, steps: Steps[T]) -> T:
        reply: Any = None
        try:
            while True:
                reply = self._reply(steps.send(reply))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _reply(self, step: Send) -> Any:
        (self.looks if step.quick else self.sent).append(step.node if step.quick else step)  # type: ignore[arg-type]
        if step.node in self.away:
            self.now += self.slow
            return redis.ConnectionError("away")
        if step.quick:
            is_ping = "PING" in step.commands[0]
            return [b"PONG", self.replicated] if is_ping else [self.state, self.seen]
        return [self.answers.pop(0) if self.answers else b"done"] * len(step.commands)

    def send(self, key: str = KEY, **options: Any) -> Any:
        return self.run(self.hash_slots.send(key, [("GET", key)], **options))[0]

    @property
    def nodes(self) -> list[Node]:
        return [step.node for step in self.sent]


@pytest.fixture
def net() -> Net:
    return Net()


def test_replicas_that_are_away_are_remembered(net: Net) -> None:
    """A map leaves them out; they may come back, and be made the master. That there are none is
    known as of the last look that has found the cluster in order."""
    assert net.hash_slots.alone_at() == -math.inf
    assert net.run(net.hash_slots.look()) is None
    assert net.hash_slots.alone_at() == 100.0
    net.now, net.state = 110.0, FAIL
    assert net.run(net.hash_slots.look(now=True)) is not None
    assert net.hash_slots.alone_at() == 100.0
    net.state, net.seen = OK, [entry(0, SLOTS // 2 - 1, A), entry(SLOTS // 2, SLOTS - 1, B, C, D)]
    assert net.run(net.hash_slots.look(now=True)) is None
    assert net.hash_slots.alone_at() == -math.inf
    net.seen = halves(A, B)
    assert net.run(net.hash_slots.look(now=True)) is None
    assert net.hash_slots.alone_at() == -math.inf


def test_a_look_that_is_too_old_is_repeated_at_once_but_not_one_that_has_failed(net: Net) -> None:
    """Shards need a look each that is younger than their last request. If no node answers, the
    others do not ask all nodes once more, one shard after the other."""
    assert net.run(net.hash_slots.look()) is None
    net.now = 100.1
    assert net.run(net.hash_slots.look(since=99.0)) is None
    assert (len(net.looks), net.hash_slots.alone_at()) == (1, 100.0)
    assert net.run(net.hash_slots.look(since=100.05)) is None
    assert (len(net.looks), net.hash_slots.alone_at()) == (2, 100.1)
    net.now, net.state = 100.2, FAIL
    assert net.run(net.hash_slots.look(since=100.15)) is not None
    asked = len(net.looks)
    assert net.run(net.hash_slots.look(since=100.15)) is not None
    assert len(net.looks) == asked


def test_a_slot_that_has_moved_to_a_node_without_a_name_is_found_by_the_map(net: Net) -> None:
    """MOVED says "?" where nodes are called by hostnames, and that one has none."""
    net.answers = [MovedError("1 ?:4")]
    assert isinstance(net.send(), MovedError)
    net.seen, net.now = halves(D, B), net.now + 1
    assert net.send() == b"done"
    assert net.nodes == [A, D]


def test_nodes_that_name_each_other_do_not_keep_a_command_for_ever(net: Net) -> None:
    """As they do for a moment when a master has changed: then it is for the caller to try again."""
    net.answers = [MovedError(f"1 {node[0]}:{node[1]}") for node in (B, A) * 5]
    assert isinstance(net.send(), MovedError)
    assert len(net.sent) == 5


def test_when_all_are_away_those_are_asked_that_the_url_names(net: Net) -> None:
    """They may have other addresses by then. What was known stays until somebody answers."""
    net.send()
    net.away = {A, B, C}
    with pytest.raises(redis.ConnectionError):
        net.send()
    net.now += 1
    with pytest.raises(redis.ConnectionError):
        net.send()
    assert net.looks[1:] == [C, B, A]  # that one has just failed
    assert net.hash_slots.map.masters == (A, B)


def test_a_node_that_sees_the_cluster_out_of_order_is_not_believed(net: Net) -> None:
    """It may be on the lesser side of a split, and its map the old one."""
    net.state = FAIL
    with pytest.raises(ClusterDownError, match="cluster_state is fail"):
        net.send()
    assert net.sent == []


@pytest.mark.parametrize(
    ("told", "node"),
    [
        ([b"", 7, b"id"], ("asked", 7)),
        ([None, 7, b"id", []], ("asked", 7)),
        ([b"name.example", 7, b"id", [b"ip", b"10.0.0.9"]], ("name.example", 7)),
        ([b"?", 7, b"id", [b"ip", b"10.0.0.9"]], ("10.0.0.9", 7)),
        ([b"?", 7, b"id", []], None),
        ([b"?", 7, b"id"], None),
        ([b"fe80::1", 7, b"id", []], ("fe80::1", 7)),
    ],
)
def test_how_nodes_are_called(told: list[Any], node: Node | None) -> None:
    """No host: the one that was asked. "?": its address, or none that could be used."""
    assert SlotMap([[0, SLOTS - 1, told]], ("asked", 1)).owners[5] == node


def test_moved_without_a_host_is_the_host_that_says_so(net: Net) -> None:
    """So nodes answer that do not know what they are called."""
    net.answers = [MovedError("1 :9"), b"value"]
    assert net.send() == b"value"
    assert net.nodes[-1] == (A[0], 9)


@pytest.mark.parametrize(("away", "sure"), [(0, True), (1, True), (2, False)])
def test_who_has_the_last_word_is_what_most_masters_say(away: int, sure: bool) -> None:
    """On the lesser side of a split nothing is certain."""
    third = SLOTS // 3
    net = Net([entry(0, third, A), entry(third + 1, 2 * third, B), entry(2 * third + 1, 16_383, C)])
    net.send()
    net.away = {A, B} if away == 2 else {A} if away else set()
    assert net.run(net.hash_slots.confirm()) is sure


@pytest.mark.parametrize("replicated", [0, 1])
def test_a_master_without_its_replicas_has_not_the_last_word(replicated: int) -> None:
    """The others may not miss it yet; one of its replicas will take over, without what it says."""
    net = Net([entry(0, SLOTS // 2 - 1, A, D), entry(SLOTS // 2, SLOTS - 1, B)])
    net.send()
    net.replicated = replicated
    assert net.run(net.hash_slots.confirm()) is bool(replicated)


def test_a_master_that_most_others_do_not_know_has_not_the_last_word(net: Net) -> None:
    """It was one, and does not know yet that it is none."""
    net.send()
    net.seen = halves(D, B)
    assert net.run(net.hash_slots.confirm()) is False


def test_all_have_their_turn_where_each_node_takes_its_time() -> None:
    """All addresses have changed but those of the URL: they are reached, whatever many old ones
    there are."""
    many = [(f"10.0.1.{n}", 6379) for n in range(30)]
    share = SLOTS // 30
    net = Net([entry(n * share, (n + 1) * share - 1, node) for n, node in enumerate(many)])
    net.send()
    net.away, net.slow = set(many), 1.0
    net.seen = halves(A, B)
    for _ in range(20):
        net.now += 1
        try:
            net.send()
        except redis.ConnectionError:
            continue
        break
    assert net.nodes[-1] in {A, B}
