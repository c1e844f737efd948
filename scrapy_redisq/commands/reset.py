"""``scrapy redisq reset``: delete a frontier that nobody works on."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.display import clean
from scrapy_redisq.commands.options import add_command, add_name
from scrapy_redisq.commands.project import Project
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
    reset = add_command(commands, "reset", help="delete a frontier", text=TEXT)
    add_name(reset)
    reset.add_argument(
        "--yes", action="store_true", help="do it; without this, only say what would be deleted"
    )
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
            status = frontier.status()
        except FrontierCorrupt:
            if not arguments.yes:
                raise
            status = {"state": "corrupt"}
        left = frontier.shards_left() if status["state"] == "absent" else ()
        if status["state"] == "absent" and not left:
            print(f"{name}: there is no such frontier")
            return 0
        if arguments.yes:
            frontier.reset()
            print(f"{name}: deleted")
            return 0
    if left:
        print(
            f"{name}: shard 0 has lost its run; what is left of that on shard "
            f"{', '.join(map(str, left))} would be deleted. Nothing was done; add --yes to do it.",
            file=sys.stderr,
        )
        return 1
    alive = sum(worker["alive"] for worker in status["workers"])
    queued = status["queued"] + status["delayed"]
    print(
        f"{name} ({clean(status['state'])}) would be deleted: {queued:,} queued, "
        f"{status['leased']:,} leased, {status['dead']:,} dead, {status['seen']:,} seen. "
        "Nothing was done; add --yes to do it.",
        file=sys.stderr,
    )
    if alive:
        print(f"Its {alive:,} live workers would have to be stopped first.", file=sys.stderr)
    return 1
