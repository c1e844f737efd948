"""What POST does: all that people may change, each by a method of `Frontier`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from scrapy_redisq.control import DeadLetter, Frontier
from scrapy_redisq.ops.dashboard.hosts import Host
from scrapy_redisq.ops.dashboard.hosts import Match as HostMatch
from scrapy_redisq.ops.dashboard.letters import Match as LetterMatch
from scrapy_redisq.ops.dashboard.reads import CRAWLS, crawl_of

T = TypeVar("T")

MOST_NAMED = 10_000
"""Hosts or dead letters that one request names."""

routes = web.RouteTableDef()

Names = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_NAMED)]


class HostChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with which hosts: either named, or all that match. Options of a limit as
    REDISQ_SLOT_LIMITS has them; what is left out stays as it is."""

    action: Literal["pause", "resume", "limit", "unlimit", "drop"]
    hosts: Names | None = None
    match: HostMatch | None = None
    delay: float | str | None = None
    concurrency: int | str | None = None
    rate: str | None = None
    burst: int | str | None = None


class WorkerChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to tell which workers: either named, or all that are there."""

    action: Literal["quiet", "work", "stop"]
    ids: Names | None = None
    all: bool = False


class LetterChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with which dead letters: either named, or all that match."""

    action: Literal["requeue", "purge"]
    ids: Names | None = None
    match: LetterMatch | None = None


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


@routes.post("/api/crawls/{name}/hosts")
async def change_hosts(request: web.Request) -> web.Response:
    """-> ``changed``: how many hosts, ``dropped``: how many requests."""
    change = await body_of(request, HostChange)
    if (change.hosts is None) == (change.match is None):
        raise ValueError("takes either hosts or match")
    crawl = await crawl_of(request)
    is_one = change.hosts is not None and len(change.hosts) == 1
    options = _limits_in(change)

    def do() -> dict[str, Any]:
        frontier = crawl.frontier if is_one else crawl.silent.for_many()
        act = _host_action(frontier, change, options)
        changed = dropped = 0
        try:
            for slot in _hosts_of(crawl.frontier, change):
                dropped += act(slot)
                changed += 1
        finally:
            if changed and not is_one:
                crawl.frontier.note(change.action, _which(change), changed)
        return {"changed": changed, "dropped": dropped}

    try:
        told = await request.app[CRAWLS].run(do)
    finally:
        crawl.changed()
    return web.json_response(told)


def _which(change: HostChange) -> str:
    """The hosts, as the action log has them."""
    if change.hosts is not None:
        return f"hosts: {', '.join(change.hosts[:3])}{' …' * (len(change.hosts) > 3)}"
    assert change.match is not None
    text, state = change.match.q, change.match.state
    words = [f"with {text!r} in their name"] * bool(text) + [f"that are {state}"] * bool(state)
    return " ".join(["hosts", *words]) if words else "all hosts"


def _hosts_of(frontier: Frontier, change: HostChange) -> Iterable[str]:
    if change.hosts is not None:
        return list(dict.fromkeys(change.hosts))
    assert change.match is not None
    match = change.match
    # All of them before the first is changed, which may move other hosts in the list.
    return [slot.slot for slot in frontier.slots() if match(Host.of(slot))]


def _limits_in(change: HostChange) -> dict[str, Any]:
    """The options of `Frontier.limit`. Raises ValueError if they do not belong to the action."""
    given = {name: getattr(change, name) for name in ("delay", "concurrency", "rate", "burst")}
    options = {name: value for name, value in given.items() if value is not None}
    if bool(options) != (change.action == "limit"):
        raise ValueError("delay, concurrency, rate and burst are what limit takes, at least one")
    return options


def _host_action(
    frontier: Frontier, change: HostChange, options: Mapping[str, Any]
) -> Callable[[str], int]:
    """What is done to one host; -> how many requests it dropped."""
    if change.action == "drop":
        return frontier.drop
    actions: dict[str, Callable[[str], Any]] = {
        "pause": frontier.pause,
        "resume": frontier.resume,
        "unlimit": frontier.unlimit,
        "limit": lambda slot: frontier.limit(slot, **options),
    }
    act = actions[change.action]

    def without_count(slot: str) -> int:
        act(slot)
        return 0

    return without_count


@routes.post("/api/crawls/{name}/workers")
async def change_workers(request: web.Request) -> web.Response:
    """-> ``changed``: how many workers were told."""
    change = await body_of(request, WorkerChange)
    if (change.ids is None) != change.all:
        raise ValueError("takes either ids, or all")
    crawl = await crawl_of(request)
    changed = await request.app[CRAWLS].run(lambda: crawl.frontier.tell(change.action, change.ids))
    crawl.changed()
    return web.json_response({"changed": changed})


@routes.post("/api/crawls/{name}/dead")
async def change_letters(request: web.Request) -> web.Response:
    """-> ``changed``: how many dead letters."""
    change = await body_of(request, LetterChange)
    if (change.ids is None) == (change.match is None):
        raise ValueError("takes either ids or match")
    crawl = await crawl_of(request)

    def do() -> int:
        found = _letters_of(crawl.frontier, change)
        if change.action == "requeue":
            return crawl.frontier.requeue_same(found)
        return len(crawl.frontier.purge_same(found))

    try:
        changed = await request.app[CRAWLS].run(do)
    finally:
        crawl.changed()
    return web.json_response({"changed": changed})


def _letters_of(frontier: Frontier, change: LetterChange) -> Iterator[DeadLetter]:
    if change.ids is not None:
        return frontier.dead_letters(change.ids)
    assert change.match is not None
    match = change.match
    return (letter for letter in frontier.dead() if match(letter))


@routes.post("/api/crawls/{name}/url")
async def change_url(request: web.Request) -> web.Response:
    """-> what is known of the URL; after "fetch" with ``how``, after "forget" ``forgotten``."""
    change = await body_of(request, UrlChange)
    crawls = request.app[CRAWLS]
    name = request.match_info["name"]
    frontier = await crawls.to_push(name)

    def do() -> dict[str, Any]:
        if change.action == "fetch":
            return frontier.fetch_again(change.url, slot=change.slot)
        forgotten = frontier.forget(change.url, slot=change.slot)
        return {**frontier.url(change.url, slot=change.slot), "forgotten": forgotten}

    told = await crawls.run(do)
    (await crawls.crawl(name)).changed()
    return web.json_response(told)


@routes.post("/api/crawls/{name}/push")
async def push(request: web.Request) -> web.Response:
    """-> ``accepted``, ``duplicates``, ``errors`` ([number from 1, what is wrong])."""
    requests = (await body_of(request, Push)).requests
    crawls = request.app[CRAWLS]
    name = request.match_info["name"]
    frontier = await crawls.to_push(name)
    pushed = await crawls.run(lambda: frontier.push(requests))
    (await crawls.crawl(name)).changed()
    return web.json_response(
        {
            "accepted": pushed.accepted,
            "duplicates": pushed.duplicates,
            "errors": [list(error) for error in pushed.errors],
        }
    )
