"""The routes of the dashboard, and what is opened and closed with them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from importlib import resources

import redis
from aiohttp import web

from scrapy_redisq.errors import FrontierError, RedisqError
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.ops.dashboard import changes, reads, streams
from scrapy_redisq.ops.dashboard.crawls import Crawls, NoCrawl
from scrapy_redisq.ops.dashboard.guard import DATA, MOST_BODY, Rules, add_headers, guarded
from scrapy_redisq.ops.dashboard.reads import CRAWLS, RULES
from scrapy_redisq.ops.dashboard.streams import CLOSING, OPEN
from scrapy_redisq.ops.metrics import exporter
from scrapy_redisq.ops.serving import Handler, NoThread

logger = logging.getLogger(__name__)

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


def make_app(crawls: Crawls, rules: Rules) -> web.Application:
    """The dashboard of these crawls, which are closed with it."""
    app = web.Application(
        middlewares=[in_json, guarded(rules)],
        client_max_size=MOST_BODY,
    )
    app[CRAWLS], app[RULES], app[exporter.PROGRAMS] = crawls, rules, crawls.programs
    app[CLOSING], app[OPEN] = asyncio.Event(), set()
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(_end_streams)
    app.cleanup_ctx.append(_closed)
    for module in (reads, changes, streams, exporter):
        app.add_routes(module.routes)
    app.add_routes(pages())
    return app


async def _end_streams(app: web.Application) -> None:
    app[CLOSING].set()


async def _closed(app: web.Application) -> AsyncIterator[None]:
    yield
    app[CRAWLS].close()


@web.middleware
async def in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as ``{"error": …}``, with the status that they have for whoever asked."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if not request.path.startswith(DATA):
            raise
        status, text = error.status, error.text or error.reason
        headers = {
            name: value
            for name, value in error.headers.items()
            if name in ("WWW-Authenticate", "Allow")
        }
        return web.json_response({"error": text}, status=status, headers=headers)
    except NoCrawl as problem:
        status, text = 404, str(problem)
    except (redis.RedisError, NoThread, *TROUBLE) as problem:
        status, text = 503, request.app[CRAWLS].redact(problem)
    except FrontierError as problem:
        status, text = 409, request.app[CRAWLS].redact(problem)
    except (ValueError, RedisqError) as problem:
        status, text = 400, request.app[CRAWLS].redact(problem)
    except Exception:
        logger.exception("%s %s", request.method, request.path)
        status, text = 500, "the dashboard failed: its log says how"
    return web.json_response({"error": text}, status=status)


def pages() -> list[web.RouteDef]:
    """The static files, which are few, small, and kept in memory: no path leads anywhere else."""
    folder = resources.files(__package__) / "static"
    routes = []
    for file in folder.iterdir():
        if file.is_file():
            body, kind = file.read_bytes(), TYPES[file.name.rpartition(".")[2]]
            path = "/" if file.name == "index.html" else f"/{file.name}"
            routes.append(web.get(path, _page(body, kind)))
    return routes


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
