"""The scripts that workers and producers run, as `Call`s: input and reply, typed, without any
network. `scrapy_redisq.frontier.admin` has the scripts that people run,
`scrapy_redisq.frontier.exchange` makes exchanges.

Inputs and replies are documented in the head of each Lua file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from scrapy_redisq.errors import (
    ConfigurationMismatch,
    FrontierCorrupt,
    FrontierError,
    FrontierLost,
    RunMismatch,
    RunOver,
    ShardLost,
)
from scrapy_redisq.frontier.config import (
    DEAD_MAX,
    FORMAT,
    SETTING_OF,
    FrontierConfig,
    shown_arguments,
)
from scrapy_redisq.frontier.growth import NO_LIMIT, GrowthLimit
from scrapy_redisq.frontier.names import meta_key, pairs
from scrapy_redisq.frontier.scripts import Call, damaged, load, raw_string, unpack
from scrapy_redisq.frontier.seen import SeenFilter, exact_member

T = TypeVar("T")

# Who joins


class Joined(Struct, frozen=True):
    """The run that a shard is in. ``began``: when, in us by shard 0's clock.

    ``new``: it was begun by this very call. ``inherits``: what it has of the run before, see
    ``run/join.lua``. ``name``: its REDISQ_RUN, or "". ``trash``: dupefilters that wait to be
    deleted. ``former_shards``: how many former runs had at most, if their keys are still there.
    ``begun``: shards that have begun this run for good, as far as shard 0 knows. ``full``: Redis
    is at its maxmemory. ``paused``: the crawl is, as shard 0 knows.
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
    paused: bool = False


class RunTerms(Struct, frozen=True):
    """Which run a worker wants to be in: REDISQ_RUN, REDISQ_RESUME, REDISQ_KEEP_SEEN and
    REDISQ_KEEP_ALIVE; the feeds that it reads on the frontier's own server, as JSON, or ""; and how
    large it may become."""

    name: str = ""
    resume: bool = True
    keep_seen: bool = False
    keep_alive: bool = False
    feeds: str = ""
    growth: GrowthLimit = NO_LIMIT


ANY_RUN = RunTerms()

JUST_NOW = 2**52
"""For the time at which a worker was started: it is older than no run. In us, in the year 2112."""


class MayComeBack(FrontierError):
    """Raised when another run is to begin, and workers of the last one may only have been cut off:
    join again a little later."""


class ClearFirst(FrontierError):
    """Raised by `join` when something is left of a former run: `clear` it, then join again."""


Intent = dict[str, Any]
"""Why somebody joins, as ``run/join.lua`` has it."""


def crawl(
    run: str, terms: RunTerms = ANY_RUN, since: int = JUST_NOW, lost: tuple[int, int] = (0, 0)
) -> Intent:
    """A worker, on shard 0, which decides: it comes into the unfinished run, or begins one, which
    is then called ``run``. ``since``: when the worker was started, in us by the shard's clock;
    ``lost``: when a run began that the shard has lost and others have, and its origin, see `Look`.
    """
    growth = {f"max_{name}": str(most or "") for name, most in asdict(terms.growth).items()}
    said = {name: value for name, value in asdict(terms).items() if name != "growth"} | growth
    began, origin = lost
    return {"intent": "crawl", "run": run, "since": since, "lost": began, "origin": origin, **said}


def produce(run: str, *, keep_seen: bool = False, keep_config: bool = False) -> Intent:
    """A producer, on shard 0: it adds to the run that is there, or begins one, called ``run``.
    ``keep_config``: also that one takes the stored configuration, and keeps what was seen if the
    last worker did."""
    return {"intent": "push", "run": run, "keep_seen": keep_seen, "keep_config": keep_config}


def follow(first: Joined, *, begun: bool = False, since: int = JUST_NOW) -> Intent:
    """A worker or producer that has joined the ``first`` shard joins another one, in the same run.
    ``begun``: that shard is known to have begun the run. ``since`` as of `crawl`."""
    of_first = {name: getattr(first, name) for name in ("run", "began", "inherits")}
    return {"intent": "follow", **of_first, "begun": begun, "since": since}


def come_back(run: str, former: str, since: int, terms: RunTerms | None = None) -> Intent:
    """A worker that was taken for dead comes back into ``run``, if that is still there. ``former``:
    its id until then; ``since`` as of `crawl`. Shard 0 is told the run's name again, and whether it
    stays open: it may have forgotten that."""
    said = {"name": terms.name, "keep_alive": terms.keep_alive} if terms else {}
    return {"intent": "return", "run": run, "former": former, "since": since, **said}


class Registration(Struct, frozen=True):
    """A worker that joins: its id, the seconds after which it is dead without a sign of life, its
    ``info`` for people, and the limits that it brings."""

    worker: str
    ttl: float
    info: Mapping[str, str | int] = field(default_factory=dict)
    limits: Mapping[str, str] | None = None
    """Of slots by pattern, as ``lua/shared/slots/limits.lua`` has them. They take the place of the
    limits that are there. None: those stay."""
    throttle: str = ""
    """Terms of AutoThrottle, as that file has them; they go with the limits."""
    seen_ttl: float = 0.0
    """Seconds from which on a fingerprint may be forgotten; 0: never. It takes the place of the
    one that is there."""
    release: str = ""
    settings: str = ""
    """For people: the release of the worker's code, and a digest of its settings."""

    def to_input(self) -> dict[str, Any]:
        info = [text for pair in self.info.items() for text in pair]
        times = {"ttl": int(self.ttl * 1e6), "seen_ttl": int(self.seen_ttl * 1e6)}
        return {**asdict(self), **times, "info": info}


NOBODY = Registration("", 0.0)
"""A producer is not registered."""


def call_of(
    script: str | tuple[str, str], name: str, shard: int, decode: Callable[[Any], T], /, **data: Any
) -> Call[T]:
    """A call of a script, which is named with a dupefilter's backend if it has one, on one shard;
    see `Call`."""
    file, backend = (script, "") if isinstance(script, str) else script
    return Call.of(load(file, backend), meta_key(name, shard), data, decode)


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
        status = answer.pop("status")
        if status != "ok":
            raise _refused(name, shard, status, answer, intent)
        return Joined(**{**answer, "config": FrontierConfig.from_meta(answer["config"])})

    data = {
        "format": FORMAT,
        "config": config.to_meta(),
        "any_shards": config.any_shards,
        **intent,
        **registration.to_input(),
    }
    return call_of("run/join", name, shard, decode, **data)


def _refused(
    name: str, shard: int, status: str, answer: dict[str, Any], intent: Intent
) -> FrontierError:
    """Why ``run/join.lua`` lets nobody in."""
    match status:
        case "over":
            ago = None if answer["ago"] < 0 else answer["ago"] / 1e6
            return RunOver(name, answer["run"], answer["name"], ago)
        case "named":
            return RunMismatch(name, answer["name"], intent["name"])
        case "differs":
            differences = {field: tuple(both) for field, both in answer["differences"].items()}
            if "arguments" in differences:
                differences["arguments"] = _arguments_for_people(*differences["arguments"])
            return ConfigurationMismatch(
                name, {SETTING_OF.get(field, field): both for field, both in differences.items()}
            )
        case "wait":
            return MayComeBack(
                f"frontier {name!r} is forgotten (REDISQ_RESUME) if none of its workers comes back"
            )
        case "clear":
            return ClearFirst(f"frontier {name!r} has to be emptied before a run begins")
        case "lost":
            return FrontierLost(f"frontier {name!r} was begun anew or deleted meanwhile")
        case "shard_lost":
            return ShardLost(name, shard)
        case "format":
            return FrontierError(
                f"frontier {name!r} has format {answer['format']}, this release of "
                f"scrapy-redisq reads format {FORMAT}: use the release that began it, or "
                f"another REDISQ_FRONTIER"
            )
        case _:
            return FrontierCorrupt(damaged(answer["key"], answer["kind"]))


def _arguments_for_people(stored: str, given: str) -> tuple[str, str]:
    """Without the digests, unless nothing else differs: long ones, or passwords."""
    shown = shown_arguments(stored) or "none", shown_arguments(given) or "none"
    return shown if shown[0] != shown[1] else (stored, given)


# Runs


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
    who = {"run": run, "worker": worker}
    return call_of("run/leave", name, shard, int, **who, dead_max=dead_max, returns=returns)


class Completion(NamedTuple):
    """The answer of `complete`: "complete", "sealed" with the ``number`` of the seal, or
    "unfinished"; of the run ``run``, which has ``shards``, on several servers if ``spread``.
    ``counts``: of a run that is complete by it."""

    what: str
    run: str
    number: int
    shards: int
    spread: bool
    counts: dict[str, str]


def complete(
    name: str,
    shard: int,
    *,
    run: str = "",
    seal: int = 0,
    producer: bool = False,
    newcomer: bool = False,
) -> Call[Completion]:
    """Complete the run if nothing is left of it; with several shards, one step of that."""

    def decode(reply: Any) -> Completion:
        what, of_run, number, shards, spread, flat = reply
        counts = pairs(text.decode(errors="replace") for text in flat)
        is_spread = spread == b"True"
        return Completion(what.decode(), of_run.decode(), int(number), shards, is_spread, counts)

    who = {"producer": producer, "newcomer": newcomer}
    return call_of("run/complete", name, shard, decode, run=run, first=shard == 0, seal=seal, **who)


def open_run(name: str, shard: int, run: str, visited: int = 0) -> Call[int]:
    """Open a run, to add to it. ``visited``: the reply of shard 0 to this call, see
    ``run/reopen.lua``.

    -> shard 0: the number of this visit, others: 1; 0 if the run is gone.
    """
    return call_of("run/reopen", name, shard, int, run=run, shard=shard, visited=visited)


class Look(NamedTuple):
    """The answer of `look`. ``idle``: nothing is left, and nobody may add to it. ``to_do``: so much
    there has been to do. ``began``: when the run did, in us by shard 0's clock (0: there is none).
    ``origin``: the same of the first of the runs that were lost one after the other, if the run
    goes on with them."""

    idle: bool
    to_do: int
    began: int
    origin: int = 0


def look(
    name: str, shard: int, *, worker: str = "", mark: str = "", marked: str = ""
) -> Call[Look]:
    """Look at a shard. ``mark`` is left there with ``worker``, if nothing is left; ``marked`` must
    be there, if something is not to count as left."""

    def decode(reply: Any) -> Look:
        return Look(bool(reply[0]), *reply[1:])

    return call_of("run/look", name, shard, decode, worker=worker, mark=mark, marked=marked)


def reap(
    name: str, shard: int, run: str, max_deliveries: int, dead_max: int, *, ttl: float = 0.0
) -> Call[tuple[int, int, int]]:
    """Reclaim from workers past their deadline; -> (reclaimed, dead, leases left).

    ``ttl``: seconds for which a worker lives without a sign of life.
    """
    terms = {"max_deliveries": max_deliveries, "dead_max": dead_max}
    return call_of("run/reap", name, shard, tuple, run=run, ttl=int(ttl * 1e6), **terms)


def status(name: str, shard: int) -> Call[dict[str, Any]]:
    """-> ``run/status.lua``'s reply, {} if the shard is not there."""
    return call_of("run/status", name, shard, unpack)


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

    def decode(reply: Any) -> tuple[str, int]:
        return reply[0].decode(), int(reply[1])

    how = {"all": everything, "mark": mark, "force": force}
    return call_of("run/clear", name, shard, decode, before=before, **how)


def sweep(
    name: str, shard: int, backend: str, everything: bool = False, *, forget_shards: str = ""
) -> Call[str | None]:
    """Delete dupefilters that no run uses; -> the backend of the next one, None: nothing is left.

    ``forget_shards``: the run that has no shards of former ones left.
    """

    def decode(reply: bytes | None) -> str | None:
        return reply.decode() if reply else None

    data = {"backend": backend, "all": everything, "forget_shards": forget_shards or False}
    return call_of(("seen/sweep", backend), name, shard, decode, **data)


# Requests

STARTS, RECENT = 1, 2
"""The set that an identity is asked about and recorded in: of all start requests of the run, or of
requests that came lately."""

FingerprintItem = msgspec.Raw | str | bool
"""A fingerprint as scripts take it; False stands for none."""

EnqueueItem = tuple[int, msgspec.Raw, FingerprintItem, int, int, FingerprintItem]
"""A request as ``lua/shared/enqueue.lua`` takes it: the number of its queue, entry, fingerprint,
delay in ms; the set to ask (0: none), and its identity."""


def enqueue_item(
    queue: int,
    entry: bytes,
    fingerprint: bytes | str | None,
    delay: int = 0,
    *,
    asked: int = 0,
    identity: bytes | None = None,
) -> EnqueueItem:
    """One request as the scripts take it; ``delay`` in ms.

    ``asked``: which of the exact sets is asked about its ``identity``, 0 for none.
    """
    to_ask = (asked, exact_member(identity)) if asked and identity else (0, False)
    return queue, raw_string(entry), fingerprint_item(fingerprint), delay, *to_ask


def fingerprint_item(fingerprint: bytes | str | None) -> FingerprintItem:
    """A fingerprint as scripts take it."""
    if isinstance(fingerprint, bytes):
        return raw_string(fingerprint)
    return fingerprint or False


def push(
    name: str,
    shard: int,
    run: str,
    backend: str,
    queues: Sequence[tuple[str, str]],
    enqueue: Sequence[EnqueueItem],
    seen: Sequence[Any],
    dead_max: int,
    *,
    also: Sequence[FingerprintItem] = (),
) -> Call[str]:
    """-> one character per request: "1" new, "0" duplicate; "lost" if another run has begun,
    "sealed" if the shard must be opened first. ``also``: fingerprints that are only recorded."""

    def decode(reply: Any) -> str:
        answer = unpack(reply)
        return str(answer["outcome"] if answer["status"] == "ok" else answer["status"])

    what = {"queues": queues, "enqueue": enqueue, "seen": seen, "dead_max": dead_max}
    what["also"] = also or False
    return call_of(("push", backend), name, shard, decode, run=run, **what)


def record_seen(
    name: str, generation: str, seen: SeenFilter, fingerprints: Sequence[bytes]
) -> Call[list[int]]:
    """Record fingerprints in a dupefilter that stands alone; -> 1 for each that was new, else 0."""
    items = [fingerprint_item(seen.encode(each)) for each in fingerprints]

    def decode(reply: Any) -> list[int]:
        answers = list(reply)
        if len(answers) != len(fingerprints) or not {0, 1}.issuperset(answers):
            raise ValueError(f"{answers!r:.100} is no answer of 0 or 1 for each fingerprint")
        return answers

    what = {"generation": generation, "fingerprints": items}
    return filter_call(name, 0, seen, "add", decode, **what)


def filter_call(
    name: str,
    shard: int,
    seen: SeenFilter,
    what: str,
    decode: Callable[[Any], T],
    **data: Any,
) -> Call[T]:
    """A question to a dupefilter, see ``seen/filter.lua``."""
    data.update(what=what, seen=seen.parameters())
    return call_of(("seen/filter", seen.name), name, shard, decode, **data)


def take_posts(
    name: str, shard: int, run: str, *, most: int, hold: float
) -> Call[dict[str, bytes]]:
    """-> id of each post that is due, and what it holds: links to other shards, which stands for
    them until those cannot lose them. Nobody else is given them for ``hold`` seconds."""

    def decode(reply: list[bytes]) -> dict[str, bytes]:
        items = zip(reply[::2], reply[1::2], strict=True)
        return {id.decode(errors="surrogateescape"): links for id, links in items}

    return call_of("post/take", name, shard, decode, run=run, most=most, hold=int(hold * 1e6))


# robots.txt


def robots_txt(
    name: str, shard: int, run: str, host: str, *, text: bytes | None = None, ttl: float = 0.0
) -> Call[tuple[str, bytes, float]]:
    """Ask for a host's robots.txt, or keep its ``text`` for ``ttl`` seconds (0: say that this
    worker does not fetch it).

    -> ("known", text, seconds for which it is valid), or "fetch", "wait" or "lost" with nothing.
    """
    kept = False if text is None else raw_string(text)

    def decode(reply: Any) -> tuple[str, bytes, float]:
        return reply[0].decode(), reply[1], reply[2] / 1000

    return call_of(
        "robots", name, shard, decode, run=run, host=host, text=kept, ttl=int(ttl * 1000)
    )


def crawl_delay(name: str, shard: int, run: str, host: str, slot: str, delay: float) -> Call[bool]:
    """Set the delay in seconds that a host's robots.txt asks for; -> whether the slot's changed."""
    data = {"run": run, "host": host, "slot": slot, "delay": int(delay * 1e6)}
    return call_of("slots/crawl_delay", name, shard, lambda reply: bool(reply == 1), **data)
