"""What GET answers: JSON of what Redis has, as all viewers share it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec
from aiohttp import web

from scrapy_redisq.control import DeadLetter
from scrapy_redisq.ops.dashboard import hosts, letters
from scrapy_redisq.ops.dashboard.crawls import Crawl, Crawls, aged
from scrapy_redisq.ops.dashboard.guard import SESSION, Rules

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


@routes.get(SESSION)
async def session(request: web.Request) -> web.Response:
    return web.json_response(request.app[RULES].session())


@routes.get("/api/crawls")
async def overview(request: web.Request) -> web.Response:
    return web.json_response(await request.app[CRAWLS].overview())


@routes.get("/api/servers")
async def servers(request: web.Request) -> web.Response:
    found, age = await request.app[CRAWLS].servers.aged()
    return web.json_response(aged({"servers": found}, age))


@routes.get("/api/doctor")
async def doctor(request: web.Request) -> web.Response:
    return web.json_response(aged(*await request.app[CRAWLS].doctor.aged()))


@routes.get("/api/crawls/{name}/doctor")
async def doctor_of_crawl(request: web.Request) -> web.Response:
    return web.json_response(aged(*await (await crawl_of(request)).doctor.aged()))


@routes.get("/api/crawls/{name}")
async def status(request: web.Request) -> web.Response:
    return web.json_response(await (await crawl_of(request)).told())


@routes.get("/api/crawls/{name}/series")
async def series(request: web.Request) -> web.Response:
    resolution = _number(request.query, "resolution", 10, 10_000)
    found = await (await crawl_of(request)).series(resolution).aged()
    return web.json_response(aged(*found))


@routes.get("/api/crawls/{name}/actions")
async def actions(request: web.Request) -> web.Response:
    frontier = (await crawl_of(request)).frontier
    found = await request.app[CRAWLS].run(frontier.actions)
    return web.json_response({"actions": found[::-1]})


@routes.get("/api/crawls/{name}/history")
async def history(request: web.Request) -> web.Response:
    frontier = (await crawl_of(request)).frontier
    limit = _number(request.query, "limit", 50, MOST_ROWS)
    found = await request.app[CRAWLS].run(lambda: frontier.history(limit))
    return web.json_response({"finished": found})


@routes.get("/api/crawls/{name}/memory")
async def memory(request: web.Request) -> web.Response:
    return web.json_response(aged(*await (await crawl_of(request)).memory.aged()))


# Hosts


@routes.get("/api/crawls/{name}/hosts")
async def list_hosts(request: web.Request) -> web.Response:
    """The page is chosen of a list that may be some seconds old, its rows are read now."""
    crawl, query = await crawl_of(request), request.query
    match = match_of(query, hosts.Match)
    sort = query.get("sort", "queued")
    if sort not in hosts.SORTS:
        raise ValueError(f"sort is one of {', '.join(hosts.SORTS)}")
    descending = query.get("order", "desc" if hosts.SORTS[sort][1] else "asc") == "desc"
    offset, limit = _page(query)
    known, is_all = await crawl.hosts.get()
    terms = sort, descending

    def choose() -> dict[str, Any]:
        matching = known if match == hosts.Match() else [host for host in known if match(host)]
        page = hosts.page_of(matching, *terms, offset, limit)
        found = {slot.slot: slot for slot in crawl.frontier.named_slots(row.slot for row in page)}
        now = hosts.page_of([hosts.Host.of(slot) for slot in found.values()], *terms, 0, limit)
        rows = [{**found[row.slot].to_json(), "states": row.states} for row in now]
        told = {"hosts": rows, "total": len(matching), "known": len(known), "complete": is_all}
        return {**told, "queued": sum(host.queued for host in matching)}

    told = aged(await request.app[CRAWLS].run(choose), crawl.hosts.age)
    if offset == 0:
        told["counts"] = await request.app[CRAWLS].run(lambda: hosts.counts(known))
    return web.json_response(told)


@routes.get("/api/crawls/{name}/hosts/{slot:[^/]*}")  # a download_slot may be called anything
async def one_host(request: web.Request) -> web.Response:
    """With what waits, by priority."""
    frontier = (await crawl_of(request)).frontier
    slot = request.match_info["slot"]

    def look() -> dict[str, Any]:
        found = frontier.slot(slot)
        return {
            **found.to_json(),
            "states": hosts.states_of(found),
            "priorities": frontier.slot_queues(slot),
        }

    return web.json_response(await request.app[CRAWLS].run(look))


# Dead letters


@routes.get("/api/crawls/{name}/dead")
async def list_letters(request: web.Request) -> web.Response:
    crawl, match = await crawl_of(request), match_of(request.query, letters.Match)
    offset, limit = _page(request.query)
    known, is_all = await crawl.letters.get()

    def choose() -> dict[str, Any]:
        matching = known if match == letters.Match() else [x for x in known if match(x)]
        newest = sorted(matching, key=lambda letter: letter.at, reverse=True)
        ids = [letter.id for letter in newest[offset : offset + limit]]
        found = {letter.id: letter.to_json() for letter in crawl.frontier.dead_letters(ids)}
        return {
            "total": len(matching),
            "letters": [found[letter_id] for letter_id in ids if letter_id in found],
            "groups": letters.groups(known, match),
            "known": len(known),
            "complete": is_all,
        }

    told = await request.app[CRAWLS].run(choose)
    return web.json_response(aged(told, crawl.letters.age))


@routes.get("/api/crawls/{name}/dead/export")
async def export(request: web.Request) -> web.StreamResponse:
    """A file as ``dead export`` writes it, of those that match; JSON, one on each line."""
    crawl, match = await crawl_of(request), match_of(request.query, letters.Match)
    run = request.app[CRAWLS].run
    found = (letter for letter in crawl.frontier.dead() if match(letter))
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    lines = await run(lambda: _lines(crawl.frontier.name, found))
    await response.prepare(request)
    while lines:
        await response.write(lines)
        lines = await run(lambda: _lines(crawl.frontier.name, found))
    await response.write_eof()
    return response


def _lines(name: str, found: Iterable[DeadLetter]) -> bytes:
    batch = itertools.islice(found, EXPORT_BATCH)
    return b"".join(json.dumps(letter.exported(name)).encode() + b"\n" for letter in batch)


@routes.get("/api/crawls/{name}/dead/{id}")
async def one_letter(request: web.Request) -> web.Response:
    frontier = (await crawl_of(request)).frontier
    letter = await request.app[CRAWLS].run(
        lambda: frontier.dead_letter(request.match_info["id"]),
    )
    if letter is None:
        raise web.HTTPNotFound(text="this dead letter is not there (any more)")
    return web.json_response(letter.to_json())


# URLs


@routes.get("/api/crawls/{name}/url")
async def url(request: web.Request) -> web.Response:
    crawls = request.app[CRAWLS]
    frontier = await crawls.to_push(request.match_info["name"])
    given, slot = request.query.get("url", ""), request.query.get("slot") or None
    return web.json_response(await crawls.run(lambda: frontier.url(given, slot=slot)))


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
