"""Why nothing, or little, happens: a sentence for people, of figures that are there anyway.

`explain` is a function of what was looked at, and asks nobody.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapy_redisq.frontier.calls import Waits
from scrapy_redisq.frontier.growth import NO_LIMIT, Fill, GrowthLimit
from scrapy_redisq.server.condition import Condition

NEARLY_FULL = 0.9
"""Share of ``maxmemory`` from which on it is worth a word."""

KINDS = ("delay", "concurrency", "parked", "aside", "paused")
"""What keeps slots back, and in which order it is told."""

DELAYS = {
    "limit": "their limit",
    "rate": "their rate",
    "robots": "robots.txt",
    "throttle": "AutoThrottle",
    "back-off": "back-off",
}
REASON_OF = {"aside": "set_aside"}


def explain(
    status: Mapping[str, Any],
    waits: Iterable[Waits] = (),
    servers: Sequence[Condition] = (),
    away: Mapping[int, str] | None = None,
    growth: GrowthLimit = NO_LIMIT,
) -> dict[str, Any]:
    """The reason that keeps a crawl from going on, or goes furthest to explain its pace.

    ``status`` as `Frontier.status` gives it, ``waits`` of its shards, ``servers`` that hold them,
    ``away``: what shards said that did not answer, ``growth``: how large it may become. ->
    ``reason`` (a code), ``text`` (a sentence), ``also`` (what else is worth knowing), and figures:
    ``slots`` (hosts with requests), ``due`` (of them, that could start now), ``waiting`` (hosts by
    what they wait for), ``estimated`` (whether these numbers are), ``next_start`` (seconds),
    ``oldest_due`` (seconds for which a host has been due), ``idle_workers``, ``starts_per_minute``
    (that limits allow; None: no limit).
    """
    found = _Look(status, list(waits), servers, away or {})
    reason, text = found.reason()
    also = found.also(reason)
    if full := _back_pressure(status, servers, growth):
        also.insert(0, full)
    return {"reason": reason, "text": text, "also": also, **found.figures()}


def _back_pressure(
    status: Mapping[str, Any], servers: Sequence[Condition], growth: GrowthLimit
) -> str:
    fills = [Fill(0, server.used, server.most) for server in servers]
    if status["state"] not in {"running", "stopped"}:
        return ""
    reached = growth.reached(status["created"] - status["finished"], fills)
    return f"Back-pressure: {reached}. start(), links and pushes wait for room." if reached else ""


def unreachable(error: object) -> dict[str, Any]:
    """The same where nothing can be asked."""
    return _alone(
        "redis_away",
        f"Redis does not answer, or takes no commands: {error}. Workers keep what they have and "
        "try again.",
    )


def corrupt(error: object) -> dict[str, Any]:
    """The same where something else has written to a key, which stops the workers, too."""
    return _alone("corrupt", f"{error}.")


def _alone(reason: str, text: str) -> dict[str, Any]:
    return {"reason": reason, "text": text, "also": [], **_Look({}, [], (), {}).figures()}


class _Look:
    """What was seen, summed over the shards."""

    def __init__(
        self,
        status: Mapping[str, Any],
        waits: list[Waits],
        servers: Sequence[Condition],
        away: Mapping[int, str],
    ) -> None:
        self.status, self.servers, self.away = status, servers, away
        workers = status.get("workers", [])
        self.alive = [worker for worker in workers if worker["alive"]]
        self.dead = [worker for worker in workers if not worker["alive"]]
        self.leased = status.get("leased", 0)
        self.keeping = [worker for worker in self.alive if worker.get("kept")]
        self.kept = sum(worker["kept"] for worker in self.keeping)
        first = {wait.shard: wait for wait in reversed(waits)}  # what is told of a whole shard
        self.slots = sum(wait.slots for wait in first.values())
        self.due = sum(wait.due for wait in first.values())
        self.busy = sum(wait.busy for wait in first.values())
        self.delayed = sum(wait.delayed[0] for wait in first.values())
        delays = [wait.delayed for wait in first.values() if wait.delayed[0]]
        self.first_delayed = min((delay[1] for delay in delays), default=0) / 1e6
        self.last_delayed = max((delay[2] for delay in delays), default=0) / 1e6
        nexts = [wait.next for wait in first.values() if wait.next >= 0]
        self.next_start = min(nexts) / 1e6 if nexts else None
        oldest = max((wait.oldest for wait in first.values()), default=-1)
        self.oldest = oldest / 1e6 if oldest >= 0 else None
        # A worker that found nothing on one shard may have work of another, or from before.
        waiting = min((wait.waiting for wait in first.values()), default=0)
        without = sum(not worker.get("leased") for worker in self.alive)
        self.idle = max(0, min(int(waiting), without))
        self.starting = max((int(wait.starting) for wait in first.values()), default=0)
        self.stuck = min((wait.stuck for wait in first.values()), default=-1) / 1e6
        self.keep_alive = any(wait.keep_alive for wait in first.values())
        self._count_kinds(waits, first.values())

    def _count_kinds(self, waits: list[Waits], first: Iterable[Waits]) -> None:
        looked: Counter[int] = Counter()
        for wait in waits:
            looked[wait.shard] += wait.looked
        self.estimated = any(looked[wait.shard] < wait.slots for wait in first)
        slots = {wait.shard: wait.slots for wait in first}
        self.kinds: dict[str, float] = {}
        self.causes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.allowed = 0
        self.in_use = 0.0
        for wait in waits:
            scale = max(1.0, slots[wait.shard] / max(1, looked[wait.shard]))
            for kind, (count, by) in wait.kinds.items():
                self.kinds[kind] = self.kinds.get(kind, 0) + count * scale
                if kind == "concurrency":
                    self.allowed += sum(by)
                elif kind == "due" and by:
                    self.in_use += dict(by)["busy"] * scale
                elif by and kind in self.causes:
                    self.causes[kind].update({str(what): int(n) for what, n in dict(by).items()})
        if self.estimated:
            # Few of many slots may be set aside or paused, and are named in sets of their own.
            self.kinds["aside"] = sum(_with_requests(wait.aside) for wait in first)
            self.kinds["paused"] = sum(_with_requests(wait.paused) for wait in first)
        limited = bool(waits) and all(wait.starts >= 0 for wait in waits) and not self.estimated
        self.starts = round(sum(wait.starts for wait in waits), 1) if limited else None
        if not self.slots:
            self.starts = None

    def figures(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "due": self.due,
            "waiting": {
                REASON_OF.get(kind, kind): round(self.kinds[kind])
                for kind in KINDS
                if round(self.kinds.get(kind, 0))
            },
            "estimated": self.estimated,
            "next_start": None if self.next_start is None else round(self.next_start, 3),
            "oldest_due": None if self.oldest is None else round(self.oldest, 3),
            "idle_workers": self.idle,
            "starts_per_minute": self.starts,
        }

    # The reason, from the most to the least that is in the way

    def reason(self) -> tuple[str, str]:
        state = self.status["state"]
        if state == "absent":
            return "absent", "There is no such frontier: nothing was pushed, no worker has joined."
        if self.away:
            return "shard_away", self._away()
        full = [server for server in self.servers if server.is_full]
        if full:
            return "redis_full", (
                f"Redis is full: {_mib(full[0].used)} of {_mib(full[0].most)} (maxmemory). Workers "
                "finish what they hold, and start nothing new until there is room."
            )
        if refusing := next((server.refuses for server in self.servers if server.refuses), ""):
            return "redis_refuses", f"Redis takes no writes: {refusing}."
        if state == "complete":
            return "complete", f"The run is complete: {_n(self.status['finished'], 'request')}."
        if state == "resetting":
            return "resetting", "What is left of a former run is being deleted."
        if since := self.status.get("crawl_paused"):
            held = f"; {_n(self.leased, 'request')} with workers" if self.leased else ""
            return "paused", (
                f"The crawl is paused by a person since {since}{held}: nothing is started before "
                f"scrapy redisq resume {shlex.quote(self.status['frontier'])}."
            )
        if not self.alive:
            return "no_workers", self._no_workers()
        if all(worker.get("quiet") for worker in self.alive):
            return "quiet", (
                f"{_all(len(self.alive), 'worker')} {_be(len(self.alive))} quiet: what they hold "
                "is finished, nothing is claimed until they are told to work again."
            )
        cut_off = [worker for worker in self.alive if worker.get("sink") not in (None, "")]
        if len(cut_off) == len(self.alive):
            return "sink_away", (
                f"The sink is away, for {_all(len(cut_off), 'worker').lower()}: "
                f"{_n(self.leased, 'request')} in progress, whose items wait to be written."
            )
        return self._of_slots() if self.slots else self._without_slots()

    def _away(self) -> str:
        shards = ", ".join(map(str, sorted(self.away)))
        which = f"Shard {shards} is" if len(self.away) == 1 else f"Shards {shards} are"
        return (
            f"{which} away ({next(iter(self.away.values()))}): their hosts wait, those of other "
            "shards go on."
        )

    def _no_workers(self) -> str:
        text = "No worker is alive"
        if self.dead and self.leased:
            silent = min(worker["seen_ago"] for worker in self.dead)
            text += (
                f" ({_n(len(self.dead), 'worker')} that gave no sign of life for {_time(silent)} "
                f"still {'hold' if len(self.dead) > 1 else 'holds'} {_n(self.leased, 'request')})"
            )
        return f"{text}; {self._resuming()} resumes the run."

    def _resuming(self) -> str:
        """The command that goes on with this run, and with no other."""
        words = ["scrapy", "crawl"]
        if spider := self.status.get("spider"):
            words.append(spider)
            for argument in _words(self.status.get("arguments") or ""):
                words += ["-a", shlex.quote(argument)]
            if self.status["frontier"] != spider:
                words += ["-s", f"REDISQ_FRONTIER={shlex.quote(self.status['frontier'])}"]
        if name := self.status.get("run_name"):
            words += ["-s", f"REDISQ_RUN={shlex.quote(name)}"]
        return " ".join(words)

    def _without_slots(self) -> tuple[str, str]:
        """Nothing waits in a queue."""
        if self.leased or self.kept:
            left = []
            if self.leased:
                left.append(f"{_n(self.leased, 'request')} of {_n(len(self.alive), 'worker')}")
            if self.kept:
                kept, workers = _n(self.kept, "request"), _n(len(self.keeping), "worker")
                left.append(f"{kept} that cannot be stored, in {workers}")
            if self.delayed:
                delayed = _n(self.delayed, "delayed request")
                left.append(f"{delayed}, the next in {_time(self.first_delayed)}")
            return "in_progress", f"All that is left is in progress: {', and '.join(left)}."
        if self.delayed:
            text = f"Only {_n(self.delayed, 'delayed request')} (retries and other delays)"
            if self.delayed == 1:
                return "delayed", f"{text} is left, due in {_time(self.first_delayed)}."
            return "delayed", (
                f"{text} are left: the next is due in {_time(self.first_delayed)}, the last in "
                f"{_time(self.last_delayed)}."
            )
        if self.status.get("posted"):
            return "posted", (
                f"Links of {_n(self.status['posted'], 'finished page')} to other servers are not "
                "safe there yet."
            )
        if self.starting:
            return "starting", (
                f"Nothing waits; {_n(min(self.starting, len(self.alive)), 'worker')} may still add "
                "start requests."
            )
        if self.keep_alive:
            return "idle", "Everything is finished; the workers stay for more (REDISQ_KEEP_ALIVE)."
        return "ending", "Everything is finished, and the workers are about to leave."

    def _of_slots(self) -> tuple[str, str]:
        kept_back = {kind: n for kind in KINDS if (n := round(self.kinds.get(kind, 0)))}
        free = round(self.kinds.get("due", 0))
        if kept_back and not free:
            largest = max(kept_back, key=lambda kind: kept_back[kind])
            return REASON_OF.get(largest, largest), self._kept_back(kept_back)
        if not self.leased:
            return "unclaimed", (
                f"{_n(free, 'host')} could start, and no worker has claimed anything: its requests "
                "have just come, or the workers wait for a sink or for Redis."
            )
        if self.status.get("scheduling") == "priority":
            works = "work" if len(self.alive) > 1 else "works"
            return (
                "working",
                f"{_n(len(self.alive), 'worker')} {works} on {_n(self.leased, 'request')}.",
            )
        text = (
            f"{_n(len(self.alive), 'worker')} {'work' if len(self.alive) > 1 else 'works'} on "
            f"{_n(self.leased, 'request')} of {_n(self.busy, 'host')}"
        )
        if more := max(0, free - round(self.in_use)):
            about = "about " if self.estimated else ""
            text += f"; {about}{_n(more, 'more host')} could start now"
        return "working", f"{text}."

    def _kept_back(self, kept_back: Mapping[str, int]) -> str:
        about = "about " if self.estimated else ""
        if len(kept_back) == 1:
            ((kind, _),) = kept_back.items()
            hosts = "The only host" if self.slots == 1 else f"All {self.slots:,} hosts"
            text = f"{hosts} with requests {self._how(kind, self.slots, alone=True)}"
        else:
            parts = [
                f"{about}{n:,} {self._how(kind, n, alone=False)}" for kind, n in kept_back.items()
            ]
            text = f"All {self.slots:,} hosts with requests wait: {', '.join(parts)}"
        if {"concurrency", "delay"} & set(kept_back) and self.idle:
            text += f"; {self._idle()}"
        moving = {"delay", "parked", "aside"} & set(kept_back)
        if moving and self.next_start is not None:
            at = f"in {_time(self.next_start)}" if self.next_start >= 0.1 else "due now"
            text += f"; the next start is {at}"
        return f"{text}."

    def _how(self, kind: str, n: int, *, alone: bool) -> str:
        causes = self.causes[kind]
        if kind == "delay":
            cause = f" ({', '.join(DELAYS[c] for c, _ in causes.most_common())})" if causes else ""
            # Its own limit is what one expects.
            cause = "" if set(causes) == {"limit"} else cause
            verb = (
                ("waits for its delay" if n == 1 else "wait for their delay")
                if alone
                else ("for its delay" if n == 1 else "for their delay")
            )
            return verb + cause
        if kind == "concurrency":
            limit = f"limit of {self.allowed:,} at a time" + ("" if n == 1 else " together")
            has = (
                ("has reached its " if n == 1 else "have reached their ") if alone else "at their "
            )
            return has + limit
        be = ("is " if n == 1 else "are ") if alone else ""
        if kind == "parked":
            several = len(causes) > 1
            after = [
                _answer(status) + (f" ({count:,})" if several else "")
                for status, count in causes.most_common(4)
            ]
            return f"{be}parked after {' and '.join(after) or 'failures'}"
        if kind == "aside":
            stuck = f", for {_time(self.stuck)} nothing else is left" if self.stuck >= 0 else ""
            return f"{be}set aside after too many failures{stuck if alone else ''}"
        return f"{be}paused by a person"

    def _idle(self) -> str:
        have = "has" if self.idle == 1 else "have"
        return f"{self.idle:,} of {_n(len(self.alive), 'worker')} {have} nothing to do"

    def also(self, reason: str) -> list[str]:
        """What is true besides."""
        told = []
        for server in self.servers:
            if not server.is_full and server.share >= NEARLY_FULL:
                told.append(f"Redis is {server.share:.0%} full ({_mib(server.most)}).")
        if reason in {"working", "in_progress", "unclaimed"}:
            for kind in ("parked", "aside", "paused"):
                if n := round(self.kinds.get(kind, 0)):
                    told.append(f"{_n(n, 'host')} {self._how(kind, n, alone=True)}.")
            if self.idle:
                told.append(f"{self._idle()}.")
        if reason not in {"quiet", "no_workers"} and (
            quiet := [worker for worker in self.alive if worker.get("quiet")]
        ):
            told.append(
                f"{len(quiet):,} of {_n(len(self.alive), 'worker')} {_be(len(quiet))} quiet."
            )
        if reason not in {"sink_away", "no_workers"} and (
            cut_off := [worker for worker in self.alive if worker.get("sink") not in (None, "")]
        ):
            told.append(f"The sink of {_n(len(cut_off), 'worker')} is away.")
        if self.starts and reason in {"delay", "working", "concurrency"}:
            told.append(f"Delays and rates allow {_number(self.starts)} starts a minute.")
        if reason in {*KINDS, "set_aside"} and self.leased:
            told.append(f"{_n(self.leased, 'request')} in progress.")
        return told


def _with_requests(told: tuple[int, int, int]) -> float:
    """How many slots of a set have requests, as far as those that were looked at say."""
    total, looked_at, with_requests = told
    return with_requests * total / looked_at if looked_at else 0.0


# Words


def _answer(status: str) -> str:
    """What a host has answered: a status as slots have it (see ``shared/slots/state.lua``)."""
    if status == "0":
        return "no answer"
    if status == "-1":
        return "robots.txt that cannot be had"
    return f"{status[1:]} for robots.txt" if status.startswith("-") else status


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:  # of another hand
        return []


def _n(number: float, what: str) -> str:
    return f"{number:,.0f} {what}{'' if round(number) == 1 else 's'}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:,.1f}"


def _all(number: int, what: str) -> str:
    return f"The only {what}" if number == 1 else f"All {number:,} {what}s"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"
