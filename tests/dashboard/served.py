"""A dashboard in a thread, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from aiohttp import web

from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.dashboard.app import make_app
from scrapy_redisq.ops.dashboard.crawls import Crawls
from scrapy_redisq.ops.dashboard.guard import Rules
from scrapy_redisq.ops.doctor import Report, examination
from scrapy_redisq.ops.serving import listening
from scrapy_redisq.server.connection import Server, open_server
from scrapy_redisq.settings.settings import RedisqSettings

Headers = Mapping[str, str]


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def examine(server: Server, name: str | None) -> Report:
    report = Report(server.address, name)
    examination.examine(report, server, RedisqSettings.read({}), name)
    return report


class Answering:
    """An application in a thread, on a free port, until it is closed."""

    def __init__(self, make: Callable[[], web.Application]) -> None:
        self._make = make
        self._start(0)

    def _start(self, port: int) -> None:
        started: Future[tuple[int, Callable[[], object]]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._answer(port, started)), daemon=True
        )
        self._thread.start()
        self.port, self._end = started.result(20)

    async def _answer(self, port: int, started: Future[Any]) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        async with listening(self._make(), "127.0.0.1", port) as own:
            started.set_result((own, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    def close(self) -> None:
        if self._thread.is_alive():
            self._end()
            self._thread.join()


class Served(Answering):
    """The dashboard of a Redis server."""

    def __init__(self, url: str, rules: Rules | None = None) -> None:
        self.redis = url
        self.rules = rules or Rules(secrets.token_urlsafe(32))
        super().__init__(self._app)

    def _app(self) -> web.Application:
        self.crawls = Crawls(open_server(self.redis, socket_timeout=2.0), Frontier, examine)
        return make_app(self.crawls, self.rules)

    def forget(self) -> None:
        """All that was seen: somebody else has changed Redis."""
        self.crawls.names.forget()
        self.crawls.doctor.forget()
        for crawl in self.crawls._crawls.values():
            crawl.changed()

    def start_again(self) -> None:
        """As another process: on the same port, with another token."""
        self.rules = Rules(secrets.token_urlsafe(32))
        self._start(self.port)

    @property
    def url(self) -> str:
        """What a person opens first: a browser sends nothing of the token to anybody."""
        return f"http://127.0.0.1:{self.port}/#token={self.rules.token}"

    def ask(self, path: str, body: object = None, headers: Headers | None = None) -> Answer:
        """GET, or POST of a body as JSON (bytes, or parts: as they are); with the token, unless
        headers are given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            given = dict(self.token if headers is None else headers)
            method, data = "GET", body
            if body is not None:
                method = "POST"
                data = json.dumps(body).encode() if isinstance(body, dict) else body
                given.setdefault("Content-Type", "application/json")
            connection.request(method, path, data, given)  # type: ignore[arg-type]
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def get(self, path: str, body: object = None) -> Any:
        """What an own page reads, or changes by a body."""
        answer = self.ask(path, body)
        assert answer.status == 200, answer
        return answer.json

    post = get

    @property
    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.rules.token}"}
