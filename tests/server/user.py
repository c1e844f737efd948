"""A process that joins the embedded server of a folder.

``FOLDER FIFO`` says when it is ready, joins at the first line from FIFO, says the server's pid, and
leaves at the second one; ``FOLDER NUMBER`` comes and goes so many times, and counts its visits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import redis

from scrapy_redisq.server.embedded import EmbeddedServer, status


def main(folder: str, told: str) -> None:
    if told.isdigit():
        for _ in range(int(told)):
            with (
                EmbeddedServer.acquire(folder) as server,
                redis.Redis.from_url(server.url) as client,
            ):
                client.incr("visits")
        return
    print("ready", flush=True)
    with Path(told).open() as lines:
        lines.readline()
        with EmbeddedServer.acquire(folder) as server:
            print(status(server.folder).pid, flush=True)
            lines.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
