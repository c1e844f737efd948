"""``scrapy redisq pause`` and ``scrapy redisq resume``: a crawl as a whole."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.display import clean
from scrapy_redisq.commands.options import add_command, add_frontier
from scrapy_redisq.commands.project import Project

PAUSE_TEXT = """\
Pause a crawl: no worker starts a request of it until it is resumed, of whatever host, workers that
come later included. What is being downloaded goes on. Workers stay, and the crawl stays open for
its requests. Holds through restarts and in the next runs. A host alone: scrapy redisq slots pause.
"""

RESUME_TEXT = """\
Let a crawl go on that was paused. Hosts that were paused by themselves stay so.
"""


def add_options(commands: Any) -> None:
    """Both sub commands, and their options."""
    help = "start nothing of a crawl until it is resumed"
    add_frontier(add_command(commands, "pause", run, help=help, text=PAUSE_TEXT))
    help = "let a paused crawl go on"
    add_frontier(add_command(commands, "resume", run, help=help, text=RESUME_TEXT))


def run(arguments: Namespace, project: Project) -> int:
    """Do it. Raises `FrontierError` without a frontier, or several to choose."""
    with project.chosen_frontier(arguments.name) as frontier:
        name = clean(frontier.name)
        if arguments.command == "pause":
            frontier.pause_crawl()
            print(f"{name} is paused: scrapy redisq resume {name} lets it go on.")
        else:
            frontier.resume_crawl()
            print(f"{name} goes on.")
    return 0
