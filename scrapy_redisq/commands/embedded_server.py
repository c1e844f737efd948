"""``scrapy redisq server``: the embedded server, apart from any crawl."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from scrapy_redisq.commands.options import add_command, add_json
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control.words import size_text
from scrapy_redisq.errors import SettingError
from scrapy_redisq.server import embedded
from scrapy_redisq.server.embedded import EmbeddedStatus
from scrapy_redisq.settings.settings import RedisqSettings


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    server = add_command(
        commands,
        "server",
        None,
        help="the embedded server: keep it running, stop it, look at it",
        text="The embedded server of an embedded:// REDISQ_URL. Crawls start and stop it by "
        "themselves;\nthis is for keeping it between crawls.",
    )
    actions = server.add_subparsers(metavar="ACTION", required=True)
    add_command(actions, "start", start, help="start it and keep it running until 'stop'")
    text = "stop it; its data stays. While it is in use, the last user to leave stops it"
    add_command(actions, "stop", stop, help=text).add_argument(
        "--force", action="store_true", help="at once, although others use it"
    )
    text = "say whether it runs, where, and how large it is; starts nothing"
    add_json(add_command(actions, "status", look, help=text))


def _folder_of(project: Project) -> Path:
    if project.embedded_folder is None:
        takes = "embedded:// for an embedded server"
        raise SettingError(RedisqSettings.url.name, "(not shown)", takes)
    return project.embedded_folder


def start(_arguments: Namespace, project: Project) -> int:
    """Raises `EmbeddedServerError` if it does not start."""
    _print_status(embedded.start(_folder_of(project)))
    return 0


def look(arguments: Namespace, project: Project) -> int:
    """Say how it stands."""
    status = embedded.status(_folder_of(project))
    if arguments.json:
        told = {**asdict(status), "address": f"unix://{status.socket}"}
        del told["socket"]
        print(json.dumps(told, default=str))
    else:
        _print_status(status)
    return 0


def stop(arguments: Namespace, project: Project) -> int:
    """1 if it runs on."""
    folder = _folder_of(project)
    outcome = embedded.stop(folder, force=arguments.force)
    said = {
        "in use": f"The server in {folder} is in use: the last who leaves will stop it. "
        "Now: scrapy redisq server stop --force",
        "still running": f"The server in {folder} did not stop; see its redis.log",
        "not running": f"The server in {folder} is not running",
        "stopped": "Stopped",
    }
    failed = outcome in ("in use", "still running")
    print(said[outcome], file=sys.stderr if failed else sys.stdout)
    return 1 if failed else 0


def _print_status(status: EmbeddedStatus) -> None:
    if not status.running:
        kept = "; the next crawl starts it, and it will stay" if status.kept else ""
        print(f"Not running in {status.folder}{kept}")
        return
    print(f"Running: Redis {status.version or '?'}, pid {status.pid or '?'}")
    lines = {
        "folder": status.folder,
        "address": f"unix://{status.socket}",
        "log": status.log,
        "in use": "yes" if status.in_use else "no",
        "stays": "until 'scrapy redisq server stop'" if status.kept else "while it is in use",
    }
    if not status.reachable:
        lines["socket"] = "gone: the next crawl ends the server and starts it again"
    if status.memory_bytes is not None:
        lines |= {"memory": size_text(status.memory_bytes), "keys": f"{status.keys:,}"}
    for name, value in lines.items():
        print(f"  {name:<8} {value}")
