"""``python -m benchmarks COMMAND [--quick]``; ``all --report`` writes ``RESULTS.md``."""

from __future__ import annotations

import argparse
import importlib
import sys

from rich.console import Console
from rich.markdown import Markdown

from benchmarks import COMMANDS
from benchmarks.common import Result


def main() -> int:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--quick", action="store_true", help="the smallest size, within seconds")
    options.add_argument("--report", action="store_true", help="write RESULTS.md")
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, what in {**COMMANDS, "all": "each of these"}.items():
        commands.add_parser(name, help=what, parents=[options])
    given = parser.parse_args()
    console = Console()
    for command in COMMANDS if given.command == "all" else [given.command]:
        result: Result = importlib.import_module(f"benchmarks.{command}").run(quick=given.quick)
        console.print(Markdown("\n".join([f"# {result.title}\n", *result.markdown()])))
        if not given.quick:
            console.print(f"written to {result.save()}", style="dim", highlight=False)
    if given.report:
        importlib.import_module("benchmarks.report").write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
