"""``scrapy redisq …``: look at a frontier, feed it, mend it."""

from __future__ import annotations

from scrapy.commands import ScrapyCommand


class RedisqCommand(ScrapyCommand):
    """Entry point of the command line."""

    def short_desc(self) -> str:
        return "Look at a scrapy-redisq frontier, feed it, mend it"

    def run(self, args: list[str], opts: object) -> None:
        """Run one sub command."""
