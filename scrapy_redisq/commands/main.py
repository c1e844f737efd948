"""Runs one sub command; what goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Sequence

import redis
from scrapy.settings import Settings

from scrapy_redisq.commands.display import one_line, write_nothing_more
from scrapy_redisq.commands.parser import make_parser
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import RedisqError
from scrapy_redisq.reasons import FAILED, SIGNAL
from scrapy_redisq.server.url import redact


def main(args: Sequence[str], settings: Settings) -> int:
    """Run ``scrapy redisq ARGS`` and return its exit code.

    Exits by itself, as argparse does, for help (0) and wrong usage (2).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    with contextlib.ExitStack() as stack:
        _end_by_exit(stack)
        return _run(args, settings)


def _run(args: Sequence[str], settings: Settings) -> int:
    try:
        arguments = make_parser().parse_args(args)
        arguments.check(arguments)
        project = Project(settings, getattr(arguments, "name", None))
        code: int = arguments.run(arguments, project)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return SIGNAL + signal.SIGINT
    except (RedisqError, redis.RedisError, OSError) as error:
        where = "Redis: " if isinstance(error, redis.RedisError) else ""
        if not isinstance(error, BrokenPipeError):  # who read this has enough ("| head")
            print(f"scrapy redisq: {where}{one_line(redact(str(error)))}", file=sys.stderr)
        if isinstance(error, OSError):  # it may be stdout that is full
            write_nothing_more()
        return FAILED


def _end_by_exit(stack: contextlib.ExitStack) -> None:
    """At SIGTERM, and when the terminal is closed, leave as at the end: an embedded server that
    this process has started would stay."""

    def leave(number: int, frame: object) -> None:
        sys.exit(SIGNAL + number)

    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            stack.callback(signal.signal, number, signal.signal(number, leave))
