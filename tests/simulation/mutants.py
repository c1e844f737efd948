"""After how many seeds the simulation finds each fault that `tests.mutants` has for workers and
their frontier."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.simulation.fetches import VOIDING
from lab.simulation.fleet import ROOT, Zygote, zygote
from lab.simulation.plan import Plan, draw
from tests.mutants.faults import MUTANTS, Mutant

FOLDERS = ("worker/", "frontier/", "middlewares/")
"""Of the package: what a crawl on virtual time consists of."""

OUTSIDE = ("dead/", "past", "waits.lua", "seen/filter.lua", "orders.lua")
"""Of `FOLDERS`: what only commands call, and what is for people."""

PAGES = 10
"""Of each crawl: small ones find more in the same time."""


Needs = Callable[[Plan], bool]


def _one_of(*names: str) -> Needs:
    """Whether a plan has one of these features or faults."""
    wanted = set(names)
    return lambda plan: bool(wanted & {*plan.features, *(fault.kind for fault in plan.faults)})


def _all_of(*needs: Needs) -> Needs:
    return lambda plan: all(one(plan) for one in needs)


def _several(plan: Plan) -> bool:
    return plan.masters > 1 and plan.hosts > 1


def _crowded(plan: Plan) -> bool:
    """Whether several workers want the same hosts from the beginning."""
    return plan.hosts <= 2 and len(plan.workers) > 1 and plan.workers[1] < 0.3


_losing = _one_of("lost_tail", "lost_script", "failover", "host_dies")
_joins = _one_of("again", "join", "leave", "stop", "kill")
_deaths = _one_of("kill", "host_dies", "poison")
_cuts = _one_of("messages", "cut", "freeze")
_fails = _one_of("trouble", "retry_after", "host_away")
NEEDS: dict[str, Needs] = {
    "math.max.state.last, state.ends": _all_of(_one_of("limits"), _crowded, _deaths),
    "post|resend.py: self._spread": _all_of(_several, _one_of("host_dies")),
    "fails > 0|fails >= 2": _all_of(_fails, _crowded),
    "POST. > 0 then return false": _one_of("delays", "failures"),
    "live_workers.. > 0 or": _one_of("stop", "leave", "told_to_stop"),
    "POST": _several,
    "again = ": _all_of(_one_of("lost_tail"), _one_of("idle", "slow_start", "cookies")),
    "primary|_certain|NOTHING": _all_of(_several, _one_of("failover")),
    "proof_at": _several,
    "sealed|input.seal|looked": _all_of(_several, _joins, _cuts),
    "inherits|input.begun": _all_of(_several, _losing),
    "waits_for|page.holder|holder.give_back|_known|left_start|holder.problem": _all_of(
        _one_of("hidden", "shared_hidden", "own_starts"),
        _one_of("stop", "leave", "freeze", "cut", "hidden_fails", "close_spider"),
    ),
    "tokens|concurrency": _all_of(_one_of("narrow"), lambda plan: plan.hosts > 1),
    "in_doubt": _all_of(_fails, _one_of("kill", "join", "leave")),
    "state.last|state.ends|turns.py|suspend|others": _all_of(_one_of("limits", "rate"), _crowded),
    "backoff.lua|fails|failed": _all_of(_fails, _crowded),
    "retry.py": _one_of("failures"),
    "robots": _all_of(_one_of("robots"), _crowded),
    "has_ended": lambda plan: "again" in plan.features and "REDISQ_RUN" in plan.settings,
    "headers=headers": _all_of(_one_of("copies"), _one_of("kill", "host_dies")),
    "pop.WANTED": _all_of(*map(_one_of, ("requeue", "copies", "tries_again", "raises"))),
    "WANTED": _all_of(_one_of("fails_again"), _one_of("kill", "host_dies")),
    "meta.run|throw_away|input.since|clear.lua|input.before": _one_of("again", "reset"),
    "patient and": lambda plan: (
        len(plan.workers) > 1
        and plan.settings["REDISQ_LEASE_TTL"] <= 4
        and any(one.kind in ("outage", "restart") and one.lasts >= 2 for one in plan.faults)
        and not {one.kind for one in plan.faults} & set(VOIDING)
    ),
    "patient": _all_of(_one_of("outage", "restart"), _one_of("join", "leave", "keep_alive")),
    "starting": _all_of(_one_of("slow_start"), lambda plan: len(plan.workers) > 1),
    "wake": _all_of(_one_of("limits"), lambda plan: not plan.faults and len(plan.workers) > 1),
    "is_news": lambda plan: not plan.faults and len(plan.workers) > 1,
    "rewound": _one_of("lost_tail", "lost_script"),
    "died": _one_of("poison"),
    "put_back": _one_of("kill", "stop", "leave"),
    "fence|is_member": _deaths,
    "acked|flight|not in self.held": _one_of("messages"),
    "suffix": _one_of("lost_tail", "lost_script"),
    "DELAYED": _one_of("delays", "failures", "trouble"),
    "_size": _one_of("heavy"),
    "CloseSpider": _one_of("close_spider"),
    "recent": _one_of("kill", "freeze", "cut", "lost_tail"),
    "rests": _one_of("quiet", "full", "sink_away"),
    "known.i|>= due|, due": _one_of("seen_ttl"),
    "": _cuts,
}
"""In file and line of a fault -> what a crawl needs to meet it: others are left out."""


def chosen(words: list[str]) -> Iterator[Mutant]:
    """Those whose file or line has one of ``words``; without words, all."""
    for mutant in MUTANTS:
        text = f"{mutant.path} {mutant.old}"
        if not mutant.path.startswith(FOLDERS) or any(one in text for one in OUTSIDE):
            continue
        if not words or any(word in text for word in words):
            yield mutant


def _seeds(mutant: Mutant, first: int, count: int) -> list[int]:
    text = f"{mutant.path} {mutant.old}"
    needs = next(needs for words, needs in NEEDS.items() if re.search(words, text))
    return list(itertools.islice((n for n in itertools.count(first) if needs(draw(n))), count))


class Sound:
    """Crawls without a fault in the code, each seed once."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._results: dict[int, dict[str, Any]] = {}

    def crawl(self, seed: int) -> dict[str, Any]:
        if seed not in self._results:
            self._results[seed] = self._zygote.crawl({"seed": seed, "pages": PAGES})
        return self._results[seed]


FIGURES = ("virtual", "calls", "hits", "events")
"""By which a crawl that went another way is known: each look at the clock moves it."""


COMPARED = 5
"""Crawls of each mutant that are compared with those without it."""


@dataclass
class Search:
    """For one mutant: ``met`` of the first ones of ``crawls`` went another way than without it, and
    ``problem`` is what the last one was found by, "" if none was."""

    crawls: int = 0
    met: int = 0
    problem: str = ""


def _search(seeds: list[int], sound: Sound, one: Zygote, **more: str) -> Search:
    search = Search()
    for seed in seeds:
        try:
            result = one.crawl({"seed": seed, "pages": PAGES, **more})
        except AssertionError as error:  # it could not even begin
            search.crawls, search.problem = 1, str(error)
            return search
        search.crawls += 1
        if search.crawls <= COMPARED or result["problems"]:
            without = sound.crawl(seed)
            search.met += any(result.get(figure) != without.get(figure) for figure in FIGURES)
            if result["problems"] and not without["problems"]:
                search.problem = result["problems"][0]
                break
    return search


def find(words: list[str], first: int, count: int) -> bool:
    """Print for each mutant how many crawls find it, of ``count`` that can meet it, with seeds from
    ``first`` on, and how many of the first ones it has changed. -> whether each was found."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="redisq-mutant-") as folder, zygote() as one:
        sound = Sound(one)
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen(words):
            file = copy / "scrapy_redisq" / mutant.path
            whole = file.read_text() if file.exists() else ""
            try:
                file.write_text(mutant.apply(whole))
            except (OSError, ValueError) as error:
                print(f"| `{mutant.name}` | stale | | {error} |", flush=True)
                continue
            seeds = _seeds(mutant, first, count)
            if mutant.path.endswith(".lua"):
                search = _search(seeds, sound, one, lua=str(copy / "scrapy_redisq/frontier"))
            else:
                with zygote(copy) as another:
                    search = _search(seeds, sound, another)
            file.write_text(whole)
            missed += not search.problem
            number = search.crawls if search.problem else f"not in {search.crawls}"
            problem = " ".join(search.problem.split())[:80].replace("|", "/")
            print(f"| `{mutant.name}` | {number} | {search.met} | {problem} |", flush=True)
    return not missed
