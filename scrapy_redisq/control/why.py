"""Why nothing, or little, happens: a sentence for people, of figures that are there anyway.

`explain` is a function of what was looked at, and asks nobody.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapy_redisq.control.observed import KINDS, Observed
from scrapy_redisq.control.words import counted, size_text, time_text
from scrapy_redisq.frontier.admin import Waits
from scrapy_redisq.frontier.growth import NO_LIMIT, GrowthLimit, ServerState
from scrapy_redisq.server.condition import Condition

NEARLY_FULL = 0.9
"""Share of ``maxmemory`` from which on it is worth a word."""

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
    """The reason that keeps a crawl from going on, or goes furthest to explain its pace, with the
    fields of docs/reference/status.md.

    ``status`` as `Frontier.status` gives it, ``waits`` of its shards, ``servers`` that hold them,
    ``away``: what shards said that did not answer, ``growth``: how large it may become.
    """
    look = _Look(status, waits, servers, away)
    reason, text = _in_the_way(look) or _where_requests_are(look)
    also = look.also(reason, growth)
    return {"reason": reason, "text": text, "also": also, **look.figures()}


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
    return {"reason": reason, "text": text, "also": [], **_Look({}, []).figures()}


class _Look(Observed):
    """Observations, and parts of sentences about them."""

    def __init__(self, *seen: Any) -> None:
        super().__init__(*seen)
        self.name = shlex.quote(self.status.get("frontier", ""))
        self.quiet = sum(bool(worker.get("quiet")) for worker in self.alive)
        self.cut_off = sum(worker.get("sink") not in (None, "") for worker in self.alive)
        self.keeping = sum(bool(worker.get("kept")) for worker in self.alive)
        self.kept = sum(worker.get("kept") or 0 for worker in self.alive)
        self.full = [server for server in self.servers if server.is_full]
        self.refuses = next((server.refuses for server in self.servers if server.refuses), "")
        self.delayed = sum(n for n, _, _ in self.delays)
        starts = self.starts() if self.slots and not self.estimated else None
        self.starts_per_minute = None if starts is None else round(starts, 1)

    def figures(self) -> dict[str, Any]:
        oldest = max((wait.oldest for wait in self.shards), default=-1)
        return {
            "slots": self.slots,
            "due": sum(wait.due for wait in self.shards),
            "waiting": {REASON_OF.get(kind, kind): n for kind, n in self.kept_back.items()},
            "estimated": self.estimated,
            "next_start": None if self.next_start is None else round(self.next_start, 3),
            "oldest_due": round(oldest / 1e6, 3) if oldest >= 0 else None,
            "idle_workers": self.idle,
            "starts_per_minute": self.starts_per_minute,
        }

    def how(self, kind: str, n: int) -> str:
        """The cause for which ``n`` hosts wait."""
        causes = self.causes[kind].most_common()
        its = "its" if n == 1 else "their"
        if kind == "delay":
            named = ", ".join(DELAYS[cause] for cause, _ in causes)
            # Its own limit is what one expects.
            return f"for {its} delay" + (
                f" ({named})" if {c for c, _ in causes} - {"limit"} else ""
            )
        if kind == "concurrency":
            return f"at {its} limit of {self.allowed:,} at a time{'' if n == 1 else ' together'}"
        if kind == "parked":
            shown = [_answer(a) + (f" ({k:,})" if len(causes) > 1 else "") for a, k in causes[:4]]
            return f"parked after {' and '.join(shown) or 'failures'}"
        return "set aside after too many failures" if kind == "aside" else "paused by a person"

    def idle_text(self) -> str:
        have = "has" if self.idle == 1 else "have"
        return f"{self.idle:,} of {counted(len(self.alive), 'worker')} {have} nothing to do"

    def also(self, reason: str, growth: GrowthLimit) -> list[str]:
        """Further sentences."""
        told = []
        if self.state in {"running", "stopped"}:
            fills = [ServerState(0, 0, server.used, server.most) for server in self.servers]
            if full := growth.reached(self.status["created"] - self.status["finished"], fills):
                told.append(f"Back-pressure: {full}. start() and pushes wait for room.")
        told += [
            f"Redis is {server.share:.0%} full ({size_text(server.most)})."
            for server in self.servers
            if not server.is_full and server.share >= NEARLY_FULL
        ]
        if reason in {"working", "in_progress", "unclaimed"}:
            for kind in ("parked", "aside", "paused"):
                if n := self.kept_back.get(kind):
                    told.append(f"{counted(n, 'host')} {self.how(kind, n)}.")
            if self.idle:
                told.append(f"{self.idle_text()}.")
        if reason not in {"quiet", "no_workers"} and self.quiet:
            told.append(f"Quiet: {self.quiet:,} of {counted(len(self.alive), 'worker')}.")
        if reason not in {"sink_away", "no_workers"} and self.cut_off:
            told.append(f"The sink of {counted(self.cut_off, 'worker')} is away.")
        if self.starts_per_minute and reason in {"delay", "working", "concurrency"}:
            starts = f"{self.starts_per_minute:,.{0 if self.starts_per_minute >= 10 else 1}f}"
            told.append(f"Delays and rates allow {starts} starts a minute.")
        if reason in {*KINDS, "set_aside"} and self.leased:
            told.append(f"{counted(self.leased, 'request')} in progress.")
        return told


# The sentences


def _away(look: _Look) -> str:
    shards = ", ".join(map(str, sorted(look.away)))
    which = f"Shard {shards} is" if len(look.away) == 1 else f"Shards {shards} are"
    why = next(iter(look.away.values()))
    return f"{which} away ({why}): their hosts wait, those of other shards go on."


def _paused(look: _Look) -> str:
    held = f"; {counted(look.leased, 'request')} with workers" if look.leased else ""
    return (
        f"The crawl is paused by a person since {look.status['crawl_paused']}{held}: nothing is "
        f"started before scrapy redisq resume {look.name}."
    )


def _no_workers(look: _Look) -> str:
    text = "No worker is alive"
    if look.dead and look.leased:
        silent = time_text(min(worker["seen_ago"] for worker in look.dead))
        hold = "hold" if len(look.dead) > 1 else "holds"
        dead, held = counted(len(look.dead), "worker"), counted(look.leased, "request")
        text += f" ({dead} that gave no sign of life for {silent} still {hold} {held})"
    return f"{text}; {_resuming(look.status)} resumes the run."


def _resuming(status: Mapping[str, Any]) -> str:
    """The command that goes on with this run, and with no other."""
    words = ["scrapy", "crawl"]
    if spider := status.get("spider"):
        words.append(spider)
        for argument in shlex.split(status.get("arguments") or ""):
            words += ["-a", shlex.quote(argument)]
        if status["frontier"] != spider:
            words += ["-s", f"REDISQ_FRONTIER={shlex.quote(status['frontier'])}"]
    if name := status.get("run_name"):
        words += ["-s", f"REDISQ_RUN={shlex.quote(name)}"]
    return " ".join(words)


def _in_progress(look: _Look) -> str:
    left = []
    if look.leased:
        left.append(f"{counted(look.leased, 'request')} of {counted(len(look.alive), 'worker')}")
    if look.kept:
        kept, workers = counted(look.kept, "request"), counted(look.keeping, "worker")
        left.append(f"{kept} that cannot be stored, in {workers}")
    if look.delayed:
        delayed = counted(look.delayed, "delayed request")
        first = min(first for _, first, _ in look.delays)
        left.append(f"{delayed}, the next in {time_text(first)}")
    return f"All that is left is in progress: {', and '.join(left)}."


def _delayed(look: _Look) -> str:
    text = f"Only {counted(look.delayed, 'delayed request')} (retries and other delays)"
    first = time_text(min(first for _, first, _ in look.delays))
    last = time_text(max(last for *_, last in look.delays))
    if look.delayed == 1:
        return f"{text} is left, due in {first}."
    return f"{text} are left: the next is due in {first}, the last in {last}."


def _kept_back(look: _Look, most: str) -> str:
    """All hosts with requests wait for something, most of them for ``most``."""
    kinds = look.kept_back
    hosts = "The only host with requests waits" if look.slots == 1 else ""
    text = hosts or f"All {look.slots:,} hosts with requests wait"
    if len(kinds) == 1:
        text += f": {look.how(next(iter(kinds)), look.slots)}"
    else:
        about = "about " if look.estimated else ""
        text += ": " + ", ".join(f"{about}{n:,} {look.how(kind, n)}" for kind, n in kinds.items())
    stuck = min((wait.stuck for wait in look.shards), default=-1) / 1e6
    if kinds.keys() == {"aside"} and stuck >= 0:
        text += f", for {time_text(stuck)} nothing else is left"
    if {"concurrency", "delay"} & kinds.keys() and look.idle:
        text += f"; {look.idle_text()}"
    if {"delay", "parked", "aside"} & kinds.keys() and look.next_start is not None:
        at = f"in {time_text(look.next_start)}" if look.next_start >= 0.1 else "due now"
        text += f"; the next start is {at}"
    if most == "paused":
        text += f"; scrapy redisq slots resume {look.name} SLOT ends a pause"
    return f"{text}."


def _working(look: _Look) -> str:
    works = "work" if len(look.alive) > 1 else "works"
    text = f"{counted(len(look.alive), 'worker')} {works} on {counted(look.leased, 'request')}"
    if look.status.get("scheduling") == "priority":
        return f"{text}."
    text += f" of {counted(sum(wait.busy for wait in look.shards), 'host')}"
    if more := max(0, look.free - round(look.in_use)):
        about = "about " if look.estimated else ""
        text += f"; {about}{counted(more, 'more host')} could start now"
    return f"{text}."


def _in_the_way(look: _Look) -> tuple[str, str] | None:
    """The obstacle for the whole crawl, whatever waits: the reason and its sentence. What is most
    in the way comes first."""
    workers = counted(len(look.alive), "worker")
    if look.state == "absent":
        return "absent", "There is no such frontier: nothing was pushed, no worker has joined."
    if look.away:
        return "shard_away", _away(look)
    if look.full:
        used, most = size_text(look.full[0].used), size_text(look.full[0].most)
        return "redis_full", (
            f"Redis is full: {used} of {most} (maxmemory). A worker whose page has found something "
            "new starts nothing for 10 s to an hour, or until there is room."
        )
    if look.refuses:
        return "redis_refuses", f"Redis takes no writes: {look.refuses}."
    if look.state == "complete":
        finished = counted(look.status["finished"], "request")
        return "complete", f"The run is complete: {finished}."
    if look.state == "resetting":
        return "resetting", "What is left of a former run is being deleted."
    if look.status.get("crawl_paused"):
        return "paused", _paused(look)
    if not look.alive:
        return "no_workers", _no_workers(look)
    if look.quiet == len(look.alive):
        return "quiet", (
            f"All workers are quiet ({workers}): they finish what they hold, and claim nothing "
            f"before scrapy redisq workers work {look.name} --all."
        )
    if look.cut_off == len(look.alive):
        return "sink_away", (
            f"The sinks of all workers are away ({workers}): {counted(look.leased, 'request')} in "
            "progress, whose items wait to be written."
        )
    return None


def _where_requests_are(look: _Look) -> tuple[str, str]:
    """The cause for which the requests that are left wait."""
    if look.kept_back and not look.free:
        most = max(look.kept_back, key=lambda kind: look.kept_back[kind])
        return REASON_OF.get(most, most), _kept_back(look, most)
    if look.slots and not look.leased:
        return "unclaimed", (
            f"{counted(look.free, 'host')} could start, and no worker has claimed anything: its "
            "requests have just come, or the workers wait for a sink or for Redis."
        )
    if look.slots:
        return "working", _working(look)
    if look.leased or look.kept:
        return "in_progress", _in_progress(look)
    if look.delayed:
        return "delayed", _delayed(look)
    if posted := look.status.get("posted"):
        pages = counted(posted, "finished page")
        return "posted", f"Links of {pages} to other servers are not safe there yet."
    if look.starting:
        starting = counted(min(look.starting, len(look.alive)), "worker")
        return "starting", f"Nothing waits; {starting} may still add start requests."
    if look.keep_alive:
        stay = "the workers stay for more (REDISQ_KEEP_ALIVE, or a feed)"
        return "idle", f"Everything is finished; {stay}."
    return "ending", "Everything is finished, and the workers are about to leave."


def _answer(status: str) -> str:
    """A host's answer in words, by the status of its slot (see ``shared/slots/state.lua``)."""
    if status == "0":
        return "no answer"
    if status == "-1":
        return "robots.txt that cannot be had"
    return f"{status[1:]} for robots.txt" if status.startswith("-") else status
