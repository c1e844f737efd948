"""REDISQ_URL: what it may say, the folder that it may name, and how to show it.

No password reaches a log, a repr or an error: whatever is shown goes through `redact`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from scrapy_redisq.errors import SettingError

__all__ = ["check_options", "check_url", "embedded_folder", "redact", "wrong"]

# What may stand behind the "?" of a URL, and how. Everything else of redis-py's would change what
# the frontier relies on (decoding, retries, health checks) or fails at the first command.
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
SENTINEL_OPTIONS = {"sentinel_password", "sentinel_username"}
PASSWORDS = {"password", "sentinel_password"}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _seconds(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text)) and 0.001 <= float(text) <= 86_400


# What each option takes that does not take any text, and a check of it.
OPTION_TAKES: dict[str, tuple[str, Callable[[str], object]]] = {
    "db": ("the number of a database", re.compile(r"\d{1,9}").fullmatch),
    "protocol": ("2 or 3", {"2", "3"}.__contains__),
    "socket_connect_timeout": ("seconds from 0.001 to 86,400", _seconds),
    "socket_timeout": ("seconds from 0.001 to 86,400", _seconds),
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

# Any scheme: a URL that is refused for its scheme is shown as well.
_SCHEME = r"\b[a-z][a-z0-9+.-]*://"
_QUERY_PASSWORD = re.compile(r"([?&]\w*password=)(\S*)", re.IGNORECASE)
_USER_PART = re.compile(rf"({_SCHEME})([^\s]*)@", re.IGNORECASE)
# In a URL alone, blanks belong to the password rather than to the text behind it.
_QUERY_PASSWORD_ALONE = re.compile(r"([?&]\w*password=)(.*)", re.IGNORECASE | re.DOTALL)
_USER_PART_ALONE = re.compile(rf"({_SCHEME})(.*)@", re.IGNORECASE | re.DOTALL)
# Behind a password an "&" may be a part of it: only this is certainly none.
_OTHER_OPTION = re.compile(
    rf"({'|'.join(sorted((URL_OPTIONS | TLS_OPTIONS | SENTINEL_OPTIONS) - PASSWORDS))})=[^@?]*",
    re.DOTALL,
)


def redact(text_or_url: str) -> str:
    """The text with the passwords of all Redis URLs in it replaced by ``***``.

    Works on malformed URLs too, where it hides too much rather than too little: everything up to
    the last ``@`` counts as user and password, and what follows a password in the query counts as
    part of it unless it is an option that a URL may have. A user's name stays if a password
    follows it.
    """

    def user(match: re.Match[str]) -> str:
        name, colon, _ = match[2].partition(":")
        return f"{match[1]}{name}:***@" if colon else f"{match[1]}***@"

    def query(match: re.Match[str]) -> str:
        others = [part for part in match[2].split("&")[1:] if _OTHER_OPTION.fullmatch(part)]
        return "&".join([f"{match[1]}***", *others])

    alone = re.match(_SCHEME, text_or_url, re.IGNORECASE) is not None
    # The query first: a password there may hold an "@".
    text = (_QUERY_PASSWORD_ALONE if alone else _QUERY_PASSWORD).sub(query, text_or_url)
    return (_USER_PART_ALONE if alone else _USER_PART).sub(user, text)


def _shown(url: str) -> str:
    """`redact` for a URL that is refused: what is wrong with it may be where its password is."""
    if not re.match(_SCHEME, url, re.IGNORECASE) and re.search("[@?]", url):
        return "***"  # anything of it may be the password
    shown = redact(url)
    address, mark, query = shown.partition("?")
    parts = [
        part if _OTHER_OPTION.fullmatch(part) or part.removesuffix("=***") in PASSWORDS else "***"
        for part in query.split("&")
    ]
    return address.partition("#")[0] + mark + "&".join(dict.fromkeys(parts)) * bool(mark)


def _may_be_named(option: str, url: str) -> bool:
    """Whether an unknown option of ``url`` is certainly no piece of a password with ?, & or @."""
    query = url.partition("?")[2]
    return "@" not in query and "password=" not in query.lower() and option.isidentifier()


def wrong(url: str, takes: str) -> SettingError:
    """The error for a URL that is refused, which shows nothing that may be its password."""
    return SettingError("REDISQ_URL", _shown(url), takes)


def _split(url: str) -> SplitResult:
    """The parts of ``url``; raises `SettingError` without showing what it holds."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # urllib checks it when it is asked for
    except ValueError:
        # The error's own words quote what it took for a port: often a piece of the password.
        raise wrong(
            url, "a valid URL; write the characters /?#[]@:% of user and password as %2F and so on"
        ) from None
    return parts


def checks_host_name(query: Mapping[str, str]) -> bool | None:
    """What ``ssl_check_hostname`` says; None: nothing."""
    told = query.get("ssl_check_hostname", "").lower()
    return told in {"true", "yes", "1"} if told else None


def check_url(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts and the query of a URL for redis-py; raises `SettingError` for what it must not be.

    ``embedded://`` is none: see `embedded_folder`.
    """
    parts = _split(url)
    # As redis-py compares it: it takes neither capitals nor a blank before it.
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise wrong(
            url,
            "redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded:///path",
        )
    tls = parts.scheme == "rediss"
    query = check_options(url, parts.query, URL_OPTIONS | (TLS_OPTIONS if tls else set()))
    if parts.fragment:
        raise wrong(url, "no '#'; write it as %23 inside a password")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path:
            raise wrong(url, "unix:///path/of/the/socket, with three slashes")
    elif not re.fullmatch(r"(/\d{0,9})?", parts.path):
        raise wrong(url, "the number of a database as its path, such as /0")
    if parts.scheme != "unix" and parts.port == 0:
        raise wrong(url, "a port from 1 to 65535")
    return parts, query


def check_options(url: str, query: str, allowed: Set[str]) -> dict[str, str]:
    """What stands behind the "?" of ``url``; raises `SettingError` for what it does not take."""
    options = parse_qsl(query, keep_blank_values=True)
    given = dict(options)
    for name in sorted(given.keys() - allowed):
        takes = f"after '?' only {', '.join(sorted(allowed))}"
        if name in TLS_OPTIONS:
            raise wrong(url, f"{takes}; {name} only with rediss://")
        if _may_be_named(name, url):
            raise wrong(url, f"{takes}, not {name}")
        raise wrong(url, f"{takes}; write the characters &?#@ of a password as %26 and so on")
    for name, value in options:
        takes, fits = OPTION_TAKES.get(name, ("", str))
        if takes and not fits(value):
            raise wrong(url, f"for {name} {takes}")
    if len(options) != len(given):
        raise wrong(url, "each option after '?' once")
    if checks_host_name(given) is True and given.get("ssl_cert_reqs") == "none":
        raise wrong(url, "ssl_check_hostname=true only where ssl_cert_reqs is not none")
    return given


def embedded_folder(url: str, project_dir: Path | None) -> Path | None:
    """The folder that an ``embedded://`` URL names; None for all other schemes.

    Without a path it is ``.scrapy/redisq`` in ``project_dir``, or in the current folder.
    """
    if not url.startswith("embedded://"):
        return None
    parts = _split(url)
    if parts.netloc or parts.query or parts.fragment:
        raise wrong(url, "embedded:// or embedded:///absolute/path, with three slashes")
    if parts.path in {"", "/"}:
        return (project_dir or Path.cwd()) / ".scrapy" / "redisq"
    return Path(unquote(parts.path))
