"""REDISQ_DATABASE_URL: what it may say, and how to show it without its password."""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus

import sqlalchemy
from sqlalchemy import exc

from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.declared import SinkSettings

SETTING = SinkSettings.database_url.name
TAKES = (
    "an SQLAlchemy URL such as 'sqlite:///items.db' or 'postgresql://user:password@host/database'; "
    "write the characters /?#[]@:% of user and password as %2F and so on"
)

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
"""The drivers of URLs that name none."""

_SHOWN_OPTIONS = ("host", "port", "service", "unix_socket")


def parsed(text: str) -> sqlalchemy.URL:
    try:
        url = sqlalchemy.make_url(text)
    except (exc.ArgumentError, TypeError, ValueError):
        # Their words hold the URL, or pieces of it.
        raise SettingError(SETTING, "(not shown)", TAKES) from None
    url = url.set(drivername=DRIVERS.get(url.drivername, url.drivername))
    if not url.drivername.startswith("sqlite") and text.count("@") > 1:
        # What stands behind the first "@" of a password counts as host, and would be shown.
        raise SettingError(SETTING, "(not shown)", TAKES)
    return url


def address(url: sqlalchemy.URL) -> str:
    shown = {name: value for name, value in url.query.items() if name in _SHOWN_OPTIONS}
    return sqlalchemy.URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database, shown
    ).render_as_string()


def secrets(url: sqlalchemy.URL) -> list[re.Pattern[str]]:
    """Patterns of the passwords in ``url``, in all the ways in which they may be written."""
    found = [url.password] if url.password else []
    for name, value in url.query.items():
        if "pass" in name.lower():
            found += [value] if isinstance(value, str) else value
    forms = set()
    for password in map(str, found):
        escaped = password.replace("\\", "\\\\").replace("'", "\\'")
        forms |= {password, escaped, repr(password)[1:-1], quote_plus(password)}
        forms |= {quote(password), quote(password, safe=""), quote(password, safe=" +")}
    patterns = []
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.escape(form)
        # Short ones occur in any text: only where they are words.
        patterns.append(pattern if len(form) > 3 else rf"(?<!\w){pattern}(?!\w)")
    return [re.compile(pattern) for pattern in patterns]
