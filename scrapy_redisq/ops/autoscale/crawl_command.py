"""What a worker's command line says: ``scrapy crawl books -s NAME=VALUE …``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

WITH_VALUE = {
    *("-a", "-s", "-o", "-O", "-t", "-L"),
    *("--set", "--output", "--overwrite-output", "--output-format"),
    *("--logfile", "--loglevel", "--pidfile", "--profile"),
}
"""Options of ``scrapy crawl`` that are followed by their value."""


@dataclass
class CrawlCommand:
    """``settings`` and spider's ``arguments`` that it gives, and the ``spider`` (or file) that it
    names; "" where it is not seen to be a ``crawl`` or ``runspider``, as of a shell script."""

    words: Sequence[str]
    settings: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    spider: str = ""

    def __post_init__(self) -> None:
        verb = next(
            (i for i, word in enumerate(self.words) if word in {"crawl", "runspider"}), None
        )
        if verb is None:
            return
        for option, value in _parsed(self.words[verb + 1 :]):
            if option in {"-s", "--set", "-a"}:
                name, _, text = value.partition("=")
                (self.arguments if option == "-a" else self.settings)[name] = text
            elif not option:
                self.spider = self.spider or value

    def in_run(self, name: str) -> list[str]:
        """The command of a worker of the run that is called so."""
        return [*self.words, "-s", f"REDISQ_RUN={name}"]


def _parsed(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """-> (option, value), ("", argument)."""
    rest = iter(words)
    for word in rest:
        option, is_one, value = word.partition("=")
        if word in WITH_VALUE:
            yield word, next(rest, "")
        elif is_one and option in WITH_VALUE:
            yield option, value
        elif word[:2] in WITH_VALUE:  # "-sNAME=VALUE"
            yield word[:2], word[2:]
        elif not word.startswith("-"):
            yield "", word
