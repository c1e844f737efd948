"""The routes of the dashboard, and what is opened and closed with them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import redis
from aiohttp import web

from scrapy_redisq.errors import FrontierError, RedisqError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.ops.dashboard import changes, reads, streams
from scrapy_redisq.ops.dashboard.crawls import Crawls, NoCrawl
from scrapy_redisq.ops.dashboard.guard import DATA, MOST_BODY, Rules, add_headers, guarded
from scrapy_redisq.ops.dashboard.reads import CRAWLS, RULES
from scrapy_redisq.ops.metrics import exporter
from scrapy_redisq.ops.serving import Handler, NoThread

logger = logging.getLogger(__name__)

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

STATUSES: dict[int, tuple[type[Exception], ...]] = {
    404: (NoCrawl,),
    503: (redis.RedisError, NoThread, *TROUBLE),
    409: (FrontierError,),
    400: (ValueError, RedisqError),
}
"""HTTP status of each error: the first class that fits."""


def make_app(crawls: Crawls, rules: Rules) -> web.Application:
    """The dashboard of these crawls, which are closed with it."""

    async def closed(app: web.Application) -> AsyncIterator[None]:
        yield
        crawls.close()

    app = web.Application(middlewares=[in_json, guarded(rules)], client_max_size=MOST_BODY)
    app[CRAWLS], app[RULES], app[exporter.PROGRAMS] = crawls, rules, crawls.programs
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(closed)
    for module in (reads, changes, streams, exporter):
        app.add_routes(module.routes)
    app.add_routes(pages())
    return app


@web.middleware
async def in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as ``{"error": …}``, with the status that they have for whoever asked."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if not request.path.startswith(DATA):
            raise
        kept = {"WWW-Authenticate", "Allow"} & set(error.headers)
        return web.json_response(
            {"error": error.text or error.reason},
            status=error.status,
            headers={name: error.headers[name] for name in kept},
        )
    except Exception as error:
        fits = (status for status, kinds in STATUSES.items() if isinstance(error, kinds))
        if status := next(fits, None):
            text = request.app[CRAWLS].redact(error)
            return web.json_response({"error": text}, status=status)
        logger.exception("%s %s", request.method, request.path)
        text = "the dashboard failed: its log says how"
        return web.json_response({"error": text}, status=500)


def pages() -> list[web.RouteDef]:
    """The static files, which are few, small, and kept in memory: no path leads anywhere else."""
    folder = resources.files(__package__) / "static"
    return [
        web.get(
            "/" if file.name == "index.html" else f"/{file.name}",
            _page(file.read_bytes(), TYPES[Path(file.name).suffix]),
        )
        for file in folder.iterdir()
    ]


def _page(body: bytes, kind: str) -> Handler:
    tag = hashlib.sha1(body).hexdigest()

    async def page(request: web.Request) -> web.Response:
        if any(etag.value == tag for etag in request.if_none_match or ()):
            response = web.Response(status=304)
        else:
            response = web.Response(body=body, content_type=kind, charset="utf-8")
        response.etag = tag
        response.headers["Cache-Control"] = "no-cache"
        return response

    return page
