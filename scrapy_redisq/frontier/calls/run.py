"""How runs begin and end, and who is in them: ``lua/run/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapy_redisq.errors import (
    ConfigurationMismatch,
    FrontierCorrupt,
    FrontierError,
    FrontierLost,
    RunMismatch,
    RunOver,
    ShardLost,
)
from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.config import (
    DEAD_MAX,
    FORMAT,
    SETTING_OF,
    FrontierConfig,
    shown_arguments,
)
from scrapy_redisq.frontier.growth import NO_LIMIT, Fill, GrowthLimit
from scrapy_redisq.frontier.scripts import Call, damaged, load, unpack


@dataclass(frozen=True)
class Joined:
    """The run that a shard is in. ``began``: when, in us by shard 0's clock.

    ``new``: it was begun by this very call. ``inherits``: what it has of the run before, see
    ``run/join.lua``. ``name``: its REDISQ_RUN, or "". ``trash``: dupefilters that wait to be
    deleted. ``former_shards``: how many former runs had at most, if their keys are still there.
    ``begun``: shards that have begun this run for good, as far as shard 0 knows. ``full``: Redis
    is at its maxmemory.
    """

    run: str
    began: int
    new: bool
    inherits: str
    name: str
    config: FrontierConfig
    generation: str
    trash: int
    former_shards: int
    begun: Sequence[int] = ()
    full: bool = False


@dataclass(frozen=True)
class RunTerms:
    """Which run a worker wants to be in: REDISQ_RUN, REDISQ_RESUME, REDISQ_KEEP_SEEN and
    REDISQ_KEEP_ALIVE; and how large it may become."""

    name: str = ""
    resume: bool = True
    keep_seen: bool = False
    keep_alive: bool = False
    growth: GrowthLimit = NO_LIMIT


ANY_RUN = RunTerms()

JUST_NOW = 2**52
"""For the time at which a worker was started: it is older than no run. In us, in the year 2112."""


class MayComeBack(FrontierError):
    """Raised when another run is to begin, and workers of the last one may only have been cut off:
    join again a little later."""


class ClearFirst(FrontierError):
    """Raised by `join` when something is left of a former run: `clear` it, then join again."""


@dataclass(frozen=True)
class Crawl:
    """A worker, on shard 0, which decides: it comes into the unfinished run, or begins one, which
    is then called ``run``. ``since``: when the worker was started, in us by the shard's `clock`;
    ``lost``: when a run began that the shard has lost and others have."""

    run: str
    terms: RunTerms = ANY_RUN
    since: int = JUST_NOW
    lost: int = 0

    def to_input(self) -> dict[str, Any]:
        return {
            "intent": "crawl",
            "run": self.run,
            "name": self.terms.name,
            "since": self.since,
            "lost": self.lost,
            "resume": self.terms.resume,
            "keep_alive": self.terms.keep_alive,
            "keep_seen": self.terms.keep_seen,
            "max_pending": str(self.terms.growth.pending or ""),
            "max_memory": str(self.terms.growth.memory or ""),
        }


@dataclass(frozen=True)
class Push:
    """A producer, on shard 0: it adds to the run that is there, or begins one, called ``run``.
    ``keep_config``: also that one takes the stored configuration, and keeps what was seen if the
    last worker did."""

    run: str
    keep_seen: bool = False
    keep_config: bool = False

    def to_input(self) -> dict[str, Any]:
        return {
            "intent": "push",
            "run": self.run,
            "keep_seen": self.keep_seen,
            "keep_config": self.keep_config,
        }


@dataclass(frozen=True)
class Follow:
    """Whoever has joined the ``first`` shard, on another one: it comes into the same run.
    ``begun``: that one is known to have begun it."""

    first: Joined
    begun: bool = False

    def to_input(self) -> dict[str, Any]:
        return {
            "intent": "follow",
            "run": self.first.run,
            "began": self.first.began,
            "inherits": self.first.inherits,
            "begun": self.begun,
        }


@dataclass(frozen=True)
class Return:
    """A worker that was taken for dead comes back into ``run``, if that is still there. ``former``:
    its id until then."""

    run: str
    former: str

    def to_input(self) -> dict[str, Any]:
        return {"intent": "return", "run": self.run, "former": self.former}


Intent = Crawl | Push | Follow | Return
"""Why somebody joins."""


@dataclass(frozen=True)
class Registration:
    """A worker that joins: its id, the seconds that it lives without a sign of life, what people
    are shown of it, and the limits that it brings."""

    worker: str
    ttl: float
    info: Mapping[str, str | int] = field(default_factory=dict)
    limits: Mapping[str, str] | None = None
    """Of slots by pattern, as ``lua/shared/slots/state.lua`` has them; they take the place of those
    that are there. None: those stay."""
    throttle: str = ""
    """Terms of AutoThrottle, as that file has them; they go with the limits."""
    release: str = ""
    settings: str = ""
    """What the worker runs, for people: the release of its code, and a digest of its settings."""

    def to_input(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "ttl": int(self.ttl * 1e6),
            "info": [text for pair in self.info.items() for text in pair],
            "limits": self.limits,
            "throttle": self.throttle,
            "release": self.release,
            "settings": self.settings,
        }


NOBODY = Registration("", 0.0)
"""A producer is not registered."""

_NO_TERMS = {
    "name": "",
    "since": JUST_NOW,
    "lost": 0,
    "resume": True,
    "keep_alive": False,
    "keep_seen": False,
    "keep_config": False,
    "max_pending": "",
    "max_memory": "",
}


def join(
    name: str,
    shard: int,
    intent: Intent,
    config: FrontierConfig,
    registration: Registration = NOBODY,
) -> Call[Joined]:
    """Come into a run, which is begun if need be, and register a worker if there is one.

    The decoder raises `ConfigurationMismatch`, `RunMismatch`, `RunOver`, `FrontierCorrupt`,
    `ClearFirst`, `MayComeBack`, `FrontierLost`, `ShardLost`, or `FrontierError` for another format.
    """

    def decode(reply: Any) -> Joined:
        answer = unpack(reply)
        match answer.pop("status"):
            case "ok":
                answer["config"] = FrontierConfig.from_meta(answer["config"])
                return Joined(**answer)
            case "over":
                ago = None if answer["ago"] < 0 else answer["ago"] / 1e6
                raise RunOver(name, answer["run"], answer["name"], ago)
            case "named":
                wanted = intent.terms.name if isinstance(intent, Crawl) else ""
                raise RunMismatch(name, answer["name"], wanted)
            case "differs":
                raise ConfigurationMismatch(
                    name,
                    {
                        SETTING_OF.get(field, field): (
                            _arguments_for_people(*both) if field == "arguments" else tuple(both)
                        )
                        for field, both in answer["differences"].items()
                    },
                )
            case "wait":
                raise MayComeBack(
                    f"frontier {name!r} has workers that gave no sign of life in time: it is "
                    f"forgotten (REDISQ_RESUME) if none of them comes back"
                )
            case "clear":
                raise ClearFirst(f"frontier {name!r} has to be emptied before a run begins")
            case "lost":
                raise FrontierLost(
                    f"frontier {name!r} was begun anew or deleted while this worker was away"
                )
            case "shard_lost":
                raise ShardLost(name, shard)
            case "format":
                raise FrontierError(
                    f"frontier {name!r} has format {answer['format']}, this release of "
                    f"scrapy-redisq reads format {FORMAT}: use the release that began it, or "
                    f"another REDISQ_FRONTIER"
                )
            case _:
                raise FrontierCorrupt(damaged(answer["key"], answer["kind"]))

    data = {
        "format": FORMAT,
        "config": config.to_meta(),
        "any_shards": config.any_shards,
        **_NO_TERMS,
        **intent.to_input(),
        **registration.to_input(),
    }
    return Call.of(load("run/join"), meta_key(name, shard), data, decode)


def clock(name: str) -> Call[int]:
    """-> the time of shard 0, in us since 1970."""
    return Call.of(load("run/clock"), meta_key(name, 0), {}, int)


def _arguments_for_people(stored: str, given: str) -> tuple[str, str]:
    """Without the digests, unless nothing else differs: long ones, or passwords."""
    shown = shown_arguments(stored) or "none", shown_arguments(given) or "none"
    return shown if shown[0] != shown[1] else (stored, given)


def leave(
    name: str,
    shard: int,
    run: str,
    worker: str,
    *,
    dead_max: int = DEAD_MAX,
    returns: bool = False,
) -> Call[int]:
    """Give back what ``worker`` holds; -> leases left. ``returns``: under another id it stays."""
    data = {"run": run, "worker": worker, "dead_max": dead_max, "returns": returns}
    return Call.of(load("run/leave"), meta_key(name, shard), data, int)


@dataclass(frozen=True)
class Conclusion:
    """What `conclude` found: "complete", "sealed" with the ``number`` of the seal, or
    "unfinished"; of the run ``run``, which has ``shards``, on several servers if ``spread``."""

    what: str
    run: str
    number: int
    shards: int
    spread: bool


def conclude(
    name: str, shard: int, *, run: str = "", seal: int = 0, producer: bool = False
) -> Call[Conclusion]:
    """Complete the run if nothing is left of it; with several shards, one step of that."""
    data = {"run": run, "first": shard == 0, "seal": seal, "producer": producer}

    def decode(reply: Any) -> Conclusion:
        what, of_run, number, shards, spread = reply
        return Conclusion(
            what.decode(), of_run.decode(), int(number), int(shards), spread == b"True"
        )

    return Call.of(load("run/conclude"), meta_key(name, shard), data, decode)


def open_run(name: str, shard: int, run: str, visited: int = 0) -> Call[int]:
    """Open a run for what is to be added; ``visited``: what this said of shard 0, see
    ``run/open.lua``.

    -> shard 0: the number of this visit, others: 1; 0 if the run is gone.
    """
    data = {"run": run, "shard": shard, "visited": visited}
    return Call.of(load("run/open"), meta_key(name, shard), data, int)


@dataclass(frozen=True)
class Look:
    """What `look` found: nothing is left and nobody may add to it, how much there has been to do,
    and when the run began, in us by shard 0's clock (0: there is none)."""

    idle: bool
    to_do: int
    began: int


def look(
    name: str, shard: int, *, worker: str = "", mark: str = "", marked: str = ""
) -> Call[Look]:
    """Look at a shard. ``mark`` is left there with ``worker``, if nothing is left; ``marked`` must
    be there, if something is not to count as left."""
    data = {"worker": worker, "mark": mark, "marked": marked}

    def decode(reply: Any) -> Look:
        idle, to_do, began = reply
        return Look(bool(idle), int(to_do), int(began))

    return Call.of(load("run/look"), meta_key(name, shard), data, decode)


def reap(
    name: str, shard: int, run: str, max_deliveries: int, dead_max: int, *, ttl: float = 0.0
) -> Call[tuple[int, int, int]]:
    """Reclaim from workers past their deadline; -> (reclaimed, dead, leases left).

    ``ttl``: seconds for which a worker lives without a sign of life.
    """
    data = {
        "run": run,
        "ttl": int(ttl * 1e6),
        "max_deliveries": max_deliveries,
        "dead_max": dead_max,
    }
    return Call.of(load("run/reap"), meta_key(name, shard), data, tuple)


def fill(name: str, shard: int) -> Call[Fill]:
    """-> how full the shard and its server are."""
    return Call.of(load("run/fill"), meta_key(name, shard), {}, lambda reply: Fill(*reply))


def status(name: str, shard: int) -> Call[dict[str, Any]]:
    """-> ``run/status.lua``'s reply, {} if the shard is not there."""
    return Call.of(load("run/status"), meta_key(name, shard), {}, unpack)


def clear(
    name: str,
    shard: int,
    *,
    everything: bool = False,
    mark: bool = False,
    force: bool = False,
    before: int = 0,
) -> Call[tuple[str, int]]:
    """Delete what is left of a run; -> status and number as in ``run/clear.lua``."""
    data = {"all": everything, "mark": mark, "force": force, "before": before}
    return Call.of(
        load("run/clear"),
        meta_key(name, shard),
        data,
        lambda reply: (reply[0].decode(), int(reply[1])),
    )


def mend(name: str, shard: int) -> Call[str]:
    """Take away the mark of a key that was damaged; -> that key, "" if there is none."""
    return Call.of(
        load("run/mend"), meta_key(name, shard), {}, lambda key: key.decode(errors="replace")
    )
