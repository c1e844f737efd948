"""What REDISQ_URL names: one server, or some nodes of a cluster. `parse` tells which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from scrapy_redisq.server.url import (
    TLS_OPTIONS,
    URL_OPTIONS,
    check_options,
    check_url,
    wrong,
)

__all__ = ["Address", "ClusterNodes", "OneServer", "parse"]

PORT = 6_379

_CLUSTER_SCHEME = re.compile(r"redis(s?)\+cluster://")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\[\]:@\s]+))(?::(\d{1,5}))?")


@dataclass(frozen=True)
class OneServer:
    """``redis://``, ``rediss://`` or ``unix://``: redis-py reads the rest of ``url`` itself."""

    url: str
    tls: bool
    options: Mapping[str, str]
    """What stands behind the "?"."""
    passwords: frozenset[str]
    """As they stand in the URL, and decoded."""


@dataclass(frozen=True)
class ClusterNodes:
    """``redis+cluster://`` or ``rediss+cluster://``: ``nodes`` are some of a cluster, who name the
    others. ``user`` is name and password for all of them, as they stand in the URL."""

    url: str
    tls: bool
    options: Mapping[str, str]
    passwords: frozenset[str]
    nodes: tuple[tuple[str, int], ...]
    user: str

    def url_of(self, host: str, port: int) -> str:
        """The URL of one node, for redis-py, with the same user and options."""
        at = f"{self.user}@" if self.user else ""
        name = f"[{host}]" if ":" in host else host
        query = self.url.partition("?")[2]
        return f"redis{'s' * self.tls}://{at}{name}:{port}/0" + (f"?{query}" if query else "")


Address = OneServer | ClusterNodes


def parse(url: str) -> Address:
    """The address that ``url`` names; raises `SettingError` if it cannot be used.

    ``embedded://`` is none: see `scrapy_redisq.server.url.embedded_folder`.
    """
    if found := _CLUSTER_SCHEME.match(url):
        return _cluster_nodes(url, url[found.end() :], tls=bool(found[1]))
    parts, options = check_url(url)
    words = (parts.password or "", options.get("password", ""))
    return OneServer(url, parts.scheme == "rediss", options, _forms(*words))


def _cluster_nodes(url: str, rest: str, *, tls: bool) -> ClusterNodes:
    if "#" in rest:
        raise wrong(url, "no '#'; write it as %23 inside a password")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    nodes = _hosts(url, hosts, PORT, "nodes")
    options = check_options(url, query, URL_OPTIONS | (TLS_OPTIONS if tls else set()))
    if path not in {"", "0"} or options.get("db", "0") != "0":
        raise wrong(url, "no number of a database: a cluster has database 0 alone")
    words = (user.partition(":")[2], options.get("password", ""))
    return ClusterNodes(url, tls, options, _forms(*words), nodes, user)


def _hosts(url: str, text: str, port: int, what: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for host in text.split(","):
        found = _HOST.fullmatch(host.strip())
        number = int(found[3] or port) if found else 0
        if not found or not 1 <= number <= 65_535:
            raise wrong(
                url,
                f"{what} as HOST:PORT,HOST:PORT (IPv6 in brackets); write the characters /?#[]@:% "
                "of user and password as %2F and so on",
            )
        hosts.append((found[1] or found[2], number))
    return tuple(dict.fromkeys(hosts))


def _forms(*words: str) -> frozenset[str]:
    return frozenset(form for word in words for form in (word, unquote(word)) if form)
