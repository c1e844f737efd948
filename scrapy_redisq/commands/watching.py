"""Shows what a command has found: once, or with ``--watch`` again and again until Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime

import redis
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from scrapy_redisq.commands.display import can_refresh, console, one_line
from scrapy_redisq.errors import ServerError

REFRESH = 1.0
"""Seconds between two looks of ``--watch``."""


def show(
    arguments: Namespace,
    picture: Callable[[], RenderableType],
    print_json: Callable[[], object],
    print_lines: Callable[[], object] | None = None,
) -> int:
    """Show the ``picture``, or with ``--json`` what that prints. A terminal that can be drawn anew
    has one picture; elsewhere they come one below the other, or as ``print_lines``. -> 0."""
    out = console()

    def print_picture() -> None:
        if arguments.watch:
            print(datetime.now().strftime("%H:%M:%S"))
        out.print(picture())

    print_all = print_json if arguments.json else print_picture
    if not arguments.watch:
        print_all()
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        if not arguments.json and can_refresh(out):
            _draw(out, picture)
        else:
            _print(print_all if arguments.json or print_lines is None else print_lines)
    return 0


def _draw(out: Console, picture: Callable[[], RenderableType]) -> None:
    shown: RenderableType = Text("")
    with Live(console=out, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            try:
                shown = picture()
                live.update(shown, refresh=True)
            except (redis.RedisError, ServerError) as error:
                # What was seen last stays; a crawl goes on after an outage, so does this.
                live.update(Group(shown, Text(_away(error), style="bold red")), refresh=True)
            _pause(began)


def _print(print_all: Callable[[], object]) -> None:
    while True:
        began = time.monotonic()
        try:
            print_all()
            sys.stdout.flush()
        except (redis.RedisError, ServerError) as error:
            print(f"scrapy redisq: {_away(error)}", file=sys.stderr, flush=True)
        _pause(began)


def _pause(began: float) -> None:
    """Until the next look, so that looking takes a fifth of the time at most."""
    time.sleep(max(REFRESH, 4 * (time.monotonic() - began)))


def _away(error: Exception) -> str:
    return f"Redis is away, trying again: {one_line(str(error))}"
