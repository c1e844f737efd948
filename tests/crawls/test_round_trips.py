"""How often a crawl waits for Redis at its begin and at its end."""

from __future__ import annotations

import re
from typing import Any

from lab.proxy import Proxy
from lab.servers import RedisServer
from lab.site import Answer, Site
from tests.harness.crawl import Run

NAMES = rb"\r\n(EVALSHA|EVAL|PING|ROLE|SUBSCRIBE|INFO|CONFIG)\r\n"


class Counted(Proxy):
    """Notes the commands of each packet, and "lease" where a reply brought one."""

    def __init__(self, to_port: int) -> None:
        super().__init__(to_port)
        self.events: list[str] = []

    async def pass_on(self, due: float, data: bytes, upwards: bool, connection: Any) -> bool:
        names = b" ".join(re.findall(NAMES, data)).decode()
        if upwards and names and names != "SUBSCRIBE":  # nothing waits for that
            self.events.append(names)
        elif not upwards and b"is_start_request" in data:
            self.events.append("lease")
        return await super().pass_on(due, data, upwards, connection)


def test_a_crawl_of_one_page(crawl: Run, redis_server: RedisServer) -> None:
    """On a server that knows the scripts five round trips bring the first lease: what the server
    is, its time, whether an old run is over, the join, and the exchange. After the last page there
    are three to the end, and three in which the worker leaves. One without an append-only file is
    asked for its snapshots, too."""

    def answer(path: str) -> Answer:
        way.events.append("page")
        return Answer("x")

    begins, ends = [], []
    with Counted(redis_server.port) as way, Site(answer) as site:
        for name in ("before", "one", "two", "three"):  # a busy machine may need one more
            way.events.clear()
            settings = {"REDISQ_URL": redis_server.url_through(way.port), "REDISQ_FRONTIER": name}
            assert crawl("follow", site, settings).wait().reason == "finished"
            begins.append(way.events[: way.events.index("lease")])
            ends.append(way.events[way.events.index("page") + 1 :])
    assert ["PING INFO ROLE", "CONFIG", *["EVALSHA"] * 4] in begins[1:]
    assert any(end in ends[1:] for end in (["EVALSHA", "ROLE", *["EVALSHA"] * 4], ["EVALSHA"] * 5))
