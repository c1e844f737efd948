"""``python -m tests.simulation``: crawls on virtual time, each a seed. See `lab.simulation`.

Options: ``--seed N`` the first one, ``--count N``, ``--minutes N``, ``--one`` with its events,
``--trace`` with each fetch and command, ``--pages N`` and ``--without PART,PART`` for a smaller
crawl, ``--no-shorten``;
``--mutants [WORD...]`` says which of the seeds finds each fault of `tests.mutants`: of those that
reach its line, the first ``--reached N``; ``-j N`` crawls side by side.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import string
import sys
import time
from collections import Counter
from typing import Any

from lab.simulation.fleet import Zygote, crawl_all, shortened
from lab.simulation.plan import FAULTS, FEATURES
from tests.simulation.mutants import find

EVENTS = 60
"""Of a shortened history, the first are shown."""


def main() -> int:
    """-> 1 if a seed has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86_400 * 1_000_000)
    parser.add_argument("--count", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--pages", type=int)
    parser.add_argument("--without", default="")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--trace", action="store_true", help="each fetch and command, too")
    parser.add_argument("--no-shorten", action="store_true")
    parser.add_argument("--mutants", nargs="*", metavar="WORD", help="which seed finds them")
    parser.add_argument("--reached", type=int, default=100)
    parser.add_argument("-j", type=int, default=1)
    given = parser.parse_args()
    if given.mutants is not None:
        some = range(given.seed, given.seed + (given.count or 2_000))
        return not find(given.mutants, some, given.reached, given.j)
    task = {"pages": given.pages, "without": [part for part in given.without.split(",") if part]}
    if given.one:
        with Zygote() as one:
            result = one.crawl({"seed": given.seed, "trace": given.trace, **task})
        print(result.get("words"), *result.get("events", []), sep="\n")
        print(*(f"PROBLEM {problem}" for problem in result["problems"]), sep="\n")
        return bool(result["problems"])
    began = time.monotonic()
    crawls, failed, met = Counter[str](), 0, Counter[str]()
    pairs = Counter[tuple[str, str]]()

    def told(result: dict[str, Any], mine: Zygote) -> bool:
        nonlocal failed
        crawls.update(all=1)
        met.update(result.get("met", {}).keys())
        met.update(result.get("features", ()))
        faults = set(FAULTS) & result.get("met", {}).keys()
        pairs.update(itertools.product(faults, result.get("features", ())))
        if result["problems"]:
            failed += 1
            print(f"seed {result['seed']}: {result.get('words')}")
            for problem in result["problems"]:
                print(f"  {problem[:1000]}")
            if not given.no_shorten:
                short = shortened(mine, {"seed": result["seed"], **task}, result)
                parts = ",".join(short["without"])
                pages = f" --pages {short['pages']}" if short.get("pages") else ""
                print(
                    f"  python -m tests.simulation --one --seed {result['seed']}{pages} "
                    f"--without {parts}"
                )
                events = mine.crawl(short).get("events", [])
                print(*(f"    {event[:200]}" for event in events[:EVENTS]), sep="\n", flush=True)
        return given.minutes is None or time.monotonic() - began < given.minutes * 60

    count = given.count or (None if given.minutes else 100)
    seeds = itertools.count(given.seed) if count is None else range(given.seed, given.seed + count)
    crawl_all(({"seed": seed, **task} for seed in seeds), told)
    seconds = time.monotonic() - began
    number = crawls["all"]
    cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # with that of Redis
    print(
        f"{number} crawls in {seconds:.0f} s, {number / seconds * 60:.0f} a minute, "
        f"{number / cpu * 60:.0f} in a minute of one processor; {failed} failed"
    )
    print(" ".join(f"{name}={n}" for name, n in sorted(met.items())))
    print(table(pairs))
    return failed > 0


def table(pairs: Counter[tuple[str, str]]) -> str:
    """How often each fault met each feature, a fault a line; columns are lettered, and what never
    met is a dot."""
    letters = dict(zip(FEATURES, string.ascii_letters, strict=False))
    width = max(len(str(n)) for n in (*pairs.values(), 0)) + 1
    lines = ["  ".join(f"{letter} {name}" for name, letter in letters.items())]
    lines.append(f"{'':14}" + "".join(f"{letter:>{width}}" for letter in letters.values()))
    for fault in FAULTS:
        counts = (pairs[fault, name] or "." for name in letters)
        lines.append(f"{fault:14}" + "".join(f"{n:>{width}}" for n in counts))
    never = sum(not pairs[pair] for pair in itertools.product(FAULTS, FEATURES))
    lines.append(f"{never} of {len(FAULTS) * len(FEATURES)} pairs never met")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
