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

WHY = {
    "beside Scrapy in memory": (
        "What differs between the two is a small part of a page's CPU, smaller where pages have "
        "few links; the rest is Scrapy's on both sides, and as noisy as the machine."
    ),
    "beside scrapy-redis": (
        "scrapy-redis' time is round trips, this one's is Scrapy's own CPU: the ratio is the speed "
        "of the machine."
    ),
    "time in scripts a page": (
        "By when a worker makes its next exchange other processes have had the processor's caches: "
        "it then takes Redis several times as long as one that follows another at once, and few "
        "pages share it. Longer where all cores are busy, because this is wall time."
    ),
    "bare pipeline by Redis CPU": "Redis 6.2 must take entries from a list one by one.",
    "over cheapest, slots": "Memory outside the processor's cache, and a larger sorted set.",
    "starts closer than the delay": (
        "By the site's log; the one before was longer on its way. See the workers' own clocks."
    ),
    "starts over the rate": (
        "By the site's log; the one before was longer on its way. See the workers' own clocks."
    ),
    "limits allow, kills": (
        "What a killed worker held waits for REDISQ_LEASE_TTL, and its turns are taken for used."
    ),
    "new URL, exact": (
        "One SADD into a set that is not in the processor's cache costs as much by itself; into a "
        "small one it is cheaper."
    ),
    "new URL, bitmap": "Past the designed size a second layer is asked as well.",
    "rows/s of the crawl beside the usual": (
        "Scrapy is the limit: the line `no pipeline` is the most that it hands over. With the sink "
        "an item costs more CPU, a part of that by garbage collection."
    ),
    "rows/s of the sink itself beside the limit": (
        "In a crawl the garbage collector and Scrapy's own thread take their share of the time in "
        "`write`; and conversion and merging take as much CPU a row as the driver."
    ),
    "pages/s of a crawl beside one without": (
        "The crawl's process has the items of each page to hand over and to write, and the "
        "database's own processes run on the same cores."
    ),
}
"""Why goals were not reached, by a part of what they are about."""


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
    yield "Written by `python -m benchmarks all --report`. What each command measures, and what"
    yield "was found to cost what, is in [README.md](README.md). Ratios are what counts.\n"
    yield from _circumstances(results)
    goals = [goal for result in results.values() for goal in result["targets"]]
    missed = [goal for goal in goals if not goal["reached"]]
    yield f"{len(goals) - len(missed)} of {len(goals)} goals were reached" + (
        ", all but these:\n" if missed else ".\n"
    )
    for goal in missed:
        why = next((text for part, text in WHY.items() if part in goal["what"]), "")
        yield f"- {goal['what']}: {goal['measured']} (goal: {goal['wanted']}). {why}".rstrip()
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
