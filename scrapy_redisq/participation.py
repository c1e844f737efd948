"""Which crawls join a frontier: those of workers, and not those of tools.

``scrapy shell``, ``parse``, ``fetch``, ``check``, ``bench`` and ``view`` crawl, too. They get
Scrapy's own scheduler and dupefilter, in memory, and need no Redis.
"""

from __future__ import annotations

from scrapy_redisq._scrapy.crawl import running_command
from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.declared import CrawlSettings
from scrapy_redisq.settings.setting import SettingsSource

CRAWLS = {
    "scrapy.commands.crawl.Command",
    "scrapy.commands.runspider.Command",
    # Never crawls, and asks what a worker would do.
    "scrapy_redisq.commands.RedisqCommand",
}
"""Commands that join, as do commands derived from them."""


def why_alone(settings: SettingsSource) -> str:
    """Why a crawl that begins here and now joins no frontier; "" if it does.

    A setting of a wrong value counts as its default: a worker reads all settings, and refuses it.
    """
    try:
        enabled = CrawlSettings.enabled.read(settings)
    except SettingError:
        enabled = CrawlSettings.enabled.default
    if not enabled:
        return "REDISQ_ENABLED is False: this crawl has no frontier, it is in memory alone"
    if not (tool := tool_command()):
        return ""
    return (
        f"scrapy {tool} has no frontier, it works in memory alone: only crawl, "
        "runspider, commands made from them, and crawls that are started from Python have one"
    )


def tool_command() -> str:
    """The ``scrapy`` command that crawls here and now, if it must not be a worker; else ""."""
    name, command = running_command() or ("", None)  # or a crawl that is started from Python
    bases = {f"{base.__module__}.{base.__qualname__}" for base in type(command).__mro__}
    return "" if bases & CRAWLS else name
