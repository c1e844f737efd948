"""The map of a cluster, and what to send where: without any network.

A command is sent again only where a node has said that it did not execute it (MOVED, ASK). What had
no answer is the caller's to repeat, as with one server; by then the map is looked at anew.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, ResponseError

T = TypeVar("T")

Node = tuple[str, int]
"""Host and port, as the cluster announces them."""

Command = tuple[Any, ...]

SLOTS = 16_384

BETWEEN_LOOKS = 0.5
"""Seconds from one look at the map to the next, however much goes wrong."""

LONGEST_LOOK = 3.0
"""Seconds after which no further node is asked for the map; the others are, next time."""

MOST_REDIRECTIONS = 5

AWAY = (redis.ConnectionError, redis.TimeoutError, OSError)
"""No answer: nobody knows whether the command was executed."""

OLD_MAP = (ClusterDownError, ReadOnlyError)
"""What a node says that may belong to the past by now."""

_LOOK: tuple[Command, ...] = (("CLUSTER", "INFO"), ("CLUSTER", "SLOTS"))
_WAIT: Command = ("WAIT", 1, 500)
"""For a replica, half a second."""
# The same from inside a script, which redis-py does not know.
_OLD_MAP = re.compile(r"\b(CLUSTERDOWN|MASTERDOWN|READONLY)\b")


@dataclass(frozen=True)
class Send:
    """Commands for a node: by one connection, in one go. They are answered by a list of replies, in
    which errors are exceptions. ``quick``: by a new connection, with a short time-out."""

    node: Node
    commands: Sequence[Command]
    transaction: bool = False
    asking: bool = False
    quick: bool = False

    @property
    def sent(self) -> Sequence[Command]:
        return [("ASKING",), *self.commands] if self.asking else self.commands


Steps = Generator[Send, list[Any], T]
"""What is to be sent, one after the other; returns a T. `AWAY` is raised in it."""


class SlotMap:
    """Who serves which hash slots, as one node sees it: ``nodes`` are masters and replicas."""

    def __init__(
        self,
        ranges: Iterable[tuple[int, int, Node]] = (),
        nodes: Iterable[Node] = (),
        replicas: Mapping[Node, int] = MappingProxyType({}),
    ):
        self._ranges = sorted(ranges)
        self._starts = [first for first, _, _ in self._ranges]
        self.masters = tuple(dict.fromkeys(master for _, _, master in self._ranges))
        self.nodes = frozenset({*self.masters, *nodes})
        self.replicas = replicas
        self.covered = sum(last - first + 1 for first, last, _ in self._ranges)

    @classmethod
    def told(cls, reply: Any, asked: Node) -> SlotMap:
        """From the reply of the node ``asked`` to CLUSTER SLOTS."""
        ranges, nodes, replicas = [], [], {}
        for first, last, *servers in reply:
            known = [node for server in servers if (node := _node(server, asked))]
            nodes += known
            if servers and (master := _node(servers[0], asked)):
                ranges.append((int(first), int(last), master))
                replicas[master] = len(servers) - 1
        return cls(ranges, nodes, replicas)

    def master_of(self, slot: int) -> Node | None:
        place = bisect_right(self._starts, slot) - 1
        if place < 0 or slot > self._ranges[place][1]:
            return None
        return self._ranges[place][2]


def _text(word: Any) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word or "")


def _node(server: Any, asked: Node) -> Node | None:
    """An entry of CLUSTER SLOTS: host, port, id, and since Redis 7 what else it is called.

    No host: it is where the one that says so is. "?": it has no name yet; perhaps an address.
    """
    host = _text(server[0])
    if host == "?":
        others = [_text(word) for word in server[3]] if len(server) > 3 else []
        host = dict(zip(others[::2], others[1::2], strict=False)).get("ip", "")
        if not host:
            return None
    return host or asked[0], int(server[1])


class HashSlots:
    """The map of a cluster as far as it is known, and the steps of each call. No network."""

    def __init__(self, seeds: Sequence[Node], clock: Callable[[], float] = time.monotonic) -> None:
        self._seeds = tuple(seeds)
        self._clock = clock
        self._moved: dict[int, Node] = {}
        self._stale = True
        self._next_look = 0.0
        self._heard: dict[Node, float] = {}
        self._problem: Exception | None = None
        self._used: set[int] = set()
        self._replicated = False
        self._looked_at = -math.inf
        self.map = SlotMap()

    def master_of(self, slot: int) -> Node | None:
        return self._moved.get(slot) or self.map.master_of(slot)

    def alone_at(self) -> float:
        """When, by ``clock``, the masters were last seen to have no replicas; -inf: they have some,
        or that is not known. A map leaves out those that are away, so one is enough for ever.
        """
        return -math.inf if self._replicated else self._looked_at

    def in_turn(self) -> list[Node]:
        """All known nodes and the seeds: who was heard last comes first, and last who has failed
        to answer last, so that all have their turn."""
        known = dict.fromkeys((*sorted(self.map.nodes), *self._seeds))
        return sorted(known, key=lambda node: -self._heard.get(node, 0.0))

    # Calls

    def send(
        self, key: str | bytes, commands: Sequence[Command], *, transaction: bool = False
    ) -> Steps[list[Any]]:
        """Send commands that concern ``key`` to its master; -> the replies, errors among them.

        Raises `AWAY` if there was no answer, ClusterDownError if nobody serves the slot.
        """
        slot = key_slot(key if isinstance(key, bytes) else key.encode())
        self._used.add(slot)
        problem = (yield from self.look()) if self._stale else None
        node = self.master_of(slot)
        if node is None:
            self._stale = True  # somebody may have it by now
            raise problem or ClusterDownError("CLUSTERDOWN Hash slot not served")
        asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                replies = yield from self._sent(Send(node, commands, transaction, asking))
            except AWAY:
                self._stale = True
                self._moved.pop(slot, None)
                raise
            error = replies[0]
            asking = isinstance(error, AskError) and not isinstance(error, MovedError)
            if isinstance(error, (MovedError, *OLD_MAP)) or (
                isinstance(error, ResponseError) and _OLD_MAP.search(str(error))
            ):
                self._stale = True
            if not isinstance(error, AskError) or (asking and transaction) or error.host == "?":
                break
            node = (error.host or node[0], error.port)
            if not asking:
                self._moved[slot] = node
        return replies

    def _sent(self, step: Send) -> Steps[list[Any]]:
        try:
            replies = yield step
        except AWAY:
            self._heard[step.node] = -self._clock()
            raise
        self._heard[step.node] = self._clock()
        return replies

    # The map

    def look(self, *, now: bool = False) -> Steps[Exception | None]:
        """Take the map from the first node that sees the cluster in order; -> why there is none.

        Not more often than each `BETWEEN_LOOKS`, unless ``now``. Nobody who can be asked: what was
        known stays.
        """
        began = self._clock()
        if not now and began < self._next_look:
            return self._problem and self._problem.with_traceback(None)
        self._next_look = began + BETWEEN_LOOKS
        problems: list[Exception] = []
        for node in self.in_turn():
            try:
                found = _map(node, (yield from self._sent(Send(node, _LOOK, quick=True))))
            except (*AWAY, ResponseError) as problem:
                problems.append(problem)
                if not now and self._clock() > began + LONGEST_LOOK:
                    break
                continue
            self.map, self._stale, self._problem = found, False, None
            self._looked_at = began
            self._replicated = self._replicated or any(found.replicas.values())
            self._moved.clear()
            self._heard = {one: self._heard.get(one, 0.0) for one in self.in_turn()}
            self._next_look = self._clock() + BETWEEN_LOOKS
            return None
        # That a node cannot be reached says less than what another one has said.
        self._problem = min(problems, key=lambda problem: type(problem) in AWAY)
        return self._problem.with_traceback(None)

    def greet(self) -> Steps[None]:
        """Look at the cluster as it is now; raises what is wrong if no node sees it in order, and
        BusyLoadingError while a master reads its data."""
        if problem := (yield from self.look(now=True)):
            raise problem
        for node in self.map.masters:
            try:
                (reply,) = yield from self._sent(Send(node, (("PING",),), quick=True))
            except redis.BusyLoadingError:
                raise
            except AWAY:  # of no concern to those whose slots it does not have
                continue
            if isinstance(reply, Exception):
                raise reply

    def confirm(self) -> Steps[bool]:
        """Whether most masters say, now, that the slots which were used are where they were used,
        and of each of those masters that has replicas one has all that was written until now.

        False on the side of a split that the cluster has given up, or will give up.
        """
        masters, slots, votes = self.map.masters, self._used.copy(), 0
        for node in masters:
            try:
                seen = _map(node, (yield from self._sent(Send(node, _LOOK, quick=True))))
            except (*AWAY, ResponseError):
                continue
            votes += all(seen.master_of(slot) == self.master_of(slot) for slot in slots)
        sure = 2 * votes > len(masters)
        # Until it is missed, a master that only clients reach has everybody's vote.
        for master in {self.master_of(slot) for slot in slots}:
            if sure and master and self.map.replicas.get(master):
                sure = yield from self._is_replicated(master)
        if not sure:
            self._stale = True
        return sure

    def _is_replicated(self, node: Node) -> Steps[bool]:
        try:
            _, replicas = yield from self._sent(Send(node, (("PING",), _WAIT), quick=True))
        except AWAY:
            return False
        return isinstance(replicas, ResponseError) or int(replicas) > 0


def _map(node: Node, replies: list[Any]) -> SlotMap:
    """Raises what the node has said instead, or ClusterDownError if the cluster is not in order."""
    told, slots = replies
    for reply in (slots, told):
        if isinstance(reply, ResponseError):
            raise reply
    found = SlotMap.told(slots, node)
    if "cluster_state:ok" not in _text(told):
        raise ClusterDownError(
            f"CLUSTERDOWN cluster_state is fail: {found.covered} of {SLOTS} hash slots have a node"
        )
    return found
