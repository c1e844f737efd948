"""What REDISQ_URL names: one server, some nodes of a cluster, or the primary that Sentinels know.
`parse` tells which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from scrapy_redisq.server.url import (
    SENTINEL_OPTIONS,
    TLS_OPTIONS,
    URL_OPTIONS,
    check_options,
    check_url,
    wrong,
)

__all__ = ["Address", "ClusterNodes", "OneServer", "SentinelService", "parse"]

PORT, SENTINEL_PORT = 6_379, 26_379

_CLUSTER_SCHEME = re.compile(r"redis(s?)\+cluster://")
_SENTINEL_SCHEME = re.compile(r"redis(s?)\+sentinel://")
_SERVICE = re.compile(r"([^/]+)(?:/(\d{0,9}))?")
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


@dataclass(frozen=True)
class SentinelService:
    """``redis+sentinel://`` or ``rediss+sentinel://``: ``service`` is what the Sentinels at
    ``sentinels`` call the primary. Users and passwords are decoded, None where there is none."""

    url: str
    tls: bool
    options: Mapping[str, str]
    passwords: frozenset[str]
    sentinels: tuple[tuple[str, int], ...]
    service: str
    db: int
    username: str | None
    password: str | None
    sentinel_username: str | None
    sentinel_password: str | None


Address = OneServer | ClusterNodes | SentinelService


def parse(url: str) -> Address:
    """The address that ``url`` names; raises `SettingError` if it cannot be used.

    ``embedded://`` is none: see `scrapy_redisq.server.url.embedded_folder`.
    """
    if found := _CLUSTER_SCHEME.match(url):
        return _cluster_nodes(url, url[found.end() :], tls=bool(found[1]))
    if found := _SENTINEL_SCHEME.match(url):
        return _sentinel_service(url, url[found.end() :], tls=bool(found[1]))
    parts, options = check_url(url)
    words = (parts.password or "", options.get("password", ""))
    return OneServer(url, parts.scheme == "rediss", options, _forms(*words))


def _cluster_nodes(url: str, rest: str, *, tls: bool) -> ClusterNodes:
    user, hosts, path, query = _parts(url, rest)
    nodes = _hosts(url, hosts, PORT, "nodes")
    options = check_options(url, query, URL_OPTIONS | (TLS_OPTIONS if tls else set()))
    if path not in {"", "0"} or options.get("db", "0") != "0":
        raise wrong(url, "no number of a database: a cluster has database 0 alone")
    words = (user.partition(":")[2], options.get("password", ""))
    return ClusterNodes(url, tls, options, _forms(*words), nodes, user)


def _sentinel_service(url: str, rest: str, *, tls: bool) -> SentinelService:
    user, hosts, path, query = _parts(url, rest)
    sentinels = _hosts(url, hosts, SENTINEL_PORT, "Sentinels")
    allowed = URL_OPTIONS - {"db"} | SENTINEL_OPTIONS | (TLS_OPTIONS if tls else set())
    options = check_options(url, query, allowed)
    named = _SERVICE.fullmatch(path)
    if not named:
        raise wrong(
            url,
            "behind the Sentinels /SERVICE or /SERVICE/DATABASE, where SERVICE is what they call "
            "the primary (sentinel monitor SERVICE …)",
        )
    name, _, quoted = user.partition(":")
    password = unquote(quoted) or options.get("password")
    sentinel_password = options.get("sentinel_password")
    return SentinelService(
        url=url,
        tls=tls,
        options=options,
        passwords=_forms(quoted, password or "", sentinel_password or ""),
        sentinels=sentinels,
        service=unquote(named[1]),
        db=int(named[2] or 0),
        username=unquote(name) or options.get("username") or None,
        password=password or None,
        sentinel_username=options.get("sentinel_username") or None,
        sentinel_password=sentinel_password or None,
    )


def _parts(url: str, rest: str) -> tuple[str, str, str, str]:
    """User and password, hosts, path and query of what follows the scheme of several hosts."""
    if "#" in rest:
        raise wrong(url, "no '#'; write it as %23 inside a password")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    return user, hosts, path, query


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
