"""How often a crawl waits for Redis at its begin and at its end."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lab.servers import RedisServer
from lab.site import Answer, Site
from tests.harness.crawl import Run

NAMES = rb"\r\n(EVALSHA|EVAL|PING|ROLE|SUBSCRIBE|INFO|CONFIG)\r\n"


class Counted:
    """What goes over a way to a server: the commands of one packet, "lease" where a reply brought
    one, "page" where the site was asked."""

    def __init__(self, to_port: int) -> None:
        self.events: list[str] = []
        self._to_port = to_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        threading.Thread(target=self._serve, daemon=True).start()
        yield
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to_port))
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                names = b" ".join(re.findall(NAMES, data)).decode()
                if upwards and names and names != "SUBSCRIBE":  # nothing waits for that
                    self.events.append(names)
                elif not upwards and b"is_start_request" in data:
                    self.events.append("lease")
                target.sendall(data)
        target.close()


def test_a_crawl_of_one_page(crawl: Run, redis_server: RedisServer) -> None:
    """On a server that knows the scripts five round trips bring the first lease: what the server
    is, its time, whether an old run is over, the join, and the exchange. After the last page there
    are three to the end, and three in which the worker leaves. One without an append-only file is
    asked for its snapshots, too."""
    way = Counted(redis_server.port)

    def answer(path: str) -> Answer:
        way.events.append("page")
        return Answer("x")

    with Site(answer) as site, way.serving():
        for name in ("before", "counted"):
            way.events.clear()
            settings = {"REDISQ_URL": way.url, "REDISQ_FRONTIER": name}
            assert crawl("follow", site, settings).wait().reason == "finished"
    begin = way.events[: way.events.index("lease")]
    assert begin == ["PING INFO ROLE", "CONFIG", *["EVALSHA"] * 4]
    end = way.events[way.events.index("page") + 1 :]
    assert end in (["EVALSHA", "ROLE", *["EVALSHA"] * 4], ["EVALSHA"] * 5)
