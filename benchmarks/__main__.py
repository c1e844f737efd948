"""``python -m benchmarks COMMAND [--quick]``; ``all --report`` writes ``RESULTS.md``."""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap

from rich.console import Console

from benchmarks import COMMANDS
from benchmarks.common import Result
from benchmarks.crawls import workers


def commands() -> str:
    """What there is to choose from, a command a paragraph."""
    about = {name: what for name, (_, what) in COMMANDS.items()} | {"all": "each of these"}
    return "\n".join(
        textwrap.fill(
            what,
            80,
            break_on_hyphens=False,
            initial_indent=f"  {name:10}",
            subsequent_indent=" " * 12,
        )
        for name, what in about.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="%(prog)s [-h] [--quick] [--report] COMMAND",
        description=f"COMMAND is one of:\n\n{commands()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command", choices=[*COMMANDS, "all"], metavar="COMMAND", help=argparse.SUPPRESS
    )
    parser.add_argument("--quick", action="store_true", help="the smallest size, within seconds")
    parser.add_argument("--report", action="store_true", help="write RESULTS.md")
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
