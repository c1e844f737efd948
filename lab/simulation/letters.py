"""Dead letters of a crawl, and budgets, by which requests become some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scrapy_redisq.control import Frontier
from scrapy_redisq.serialization.request_fields import loads_fields
from scrapy_redisq.server.connection import open_server

if TYPE_CHECKING:
    from lab.simulation.world import World

NEVER_STORED = ("?hidden", "?moved", "?deeper", "?shared", "?own", "?side", "robots.txt")
"""In names of requests that stay in their process, or are of none."""

REFUSED = ("budget", "deliveries")
"""Reasons of a page's dead letter by which nothing that it asks for is there."""


class Letter(NamedTuple):
    """``is_page``: not one of the other requests that have the URL of a page."""

    url: str
    reason: str
    is_page: bool = False


def dead_letters(world: World) -> list[Letter]:
    found = []
    with Frontier(open_server(world.network.url), "sim") as frontier:
        for letter in frontier.dead():
            try:
                fields = loads_fields(letter.entry)
            except Exception:
                fields = {"url": "?"}
            url = str(fields["url"])
            is_page = "cb_kwargs" not in fields and url.rpartition("/")[2].isdecimal()
            found.append(Letter(url, letter.reason, is_page))
    return found


def refused_pages(world: World, letters: list[Letter]) -> set[int]:
    """Pages that a budget has refused, or whose workers have died too often: also of others."""
    refused = [letter for letter in letters if letter.reason in REFUSED and letter.is_page]
    numbers = {int(letter.url.rpartition("/")[2]) for letter in refused}
    # One that was done before its server lost that had asked for what others then did not.
    return world.site.led_to(numbers) if world.losses else numbers


def over_budgets(world: World, letters: list[Letter]) -> Iterator[str]:
    """A host gets no more than its budget, nor a page; and nothing is refused without need."""
    yield from _of_hosts(world, letters)
    yield from _of_pages(world, letters)
    any_budget = {"slot_budget", "page_budget"} & world.plan.features
    if not any_budget and any(letter.reason == "budget" for letter in letters):
        yield "refused: for no budget"


def _of_hosts(world: World, letters: list[Letter]) -> Iterator[str]:
    settings = world.plan.settings
    hosts = {f"h{n}.sim": settings.get("REDISQ_SLOT_BUDGET", 0) for n in range(world.plan.hosts)}
    for host, limit in settings.get("REDISQ_SLOT_LIMITS", {}).items():
        hosts[host] = limit["budget"]
    # A run takes in no more; what the server forgets, it takes in again. A push may be earlier.
    times = len(world.network.begun) + len(world.losses)
    more = world.people.pushed + world.people.requeued
    for host, budget in hosts.items():
        fetches = [name for _, where, name, _ in world.site.log if where == host]
        names = {name for name in fetches if not any(one in name for one in NEVER_STORED)}
        if budget and len(names) > budget * times + more:
            yield f"budget: {len(names)} requests of {host}, {budget} allowed ({times}, {more})"
        is_refused = any(f"/{host}/" in one.url for one in letters if one.reason == "budget")
        if is_refused and len(fetches) < budget and "page_budget" not in world.plan.features:
            yield f"refused: after {len(fetches)} requests of {host}, {budget} allowed"


def _of_pages(world: World, letters: list[Letter]) -> Iterator[str]:
    if not (budget := world.plan.settings.get("REDISQ_PAGE_BUDGET")):
        return
    site = world.site
    for page in site.pages:
        own = (f"{page.number}parse_leaf", f'{page.number}parse_chain{{"n": 0}}')
        found = [name for name in site.hits if name.startswith(own)]
        if len(found) > budget * site.hits[str(page.number)] + world.people.requeued:
            yield f"budget: page {page.number} has got {found}, {budget} allowed"
    greedy = [page for page in site.pages if page.most_requests > budget]
    wanted = {page.url for page in greedy}
    wanted |= {site.pages[link].url for page in greedy for link in page.links}
    refused = {one.url.partition("?")[0] for one in letters if one.reason == "budget"}
    if "slot_budget" not in world.plan.features and refused - wanted:
        yield f"refused: {sorted(refused - wanted)[:5]}, by no page that asks for so much"
