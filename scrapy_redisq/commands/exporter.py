"""``scrapy redisq exporter``: metrics for Prometheus, and numbers of workers for autoscalers."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.options import add_bind, add_command, check_installed
from scrapy_redisq.commands.project import Project
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import open_server_of

TEXT = """\
Answer Prometheus and autoscalers by HTTP: /metrics, of all frontiers of the server; /scale/NAME,
how many workers would have work now, within ?min= and max= (JSON); /healthz. It changes nothing.

It takes pip install "scrapy-redisq[metrics]". Anyone who reaches the address may read: the crawls'
names and figures, no host and no URL.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "metrics for Prometheus, and numbers of workers for autoscalers"
    add_bind(add_command(commands, "exporter", run, help=help, text=TEXT), 9449)


def run(arguments: Namespace, project: Project) -> int:
    """Until SIGINT or SIGTERM, which is how that is meant to end. It does not wait for Redis: that
    it is away is what it is there to tell."""
    check_installed("metrics", "prometheus_client", "aiohttp")
    with open_server_of(project.settings, project.folder) as server:
        asyncio.run(_serve(server, arguments.bind))
    return 0


async def _serve(server: Server, bind: tuple[str, int]) -> None:
    from scrapy_redisq.ops.metrics.exporter import make_app  # noqa: PLC0415
    from scrapy_redisq.ops.serving import serve  # noqa: PLC0415

    await serve(make_app(server), bind, lambda at: f"{at}/metrics of {server.address}")
