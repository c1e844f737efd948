"""Scrapy's feeds beside other workers: a URI for each worker, and a word where they share one."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.server.url import redact

logger = logging.getLogger(__name__)

PLACEHOLDER = re.compile(r"%\((\w+)\)")

SAME_FOR_ALL = {"name", "time", "batch_id"}
"""Scrapy's placeholders that two workers may fill alike; ``time`` has whole seconds."""

SHARED_SCHEMES = {"", "file", "ftp", "ftps", "gs", "s3"}
"""Of Scrapy's storages those that two workers cannot write to at once."""

_workers: WeakKeyDictionary[Spider, str] = WeakKeyDictionary()


def feed_uri_params(params: dict[str, Any], spider: Spider) -> dict[str, Any]:
    """For ``FEED_URI_PARAMS``: the given names, and ``%(worker)s``, which stays the same for a
    spider's crawl. An attribute of the spider of that name wins."""
    # Host and process id come back where containers are restarted.
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return {"worker": _workers.setdefault(spider, name), **params}


def warn_of_shared_feeds(settings: BaseSettings, spider: type[Spider], job: str = "") -> None:
    """Log each feed that all workers would write to. ``job``: see `shared_feeds`."""
    for uri in shared_feeds(settings, spider, job):
        logger.warning(
            "The feed %s is one for all workers, who break it for each other. Write items by a "
            "pipeline of scrapy_redisq.pipelines, or give each worker a feed of its own by "
            "%%(worker)s in its name (FEED_URI_PARAMS = 'scrapy_redisq.feed_uri_params', which the "
            "add-on sets)",
            uri,
        )


def shared_feeds(settings: BaseSettings, spider: type[Spider], job: str = "") -> Iterator[str]:
    """Feeds, without passwords, that all workers would write to. Attributes of the spider's class
    are the same in all workers. The id of a scrapyd ``job`` in a feed's name is not."""
    for uri in map(str, settings.getdict("FEEDS")):
        scheme = uri.partition("://")[0] if "://" in uri else ""  # "": a path
        per_worker = (job and job in uri) or not all(
            name in SAME_FOR_ALL or hasattr(spider, name) for name in PLACEHOLDER.findall(uri)
        )
        is_stream = uri.removeprefix("file://").startswith(("/dev/", "stdout:"))
        if scheme in SHARED_SCHEMES and not (per_worker or is_stream):
            yield redact(uri)
