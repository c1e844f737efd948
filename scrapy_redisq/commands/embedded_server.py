"""``scrapy redisq server``: the embedded server, apart from any crawl."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from scrapy_redisq.commands.options import add_command, add_json
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import SettingError
from scrapy_redisq.server import embedded
from scrapy_redisq.server.embedded import EmbeddedStatus
from scrapy_redisq.settings.settings import RedisqSettings


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    server = add_command(
        commands,
        "server",
        help="the embedded server: keep it running, stop it, look at it",
        text="The embedded server of an embedded:// REDISQ_URL. Crawls start and stop it by "
        "themselves;\nthis is for keeping it between crawls.",
    )
    actions = server.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, text in {
        "start": "start it and keep it running until 'stop'",
        "stop": "stop it; its data stays. While it is in use, the last user to leave stops it",
        "status": "say whether it runs, where, and how large it is; starts nothing",
    }.items():
        add_command(actions, action, help=text)
    actions.choices["stop"].add_argument(
        "--force", action="store_true", help="at once, although others use it"
    )
    add_json(actions.choices["status"])


def run(arguments: Namespace, project: Project) -> int:
    """Start, stop or look. Raises `EmbeddedServerError` if it does not start."""
    folder = project.embedded_folder
    if folder is None:
        raise SettingError(
            RedisqSettings.url.name, "(not shown)", "embedded:// for an embedded server"
        )
    if arguments.action == "start":
        _print_status(embedded.start(folder))
        return 0
    if arguments.action == "stop":
        return _stop(folder, force=arguments.force)
    status = embedded.status(folder)
    if arguments.json:
        print(json.dumps(_as_json(status)))
    else:
        _print_status(status)
    return 0


def _stop(folder: Path, *, force: bool) -> int:
    outcome = embedded.stop(folder, force=force)
    if outcome == "in use":
        print(
            f"The server in {folder} is in use: the last who leaves will stop it. "
            "Now: scrapy redisq server stop --force",
            file=sys.stderr,
        )
        return 1
    if outcome == "still running":
        print(f"The server in {folder} did not stop; see its redis.log", file=sys.stderr)
        return 1
    print(f"The server in {folder} is not running" if outcome == "not running" else "Stopped")
    return 0


def _print_status(status: EmbeddedStatus) -> None:
    if not status.running:
        kept = "; the next crawl starts it, and it will stay" if status.kept else ""
        print(f"Not running in {status.folder}{kept}")
        return
    version = f" {status.version}" if status.version else ""
    pid = f", pid {status.pid}" if status.pid else ""
    print(f"Running: Redis{version}{pid}")
    lines = [
        ("folder", str(status.folder)),
        ("address", f"unix://{status.socket}"),
        ("log", str(status.log)),
        ("in use", "yes" if status.in_use else "no"),
        ("stays", "until 'scrapy redisq server stop'" if status.kept else "while it is in use"),
    ]
    if not status.reachable:
        lines.append(("socket", "gone: the next crawl ends the server and starts it again"))
    if status.memory_bytes is not None:
        lines.append(("memory", f"{status.memory_bytes / 2**20:,.1f} MiB"))
    if status.keys is not None:
        lines.append(("keys", f"{status.keys:,}"))
    for name, value in lines:
        print(f"  {name:<8} {value}")


def _as_json(status: EmbeddedStatus) -> dict[str, object]:
    return {
        "folder": str(status.folder),
        "running": status.running,
        "reachable": status.reachable,
        "kept": status.kept,
        "in_use": status.in_use,
        "address": f"unix://{status.socket}",
        "log": str(status.log),
        "pid": status.pid,
        "version": status.version,
        "memory_bytes": status.memory_bytes,
        "keys": status.keys,
    }
