"""``RESULTS.md``, from the JSON files of the full runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks import COMMANDS
from benchmarks.common import RESULTS, shown

Json = dict[str, Any]


FILE = RESULTS.parent / "RESULTS.md"

COMMAND_OF = {part: command for command, (parts, _) in COMMANDS.items() for part in parts}


def write() -> None:
    """Write ``RESULTS.md``; commands that have not been run in full are left out."""
    FILE.write_text("\n".join(document(read())), encoding="utf-8")
    print(f"written to {FILE}")


def read() -> dict[str, Json]:
    """The results of full runs that there are."""
    files = {part: RESULTS / f"{part}.json" for part in COMMAND_OF}
    return {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}


def document(results: dict[str, Json]) -> Iterator[str]:
    yield "# Results\n"
    yield "Written by `python -m benchmarks all --report`. [README.md](README.md) says what each"
    yield "command measures, what was found to cost what, and why goals are missed. Ratios count.\n"
    yield from _circumstances(results)
    goals = [goal for result in results.values() for goal in result["targets"]]
    missed = [goal for goal in goals if not goal["reached"]]
    yield f"{len(goals) - len(missed)} of {len(goals)} goals were reached" + (
        ", all but these:\n" if missed else ".\n"
    )
    for goal in missed:
        yield f"- {goal['what']}: {goal['measured']} (goal: {goal['wanted']})."
    for name, result in results.items():
        yield f"\n## {name}: {result['title']}\n"
        yield f"`python -m benchmarks {COMMAND_OF[name]}`, {result['date'][:10]}\n"
        columns, rows = result["columns"], result["rows"]
        texts = [any(isinstance(row.get(column), str) for row in rows) for column in columns]
        yield _row(columns)
        yield "|" + "|".join("---" if text else "---:" for text in texts) + "|"
        for row in rows:
            yield _row([shown(row.get(column, "")) for column in columns])
        if result["targets"]:
            yield "\n| goal | wanted | measured | |\n|---|---:|---:|---|"
        for goal in result["targets"]:
            verdict = "reached" if goal["reached"] else "**not reached**"
            yield _row([goal["what"], goal["wanted"], goal["measured"], verdict])
        if result["notes"]:
            yield ""
        for note in result["notes"]:
            yield f"- {note}"
    yield ""


def _circumstances(results: dict[str, Json]) -> Iterator[str]:
    """Machine, versions and dates; once, if all results have the same."""
    told = defaultdict(list)
    for name, result in results.items():
        machine = result["machine"]
        software = ", ".join(f"{package} {of}" for package, of in result["versions"].items())
        text = (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
            f"{machine['system']}; {software}"
        )
        told[text].append((name, result["date"][:10]))
    for text, those in told.items():
        which = "" if len(told) == 1 else f"{', '.join(name for name, _ in those)}: "
        dates = [date for _, date in those]
        yield f"{which}{text}. {' to '.join(sorted({min(dates), max(dates)}))}.\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
