"""``scrapy redisq dashboard``: pages in a browser for all frontiers of the server."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from scrapy_redisq.commands import doctor
from scrapy_redisq.commands.options import add_bind, add_command, check_installed
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError
from scrapy_redisq.ops.doctor import Report, examination
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.setting import TOKEN_VARIABLE
from scrapy_redisq.settings.settings import open_server_of


class NoDashboard(RedisqError):
    """Raised when it cannot be started. The message says what to do."""


TEXT = """\
Serve views of all crawls of the server to browsers, and let people steer the crawls. Runs until
Ctrl-C.

A browser needs the dashboard's token. The token is the content of --token-file FILE, else
REDISQ_DASHBOARD_TOKEN. Without both the dashboard draws a token, and keeps it in
.scrapy/redisq-dashboard-token. On another address than 127.0.0.1 put TLS in front of it.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "views in a browser: all crawls, hosts, workers, dead letters"
    dashboard = add_command(commands, "dashboard", run, help=help, text=TEXT)
    add_bind(dashboard, 8765)
    dashboard.add_argument(
        "--token-file", metavar="FILE", help="the token is in FILE (default: it is drawn)"
    )
    dashboard.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        help="a name by which it is reached (may be repeated); addresses and localhost need none",
    )
    dashboard.add_argument(
        "--read-only", action="store_true", help="nothing can be changed, only looked at"
    )


def run(arguments: Namespace, project: Project) -> int:
    """Serve until SIGINT or SIGTERM, which is how that is meant to end."""
    check_installed("dashboard", "aiohttp")
    # Without waiting for it: the pages say that it is away.
    with open_server_of(project.settings, project.folder) as server:
        asyncio.run(_serve(arguments, project, server))
    return 0


async def _serve(arguments: Namespace, project: Project, server: Server) -> None:
    from scrapy_redisq.ops.dashboard.app import make_app  # noqa: PLC0415
    from scrapy_redisq.ops.dashboard.crawls import Crawls  # noqa: PLC0415
    from scrapy_redisq.ops.dashboard.guard import Refused, Rules  # noqa: PLC0415
    from scrapy_redisq.ops.serving import serve  # noqa: PLC0415

    folder = project.folder or Path.cwd()
    token, drawn = token_of(arguments.token_file, folder / ".scrapy" / "redisq-dashboard-token")
    hosts = frozenset(name.lower() for name in arguments.host or ())
    try:
        rules = Rules(token, arguments.read_only, hosts)
    except Refused as error:
        raise NoDashboard(f"{arguments.token_file or drawn or TOKEN_VARIABLE}: {error}") from None

    def open_to_push(server: Server, name: str) -> Frontier:
        # With the custom_settings of the spider whose frontier it is.
        return Project(project.given, name).frontier_to_push(server, name)

    def examine(server: Server, name: str | None) -> Report:
        meant, report = Project(project.given, name), Report(server.address, name)
        examination.examine(report, server, meant.settings, name)
        doctor.add_settings(report, meant)
        return report

    def told(address: str) -> str:
        # What is after # stays in the browser. A log may be read by others.
        key = f"#token={token}" if drawn and sys.stdout.isatty() else ""
        where = f"\nIts token is in {drawn}" if drawn else ""
        return f"{address}/{key} shows {server.address}{where}"

    await serve(make_app(Crawls(server, open_to_push, examine), rules), arguments.bind, told)


def token_of(file: str | None, drawn: Path) -> tuple[str, Path | None]:
    """The token: of the file, else of the environment, else of ``drawn``, which is told then.
    Raises OSError."""
    if file is None:
        if given := os.environ.get(TOKEN_VARIABLE, "").strip():
            return given, None
        return kept_token(drawn), drawn
    path = Path(file)
    token = path.read_text("utf-8", "replace").strip()
    if not token:
        raise NoDashboard(f"{file} holds no token")
    if path.is_file() and path.stat().st_mode & 0o077:
        print(f"scrapy redisq: {file} can be read by others: chmod 600 {file}", file=sys.stderr)
    return token, None


def kept_token(path: Path) -> str:
    """The token in ``path``, drawn if there is none. Raises `NoDashboard` unless only this user can
    read that file: in a folder of others they could have made it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "r+", errors="replace") as file:
            found = os.fstat(file.fileno())
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not is_ours or found.st_mode & 0o077:
                raise PermissionError("it is not a file that only this user can read: remove it")
            fcntl.flock(file, fcntl.LOCK_EX)  # another dashboard may start at the same time
            token = file.read().strip()
            if not token:
                token = secrets.token_urlsafe(32)
                file.write(token + "\n")
            return token
    except OSError as error:
        raise NoDashboard(
            f"the token cannot be kept in {path} ({error.strerror or error}); or give "
            "--token-file FILE"
        ) from None
