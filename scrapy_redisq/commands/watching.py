"""Shows what a command has found: once, or with ``--watch`` again and again until Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime

import redis
from rich.console import Group, RenderableType
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

    if not arguments.watch:
        (print_json if arguments.json else print_picture)()
        return 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        if arguments.json or not can_refresh(out):
            look = print_json if arguments.json else print_lines or print_picture
            _again_and_again(look, lambda told: print(f"scrapy redisq: {told}", file=sys.stderr))
        live = stack.enter_context(Live(console=out, auto_refresh=False))
        shown: RenderableType = Text("")

        def draw() -> None:
            nonlocal shown
            shown = picture()
            live.update(shown, refresh=True)

        # What was seen last stays.
        _again_and_again(
            draw,
            lambda told: live.update(Group(shown, Text(told, style="bold red")), refresh=True),
        )
    return 0


def _again_and_again(look: Callable[[], object], tell: Callable[[str], object]) -> None:
    """A crawl goes on after an outage, and so does this, which takes a fifth of the time."""
    while True:
        began = time.monotonic()
        try:
            look()
        except (redis.RedisError, ServerError) as error:
            tell(f"Redis is away, trying again: {one_line(str(error))}")
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(max(REFRESH, 4 * (time.monotonic() - began)))
