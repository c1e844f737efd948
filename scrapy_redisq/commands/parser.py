"""All sub commands, each with the options that its module adds, behind one parser."""

from __future__ import annotations

import argparse
import textwrap
from functools import cache
from itertools import groupby
from typing import Any, NoReturn, Protocol

from scrapy_redisq.commands import (
    autoscale,
    dashboard,
    dead,
    doctor,
    embedded_server,
    exporter,
    pause,
    push,
    reset,
    slots,
    status,
    url,
    workers,
)
from scrapy_redisq.commands.options import GLOBAL_OPTIONS
from scrapy_redisq.commands.project import Project
from scrapy_redisq.reasons import USAGE


class Command(Protocol):
    """The module of a sub command."""

    def add_options(self, commands: Any) -> None:
        """Add its parser to those of all ``commands``."""

    def run(self, arguments: argparse.Namespace, project: Project) -> int:
        """-> exit code."""


COMMANDS: dict[str, Command] = {
    "status": status,
    "autoscale": autoscale,
    "exporter": exporter,
    "slots": slots,
    "pause": pause,
    "resume": pause,
    "url": url,
    "workers": workers,
    "push": push,
    "dead": dead,
    "reset": reset,
    "server": embedded_server,
    "doctor": doctor,
    "dashboard": dashboard,
}
"""In the order in which help has them."""

_ACTIONS = {"slots": slots.ACTION_TEXTS, "workers": workers.ACTION_TEXTS}


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal is: paragraphs are filled, lines that are set in stay."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for set_in, found in groupby(text.splitlines(), lambda line: line[:1] in ("", " ")):
            paragraph = list(found)
            lines += paragraph if set_in else textwrap.wrap(" ".join(paragraph), width)
        return super()._fill_text("\n".join(lines) + "\n", width, indent)


class _Parser(argparse.ArgumentParser):
    """Without abbreviations: they would change their meaning with each new option."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.format_usage()}{self.prog}: {message}\n")


class _Commands(_Parser):
    """All of ``scrapy redisq``. An action of slots or workers is a command of its own, because
    argparse knows no name that may be left out beside sub commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args[1:] and args[1] in _ACTIONS.get(args[0], ()):
            args = [f"{args[0]} {args[1]}", *args[2:]]
        if list(args[:1]) == ["autoscale"] and "--" in args:
            at = list(args).index("--")
            namespace = namespace or argparse.Namespace()
            namespace.worker, args = args[at + 1 :], args[:at]
        parsed, rest = super().parse_known_args(args, namespace)
        if "words" in parsed:
            workers.name_workers(parsed)
        return parsed, rest


@cache  # to make it takes longer than to parse
def make_parser() -> argparse.ArgumentParser:
    """The parser of everything behind ``scrapy redisq``."""
    parser = _Commands(
        prog="scrapy redisq",
        description="Look at a scrapy-redisq frontier, feed it, mend it.",
        epilog="Each has its own help: scrapy redisq status -h\n\n" + GLOBAL_OPTIONS,
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for command in dict.fromkeys(COMMANDS.values()):
        command.add_options(commands)
    return parser


def command_of(arguments: argparse.Namespace) -> Command:
    """Whose arguments they are; an action of slots or workers is that command's."""
    return COMMANDS[arguments.command.partition(" ")[0]]
