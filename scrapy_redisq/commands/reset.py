"""``scrapy redisq reset``: delete a frontier that nobody works on."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.display import clean
from scrapy_redisq.commands.options import add_command, add_name, add_yes
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt

TEXT = """\
Delete a frontier: its queue, leases, dead letters, counters and the URLs it has seen. Refused while
workers are alive; one that was killed counts as alive until its REDISQ_LEASE_TTL has passed.

With --mend nothing is deleted. Something else has written to a key of the frontier, so workers have
closed with frontier_corrupt, and none may join. You have deleted that key, or put it in order:
workers may join again.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    reset = add_command(commands, "reset", run, help="delete a frontier", text=TEXT)
    add_name(reset)
    add_yes(reset, "be deleted")
    reset.add_argument(
        "--mend", action="store_true", help="only say that a damaged key is in order again"
    )


def run(arguments: Namespace, project: Project) -> int:
    """Delete it; without ``--yes`` say what would be deleted, and fail.

    Raises `FrontierInUse` while workers are alive.
    """
    name = clean(arguments.name)
    if project.nothing_there():
        print(f"{name}: there is no such frontier")
        return 0
    with project.server() as server, project.frontier(server, arguments.name) as frontier:
        if arguments.mend:
            mended = frontier.mend()
            print(f"{name}: {', '.join(map(clean, mended)) or 'no key'} was marked as damaged")
            return 0
        try:
            what = _what_is_there(frontier)
        except FrontierCorrupt:
            if not arguments.yes:
                raise
            what = "damaged"
        if not what:
            print(f"{name}: there is no such frontier")
            return 0
        if arguments.yes:
            frontier.reset()
            print(f"{name}: deleted")
            return 0
    print(f"{name}{what}", file=sys.stderr)
    return 1


def _what_is_there(frontier: Frontier) -> str:
    """What would be deleted, after the name; "" if nothing is there."""
    status = frontier.status()
    undone = "Nothing was done; add --yes to do it."
    if status["state"] == "absent":
        left = ", ".join(map(str, frontier.shards_left()))
        what = (
            f": shard 0 has lost its run; what is left on shard {left} would be deleted. {undone}"
        )
        return what if left else ""
    alive = sum(worker["alive"] for worker in status["workers"])
    stop = f"\nIts {alive:,} live workers would have to be stopped first." if alive else ""
    return (
        f" ({clean(status['state'])}) would be deleted: {status['queued'] + status['delayed']:,} "
        f"queued, {status['leased']:,} leased, {status['dead']:,} dead, {status['seen']:,} seen. "
        f"{undone}{stop}"
    )
