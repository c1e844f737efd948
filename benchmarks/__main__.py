"""``python -m benchmarks COMMAND [--quick]``; ``all --report`` writes ``RESULTS.md``."""

from __future__ import annotations

import argparse
import importlib
import sys

from rich.console import Console

from benchmarks.common import Result

COMMANDS = {
    "crawl": "pages per second of one worker, beside Scrapy in memory and scrapy-redis",
    "fleet": "1 to 8 workers on one frontier",
    "frontier": "the frontier without Scrapy, until Redis' core is full",
    "growth": "cost of an exchange with long queues, many slots, many workers",
    "polite": "limits of fifty hosts that a fleet keeps, by their log",
    "memory": "bytes per request and per URL",
    "seen": "dupefilters: false positives and CPU",
    "latency": "from a push to its download, from the last page to the end",
    "sink": "rows per second into databases, and what it costs a crawl",
}


def run(command: str, quick: bool, console: Console) -> Result:
    """Run one benchmark, print it and write its JSON."""
    result: Result = importlib.import_module(f"benchmarks.{command}").run(quick=quick)
    result.quick = quick
    result.show(console)
    console.print(f"written to {result.save()}", style="dim", highlight=False)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "command",
        choices=[*COMMANDS, "all"],
        help="; ".join(f"{name}: {text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="a small size, within a minute")
    parser.add_argument("--report", action="store_true", help="write RESULTS.md and its plots")
    options = parser.parse_args()
    console = Console()
    for command in COMMANDS if options.command == "all" else [options.command]:
        run(command, options.quick, console)
    if options.report:
        importlib.import_module("benchmarks.report").write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
