"""``scrapy redisq pause``, ``resume`` and ``reset``: a crawl as a whole."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.display import clean
from scrapy_redisq.commands.options import add_command, add_frontier, add_name, add_yes
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt

PAUSE_TEXT = """\
Pause a crawl: no worker starts a request of the crawl until it is resumed. This also holds for
workers that join later. Downloads in progress go on. Workers stay, and the crawl stays open for its
requests. Holds through restarts and in the next runs. A host alone: scrapy redisq slots pause.
"""

RESUME_TEXT = """\
Let a crawl go on that was paused. Hosts that were paused by themselves stay so.
"""

RESET_TEXT = """\
Delete a frontier: its queue, leases, dead letters, counters and the URLs it has seen. Refused while
workers are alive; one that was killed counts as alive until its REDISQ_LEASE_TTL has passed.

With --mend nothing is deleted. Something else has written to a key of the frontier, so workers have
closed with frontier_corrupt, and none may join. You have deleted that key, or put it in order:
workers may join again.
"""


def add_options(commands: Any) -> None:
    """The sub commands and their options."""
    help = "start nothing of a crawl until it is resumed"
    add_frontier(add_command(commands, "pause", pause, help=help, text=PAUSE_TEXT))
    help = "let a paused crawl go on"
    add_frontier(add_command(commands, "resume", resume, help=help, text=RESUME_TEXT))
    parser = add_command(commands, "reset", reset, help="delete a frontier", text=RESET_TEXT)
    add_name(parser)
    add_yes(parser, "be deleted")
    parser.add_argument(
        "--mend", action="store_true", help="only say that a damaged key is in order again"
    )


def pause(arguments: Namespace, project: Project) -> int:
    """Raises `FrontierError` without a frontier, or several to choose."""
    with project.chosen_frontier(arguments.name) as frontier:
        frontier.pause_crawl()
        name = clean(frontier.name)
        print(f"{name} is paused: scrapy redisq resume {name} lets it go on.")
    return 0


def resume(arguments: Namespace, project: Project) -> int:
    """Raises as `pause` does."""
    with project.chosen_frontier(arguments.name) as frontier:
        frontier.resume_crawl()
        print(f"{clean(frontier.name)} goes on.")
    return 0


def reset(arguments: Namespace, project: Project) -> int:
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
        if what and arguments.yes:
            frontier.reset()
    if not what or arguments.yes:
        print(f"{name}: {'deleted' if what else 'there is no such frontier'}")
        return 0
    print(f"{name}{what} Nothing was done; add --yes to do it.", file=sys.stderr)
    return 1


def _what_is_there(frontier: Frontier) -> str:
    """Words for what would be deleted, after the name; "" if nothing is there."""
    status = frontier.status()
    if status["state"] == "absent":
        left = ", ".join(map(str, frontier.shards_left()))
        text = f": shard 0 has lost its run; what is left on shard {left} would be deleted."
        return text if left else ""
    alive = sum(worker["alive"] for worker in status["workers"])
    stop = f" Its {alive:,} live workers would have to be stopped first." if alive else ""
    return (
        f" ({clean(status['state'])}) would be deleted: {status['queued'] + status['delayed']:,} "
        f"queued, {status['leased']:,} leased, {status['dead']:,} dead, {status['seen']:,} seen."
        f"{stop}"
    )
