"""``python -m benchmarks COMMAND [--quick]``; ``all --report`` writes ``RESULTS.md``."""

from __future__ import annotations

import argparse
import importlib
import sys

from rich.console import Console

from benchmarks import COMMANDS
from benchmarks.common import Result
from benchmarks.crawls import workers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "command",
        choices=[*COMMANDS, "all"],
        help="; ".join(f"{name}: {what}" for name, (_, what) in COMMANDS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="the smallest size, within seconds")
    parser.add_argument("--report", action="store_true", help="write RESULTS.md and its plots")
    options = parser.parse_args()
    workers.forked = options.quick
    console = Console()
    for command in COMMANDS if options.command == "all" else [options.command]:
        for part in COMMANDS[command][0]:
            result: Result = importlib.import_module(f"benchmarks.{part}").run(quick=options.quick)
            result.show(console)
            if not options.quick:
                console.print(f"written to {result.save()}", style="dim", highlight=False)
    if options.report:
        importlib.import_module("benchmarks.report").write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
