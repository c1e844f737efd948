"""Server-sent events for programs: what there is to show, every few seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import redis
from aiohttp import web

from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.ops.dashboard.crawls import NoCrawl
from scrapy_redisq.ops.dashboard.reads import CRAWLS, crawl_of
from scrapy_redisq.ops.serving import NoThread

EVERY = 2.0
"""Seconds between two events."""

routes = web.RouteTableDef()


@routes.get("/api/stream")
async def overview(request: web.Request) -> web.StreamResponse:
    """``crawls``: as ``/api/crawls``."""
    return await _stream(request, "crawls", request.app[CRAWLS].overview)


@routes.get("/api/crawls/{name}/stream")
async def one_crawl(request: web.Request) -> web.StreamResponse:
    """``status``: as ``/api/crawls/NAME``."""
    crawl = await crawl_of(request)
    return await _stream(request, "status", crawl.status.told)


async def _stream(
    request: web.Request, name: str, look: Callable[[], Awaitable[dict[str, Any]]]
) -> web.StreamResponse:
    """Events ``name``, or ``away`` with what is wrong, until nobody reads them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.headers["X-Accel-Buffering"] = "no"  # a proxy shall pass each on at once
    await response.prepare(request)
    try:
        while True:
            try:
                event, data = name, await look()
            except (FrontierError, NoCrawl, NoThread, redis.RedisError, *TROUBLE) as error:
                event, data = "away", {"error": request.app[CRAWLS].redact(error)}
            await response.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
            await asyncio.sleep(EVERY)
    except ConnectionError:
        return response
