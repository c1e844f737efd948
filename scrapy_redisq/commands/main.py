"""Runs one sub command; what goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

import redis
from scrapy.settings import Settings

from scrapy_redisq.commands import dead, push, reset, server, slots, status
from scrapy_redisq.commands.display import one_line
from scrapy_redisq.commands.parser import SLOT_ACTIONS, make_parser
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import RedisqError
from scrapy_redisq.redis_url import redact

COMMANDS: dict[str, Callable[[Namespace, Project], int]] = {
    "dead": dead.run,
    "push": push.run,
    "reset": reset.run,
    "server": server.run,
    "slots": slots.run,
    **{f"slots {action}": slots.run for action in SLOT_ACTIONS},
    "status": status.run,
}

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


def main(args: Sequence[str], settings: Settings) -> int:
    """Run ``scrapy redisq ARGS`` and return its exit code.

    Exits by itself, as argparse does, for help (0) and wrong usage (2).
    """
    arguments = make_parser().parse_args(args)
    try:
        project = Project(settings, getattr(arguments, "name", None))
        code = COMMANDS[arguments.command](arguments, project)
        sys.stdout.flush()
        return code
    except (RedisqError, redis.RedisError) as error:
        where = "Redis: " if isinstance(error, redis.RedisError) else ""
        print(f"scrapy redisq: {where}{one_line(redact(str(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read this has enough ("| head"). Nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
