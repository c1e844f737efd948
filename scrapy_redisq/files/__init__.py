"""Files of items: folders on disks and object stores, and one data set of all workers' parts."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

LONGEST_NAME = 80
"""Most characters of each part of a file's name; file systems take 255 for all of it."""


def safe_name(name: str) -> str:
    """A name as a part of file names: percent-encoded, not hidden, no longer than LONGEST_NAME.

    Different names stay different.
    """
    quoted = quote(name, safe="", errors="backslashreplace")
    if quoted[:1] in {".", "_"}:  # readers of data sets pass over these
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) > LONGEST_NAME:
        digest = hashlib.sha256(quoted.encode()).hexdigest()[:12]
        cut = re.sub("%[0-9A-F]?$", "", quoted[: LONGEST_NAME - 13])
        quoted = f"{cut}~{digest}"
    return quoted
