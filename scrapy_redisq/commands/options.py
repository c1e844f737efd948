"""Options that several sub commands have, and what these take."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from scrapy_redisq.errors import SettingError
from scrapy_redisq.serialization.recurrence import seconds_of

GLOBAL_OPTIONS = """\
Scrapy's own options work too, among them:
  -s NAME=VALUE   a setting, such as -s REDISQ_URL=redis://localhost:6379/0
Inside a project its settings are used. Without REDISQ_URL it is the embedded server in the
project's .scrapy/redisq (outside a project: in the current folder's).

Exit codes: 0 done, 1 it failed or was refused, 2 it was called in a wrong way.
"""


def add_command(
    commands: Any,
    name: str,
    run: Callable[..., int] | None,
    *,
    text: str = "",
    check: Callable[[argparse.Namespace], None] | None = None,
    examples: str = "",
    **options: Any,
) -> argparse.ArgumentParser:
    """A sub command, or an action of one, with ``text`` above its options, or else its ``help``.

    ``run(arguments, project)`` returns the exit code. ``check`` looks at the arguments before, and
    calls ``arguments.error`` with what is wrong.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        description=text or options["help"][0].upper() + options["help"][1:] + ".",
        epilog=examples + GLOBAL_OPTIONS,
        **options,
    )
    parser.set_defaults(run=run, check=check or (lambda arguments: None), error=parser.error)
    return parser


def interval(text: str) -> float:
    """The seconds of an option."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the frontier; by default the spider's name")


def add_frontier(
    parser: argparse.ArgumentParser, text: str = "the frontier; default: the only one there is"
) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help=text)


def add_json(parser: argparse.ArgumentParser, text: str = "as a JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_watch(parser: argparse.ArgumentParser) -> None:
    text = "refresh every second or less often, until Ctrl-C"
    parser.add_argument("--watch", action="store_true", help=text)


def add_yes(parser: argparse.ArgumentParser, what: str) -> None:
    text = f"do it; without this, only say what would {what}"
    parser.add_argument("--yes", action="store_true", help=text)


def add_limit(parser: argparse.ArgumentParser, shown: int) -> None:
    """How many are listed; ``shown`` for people if nobody says how many."""
    text = f"show at most N, 0: all (default: {shown}, with --json all)"
    parser.add_argument("--limit", metavar="N", type=whole_number, help=text)


def add_bind(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument(
        "--bind",
        metavar="HOST:PORT",
        type=address,
        default=("127.0.0.1", port),
        help=f"where it listens (default: 127.0.0.1:{port}; port 0: a free one)",
    )


def whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (0: no limit)")
    return min(int(text), sys.maxsize)


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT, such as 127.0.0.1:9449")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_installed(extra: str, *modules: str) -> None:
    """Raises `SettingError` unless all that the command of this name needs is there."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    if lacking:
        which = ", ".join(lacking).replace("_", "-")
        raise SettingError(extra, None, f"{which}: pip install 'scrapy-redisq[{extra}]'")
