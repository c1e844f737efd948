"""Changes by POST: all that people may change, each by a method of `Frontier`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.dashboard.lists import HostMatch, LetterMatch
from scrapy_redisq.ops.dashboard.reads import CRAWLS, crawl_of

T = TypeVar("T")

MOST_NAMED = 10_000
"""Hosts or dead letters that one request names."""

LIMITS = ("delay", "concurrency", "rate", "burst")

routes = web.RouteTableDef()

Names = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_NAMED)]


class HostChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of hosts: either of those named, or of all that match, unless these are more than
    ``most``. Options of a limit as REDISQ_SLOT_LIMITS has them; what is left out stays as it is."""

    action: Literal["pause", "resume", "limit", "unlimit", "drop"]
    hosts: Names | None = None
    match: HostMatch | None = None
    most: int | None = None
    delay: float | str | None = None
    concurrency: int | str | None = None
    rate: str | None = None
    burst: int | str | None = None


class WorkerChange(msgspec.Struct, forbid_unknown_fields=True):
    """An order to workers: either to those named, or to all that are there."""

    action: Literal["quiet", "work", "stop"]
    ids: Names | None = None
    all: bool = False


class LetterChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of dead letters: either of those named, or of all that match, unless these are more
    than ``most``."""

    action: Literal["requeue", "purge"]
    ids: Names | None = None
    match: LetterMatch | None = None
    most: int | None = None


class UrlChange(msgspec.Struct, forbid_unknown_fields=True):
    """``slot`` if the request has a ``download_slot`` of its own."""

    action: Literal["forget", "fetch"]
    url: str
    slot: str | None = None


class Push(msgspec.Struct, forbid_unknown_fields=True):
    """URLs, or mappings of fields as `Frontier.push` takes them."""

    requests: Annotated[list[str | dict[str, Any]], msgspec.Meta(min_length=1)]


async def body_of(request: web.Request, kind: type[T]) -> T:
    """The body, checked. Raises ValueError with what is wrong with it."""
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not what this takes: {error}") from None


def check_most(matching: int, most: int | None) -> None:
    """Raise ValueError if more match than a person has seen."""
    if most is not None and matching > most:
        raise ValueError(f"{matching:,} match by now, not {most:,}: look again")


async def change(request: web.Request, do: Callable[[], Any]) -> web.Response:
    """The reply of ``do``, run in a thread; the crawl is looked at anew after it."""
    crawl = await crawl_of(request)
    try:
        return web.json_response(await request.app[CRAWLS].run(do))
    finally:
        crawl.changed()


@routes.post("/api/crawls/{name}/hosts")
async def change_hosts(request: web.Request) -> web.Response:
    """-> ``changed``: how many hosts, ``dropped``: how many requests."""
    given = await body_of(request, HostChange)
    if (given.hosts is None) == (given.match is None):
        raise ValueError("takes either hosts or match")
    options = {name: value for name in LIMITS if (value := getattr(given, name)) is not None}
    if bool(options) != (given.action == "limit"):
        raise ValueError("delay, concurrency, rate and burst are what limit takes, at least one")
    frontier = (await crawl_of(request)).frontier
    return await change(request, lambda: _rule(frontier, given, options))


def _rule(frontier: Frontier, given: HostChange, options: dict[str, Any]) -> dict[str, Any]:
    """Many hosts are one line of the action log."""
    if given.match is not None:
        # All of them before the first is changed, which may move other hosts in the list.
        slots = [slot.slot for slot in frontier.slots() if given.match(slot)]
        check_most(len(slots), given.most)
        which, acting = str(given.match), frontier.for_many()
    else:
        slots = list(dict.fromkeys(given.hosts or ()))
        which = f"hosts: {', '.join(slots[:3])}{' …' * (len(slots) > 3)}"
        acting = frontier.for_many() if len(slots) > 1 else frontier
    if acting is not frontier:
        acting.by = ""
    act = getattr(acting, given.action)
    changed = dropped = 0
    try:
        for slot in slots:
            told = act(slot, **options)
            dropped += told if given.action == "drop" else 0
            changed += 1
    finally:
        if acting is not frontier:
            frontier.note(given.action, which, changed)
    return {"changed": changed, "dropped": dropped}


@routes.post("/api/crawls/{name}/workers")
async def change_workers(request: web.Request) -> web.Response:
    """-> ``changed``: how many workers were told."""
    given = await body_of(request, WorkerChange)
    if (given.ids is None) != given.all:
        raise ValueError("takes either ids, or all")
    frontier = (await crawl_of(request)).frontier
    return await change(request, lambda: {"changed": frontier.tell(given.action, given.ids)})


@routes.post("/api/crawls/{name}/dead")
async def change_letters(request: web.Request) -> web.Response:
    """-> ``changed``: how many dead letters."""
    given = await body_of(request, LetterChange)
    if (given.ids is None) == (given.match is None):
        raise ValueError("takes either ids or match")
    frontier = (await crawl_of(request)).frontier

    def do() -> dict[str, int]:
        ids = given.ids
        if given.match is not None:
            ids = [letter.id for letter in frontier.dead() if given.match(letter)]
            check_most(len(ids), given.most)
        meant = frontier.dead_letters(ids or ())
        if given.action == "requeue":
            return {"changed": frontier.requeue_same(meant)}
        return {"changed": len(frontier.purge_same(meant))}

    return await change(request, do)


@routes.post("/api/crawls/{name}/url")
async def change_url(request: web.Request) -> web.Response:
    """-> what is known of the URL; after "fetch" with ``how``, after "forget" ``forgotten``."""
    given = await body_of(request, UrlChange)
    frontier = await request.app[CRAWLS].to_push(request.match_info["name"])

    def do() -> dict[str, Any]:
        if given.action == "fetch":
            return frontier.fetch_again(given.url, slot=given.slot)
        forgotten = frontier.forget(given.url, slot=given.slot)
        return {**frontier.url(given.url, slot=given.slot), "forgotten": forgotten}

    return await change(request, do)


@routes.post("/api/crawls/{name}/push")
async def push(request: web.Request) -> web.Response:
    """-> ``accepted``, ``duplicates``, ``errors`` ([number from 1, what is wrong])."""
    given = await body_of(request, Push)
    frontier = await request.app[CRAWLS].to_push(request.match_info["name"])
    return await change(request, lambda: asdict(frontier.push(given.requests)))
