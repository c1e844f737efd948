"""The spider that `polite` measures: fed by pushes, it follows nothing. Each request carries the
time when its download began, and the process that began it.

``scrapy runspider polite.py -a report=… -a go=…``
"""

from __future__ import annotations

import os
import time
from typing import Any

import scrapy
from follow import Follow
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler


class Stamped(HTTP11DownloadHandler):
    """Scrapy's own, which writes into the request when it was told to download it."""

    async def download_request(self, request: scrapy.Request) -> Any:
        request.headers["X-Started"] = repr(time.monotonic())
        request.headers["X-Worker"] = str(os.getpid())
        return await super().download_request(request)


class Polite(Follow):
    """All its requests come from the frontier."""

    name = "polite"
    custom_settings = {  # noqa: RUF012 - as spiders are written
        **Follow.custom_settings,
        "DOWNLOAD_HANDLERS": {"http": Stamped},
    }

    def parse(self, response: Any) -> None:
        """Nothing is of interest but that it came."""
