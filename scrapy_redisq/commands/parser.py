"""All sub commands, each with the options that its module adds, behind one parser."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection
from functools import cache
from itertools import groupby
from typing import Any

from scrapy_redisq.commands import (
    autoscale,
    dashboard,
    dataset,
    dead,
    doctor,
    embedded_server,
    exporter,
    migrate,
    push,
    schedule,
    slots,
    status,
    url,
    whole_crawl,
    workers,
)
from scrapy_redisq.commands.options import GLOBAL_OPTIONS

COMMANDS = (
    *(status, autoscale, exporter, slots, url, workers, push, schedule, dead, whole_crawl),
    *(embedded_server, doctor, dashboard, dataset, migrate),
)
"""In the order in which help has them."""


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
        super().__init__(allow_abbrev=False, formatter_class=_Help, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        namespace, rest = super().parse_known_args(args, namespace)
        # Most Pythons' argparse has taken "[URL ...]" for empty if an option stands before it.
        if rest and getattr(namespace, "urls", None) == [] and not any(t[:1] == "-" for t in rest):
            namespace.urls, rest = rest, []
        return namespace, rest


class _Commands(_Parser):
    """All of ``scrapy redisq``. An action of slots or workers is a command of its own ("slots
    pause"), because argparse knows no name that may be left out beside sub commands."""

    names: Collection[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        namespace = namespace or argparse.Namespace()
        if list(args[:1]) == ["autoscale"] and "--" in args:
            at = list(args).index("--")
            namespace.worker, args = args[at + 1 :], args[:at]
        if " ".join(args[:2]) in self.names:
            args = [" ".join(args[:2]), *args[2:]]
        return super().parse_known_args(args, namespace)


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
    for command in COMMANDS:
        command.add_options(commands)
    parser.names = commands.choices
    return parser
