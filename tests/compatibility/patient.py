"""A download handler for processes in which many spiders are crawled at once."""

from typing import Any

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler


class PatientHandler(HTTP11DownloadHandler):
    """Closes without Scrapy's own time limit of a second.

    If the crawls beside it keep the event loop for longer than that, its connections are closed
    and its time is over in one step of the loop, and Scrapy logs an AlreadyCalledError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._disconnect_timeout = 60
