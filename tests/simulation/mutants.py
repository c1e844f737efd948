"""By which of so many seeds the simulation finds each fault that `tests.mutants` has for workers
and their frontier. A mutant is crawled with those seeds alone in which it makes a difference to the
line that it changes, as far as a mark can tell: see ``reach.py``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.simulation.fleet import ROOT, Zygote
from tests.mutants.faults import MUTANTS, Mutant
from tests.simulation.reach import mark, reached

FOLDERS = ("worker/", "frontier/", "middlewares/")
"""Of the package: what a crawl on virtual time consists of."""

OUTSIDE = ("dead/", "past", "waits.lua", "seen/filter.lua", "orders.lua")
"""Of `FOLDERS`: what only commands call, and what is for people."""

PAGES = 10
"""Of each crawl: small ones find more in the same time."""

FIGURES = ("virtual", "calls", "hits", "events")
"""By which a crawl that went another way is known: each look at the clock moves it."""


def chosen(words: list[str]) -> Iterator[Mutant]:
    """Those whose file or line has one of ``words``; without words, all."""
    for mutant in MUTANTS:
        text = f"{mutant.path} {mutant.old}"
        if not mutant.path.startswith(FOLDERS) or any(one in text for one in OUTSIDE):
            continue
        if not words or any(word in text for word in words):
            yield mutant


def _copy(folder: str) -> Path:
    """A project that can be crawled with."""
    for package in ("lab", "scrapy_redisq"):
        shutil.copytree(ROOT / package, Path(folder) / package)
    return Path(folder)


@dataclass
class Sound:
    """A crawl without a fault in the code: its result, and the numbers of mutants it reached."""

    seed: int
    result: dict[str, Any]
    reached: set[int]


def _sound(copy: Path, seeds: range) -> list[Sound]:
    crawls = []
    with Zygote(copy) as one:
        for seed in (seeds[0], *seeds):  # what the zygote itself has reached goes with the first
            told = one.crawl({"seed": seed, "pages": PAGES})
            result = {key: told.get(key) for key in (*FIGURES, "problems")}
            crawls.append(Sound(seed, result, reached(one.log())))
    return crawls[1:]


@dataclass
class Search:
    """For one mutant: ``changed`` of ``crawls`` went another way than without it; the last one, of
    ``seed``, had the ``problem``, "" if none had."""

    crawls: int = 0
    changed: int = 0
    seed: int = 0
    problem: str = ""


def _search(mutant: Mutant, sound: list[Sound]) -> Search:
    search = Search()
    with tempfile.TemporaryDirectory(prefix="redisq-mutant-") as folder:
        copy = _copy(folder)
        file = copy / "scrapy_redisq" / mutant.path
        file.write_text(mutant.apply(file.read_text()))
        is_lua = mutant.path.endswith(".lua")
        more = {"lua": str(copy / "scrapy_redisq/frontier")} if is_lua else {}
        with Zygote(ROOT if is_lua else copy) as one:
            for without in sound:
                search.crawls, search.seed = search.crawls + 1, without.seed
                try:
                    told = one.crawl({"seed": without.seed, "pages": PAGES, **more})
                except AssertionError as error:  # it could not even begin
                    search.problem = str(error)
                    break
                search.changed += any(told.get(key) != without.result[key] for key in FIGURES)
                if told["problems"] and not without.result["problems"]:
                    search.problem = told["problems"][0]
                    break
    return search


def find(words: list[str], seeds: range, most: int, jobs: int) -> bool:
    """Print for each mutant by which of the ``seeds`` it is found, of which ``most`` that reach it
    are crawled with it; how many reach it; how many of those crawled went another way; and what
    was found. ``jobs`` crawls run side by side. -> whether each was found."""
    mutants, missed = [*chosen(words)], 0
    with ThreadPoolExecutor(jobs) as threads:
        with tempfile.TemporaryDirectory(prefix="redisq-reach-") as folder:
            mark(copy := _copy(folder), mutants)
            parts = [part for n in range(jobs) if (part := seeds[n::jobs])]
            sound = [one for some in threads.map(partial(_sound, copy), parts) for one in some]
        sound.sort(key=lambda one: one.seed)
        reaching = [[one for one in sound if n in one.reached] for n in range(len(mutants))]
        searches = threads.map(_search, mutants, (some[:most] for some in reaching))
        for mutant, some, search in zip(mutants, reaching, searches, strict=True):
            missed += not search.problem
            number = seeds.index(search.seed) + 1 if search.problem else "not found"
            changed = f"{search.changed} of {search.crawls}"
            problem = search.problem.partition("\n")[0][:80].replace("|", "/")
            print(
                f"| `{mutant.name}` | {number} | {len(some)} | {changed} | {problem} |", flush=True
            )
    return not missed
