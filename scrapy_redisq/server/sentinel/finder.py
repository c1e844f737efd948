"""Asks Sentinels which server is the primary, and keeps what they said."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import AuthorizationError, NoPermissionError

from scrapy_redisq.server.address import SentinelService

__all__ = ["Finder", "Place", "PrimaryUnknown", "View"]

Place = tuple[str, int]
"""Host and port."""

FORGOTTEN_AFTER = 10.0
"""Seconds for which a majority has to know nothing of the last failover that is known here before
it is believed that there was none. The other Sentinels hear of one within two, and the one that
knows of it may miss a question for longer."""

SENTINEL_RIGHTS = (
    "+sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|sentinels "
    "+sentinel|replicas +sentinel|myid +subscribe resetchannels &+switch-master &+promoted-slave"
)


class PrimaryUnknown(redis.ConnectionError):
    """Raised when no Sentinel names a primary; ``final``: all refuse, and so none will.

    It is redis-py's class, because connections raise it.
    """

    def __init__(self, message: str, *, final: bool) -> None:
        self.final = final
        super().__init__(message)


class _Refused(Exception):
    """Raised when a Sentinel answers, but not what was asked. The message says what to change."""


@dataclass(frozen=True)
class View:
    """What one Sentinel says of the service."""

    sentinel: str
    """Its id."""
    primary: Place
    epoch: int
    failing_over: bool
    others: Mapping[str, Place]
    """Sentinels beside it that it can reach, by their ids."""
    voters: int
    """Sentinels in all. One that was reset knows but itself."""
    promotable: int
    """Replicas that a failover might choose."""


class _Sentinel:
    """One Sentinel, and the connection on which it is asked."""

    def __init__(
        self, place: Place, service: str, options: Mapping[str, Any], tls: bool, learned_id: str
    ) -> None:
        self.place = place
        self.learned = bool(learned_id)
        """It is not in REDISQ_URL."""
        self.id = learned_id
        """"" until it is known."""
        self.silent = False
        """It did not answer when it was last asked."""
        self.name = f"{place[0]}:{place[1]}"
        self._service = service
        connection = redis.SSLConnection if tls else redis.Connection
        self._open = False
        self._connection: Any = connection(host=place[0], port=place[1], **options)

    def ask(self) -> View:
        """Raises `_Refused`, or `redis.ConnectionError` and the like if there is no answer."""
        about = ("MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS", "REPLICAS")
        answers = self._answers(("MYID",), *((question, self._service) for question in about))
        for answer in answers:
            if isinstance(answer, redis.ResponseError):
                raise _Refused(self._why(answer))
        myid, master, place, others, replicas = answers
        told = _fields(master)
        patience = 10 * int(told.get("down-after-milliseconds", 0))
        return View(
            # Nothing else tells that two addresses are one Sentinel, which has but one vote.
            sentinel=str(myid),
            # Not what MASTER says: that is the former one until its failover is over, a second
            # after the new one has taken its place.
            primary=(place[0], int(place[1])),
            epoch=int(told.get("config-epoch", 0)),
            failing_over="failover_in_progress" in told["flags"],
            others={
                other["runid"]: (other["ip"], int(other["port"]))
                for other in map(_fields, others)
                if "down" not in other["flags"]
            },
            voters=len(others) + 1,
            # A server is listed under each address that it has had.
            promotable=len(
                {
                    replica.get("runid") or (replica["ip"], replica["port"])
                    for replica in map(_fields, replicas)
                    if _is_promotable(replica, patience)
                }
            ),
        )

    def _answers(self, *questions: tuple[str, ...]) -> list[Any]:
        """On a connection that was open before, and may have been closed long ago, or a new one."""
        was_open, self._open = self._open, False
        try:
            answers = self._exchange(questions)
        except redis.AuthenticationError as error:
            self._connection.disconnect()
            raise _Refused(self._why(error)) from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._connection.disconnect()
            if not was_open or isinstance(error, redis.TimeoutError):
                raise
            return self._answers(*questions)
        self._open = True
        return answers

    def _exchange(self, questions: Iterable[tuple[str, ...]]) -> list[Any]:
        self._connection.connect()
        for question in questions:
            self._connection.send_command("SENTINEL", *question)
        answers: list[Any] = []
        for _ in questions:
            try:
                answers.append(self._connection.read_response())
            except redis.AuthenticationError:
                raise
            except redis.ResponseError as error:
                answers.append(error)
        return answers

    def _why(self, error: Exception) -> str:
        text = str(error)
        if isinstance(error, (redis.AuthenticationError, AuthorizationError)):
            return f"refuses sentinel_username and sentinel_password ({text})"
        if isinstance(error, NoPermissionError):
            return f"does not allow what is needed ({text}): ACL SETUSER … {SENTINEL_RIGHTS}"
        if "No such master" in text:
            known = ", ".join(self._services())
            return f"knows no {self._service!r}" + (f", but {known}" if known else "")
        if "unknown command" in text.lower():
            return f"is no Sentinel, but a Redis server (redis://{self.name})"
        if "subcommand" in text.lower():  # MYID is the latest that is asked
            return f"is older than Redis 6.2 ({text})"
        return text

    def _services(self) -> list[str]:
        (answer,) = self._answers(("MASTERS",))
        return [] if isinstance(answer, Exception) else [_fields(one)["name"] for one in answer]

    def close(self) -> None:
        self._connection.disconnect()


def _fields(answer: Any) -> dict[str, str]:
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def _is_promotable(replica: Mapping[str, str], patience: int) -> bool:
    """As Sentinel chooses; ``patience``: ms without its primary after which it is left out."""
    flags = replica["flags"]
    return (
        "down" not in flags
        and "disconnected" not in flags
        and replica.get("slave-priority", replica.get("replica-priority")) != "0"
        and int(replica.get("master-link-down-time", 0)) <= patience
    )


class Finder:
    """Asks Sentinels for the primary. May be used by several threads, one at a time."""

    def __init__(self, service: SentinelService, options: Mapping[str, Any]) -> None:
        self._service = service.service
        self._tls = service.tls
        self._options = {
            **options,
            "username": service.sentinel_username,
            "password": service.sentinel_password,
            "db": 0,
            "decode_responses": True,
            "encoding_errors": "replace",
            "protocol": 2,
        }
        self._lock = threading.Lock()
        self._sentinels = [self._sentinel(place) for place in service.sentinels]
        self._next = 0
        self._epoch = -1
        self._unheard_since = math.inf
        """Since when majorities have not known of the last failover that is known here."""
        self._contradicted = False
        """Since all were asked, one that was polled named another primary, or knew of less."""
        self.voters = 1
        """Sentinels in all, as far as is known."""
        self._named: dict[str, float] = {}
        """Sentinel -> when it last named the primary that is known here."""
        self.primary: Place | None = None
        """The last one that was found."""
        self.asked_at = 0.0

    def _sentinel(self, place: Place, learned_id: str = "") -> _Sentinel:
        return _Sentinel(place, self._service, self._options, self._tls, learned_id)

    def places(self) -> list[Place]:
        return [sentinel.place for sentinel in self._sentinels]

    def find(self, *, all_of_them: bool = False) -> list[View]:
        """Ask for the primary, in turn, until a majority of the Sentinels has answered, and one of
        them knows of the last failover that is known here. Sentinels that are short of time begin
        two at once; then a majority names for some seconds what the first one chose.

        -> what they say, none if none answers. Raises `PrimaryUnknown` if then none was known.
        """
        with self._lock:
            views: dict[str, View] = {}
            problems: dict[str, list[str]] = defaultdict(list)
            refused = True
            answered = []
            for sentinel in list(self._sentinels):
                if not all_of_them and self._is_enough(views.values()):
                    break
                if sentinel.id in views and not sentinel.silent:
                    continue
                try:
                    view = self._ask(sentinel)
                except _Refused as error:
                    problems[str(error)].append(sentinel.name)
                except (redis.RedisError, OSError) as error:
                    problems[str(error)].append(sentinel.name)
                    refused = False
                else:
                    views[view.sentinel] = view
                    answered.append(sentinel)
            self.asked_at = time.monotonic()
            # Those that answer are asked first from now on.
            self._sentinels.sort(key=lambda sentinel: sentinel not in answered)
            self._take(list(views.values()))
            if self.primary is None:
                said = (f"{', '.join(names)} {text}" for text, names in problems.items())
                raise PrimaryUnknown(
                    f"no Sentinel names a primary {self._service!r}: {'; '.join(said)}",
                    final=refused,
                )
            return list(views.values())

    def _ask(self, sentinel: _Sentinel) -> View:
        """Raises what `_Sentinel.ask` does."""
        sentinel.silent = True
        view = sentinel.ask()
        sentinel.silent = False
        if sentinel.learned and view.sentinel != sentinel.id:
            self._forget(sentinel)
            raise _Refused("is another Sentinel now")
        sentinel.id = view.sentinel
        return view

    def _is_enough(self, views: Collection[View]) -> bool:
        return 2 * len(views) > self._voters_by(views) and any(
            view.epoch >= self._epoch for view in views
        )

    def _voters_by(self, views: Collection[View]) -> int:
        """Sentinels in all: the most that any knows. Fewer than before, or than REDISQ_URL lists,
        only if most of those say so: one that was reset would be a majority by itself."""
        listed = {one.id or one.place for one in self._sentinels if not one.learned}
        known = max(self.voters, len(listed))
        said = max([len(views), *(view.voters for view in views)])
        return said if 2 * len(views) > known else max(said, known)

    def poll(self, *, rotate: bool = True) -> bool:
        """Ask the next Sentinel, or the one that answered last; it has the last word only if it
        knows of a later failover; else it may make it necessary to ask all (`in_doubt`).
        -> whether it has answered."""
        with self._lock:
            self._next += rotate
            sentinel = self._sentinels[self._next % len(self._sentinels) if rotate else 0]
            self.asked_at = time.monotonic()
            try:
                view = self._ask(sentinel)
            except (_Refused, redis.RedisError, OSError):
                self._sentinels.sort(key=lambda other: other is sentinel)
                return False
            self._take([view], polled=True)
            return True

    @property
    def in_doubt(self) -> bool:
        """Whether all are to be asked: the last majority did not know of the last failover that is
        known here, or one that was polled may be the first of those that were set up anew."""
        return self._contradicted or self._unheard_since < math.inf

    def vouched(self) -> float:
        """When a majority had last named the primary that is known here (-inf: never)."""
        needed = self.voters // 2 + 1
        times = sorted(self._named.values(), reverse=True)
        return times[needed - 1] if len(times) >= needed else float("-inf")

    def _take(self, views: Collection[View], *, polled: bool = False) -> None:
        """Believe the latest of ``views``. One that was ``polled`` is never a majority."""
        if not views:
            return
        self.voters = self._voters_by(views)
        majority = not polled and 2 * len(views) > self.voters
        now = time.monotonic()
        latest = max(view.epoch for view in views)
        # Those that answer may be cut off from the Sentinel that alone knows of the last failover.
        self._learn(views, knows_who_is_gone=majority and latest >= self._epoch)
        contradicts = latest < self._epoch or (
            latest == self._epoch and any(view.primary != self.primary for view in views)
        )
        self._contradicted = polled and (self._contradicted or contradicts)
        if latest < self._epoch:
            # Of Sentinels that were cut off, or have not heard of it yet.
            if not majority:
                return
            self._unheard_since = min(self._unheard_since, now)
            if now - self._unheard_since < FORGOTTEN_AFTER:
                return
        self._unheard_since = math.inf
        if latest != self._epoch or majority:
            named = Counter(view.primary for view in views if view.epoch == latest)
            primary = max(named, key=lambda place: (named[place], place == self.primary))
            if primary != self.primary:
                self._named.clear()
                self.primary = primary
            self._epoch = latest
        for view in views:
            if view.primary == self.primary:
                self._named[view.sentinel] = now

    def _learn(self, views: Collection[View], *, knows_who_is_gone: bool) -> None:
        """Know Sentinels that are not in REDISQ_URL, and each but once: other Sentinels may call
        one that is there by another name. A majority that has heard of the last failover knows
        where they are now, and which are no more."""
        answered = {view.sentinel for view in views}
        said = {own: place for view in views for own, place in view.others.items()}
        listed = {one.id for one in self._sentinels if not (one.learned or one.silent)}
        for sentinel in [one for one in self._sentinels if one.learned]:
            is_there = sentinel.id in answered and not sentinel.silent
            is_gone = not is_there and said.get(sentinel.id) != sentinel.place
            if sentinel.id in listed or (knows_who_is_gone and is_gone):
                self._forget(sentinel)
        known = {one.id for one in self._sentinels if not one.silent}
        for own, place in said.items():
            if own not in known and place not in self.places():
                self._sentinels.append(self._sentinel(place, own))

    def _forget(self, sentinel: _Sentinel) -> None:
        self._sentinels.remove(sentinel)
        sentinel.close()

    def close(self) -> None:
        with self._lock:
            for sentinel in self._sentinels:
                sentinel.close()
