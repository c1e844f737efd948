"""``scrapy redisq …``: look at a frontier, feed it, mend it.

Scrapy imports this module for every command that it runs, so it holds only the command itself; the
rest is imported when it is run:

``parser``   all sub commands; the options of each are in its module, those of several in
             ``options``
``main``     runs one of them; errors become one line and an exit code
``project``  the server and the configuration that workers of the project would have
``status``, ``slots``, ``workers``, ``url``, ``push``, ``dead``, ``whole_crawl`` (pause, resume,
reset), ``embedded_server``, ``doctor``, ``autoscale``, ``exporter``, ``dashboard``,
``dataset``, ``migrate``: sub commands
``export``   files of dead letters
``display``  tables for people; ``fleet_display`` what autoscale shows
``watching`` shows something once, or again and again
"""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from scrapy.commands import ScrapyCommand

__all__ = ["RedisqCommand"]


class RedisqCommand(ScrapyCommand):
    """Entry point of the command line, inside a project and outside."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "COMMAND …"

    def short_desc(self) -> str:
        return "Look at a scrapy-redisq frontier, feed it, mend it"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Scrapy's own options, with ``-h`` left to the sub commands."""
        super().add_options(parser)
        parser.add_argument("-h", "--help", action="store_true", dest="redisq_help")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one sub command. What Scrapy's parser did not know is in ``args``."""
        from scrapy_redisq.commands.main import main  # noqa: PLC0415

        assert self.settings is not None
        self.exitcode = main([*args, "--help"] if opts.redisq_help else args, self.settings)
