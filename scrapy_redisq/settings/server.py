"""Opens the server that the settings name; `scrapy_redisq.settings.crawl` declares them."""

from __future__ import annotations

from pathlib import Path

from scrapy.utils.conf import closest_scrapy_cfg

from scrapy_redisq.server.connection import Server, open_server
from scrapy_redisq.settings.settings import RedisqSettings


def project_folder() -> Path | None:
    """The folder of the project's scrapy.cfg; None outside of projects."""
    scrapy_cfg = closest_scrapy_cfg()
    return Path(scrapy_cfg).parent if scrapy_cfg else None


def open_server_of(
    settings: RedisqSettings, project_dir: Path | None = None, *, url: str | None = None
) -> Server:
    """The server at ``url``, or at REDISQ_URL; see `open_server`, also for what it raises.

    It may have to start an embedded server, which takes a moment: not for an event loop.
    """
    return open_server(
        settings.url if url is None else url,
        project_dir=project_dir,
        connect_timeout=settings.connect_timeout,
    )
