"""Downloader middleware of the example project."""

from __future__ import annotations

from typing import Any


class OwnUserAgent:
    """Lets the process that fetches a page name itself, not the one that was redirected there.

    A redirected request keeps its headers, and goes back to the frontier, where any process may
    take it. Scrapy's own middleware then sets the header only where there is none.
    """

    def process_request(self, request: Any) -> None:
        request.headers.pop("User-Agent", None)
