"""Options that several sub commands have, and what these take."""

from __future__ import annotations

import argparse
import sys

GLOBAL_OPTIONS = """\
Scrapy's own options work too, among them:
  -s NAME=VALUE   a setting, such as -s REDISQ_URL=redis://localhost:6379/0
Inside a project its settings are used. Without REDISQ_URL it is the embedded server in the
project's .scrapy/redisq (outside a project: in the current folder's).

Exit codes: 0 done, 1 it failed or was refused, 2 it was called in a wrong way.
"""


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the frontier; by default the spider's name")


def add_frontier(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the only one there is"
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
