"""Addresses in REDISQ_URL: one server, some nodes of a cluster, or the primary of Sentinels.
`parse` tells which, and refuses what it must not say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from scrapy_redisq.server.url import wrong

PORT, SENTINEL_PORT = 6_379, 26_379

# What may stand behind the "?" of a URL. Everything else of redis-py's would change what the
# frontier relies on (decoding, retries, health checks) or fails at the first command.
URL_OPTIONS = {
    "client_name",
    "db",
    "password",
    "protocol",
    "socket_connect_timeout",
    "socket_timeout",
    "username",
}
TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
TLS_OPTIONS = TLS_FILES | {"ssl_cert_reqs", "ssl_check_hostname"}
SENTINEL_OPTIONS = {"sentinel_password", "sentinel_username"}


def _is_seconds(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text)) and 0.001 <= float(text) <= 86_400


# What each option takes that does not take any text, and a check of it.
OPTION_TAKES: dict[str, tuple[str, Callable[[str], object]]] = {
    "db": ("the number of a database", re.compile(r"\d{1,9}").fullmatch),
    "protocol": ("2 or 3", {"2", "3"}.__contains__),
    "socket_connect_timeout": ("seconds from 0.001 to 86,400", _is_seconds),
    "socket_timeout": ("seconds from 0.001 to 86,400", _is_seconds),
    # redis-py sets it when it connects, and Redis refuses such names then.
    "client_name": ("text without blanks", re.compile(r"[!-~]+").fullmatch),
    "ssl_cert_reqs": (
        "'required', 'optional' or 'none'",
        {"required", "optional", "none"}.__contains__,
    ),
    "ssl_check_hostname": ("'true' or 'false'", re.compile(r"(?i)true|false|yes|no|1|0").fullmatch),
    **dict.fromkeys(
        TLS_FILES, ("the path of a file that exists", lambda path: Path(path).is_file())
    ),
}

_SCHEME = re.compile(r"(redis|rediss|unix)://|(rediss?)\+(cluster|sentinel)://")
_SERVICE = re.compile(r"([^/]+)(?:/(\d{0,9}))?")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\[\]:@\s]+))(?::(\d{1,5}))?")
_QUOTE_IT = "write the characters /?#[]@:% of user and password as %2F and so on"


class Address(Struct, frozen=True):
    """One server, by a ``redis://``, ``rediss://`` or ``unix://`` URL, whose rest redis-py reads
    itself; or what one of the subclasses says. ``options`` stand behind the "?"; ``passwords`` are
    as in the URL, and decoded."""

    url: str
    tls: bool
    options: Mapping[str, str]
    passwords: frozenset[str]

    @property
    def checks_host_name(self) -> bool | None:
        """The option ``ssl_check_hostname``; None: not given."""
        return _checks_host_name(self.options)


class ClusterNodes(Address, frozen=True):
    """``redis+cluster://`` or ``rediss+cluster://``: ``nodes`` are some of a cluster, who name the
    others. ``user`` is name and password for all of them, as they stand in the URL."""

    nodes: tuple[tuple[str, int], ...]
    user: str

    def url_of(self, host: str, port: int) -> str:
        """The URL of one node, for redis-py, with the same user and options."""
        at = f"{self.user}@" if self.user else ""
        name = f"[{host}]" if ":" in host else host
        query = self.url.partition("?")[2]
        return f"redis{'s' * self.tls}://{at}{name}:{port}/0" + (f"?{query}" if query else "")


class SentinelService(Address, frozen=True):
    """``redis+sentinel://`` or ``rediss+sentinel://``: ``service`` is what the Sentinels at
    ``sentinels`` call the primary. Users and passwords are decoded, None where there is none."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    db: int
    username: str | None
    password: str | None

    @property
    def sentinel_username(self) -> str | None:
        return self.options.get("sentinel_username") or None

    @property
    def sentinel_password(self) -> str | None:
        return self.options.get("sentinel_password") or None


def parse(url: str) -> Address:
    """The address that ``url`` names; raises `SettingError` if it cannot be used.

    ``embedded://`` is none: see `scrapy_redisq.server.url.embedded_folder`.
    """
    found = _SCHEME.match(url)
    if not found:
        raise wrong(
            url,
            "redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded:///path",
        )
    kind = found[3] or found[1]
    tls = "rediss" in found.groups()
    if "#" in url:
        raise wrong(url, "no '#'; write it as %23 inside a password")
    rest, _, query = url[found.end() :].partition("?")
    authority, _, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    try:
        urlsplit(f"redis://{user}@host")
    except ValueError:  # its own words quote what is often a piece of the password
        raise wrong(url, f"a valid URL; {_QUOTE_IT}") from None
    allowed = URL_OPTIONS | (TLS_OPTIONS if tls else set())
    if kind == "sentinel":
        allowed = allowed - {"db"} | SENTINEL_OPTIONS
    options = _options(url, query, allowed)
    name, _, quoted = user.partition(":")
    words = (quoted, *(options.get(option, "") for option in ("password", "sentinel_password")))
    passwords = frozenset(form for word in words for form in (word, unquote(word)) if form)
    if kind == "cluster":
        nodes = _hosts(url, hosts, PORT, "nodes")
        if path not in {"", "0"} or options.get("db", "0") != "0":
            raise wrong(url, "no number of a database: a cluster has database 0 alone")
        return ClusterNodes(url, tls, options, passwords, nodes, user)
    if kind == "sentinel":
        sentinels = _hosts(url, hosts, SENTINEL_PORT, "Sentinels")
        named = _SERVICE.fullmatch(path)
        if not named:
            raise wrong(
                url,
                "behind the Sentinels /SERVICE or /SERVICE/DATABASE, where SERVICE is what they "
                "call the primary (sentinel monitor SERVICE …)",
            )
        return SentinelService(
            *(url, tls, options, passwords, sentinels),
            service=unquote(named[1]),
            db=int(named[2] or 0),
            username=unquote(name) or options.get("username") or None,
            password=unquote(quoted) or options.get("password") or None,
        )
    if kind == "unix":
        if hosts or not path:
            raise wrong(url, "unix:///path/of/the/socket, with three slashes")
    elif hosts and len(_hosts(url, hosts, PORT, "the server")) > 1:
        raise wrong(url, "one server; redis+cluster:// or redis+sentinel:// where there are more")
    elif not re.fullmatch(r"\d{0,9}", path):
        raise wrong(url, "the number of a database as its path, such as /0")
    return Address(url, tls, options, passwords)


def _options(url: str, query: str, allowed: Set[str]) -> dict[str, str]:
    """Options behind the "?" of ``url``; raises `SettingError` for an option that is not taken."""
    options = parse_qsl(query, keep_blank_values=True)
    given = dict(options)
    for name in sorted(given.keys() - allowed):
        # Only what is certainly no piece of a password with ?, & or @ is shown.
        is_clear = name.isidentifier() and not re.search("@|password=", query, re.IGNORECASE)
        what = f"not {name}" if is_clear else "write the characters &?#@ of a password as %26"
        if name in TLS_OPTIONS:
            what = f"{name} only with rediss://"
        raise wrong(url, f"after '?' only {', '.join(sorted(allowed))}; {what}")
    for name, value in options:
        takes, fits = OPTION_TAKES.get(name, ("", str))
        if takes and not fits(value):
            raise wrong(url, f"for {name} {takes}")
    if len(options) != len(given):
        raise wrong(url, "each option after '?' once")
    if _checks_host_name(given) is True and given.get("ssl_cert_reqs") == "none":
        raise wrong(url, "ssl_check_hostname=true only where ssl_cert_reqs is not none")
    return given


def _checks_host_name(options: Mapping[str, str]) -> bool | None:
    told = options.get("ssl_check_hostname", "").lower()
    return told in {"true", "yes", "1"} if told else None


def _hosts(url: str, text: str, port: int, what: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for host in text.split(","):
        found = _HOST.fullmatch(host.strip())
        number = int(found[3] or port) if found else 0
        if not found or not 1 <= number <= 65_535:
            raise wrong(
                url, f"{what} as HOST:PORT, commas between several (IPv6 in brackets); {_QUOTE_IT}"
            )
        hosts.append((found[1] or found[2], number))
    return tuple(dict.fromkeys(hosts))
