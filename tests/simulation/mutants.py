"""After how many seeds the simulation finds each fault that `tests.mutants` has for workers and
their frontier."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.simulation.fleet import ROOT, Zygote, crawl_all, zygote
from lab.simulation.plan import Plan, draw
from tests.mutants.faults import MUTANTS, Mutant

FOLDERS = ("worker/", "frontier/", "middlewares/")
"""Of the package: what a crawl on virtual time consists of."""

OUTSIDE = ("dead/", "past", "waits.lua", "seen/filter.lua", "orders.lua")
"""Of `FOLDERS`: what only commands call, and what is for people."""

PAGES = 20
"""Of each crawl: small ones find more in the same time."""


def _meets(*names: str) -> Callable[[Plan], bool]:
    """Whether a plan has one of these features or faults, and several faults."""
    wanted = set(names)

    def has(plan: Plan) -> bool:
        kinds = {fault.kind for fault in plan.faults}
        return len(plan.faults) >= 3 and bool(wanted & (plan.features | kinds))

    return has


_losing = _meets("lost_tail", "failover", "host_dies")
NEEDS: dict[str, Callable[[Plan], bool]] = {
    "post|resend|look.lua|shard_lost|inherits|operations.py|POST|primary|certain": lambda plan: (
        plan.masters > 1 and _losing(plan)
    ),
    "kept.py": _meets("hidden", "shared_hidden", "own_starts"),
    "turn|gate.py|inbox.py": _meets("limits", "rate", "narrow"),
    "backoff.lua|state.lua|retry.py|fails": _meets("failures", "trouble", "retry_after"),
    "robots": _meets("robots"),
    "join.lua|clear.lua|complete.lua": _meets("again", "join", "stranger", "keep_alive"),
    "rewound|_kept": _meets("lost_tail", "lost_script", "failover", "host_dies"),
    "reap.lua|leases.lua|leave.lua": _meets("kill", "stop", "leave", "host_dies"),
    "CloseSpider": _meets("close_spider"),
    "unwritten": _meets("sink_away", "sink_slow"),
    "": _meets("messages", "cut", "freeze"),
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


def _found(seeds: list[int], folder: Path, sound: Zygote) -> tuple[int, str] | None:
    """(How many of ``seeds`` it took, what was found), of a crawl that goes well in ``sound``."""
    found: list[tuple[int, str]] = []

    def told(result: dict[str, Any], one: Zygote) -> bool:
        task = {"seed": result["seed"], "pages": PAGES}
        if result["problems"] and not sound.crawl(task)["problems"]:
            found.append((seeds.index(result["seed"]) + 1, result["problems"][0]))
        return not found

    try:
        crawl_all(({"seed": seed, "pages": PAGES} for seed in seeds), told, 1, folder)
    except AssertionError as error:  # it could not even begin
        return 1, str(error)
    return found[0] if found else None


def find(words: list[str], first: int, count: int) -> bool:
    """Print for each mutant how many crawls find it, of ``count`` that can meet it, with seeds from
    ``first`` on. -> whether each was found."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="redisq-mutant-") as folder, zygote() as sound:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen(words):
            file = copy / "scrapy_redisq" / mutant.path
            whole = file.read_text() if file.exists() else ""
            try:
                file.write_text(mutant.apply(whole))
            except (OSError, ValueError) as error:
                print(f"| `{mutant.name}` | stale | {error} |", flush=True)
                continue
            found = _found(_seeds(mutant, first, count), copy, sound)
            file.write_text(whole)
            missed += found is None
            number, problem = found or (f"not in {count}", "")
            problem = " ".join(problem.split())[:80].replace("|", "/")
            print(f"| `{mutant.name}` | {number} | {problem} |", flush=True)
    return not missed
