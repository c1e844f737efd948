"""Server-sent events: what changes, every few seconds, for as long as somebody looks.

Each event is all there is to show, so that a stream that was cut is simply begun anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import redis
from aiohttp import web

from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.ops.dashboard.crawls import NoCrawl
from scrapy_redisq.ops.dashboard.reads import CRAWLS, crawl_of
from scrapy_redisq.ops.serving import NoThread

EVERY = 2.0
"""Seconds between two events."""

MOST = 200
"""Streams at a time. Whoever asks for one more is told to come later."""

OPEN: web.AppKey[set[object]] = web.AppKey("open", set)
"""Stands for the streams that there are."""

CLOSING: web.AppKey[asyncio.Event] = web.AppKey("closing", asyncio.Event)

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
    """Events ``name``, or ``away`` with what is wrong."""
    streams, closing, mine = request.app[OPEN], request.app[CLOSING], object()
    if len(streams) >= MOST:
        raise web.HTTPServiceUnavailable(text=f"{MOST} pages are open: this one has to wait")
    streams.add(mine)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.headers["X-Accel-Buffering"] = "no"  # a proxy shall pass each on at once
    try:
        await response.prepare(request)
        while not closing.is_set():
            try:
                event, data = name, await look()
            except (FrontierError, NoCrawl, NoThread, redis.RedisError, *TROUBLE) as error:
                event, data = "away", {"error": request.app[CRAWLS].redact(error)}
            await response.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(closing.wait(), EVERY)
    except (ConnectionError, asyncio.CancelledError):
        pass  # nobody looks any more
    finally:
        streams.discard(mine)
    return response
