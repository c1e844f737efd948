"""The map of a cluster, and what to send where: without any network.

A command is sent again only where a node has said that another one has its hash slot (MOVED). What
had no answer is the caller's to repeat, as with one server; so is a command for a hash slot that
is on its way (ASK, TRYAGAIN). By then the map is looked at anew.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import redis
from msgspec import Struct
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, MovedError, ReadOnlyError, ResponseError

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
"""Errors of a node that may belong to the past by now."""

_LOOK: tuple[Command, ...] = (("CLUSTER", "INFO"), ("CLUSTER", "SLOTS"))
_WAIT: Command = ("WAIT", 1, 500)
"""For a replica, half a second."""
# The same from inside a script, which redis-py does not know.
_OLD_MAP = re.compile(r"\b(CLUSTERDOWN|MASTERDOWN|READONLY)\b")


class Send(Struct, frozen=True):
    """Commands for a node: by one connection, in one go. They are answered by a list of replies, in
    which errors are exceptions. ``quick``: by a new connection, with a short time-out."""

    node: Node
    commands: Sequence[Command]
    transaction: bool = False
    quick: bool = False


Replies: TypeAlias = "list[Any] | Exception"
"""To what was sent; or one of `AWAY`."""

Steps = Generator[Send, Any, T]
"""Commands to send, one after the other, each answered by `Replies`; returns a T."""


class SlotMap:
    """Who serves which hash slots, as the node ``asked`` sees it: its reply to CLUSTER SLOTS.

    ``nodes`` are masters and replicas, ``replicas`` how many each master has.
    """

    def __init__(self, reply: Any = (), asked: Node = ("", 0)) -> None:
        self.owners: list[Node | None] = [None] * SLOTS
        self.replicas: dict[Node, int] = {}
        nodes: set[Node] = set()
        for first, last, *servers in sorted(reply, key=lambda one: int(one[0])):
            nodes.update(node for server in servers if (node := _node(server, asked)))
            if servers and (master := _node(servers[0], asked)):
                self.owners[first : last + 1] = [master] * (last + 1 - first)
                self.replicas[master] = len(servers) - 1
        self.nodes = frozenset(nodes)
        self.masters = tuple(self.replicas)


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
        self._stale = True
        self._next_look = 0.0
        self._heard: dict[Node, float] = {}
        """When each was heard; a negative time where it has failed to answer since."""
        self._problem: Exception | None = None
        self._used: set[int] = set()
        self._replicated = False
        self._looked_at = -math.inf
        self.map = SlotMap()

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

        Raises `AWAY` if there was no answer, ClusterDownError if nobody serves the hash slot.
        """
        slot = key_slot(key if isinstance(key, bytes) else key.encode())
        self._used.add(slot)
        problem = (yield from self.look()) if self._stale else None
        node = self.map.owners[slot]
        if node is None:
            self._stale = True  # somebody may have it by now
            raise problem or ClusterDownError("CLUSTERDOWN Hash slot not served")
        for _ in range(MOST_REDIRECTIONS):
            try:
                replies = yield from self._sent(Send(node, commands, transaction))
            except AWAY:
                self._stale = True
                raise
            error = replies[0]
            if isinstance(error, (MovedError, *OLD_MAP)) or (
                isinstance(error, ResponseError) and _OLD_MAP.search(str(error))
            ):
                self._stale = True
            if not isinstance(error, MovedError) or error.host == "?":
                break
            self.map.owners[slot] = node = (error.host or node[0], error.port)
        return replies

    def _sent(self, step: Send) -> Steps[list[Any]]:
        replies = yield step
        if isinstance(replies, Exception):
            self._heard[step.node] = -self._clock()
            raise replies
        self._heard[step.node] = self._clock()
        return list(replies)

    # The map

    def look(self, *, now: bool = False, since: float = -math.inf) -> Steps[Exception | None]:
        """Take the map from the first node that sees the cluster in order; -> why there is none:
        then the known map stays. Within `BETWEEN_LOOKS` seconds after a look the map is taken again
        only if ``now``, or if the last look succeeded and began before ``since`` (by the clock)."""
        began = self._clock()
        may_wait = self._problem is not None or self._looked_at >= since
        if not now and may_wait and began < self._next_look:
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
            self._heard = {one: self._heard.get(one, 0.0) for one in self.in_turn()}
            self._next_look = self._clock() + BETWEEN_LOOKS
            return None
        self._next_look = self._clock() + BETWEEN_LOOKS
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
            votes += all(seen.owners[slot] == self.map.owners[slot] for slot in slots)
        sure = 2 * votes > len(masters)
        # Until it is missed, a master that only clients reach has everybody's vote.
        for master in {self.map.owners[slot] for slot in slots}:
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
    found = SlotMap(slots, node)
    if "cluster_state:ok" not in _text(told):
        covered = SLOTS - found.owners.count(None)
        raise ClusterDownError(
            f"CLUSTERDOWN cluster_state is fail: {covered} of {SLOTS} hash slots have a node"
        )
    return found
