"""``scrapy redisq exporter``: metrics for Prometheus, and numbers of workers for autoscalers."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from typing import Any

from scrapy_redisq.commands.options import add_bind, add_command
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import SettingError
from scrapy_redisq.ops.metrics.exporter import Exporter
from scrapy_redisq.settings.server import open_server_of

TEXT = """\
Answer Prometheus and autoscalers by HTTP: /metrics, of all frontiers of the server; /scale/NAME,
how many workers would have work now, within ?min= and max= (JSON); /healthz. It changes nothing.

It takes pip install "scrapy-redisq[metrics]". Anyone who reaches the address may read: the crawls'
names and figures, no host and no URL.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    exporter = add_command(
        commands,
        "exporter",
        help="metrics for Prometheus, and numbers of workers for autoscalers",
        text=TEXT,
    )
    add_bind(exporter, 9449)


def run(arguments: Namespace, project: Project) -> int:
    """Until a signal. It does not wait for Redis: that it is away is what it is there to tell."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise SettingError(
            "exporter", None, "pip install 'scrapy-redisq[metrics]' (prometheus-client)"
        )
    host, port = arguments.bind
    with open_server_of(project.settings, project.folder) as server:
        exporter = Exporter(server, host, port)
        try:
            where = f"[{host}]" if ":" in host else host
            print(f"http://{where}:{exporter.port}/metrics of {server.address}", flush=True)
            exporter.run()
        finally:
            exporter.close()
    return 0
