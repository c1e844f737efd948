"""``scrapy redisq push``: requests from the command line, or from stdin as they come."""

from __future__ import annotations

import itertools
import os
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from scrapy_redisq.commands.display import clean, one_line
from scrapy_redisq.commands.options import add_command, add_name, interval
from scrapy_redisq.commands.project import Project, listed
from scrapy_redisq.control import Frontier, Pushed
from scrapy_redisq.control.words import counted
from scrapy_redisq.serialization.meta import MAX_DELAY
from scrapy_redisq.serialization.recurrence import INTERVAL_TAKES, SHORTEST
from scrapy_redisq.serialization.request_fields import parse_line

READ_BYTES = 65_536
"""The capacity of a pipe on Linux."""

MOMENT_TAKES = "YYYY-MM-DDTHH:MM in local time, or with a zone (+00:00)"

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
  scrapy redisq push books --in 2h --every 1d https://books.example/new
  echo '{"url": "https://books.example/1", "callback": "parse_book"}' \\
      | scrapy redisq push books -

"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    push = add_command(
        commands, "push", run, help="add requests", text=TEXT, examples=EXAMPLES, check=_check
    )
    add_name(push)
    first = push.add_mutually_exclusive_group()
    first.add_argument(
        "--in", dest="after", metavar="TIME", type=interval, default=0.0, help="fetched after that"
    )
    first.add_argument(
        "--at",
        dest="after",
        metavar="WHEN",
        type=_moment,
        help=f"fetched then, within a year: {MOMENT_TAKES}",
    )
    push.add_argument(
        "--every",
        metavar="TIME",
        type=_period,
        help='fetched again so long after it was finished, until "schedule --remove"; TIME is '
        f"{INTERVAL_TAKES}",
    )
    push.add_argument(
        "requests",
        metavar="URL",
        nargs="+",
        help="a URL or a JSON object; or - alone: read them from stdin, one on each line",
    )


def _moment(text: str) -> float:
    """Seconds from now until a moment."""
    try:
        seconds = datetime.fromisoformat(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r}: takes {MOMENT_TAKES}") from None
    if not 0 <= seconds <= MAX_DELAY:
        raise ArgumentTypeError(f"{text!r}: takes a time within a year from now")
    return seconds


def _period(text: str) -> float:
    """Seconds between two times."""
    if (seconds := interval(text)) < SHORTEST:
        raise ArgumentTypeError(f"{text!r}: takes a second at least")
    return seconds


def _check(arguments: Namespace) -> None:
    if "-" in arguments.requests and len(arguments.requests) > 1:
        arguments.error("- stands alone, URLs come from stdin then")
    if arguments.requests == ["-"] and sys.stdin is None:
        arguments.error("- reads from stdin, and there is none")


def run(arguments: Namespace, project: Project) -> int:
    """Push all that is good; 1 if something was bad."""
    batches: Iterable[list[bytes]]
    if arguments.requests == ["-"]:
        if sys.stdin.isatty():
            print("Requests, one on each line; Ctrl-D ends them:", file=sys.stderr)
        batches, unit = read_lines(sys.stdin.fileno()), "line"
    else:
        given = arguments.requests
        batches, unit = [[text.encode("utf-8", "surrogateescape") for text in given]], "argument"
    total: Counter[str] = Counter()
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
        numbers = itertools.count(1)
        try:
            for batch in batches:
                numbered = zip(batch, numbers, strict=False)
                _push(frontier, numbered, unit, total, arguments)
        except BaseException:
            print(f"{name}: stopped after {_told(total)}", file=sys.stderr)
            raise
    print(f"{name}: {_told(total)}")
    return 1 if total["bad"] else 0


def _told(total: Counter[str]) -> str:
    told = f"{counted(total['new'], 'new request')}, {counted(total['duplicates'], 'duplicate')}"
    return told + (f", {total['bad']:,} bad" if total["bad"] else "")


def _push(
    frontier: Frontier,
    batch: Iterable[tuple[bytes, int]],
    unit: str,
    total: Counter[str],
    when: Namespace,
) -> None:
    items: dict[int, Any] = {}
    wrong: dict[int, str] = {}
    for line, number in batch:
        try:
            if (item := parse_line(line)) != "":
                items[number] = item
        except ValueError as error:
            wrong[number] = str(error)
    pushed, numbers = Pushed(), [*items]
    try:
        frontier.push(items.values(), after=when.after, every=when.every, result=pushed)
    finally:
        wrong |= {numbers[index - 1]: text for index, text in pushed.errors}
        total.update(new=pushed.accepted, duplicates=pushed.duplicates, bad=len(wrong))
        for number, text in sorted(wrong.items()):
            print(f"{unit} {number}: {one_line(text)}", file=sys.stderr)


def read_lines(descriptor: int) -> Iterator[list[bytes]]:
    """Lines as they come: many of a file, or of a pipe that was filled while others were pushed."""
    parts: list[bytes] = []
    while data := os.read(descriptor, READ_BYTES):
        parts.append(data)
        if b"\n" in data:  # else each of its parts would be copied with all before it
            *lines, rest = b"".join(parts).split(b"\n")
            parts = [rest]
            yield lines
    yield [b"".join(parts)]
