"""Asks Sentinels which server is the primary, and keeps what they said."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import redis
from msgspec import Struct
from redis.exceptions import AuthorizationError, NoPermissionError

from scrapy_redisq.server.address import SentinelService

Place = tuple[str, int]
"""Host and port."""

FORGOTTEN_AFTER = 10.0
"""Seconds for which a majority has to know nothing of the last failover that is known here before
it is believed that there was none. The other Sentinels hear of one within two, and the one that
knows of it may miss a question for longer."""

SENTINEL_RIGHTS = (
    "+sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|sentinels "
    "+sentinel|replicas +sentinel|myid"
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


class View(Struct, frozen=True):
    """One Sentinel's view of the service."""

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


def _view(answers: list[Any]) -> View:
    myid, master, place, others, replicas = answers
    told = _fields(master)
    patience = 10 * int(told.get("down-after-milliseconds", 0))
    return View(
        sentinel=str(myid),
        # Not what MASTER says: that is the former one until its failover is over, a second after
        # the new one has taken its place.
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
        self._pool_at = functools.partial(
            redis.ConnectionPool,
            connection_class=redis.SSLConnection if service.tls else redis.Connection,
            username=service.sentinel_username,
            password=service.sentinel_password,
            decode_responses=True,
            encoding_errors="replace",
            protocol=2,
            **options,
        )
        self._lock = threading.Lock()
        self._clients: dict[Place, redis.Redis] = {}
        self._listed = service.sentinels
        self._learned: dict[Place, str] = {}
        """Sentinels that others name -> their ids."""
        self.places: list[Place] = list(self._listed)
        """Of all of them, in the order in which they are asked: those that have answered last come
        first."""
        self.voters = 1
        """Sentinels in all, as far as is known."""
        self.primary: Place | None = None
        """The last one that was found."""
        self._epoch = -1
        self._unheard_since = math.inf
        """Since when majorities have not known of the last failover that is known here."""
        self.vouched = -math.inf
        """When a majority has last named the primary that is known here, by time.monotonic()."""
        self.asked_at = 0.0

    def discover_master(self, service_name: str) -> Place | None:
        """As redis-py's pools ask for the primary."""
        self.find()
        return self.primary

    def find(self, *, all_of_them: bool = False) -> list[View]:
        """Ask for the primary, in turn, until a majority of the Sentinels names one, and one of
        them knows of the last failover that is known here. Sentinels that are short of time begin
        two at once; then a majority names for some seconds what the first one chose.

        -> what they say, none if none answers. Raises `PrimaryUnknown` if then none was known.
        """
        with self._lock:
            views: dict[str, View] = {}
            answered: list[Place] = []
            problems: dict[Place, Exception] = {}
            waiting, ids = list(self.places), dict(self._learned)
            for place in waiting:
                if not all_of_them and self._is_enough(views.values()):
                    break
                try:
                    view = self._ask(place, ids.get(place))
                except (_Refused, redis.RedisError, OSError) as error:
                    problems[place] = error
                    continue
                answered.append(place)
                # By its id: under two addresses it has but one vote.
                views[view.sentinel] = view
                ids |= {other: own for own, other in view.others.items()}
                waiting += [other for other in view.others.values() if other not in waiting]
            self.asked_at = time.monotonic()
            self._take(list(views.values()))
            # Those that answer are asked first from now on, those that do not at last.
            self.places.sort(key=lambda place: (place in problems) - (place in answered))
            if self.primary is None:
                said: dict[str, list[str]] = {}
                for (host, port), why in problems.items():
                    said.setdefault(str(why), []).append(f"{host}:{port}")
                whys = "; ".join(f"{', '.join(who)} {why}" for why, who in said.items())
                raise PrimaryUnknown(
                    f"no Sentinel names a primary {self._service!r}: {whys}",
                    final=all(isinstance(error, _Refused) for error in problems.values()),
                )
            return list(views.values())

    def _ask(self, place: Place, own_id: str | None) -> View:
        """``own_id``: its id, if others have named it. Raises `_Refused`, or redis-py's errors if
        there is no answer."""
        host, port = place
        if place not in self._clients:
            self._clients[place] = redis.Redis.from_pool(self._pool_at(host=host, port=port))
        about = ("MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS", "REPLICAS")
        try:
            with self._clients[place].pipeline(transaction=False) as asking:
                asking.execute_command("SENTINEL", "MYID")  # type: ignore[no-untyped-call]
                for question in about:
                    asking.execute_command("SENTINEL", question, self._service)  # type: ignore[no-untyped-call]
                answers = asking.execute(raise_on_error=False)
        except (redis.AuthenticationError, AuthorizationError) as error:
            raise _Refused(self._why(place, error)) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise _Refused(self._why(place, answer))
        view = _view(answers)
        if place not in self._listed and view.sentinel != own_id:
            raise _Refused("is another Sentinel now")
        return view

    def _why(self, place: Place, error: Exception) -> str:
        text = str(error)
        if isinstance(error, (redis.AuthenticationError, AuthorizationError)):
            return f"refuses sentinel_username and sentinel_password ({text})"
        if isinstance(error, NoPermissionError):
            return f"does not allow what is needed ({text}): ACL SETUSER … {SENTINEL_RIGHTS}"
        if "No such master" in text:
            told = self._clients[place].execute_command("SENTINEL", "MASTERS")  # type: ignore[no-untyped-call]
            known = ", ".join(_fields(one)["name"] for one in told)
            return f"knows no {self._service!r}" + (f", but {known}" if known else "")
        if "unknown command" in text.lower():
            return "is no Sentinel, but a Redis server (redis://{}:{})".format(*place)
        return text

    def _is_enough(self, views: Collection[View]) -> bool:
        named = Counter(view.primary for view in views)
        return 2 * max(named.values(), default=0) > self._voters_by(views) and any(
            view.epoch >= self._epoch for view in views
        )

    def _voters_by(self, views: Collection[View]) -> int:
        """Sentinels in all: the most that any knows. Fewer than before, or than REDISQ_URL lists,
        only if most of those say so: one that was reset would be a majority by itself."""
        known = max(self.voters, len(self._listed))
        said = max([len(views), *(view.voters for view in views)])
        return said if 2 * len(views) > known else max(said, known)

    def _take(self, views: Collection[View]) -> None:
        """Believe the latest of ``views``."""
        if not views:
            return
        self.voters = self._voters_by(views)
        majority = 2 * len(views) > self.voters
        latest = max(view.epoch for view in views)
        self._learn(views, knows_who_is_gone=majority and latest >= self._epoch)
        now = time.monotonic()
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
                self.vouched = -math.inf
                self.primary = primary
            self._epoch = latest
        if 2 * sum(view.primary == self.primary for view in views) > self.voters:
            self.vouched = now

    def _learn(self, views: Collection[View], *, knows_who_is_gone: bool) -> None:
        """Know Sentinels that are not in REDISQ_URL. A majority that has heard of the last failover
        knows where they are now, and which are no more; others may be cut off from them."""
        named = {place: own for view in views for own, place in view.others.items()}
        if knows_who_is_gone:
            for place in self._learned.keys() - named.keys():
                if place in self._clients:
                    self._clients.pop(place).close()
            self._learned = {}
        self._learned |= named
        known = dict.fromkeys([*self._listed, *self._learned])
        self.places = [place for place in self.places if place in known]
        self.places += [place for place in known if place not in self.places]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
