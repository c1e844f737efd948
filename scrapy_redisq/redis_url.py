"""REDISQ_URL: what it may say, the folder that it may name, and how to show it.

No password reaches a log, a repr or an error: whatever is shown goes through `redact`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from scrapy_redisq.errors import SettingError

__all__ = ["check_url", "embedded_folder", "redact"]

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
TLS_OPTIONS = {
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

# Any scheme: a URL that is refused for its scheme is shown as well.
_SCHEME = r"\b[a-z][a-z0-9+.-]*://"
_QUERY_PASSWORD = re.compile(r"([?&]\w*password=)[^&\s]*", re.IGNORECASE)
_USER_PART = re.compile(rf"({_SCHEME})([^\s]*)@", re.IGNORECASE)
# In a URL alone, blanks belong to the password rather than to the text behind it.
_QUERY_PASSWORD_ALONE = re.compile(r"([?&]\w*password=)[^&]*", re.IGNORECASE)
_USER_PART_ALONE = re.compile(rf"({_SCHEME})(.*)@", re.IGNORECASE | re.DOTALL)


def redact(text_or_url: str) -> str:
    """The text with the passwords of all Redis URLs in it replaced by ``***``.

    Works on malformed URLs too, where it hides too much rather than too little: everything up to
    the last ``@`` counts as user and password. A user's name stays if a password follows it.
    """

    def hidden(match: re.Match[str]) -> str:
        user, colon, _ = match[2].partition(":")
        return f"{match[1]}{user}:***@" if colon else f"{match[1]}***@"

    alone = re.match(_SCHEME, text_or_url, re.IGNORECASE) is not None
    # The query first: a password there may hold an "@".
    text = (_QUERY_PASSWORD_ALONE if alone else _QUERY_PASSWORD).sub(r"\1***", text_or_url)
    return (_USER_PART_ALONE if alone else _USER_PART).sub(hidden, text)


def _wrong(url: str, takes: str) -> SettingError:
    return SettingError("REDISQ_URL", redact(url), takes)


def _split(url: str) -> SplitResult:
    """The parts of ``url``; raises `SettingError` without showing what it holds."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # urllib checks it when it is asked for
    except ValueError:
        # The error's own words quote what it took for a port: often a piece of the password.
        raise _wrong(
            url, "a valid URL; write the characters /?#[]@:% of user and password as %2F and so on"
        ) from None
    return parts


def check_url(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts and the query of a URL for redis-py; raises `SettingError` for what it must not be.

    ``embedded://`` is none: see `embedded_folder`.
    """
    parts = _split(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise _wrong(url, "redis://, rediss://, unix:// or embedded:///path")
    allowed = URL_OPTIONS | (TLS_OPTIONS if parts.scheme == "rediss" else set())
    if unknown := sorted(query.keys() - allowed):
        raise _wrong(url, f"after '?' only {', '.join(sorted(allowed))}, not {unknown[0]!r}")
    if parts.fragment:
        raise _wrong(url, "no '#'; write it as %23 inside a password")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path:
            raise _wrong(url, "unix:///path/of/the/socket, with three slashes")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise _wrong(url, "the number of a database as its path, such as /0")
    for name, check in {"db": int, "protocol": int, "socket_timeout": float}.items():
        try:
            check(query.get(name, "2"))
        except ValueError:
            raise _wrong(url, f"a number for {name}") from None
    if query.get("ssl_cert_reqs", "required") not in {"required", "optional", "none"}:
        raise _wrong(url, "'required', 'optional' or 'none' for ssl_cert_reqs")
    for name in TLS_FILES:
        if name in query and not Path(query[name]).is_file():
            raise _wrong(url, f"for {name} the path of a file that exists")
    return parts, query


def embedded_folder(url: str, project_dir: Path | None) -> Path | None:
    """The folder that an ``embedded://`` URL names; None for all other schemes.

    Without a path it is ``.scrapy/redisq`` in ``project_dir``, or in the current folder.
    """
    if not url.startswith("embedded://"):
        return None
    parts = _split(url)
    if parts.netloc or parts.query or parts.fragment:
        raise _wrong(url, "embedded:// or embedded:///absolute/path, with three slashes")
    if parts.path in {"", "/"}:
        return (project_dir or Path.cwd()) / ".scrapy" / "redisq"
    return Path(unquote(parts.path))
