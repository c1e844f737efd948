"""``scrapy redisq dataset``: the data set of DatasetPipeline, made of the parts that there are."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.display import clean
from scrapy_redisq.commands.options import add_command, add_name, check_installed
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control.words import counted
from scrapy_redisq.errors import FrontierError

TEXT = """\
Put the parts of DatasetPipeline together, as its last worker does at the end of a run: after that
worker was killed, or while a crawl goes on that has no end. It can be repeated. It asks no Redis.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "put the items of all workers together (REDISQ_DATASET)"
    add_name(add_command(commands, "dataset", run, help=help, text=TEXT))


def run(arguments: Namespace, project: Project) -> int:
    """Put together what there is; raises `RedisqError`."""
    check_installed("files", "fsspec")
    from scrapy_redisq.files.dataset import Dataset  # noqa: PLC0415

    spider = project.spider_name or arguments.name
    dataset = Dataset(project.settings, spider, project.scrapys)
    together = dataset.put_together()
    if not together.parts:
        raise FrontierError(f"there are no items in {clean(dataset.address)}.parts")
    items, parts = counted(together.items, "item"), counted(together.parts, "part")
    print(f"{clean(dataset.address)}: {items} of {parts}")
    if together.missing:
        missing = clean(", ".join(together.missing))
        print(f"FEED_EXPORT_FIELDS: no item has the field {missing}", file=sys.stderr)
    return 0
