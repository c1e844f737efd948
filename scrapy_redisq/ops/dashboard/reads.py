"""Answers of GET: JSON from Redis, which all viewers share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec
from aiohttp import web

from scrapy_redisq.control import DeadLetter
from scrapy_redisq.ops.dashboard import lists
from scrapy_redisq.ops.dashboard.crawls import Crawl, Crawls
from scrapy_redisq.ops.dashboard.guard import SESSION, Rules
from scrapy_redisq.ops.dashboard.shared import Shared

T = TypeVar("T")

CRAWLS: web.AppKey[Crawls] = web.AppKey("crawls", Crawls)
RULES: web.AppKey[Rules] = web.AppKey("rules", Rules)

MOST_ROWS = 500
"""Rows of one page."""

EXPORT_BATCH = 500
"""Dead letters that are read and sent at a time."""

routes = web.RouteTableDef()


async def crawl_of(request: web.Request) -> Crawl:
    """The crawl that the path names. Raises `NoCrawl`, and what Redis' client does."""
    return await request.app[CRAWLS].crawl(request.match_info["name"])


async def answer(request: web.Request, look: Callable[[], Any]) -> web.Response:
    """Answer with the result of ``look``, in a thread."""
    return web.json_response(await request.app[CRAWLS].run(look))


async def answer_shared(look: Shared[Any]) -> web.Response:
    """Answer with a look that all viewers share."""
    return web.json_response(await look.told())


@routes.get(SESSION)
async def session(request: web.Request) -> web.Response:
    return web.json_response({"read_only": request.app[RULES].read_only})


@routes.get("/api/crawls")
async def overview(request: web.Request) -> web.Response:
    return web.json_response(await request.app[CRAWLS].overview())


@routes.get("/api/servers")
async def servers(request: web.Request) -> web.Response:
    return await answer_shared(request.app[CRAWLS].servers)


@routes.get("/api/doctor")
async def doctor(request: web.Request) -> web.Response:
    return await answer_shared(request.app[CRAWLS].doctor)


@routes.get("/api/crawls/{name}/doctor")
async def doctor_of_crawl(request: web.Request) -> web.Response:
    return await answer_shared((await crawl_of(request)).doctor)


@routes.get("/api/crawls/{name}")
async def status(request: web.Request) -> web.Response:
    return await answer_shared((await crawl_of(request)).status)


@routes.get("/api/crawls/{name}/memory")
async def memory(request: web.Request) -> web.Response:
    return await answer_shared((await crawl_of(request)).memory)


@routes.get("/api/crawls/{name}/series")
async def series(request: web.Request) -> web.Response:
    resolution = _number(request.query, "resolution", 10, 10_000)
    return await answer_shared((await crawl_of(request)).series(resolution))


@routes.get("/api/crawls/{name}/actions")
async def actions(request: web.Request) -> web.Response:
    frontier = (await crawl_of(request)).frontier
    return await answer(request, lambda: {"actions": frontier.actions()[::-1]})


@routes.get("/api/crawls/{name}/history")
async def history(request: web.Request) -> web.Response:
    frontier = (await crawl_of(request)).frontier
    limit = _number(request.query, "limit", 50, MOST_ROWS)
    return await answer(request, lambda: {"finished": frontier.history(limit)})


@routes.get("/api/crawls/{name}/url")
async def url(request: web.Request) -> web.Response:
    frontier = await request.app[CRAWLS].to_push(request.match_info["name"])
    given, slot = request.query.get("url", ""), request.query.get("slot") or None
    return await answer(request, lambda: frontier.url(given, slot=slot))


# Hosts


@routes.get("/api/crawls/{name}/hosts")
async def list_hosts(request: web.Request) -> web.Response:
    crawl, query = await crawl_of(request), request.query
    match = match_of(query, lists.HostMatch)
    sort = query.get("sort", "queued")
    if sort not in lists.SORTS:
        raise ValueError(f"sort is one of {', '.join(lists.SORTS)}")
    by, largest_first = lists.SORTS[sort]
    descending = query.get("order", "desc" if largest_first else "asc") == "desc"
    offset, limit = _page(query)
    known, is_all, age = await crawl.hosts.get()

    def choose() -> dict[str, Any]:
        matching = [slot for slot in known if match(slot)]
        page = sorted(matching, key=by, reverse=descending)[offset : offset + limit]
        told = {
            "hosts": [{**slot.to_json(), "states": lists.states_of(slot)} for slot in page],
            "total": len(matching),
            "queued": sum(slot.queued for slot in matching),
            "known": len(known),
            "complete": is_all,
            "age": age,
        }
        return told if offset else {**told, "counts": lists.counts(known)}

    return await answer(request, choose)


@routes.get("/api/crawls/{name}/hosts/{slot:[^/]*}")  # a download_slot may be called anything
async def one_host(request: web.Request) -> web.Response:
    """With what waits, by priority."""
    frontier, slot = (await crawl_of(request)).frontier, request.match_info["slot"]

    def look() -> dict[str, Any]:
        found, priorities = frontier.slot(slot), frontier.slot_queues(slot)
        return {**found.to_json(), "states": lists.states_of(found), "priorities": priorities}

    return await answer(request, look)


# Dead letters


@routes.get("/api/crawls/{name}/dead")
async def list_letters(request: web.Request) -> web.Response:
    crawl, match = await crawl_of(request), match_of(request.query, lists.LetterMatch)
    offset, limit = _page(request.query)
    known, is_all, age = await crawl.letters.get()

    def choose() -> dict[str, Any]:
        matching = [letter for letter in known if match(letter)]
        newest = sorted(matching, key=lambda letter: letter.at, reverse=True)
        ids = [letter.id for letter in newest[offset : offset + limit]]
        found = {letter.id: letter.to_json() for letter in crawl.frontier.dead_letters(ids)}
        return {
            "total": len(matching),
            "letters": [found[letter_id] for letter_id in ids if letter_id in found],
            "groups": lists.groups(known, match),
            "known": len(known),
            "complete": is_all,
            "age": age,
        }

    return await answer(request, choose)


@routes.get("/api/crawls/{name}/dead/export")
async def export(request: web.Request) -> web.StreamResponse:
    """A file as ``dead export`` writes it, of those that match; JSON, one on each line."""
    crawl, match = await crawl_of(request), match_of(request.query, lists.LetterMatch)
    run, frontier = request.app[CRAWLS].run, crawl.frontier
    found = (letter for letter in frontier.dead() if match(letter))
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    # Before the headers: what is wrong is said by the status.
    lines = await run(lambda: _lines(frontier.name, found))
    await response.prepare(request)
    while lines:
        await response.write(lines)
        lines = await run(lambda: _lines(frontier.name, found))
    await response.write_eof()
    return response


def _lines(name: str, found: Iterable[DeadLetter]) -> bytes:
    batch = itertools.islice(found, EXPORT_BATCH)
    return b"".join(json.dumps(letter.exported(name)).encode() + b"\n" for letter in batch)


@routes.get("/api/crawls/{name}/dead/{id}")
async def one_letter(request: web.Request) -> web.Response:
    frontier, letter_id = (await crawl_of(request)).frontier, request.match_info["id"]
    letter = await request.app[CRAWLS].run(lambda: frontier.dead_letter(letter_id))
    if letter is None:
        raise web.HTTPNotFound(text="this dead letter is not there (any more)")
    return web.json_response(letter.to_json())


# What is asked for


def match_of(query: Mapping[str, str], kind: type[T]) -> T:
    """Raises ValueError for a state that there is not, or a status that is no number."""
    given = {name: query[name] for name in get_type_hints(kind) if name in query}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _page(query: Mapping[str, str]) -> tuple[int, int]:
    return _number(query, "offset", 0, 10**9), max(1, _number(query, "limit", 50, MOST_ROWS))


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isdecimal() and len(text) < 12 and int(text) <= most):
        raise ValueError(f"{name} is a whole number up to {most:,}")
    return int(text)
