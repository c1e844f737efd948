"""``scrapy redisq push``: requests from the command line, or from stdin as they come."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from scrapy_redisq.commands.display import clean, one_line
from scrapy_redisq.commands.options import add_command, add_name
from scrapy_redisq.commands.project import Project, listed
from scrapy_redisq.control import Frontier, Pushed
from scrapy_redisq.control.words import counted

READ_BYTES = 65_536
"""What a pipe holds on Linux."""

LINE_FACTOR = 8
"""A line may have this many times REDISQ_MAX_ENTRY_BYTES: JSON's escapes make text longer."""

NumberedLine = tuple[int, bytes | None]
"""A line and its number, counted from 1. None: it was too long to be kept."""


@dataclass
class _Total:
    new: int = 0
    duplicates: int = 0
    bad: int = 0

    def __str__(self) -> str:
        told = f"{counted(self.new, 'new request')}, {counted(self.duplicates, 'duplicate')}"
        return told + (f", {self.bad:,} bad" if self.bad else "")


TEXT = """\
Add requests to a frontier, and begin it if there is none. A complete one begins a new run, unless
that has a name (REDISQ_RUN): then it goes on.

A request is a URL (REDISQ_SCHEMES), or a JSON object with url and any of: method, headers, body,
cookies, meta, cb_kwargs, callback and errback (names of methods of the spider), priority,
dont_filter. Bad ones are reported with their number; the others are pushed all the same.
"""

EXAMPLES = """\
examples:
  scrapy redisq push books https://books.example/
  scrapy redisq push books - < urls.txt
  echo '{"url": "https://books.example/1", "callback": "parse_book"}' \\
      | scrapy redisq push books -

"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    push = add_command(
        commands, "push", run, help="add requests", text=TEXT, examples=EXAMPLES, check=_check
    )
    add_name(push)
    push.add_argument(
        "requests",
        metavar="URL",
        nargs="+",
        help="a URL or a JSON object; or - alone: read them from stdin, one on each line",
    )


def _check(arguments: Namespace) -> None:
    if "-" in arguments.requests and len(arguments.requests) > 1:
        arguments.error("- stands alone, URLs come from stdin then")
    if arguments.requests == ["-"] and sys.stdin is None:
        arguments.error("- reads from stdin, and there is none")


def run(arguments: Namespace, project: Project) -> int:
    """Push all that is good; 1 if something was bad."""
    batches: Iterable[list[NumberedLine]]
    if arguments.requests == ["-"]:
        if sys.stdin.isatty():
            print("Requests, one on each line; Ctrl-D ends them:", file=sys.stderr)
        longest = LINE_FACTOR * project.settings.max_entry_bytes
        batches, unit = read_lines(sys.stdin.fileno(), longest), "line"
    else:
        given = (text.encode("utf-8", "surrogateescape") for text in arguments.requests)
        batches, unit = [list(enumerate(given, start=1))], "argument"
    total = _Total()
    with (
        project.server(to_write=True) as server,
        project.frontier_to_push(server, arguments.name) as frontier,
    ):
        name = clean(frontier.name)
        if project.others and frontier.config() is None:
            print(
                f"scrapy redisq push: {name!r} is the frontier of no spider of this project "
                f"(theirs: {listed(project.others)}); a new one begins",
                file=sys.stderr,
            )
        frontier.waiting_to_push = lambda why: print(f"{name}: {why}", file=sys.stderr, flush=True)
        try:
            for batch in batches:
                _push(frontier, batch, unit, total)
        except BaseException:
            print(f"{name}: stopped after {total}", file=sys.stderr)
            raise
    print(f"{name}: {total}")
    return 1 if total.bad else 0


def _push(frontier: Frontier, batch: list[NumberedLine], unit: str, total: _Total) -> None:
    numbers: list[int] = []
    items: list[Any] = []
    wrong: list[tuple[int, str]] = []
    for number, line in batch:
        try:
            item = parse_line(line)
        except ValueError as error:
            wrong.append((number, str(error)))
            continue
        if item is not None:
            numbers.append(number)
            items.append(item)
    pushed = Pushed()
    try:
        frontier.push(items, result=pushed)
    finally:
        wrong += [(numbers[index - 1], text) for index, text in pushed.errors]
        total.new += pushed.accepted
        total.duplicates += pushed.duplicates
        total.bad += len(wrong)
        for number, text in sorted(wrong):
            print(f"{unit} {number}: {one_line(text)}", file=sys.stderr)


def parse_line(line: bytes | None) -> str | dict[str, Any] | None:
    """What one line holds: a URL, the fields of a JSON object, or nothing if it is empty.

    Raises ValueError with what is wrong.
    """
    if line is None:
        raise ValueError("far longer than REDISQ_MAX_ENTRY_BYTES allows")
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1})") from None
    if not text.startswith("{"):
        return text or None
    try:
        fields: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deep") from None
    except msgspec.MsgspecError as error:
        raise ValueError(f"not JSON: {error}") from None
    return fields


def read_lines(descriptor: int, longest: int) -> Iterator[list[NumberedLine]]:
    """Lines as they come: many of a file, or of a pipe that was filled while others were pushed.

    Lines of over ``longest`` bytes are read past. Holds one batch and one line in memory.
    """
    number, rest, too_long = 0, b"", False
    while data := os.read(descriptor, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        batch: list[NumberedLine] = []
        for line in lines:
            number += 1
            batch.append((number, None if too_long or len(line) > longest else line))
            too_long = False
        if len(rest) > longest:
            rest, too_long = b"", True
        if batch:
            yield batch
    if rest or too_long:
        yield [(number + 1, None if too_long else rest)]
