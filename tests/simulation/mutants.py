"""After how many seeds the simulation finds each fault that `tests.mutants` has for workers and
their frontier."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.simulation.fleet import ROOT, Zygote, crawl_all
from lab.simulation.plan import draw
from tests.mutants.faults import MUTANTS, Mutant

FOLDERS = ("worker/", "frontier/", "middlewares/")
"""Of the package: what a crawl on virtual time consists of."""

OUTSIDE = (
    "dead/",
    "past/",
    "waits.lua",
    "seen/forget.lua",
    "workers/tell.lua",
    "history.lua",
    "sampler",
)
"""Of `FOLDERS`: what only commands call, and what is for people."""

PAGES = 20
"""Of each crawl: small ones find more in the same time."""


FAULTS = 5
"""At least, in each crawl."""


def chosen(words: list[str]) -> Iterator[Mutant]:
    """Those whose file or line has one of ``words``; without words, all."""
    for mutant in MUTANTS:
        text = f"{mutant.path} {mutant.old}"
        if not mutant.path.startswith(FOLDERS) or any(one in text for one in OUTSIDE):
            continue
        if not words or any(word in text for word in words):
            yield mutant


def failing(seeds: list[int], folder: Path, *, first: bool = False) -> dict[int, str]:
    """Seeds that fail with the project in ``folder``, in the order of their ends -> their first
    problem. ``first``: the first one will do."""
    found: dict[int, str] = {}

    def told(result: dict[str, Any], one: Zygote) -> bool:
        if result["problems"]:
            found[result["seed"]] = result["problems"][0]
        return not (first and found)

    tasks = ({"seed": seed, "pages": PAGES} for seed in seeds)
    try:
        crawl_all(tasks, told, 1 if first else None, folder)
    except AssertionError as error:  # it could not even begin
        found.setdefault(seeds[0], str(error))
    return found


def find(words: list[str], seed: int, count: int) -> bool:
    """Print for each mutant which seed finds it, of ``count`` from ``seed`` on in which much goes
    wrong, and that succeed without it. -> whether each was found."""
    rich = (one for one in itertools.count(seed) if len(draw(one).faults) >= FAULTS)
    seeds = list(itertools.islice(rich, count))
    known = failing(seeds, ROOT)
    sound = [one for one in seeds if one not in known]
    print(f"{len(sound)} of {count} seeds from {seed} on; without a fault {known}", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="redisq-mutant-") as folder:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen(words):
            file = copy / "scrapy_redisq" / mutant.path
            whole = file.read_text() if file.exists() else ""
            try:
                file.write_text(mutant.apply(whole))
            except (OSError, ValueError) as error:
                print(f"| {mutant.name} | stale | {error} |", flush=True)
                continue
            found = failing(sound, copy, first=True)
            file.write_text(whole)
            missed += not found
            for nth, problem in found.items():
                words_of_it = " ".join(problem.split())[:80].replace("|", "/")
                print(f"| {mutant.name} | {sound.index(nth) + 1} | {words_of_it} |", flush=True)
                break
            else:
                print(f"| {mutant.name} | not in {len(sound)} | |", flush=True)
    return not missed
