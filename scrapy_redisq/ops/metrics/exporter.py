"""HTTP for programs: ``/metrics`` and ``/scale/NAME``, of the exporter and the dashboard.

Nothing is changed, and no URL and no host is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import redis
from aiohttp import web

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.scaling import Terms
from scrapy_redisq.control.stored import frontier_names
from scrapy_redisq.errors import FrontierError, RedisqError, SettingError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.ops.metrics.exposition import CONTENT_TYPE, Exposition
from scrapy_redisq.ops.serving import Handler, NoThread, in_thread
from scrapy_redisq.server.connection import Server

RELIST = 30.0
"""Seconds after which it is looked for new frontiers again."""

MOST_KNOWN = 1_000
"""Frontiers that are told of."""

KEPT = 15.0
"""Seconds for which the last metrics are given to those who ask while somebody else is looking."""

THREADS = 4
"""Looks that go on at the same time: programs ask again and again, also beside a Redis that
hangs."""


def scale(frontier: Frontier, query: Mapping[str, str]) -> dict[str, Any]:
    """How many workers would have work: {"workers": N, "because": "…"}. Raises ValueError for other
    parameters, and what `Frontier.wanted_workers` does if Redis is away: then nobody should scale.
    """
    try:
        given = msgspec.convert(dict(query), Terms, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if given.least > given.most:
        raise ValueError(f"min is {given.least}, max {given.most}")
    wanted = frontier.wanted_workers(**msgspec.structs.asdict(given))
    return {"workers": wanted.workers, "because": wanted.because}


class Programs:
    """Answers programs, in threads of their own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = server.client()
        self._threads = ThreadPoolExecutor(THREADS, "programs")
        self._exposition = Exposition()
        self._frontiers: list[Frontier] = []
        self._listed = -RELIST
        self._looking = threading.Lock()
        self._last, self._last_at = b"", -KEPT

    def close(self) -> None:
        """Wait for what is being done, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    async def metrics(self) -> bytes:
        """The metrics of all frontiers. Raises `NoThread` if there is nothing to say soon."""
        return await in_thread(self._threads, self.metrics_now)

    async def wanted_workers(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Answer to an autoscaler, also of a crawl that has not begun. Raises as `scale`."""
        return await in_thread(self._threads, lambda: scale(self._frontier(name), query))

    def metrics_now(self) -> bytes:
        """The servers are looked at once at a time. The last metrics, if they are no older than
        `KEPT`, are for those who ask meanwhile."""
        if not self._looking.acquire(blocking=False):
            if time.monotonic() - self._last_at < KEPT:
                return self._last
            raise NoThread("Redis is being asked, and does not answer: ask later")
        try:
            up, at = self._list(), time.monotonic()
            self._last, self._last_at = self._exposition.text(self._frontiers, up=up), at
            return self._last
        finally:
            self._looking.release()

    def _list(self) -> bool:
        """Look for new frontiers now and then; -> whether they could be listed."""
        if time.monotonic() - self._listed >= RELIST:
            try:
                names, _ = frontier_names(self._client)
            except (redis.RedisError, RedisqError, OSError):
                return False
            self._listed = time.monotonic()
            self._frontiers = [self._frontier(name) for name in names[:MOST_KNOWN]]
        return True

    def _frontier(self, name: str) -> Frontier:
        """Whether it is there or not. Raises `SettingError`."""
        return Frontier(self._server, name, client=self._client)


PROGRAMS: web.AppKey[Programs] = web.AppKey("programs", Programs)

routes = web.RouteTableDef()


@routes.get("/metrics")
async def metrics(request: web.Request) -> web.Response:
    body = await request.app[PROGRAMS].metrics()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


@routes.get("/scale/{name:[^/]+}")
async def wanted_workers(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    return web.json_response(await request.app[PROGRAMS].wanted_workers(name, request.query))


# The exporter, which asks for no token


def make_app(server: Server) -> web.Application:
    """``routes``, and ``/healthz``."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def closed(app: web.Application) -> AsyncIterator[None]:
        yield
        app[PROGRAMS].close()

    app = web.Application(middlewares=[_in_short])
    app[PROGRAMS] = Programs(server)
    app.add_routes([*routes, web.get("/healthz", healthz)])
    app.cleanup_ctx.append(closed)
    return app


@web.middleware
async def _in_short(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as JSON, without what Redis has said: anybody may ask."""
    try:
        response = await handler(request)
    except web.HTTPNotFound:
        response = web.Response(status=404, text="/metrics, /scale/NAME, /healthz\n")
    except NoThread as error:
        response = web.json_response({"error": str(error)}, status=503)
    except (SettingError, ValueError) as error:
        response = web.json_response({"error": str(error)}, status=400)
    except (FrontierError, redis.RedisError, *TROUBLE):
        # Whoever asks keeps the number of workers that there are.
        response = web.json_response({"error": "the frontier cannot be read"}, status=503)
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
