"""URLs without their passwords, and the folder that an ``embedded://`` REDISQ_URL names.

No password reaches a log, a repr or an error: whatever is shown goes through `redact`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from scrapy_redisq.errors import SettingError

_SCHEME = r"\b[a-z][a-z0-9+.-]*://"
_FLAGS = re.IGNORECASE | re.DOTALL


def redact(text_or_url: str) -> str:
    """The text with the passwords of all URLs in it replaced by ``***``. Of malformed URLs it hides
    too much rather than too little: everything up to the last ``@`` counts as user and password,
    and everything behind ``password=`` as the password."""
    # In a URL alone, blanks belong to the password rather than to the text behind it.
    any_of_it = "." if re.match(_SCHEME, text_or_url, _FLAGS) else r"\S"
    # The query first: a password there may hold an "@".
    text = re.sub(rf"([?&]\w*password=){any_of_it}*", r"\1***", text_or_url, flags=_FLAGS)
    user = rf"({_SCHEME}(?:[^\s:@/?#]*:)?){any_of_it}*@"
    return re.sub(user, r"\1***@", text, flags=_FLAGS)


def wrong(url: str, takes: str) -> SettingError:
    """The error for a URL that is refused. Of it only the scheme is shown: what is wrong with it
    may be where its password is."""
    scheme = re.match(_SCHEME, url, _FLAGS)
    return SettingError("REDISQ_URL", f"{scheme[0] if scheme else ''}***", takes)


def embedded_folder(url: str, project_dir: Path | None) -> Path | None:
    """The folder that an ``embedded://`` URL names; None for all other schemes.

    Without a path it is ``.scrapy/redisq`` in ``project_dir``, or in the current folder.
    """
    if not url.startswith("embedded://"):
        return None
    path = url.removeprefix("embedded://")
    if not re.fullmatch("(/[^?#]*)?", path, re.DOTALL):
        raise wrong(url, "embedded:// or embedded:///absolute/path, with three slashes")
    if path in {"", "/"}:
        return (project_dir or Path.cwd()) / ".scrapy" / "redisq"
    return Path(unquote(path))
