"""``RESULTS.md``, from the JSON files of the full runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from benchmarks import COMMANDS
from benchmarks.common import RESULTS, Result

FILE = RESULTS.parent / "RESULTS.md"


def write() -> None:
    """Write ``RESULTS.md``; commands that have not been run in full are left out."""
    FILE.write_text("\n".join(document()), encoding="utf-8")
    print(f"written to {FILE}")


def document() -> Iterator[str]:
    results = [result for command in COMMANDS if (result := Result.load(command))]
    yield "# Results\n"
    yield "Written by `python -m benchmarks all --report`. [README.md](README.md) says what each"
    yield "command measures, what was found to cost what, and why goals are missed. Ratios count.\n"
    yield from _circumstances(results)
    goals = [goal for result in results for goal in result.targets]
    missed = [goal for goal in goals if not goal.reached]
    yield f"{len(goals) - len(missed)} of {len(goals)} goals were reached" + (
        ", all but these:\n" if missed else ".\n"
    )
    for goal in missed:
        yield f"- {goal.what}: {goal.measured} (goal: {goal.wanted})."
    for result in results:
        yield f"\n## {result.name}: {result.title}\n"
        yield f"`python -m benchmarks {result.name}`, {result.date[:10]}\n"
        yield from result.markdown()
    yield ""


def _circumstances(results: list[Result]) -> Iterator[str]:
    """Machine, versions and dates; once, if all results have the same."""
    told = defaultdict(list)
    for result in results:
        software = ", ".join(f"{package} {of}" for package, of in result.versions.items())
        machine = "{cpu}, {cores} cores, {memory_gib} GiB, {system}".format(**result.machine)
        told[f"{machine}; {software}"].append(result)
    for text, those in told.items():
        which = "" if len(told) == 1 else f"{', '.join(one.name for one in those)}: "
        dates = sorted({one.date[:10] for one in those})
        yield f"{which}{text}. {' to '.join(sorted({dates[0], dates[-1]}))}.\n"
