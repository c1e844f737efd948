"""The description on package indexes; all else is in ``setup.cfg``."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://)([^)\s]+)\)")


def description(readme: str, repository: str) -> str:
    """README for where its files are not beside it.

    ``repository`` is the address of a checkout's page, "" if there is none: then links become plain
    text that names the file, of which the source distribution has a copy.
    """

    def elsewhere(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if repository:
            base = "" if target.startswith("#") else f"/{'raw' if picture else 'blob'}/HEAD/"
            return f"{picture}[{text}]({repository}{base}{target})"
        if picture:
            return f"*{text}: {target}*"
        return text if target.startswith("#") or target in text else f"{text} ({target})"

    return _LINK.sub(elsewhere, readme)


if __name__ == "__main__":
    from setuptools import setup

    config = ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    urls = dict(
        line.replace(" ", "").split("=", 1)
        for line in config.get("metadata", "project_urls", fallback="").strip().splitlines()
    )
    setup(
        long_description=description(
            (ROOT / "README.md").read_text("utf-8"), urls.get("Source", "").rstrip("/")
        ),
        long_description_content_type="text/markdown",
    )
