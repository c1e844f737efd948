"""Opens the server that REDISQ_URL names, of whatever kind."""

from __future__ import annotations

from pathlib import Path

from scrapy_redisq.server.access import AsyncClient, Client
from scrapy_redisq.server.address import ClusterNodes, SentinelService, parse
from scrapy_redisq.server.cluster import ClusterServer
from scrapy_redisq.server.embedded import EmbeddedServer
from scrapy_redisq.server.sentinel.server import SentinelServer
from scrapy_redisq.server.server import Server
from scrapy_redisq.server.url import embedded_folder

__all__ = ["AsyncClient", "Client", "Server", "open_server"]

SOCKET_TIMEOUT = 5.0
"""Seconds that a connection or an answer may take where the URL does not say ``socket_timeout``:
longer than a script or a fork takes on a busy server, and half of a short lease."""


def open_server(
    url: str,
    *,
    project_dir: Path | None = None,
    connect_timeout: float = 30.0,
    socket_timeout: float = SOCKET_TIMEOUT,
) -> Server:
    """The server at ``url``; an embedded one is joined, and started if need be.

    ``connect_timeout`` is how many seconds `Server.wait` tries, ``socket_timeout`` how many an
    answer may take where the URL does not say it. Raises `SettingError` for a URL that cannot be
    used, `EmbeddedServerError` as `EmbeddedServer.acquire` does.
    """
    folder = embedded_folder(url, project_dir)
    embedded = None if folder is None else EmbeddedServer.acquire(folder)
    address = parse(url if embedded is None else embedded.url)
    timeouts = {"connect_timeout": connect_timeout, "socket_timeout": socket_timeout}
    if isinstance(address, ClusterNodes):
        return ClusterServer(address, **timeouts)
    if isinstance(address, SentinelService):
        return SentinelServer(address, **timeouts)
    return Server(address, **timeouts, embedded=embedded)
