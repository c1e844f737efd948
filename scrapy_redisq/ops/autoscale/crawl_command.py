"""A worker's command line: ``scrapy crawl books -s NAME=VALUE …``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapy.cmdline import ScrapyArgumentParser

_parser = ScrapyArgumentParser("scrapy crawl", add_help=False, allow_abbrev=False)
_parser.add_argument("-s", "--set", dest="settings", action="append", default=[])
_parser.add_argument("-a", dest="arguments", action="append", default=[])
_parser.add_argument("-o", "-O", "-t", "-L", "--output", "--overwrite-output", "--output-format")
_parser.add_argument("--logfile", "--loglevel", "--pidfile", "--profile")


@dataclass
class CrawlCommand:
    """``settings`` and spider's ``arguments`` that it gives, and the ``spider`` (or file) that it
    names; "" where it is not seen to be a ``crawl`` or ``runspider``, as of a shell script."""

    words: Sequence[str]
    settings: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    spider: str = ""

    def __post_init__(self) -> None:
        verbs = [i for i, word in enumerate(self.words) if word in {"crawl", "runspider"}]
        if not verbs:
            return
        given, others = _parser.parse_known_args(self.words[verbs[0] + 1 :])
        for pairs, of in ((given.settings, self.settings), (given.arguments, self.arguments)):
            of.update((name, value) for name, _, value in (pair.partition("=") for pair in pairs))
        self.spider = next((word for word in others if not word.startswith("-")), "")

    def in_run(self, name: str) -> list[str]:
        """The command of a worker of the run that is called so."""
        return [*self.words, "-s", f"REDISQ_RUN={name}"]
