"""Which crawls join a frontier: those that are meant to work, not those of tools that look.

``scrapy shell``, ``parse``, ``fetch``, ``check``, ``bench`` and ``view`` crawl, too. As workers
they would fetch other people's pages, begin new runs and leave leases behind. They get Scrapy's own
scheduler and dupefilter, in memory, and need no Redis.
"""

from __future__ import annotations

from scrapy_redisq._scrapy.crawl import running_command
from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.crawl import CrawlSettings
from scrapy_redisq.settings.setting import SettingsSource

__all__ = ["is_tool", "joins", "why_alone"]

CRAWLS = {
    "scrapy.commands.crawl.Command",
    "scrapy.commands.runspider.Command",
    # Never crawls, and asks what a worker would do.
    "scrapy_redisq.commands.RedisqCommand",
}
"""Commands that join, as do those that are made from them."""


def joins(settings: SettingsSource) -> bool:
    """Whether a crawl that begins here and now joins a frontier."""
    return not why_alone(settings)


def why_alone(settings: SettingsSource) -> str:
    """Why a crawl that begins here and now joins no frontier; "" if it does.

    A setting of a wrong value counts as its default: whoever joins reads them all, and says so.
    """
    try:
        enabled = CrawlSettings.enabled.read(settings)
    except SettingError:
        enabled = CrawlSettings.enabled.default
    if not enabled:
        return "REDISQ_ENABLED is False: this crawl has no frontier, it is in memory alone"
    if not is_tool():
        return ""
    running = running_command()
    return (
        f"scrapy {running and running[0]} has no frontier, it works in memory alone: only crawl, "
        "runspider, commands made from them, and crawls that are started from Python have one"
    )


def is_tool() -> bool:
    """Whether what crawls here and now is a ``scrapy`` command that must not be a worker."""
    running = running_command()
    if running is None:  # a crawl that is started from Python
        return False
    _, command = running
    bases = {f"{base.__module__}.{base.__qualname__}" for base in type(command).__mro__}
    return not bases & CRAWLS
