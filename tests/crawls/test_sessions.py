"""Requests that stay with the page that asks for them: ``meta["redisq_session"]``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.servers import wait_until
from lab.site import Answer, Site, address
from tests.harness.crawl import Run, finish


def linked(**pages: str) -> Callable[[str], str]:
    """A site of pages with links, by their names."""

    def page(path: str) -> str:
        links = pages.get(path.strip("/"), "").split()
        return "".join(f'<a href="{link}">x</a>' for link in links)

    return page


def test_its_links(crawl: Run, tmp_path: Path) -> None:
    """A session fetches each URL once, also that of a page which asked for it and is not of it. It
    fetches no file of the worker's machine."""
    (tmp_path / "secret").touch()
    pages = {"hub": "/account", "account": f"/hub /account /in file://{tmp_path}/secret"}
    with Site(linked(**pages)) as site, crawl.frontier("sessions") as frontier:
        frontier.push([f"{site.url}/hub"])
        worker = crawl("sessions", site)
        finish([worker])
        assert [letter.reason for letter in frontier.dead()] == ["scheme"]
    assert site.counts() == {"/hub": 2, "/account": 1, "/in": 1}
    assert "secret" not in str(worker.items())


def test_its_end(crawl: Run) -> None:
    """When the first page of a session comes again, so do the others, though the worker that had
    them has it again."""
    with Site(linked(login="/in /login")) as site, crawl.frontier("sessions") as frontier:
        frontier.push([{"url": f"{site.url}/login", "meta": {"redisq_session": "a"}}], every=1)
        crawl("sessions", site)
        wait_until(lambda: site.counts()["/in"] >= 3, 30, "sessions")
        assert site.counts()["/login"] <= site.counts()["/in"] + 1


def test_it_leaves_places_to_others(crawl: Run) -> None:
    """One of its links at a time waits for its host's turn; other hosts have the other places."""
    links = " ".join(f"/p{n}" for n in range(30))
    settings = {
        "CONCURRENT_REQUESTS": 4,
        "REDISQ_SLOT_LIMITS": json.dumps({address(0): {"delay": 20}}),
    }
    with Site(linked(hub=links), hosts=2) as site, crawl.frontier("sessions") as frontier:
        slow, fast = site.urls(2).split()
        frontier.push([{"url": f"{slow}/hub", "meta": {"redisq_session": "a"}}, f"{fast}/hub"])
        crawl("sessions", site, settings=settings)
        wait_until(lambda: len(site.starts().get(address(1), ())) == 31, 15, "the other host")


@pytest.mark.parametrize(("places", "stored_by_then"), [(2, 5), (6, 15)])
def test_it_takes_turns_with_others(crawl: Run, places: int, stored_by_then: int) -> None:
    """Without limits, too: hosts of sessions could keep all places busy until these end."""
    page = linked(hub=" ".join(f"/p{n}" for n in range(40)))
    with (
        Site(lambda path: Answer(page(path), delay=0.05), hosts=3) as site,
        crawl.frontier("sessions") as frontier,
    ):
        *kept, stored = site.urls(3).split()
        sessions = [{"url": f"{url}/hub", "meta": {"redisq_session": url}} for url in kept]
        frontier.push(sessions)
        worker = crawl("sessions", site, settings={"CONCURRENT_REQUESTS": places})
        wait_until(lambda: len(site.hits) > 6, 15, "all places are taken")
        frontier.push([f"{stored}/hub"])
        finish([worker])
        at = site.starts(41)
        assert at[address(2)][stored_by_then] < at[address(0)][30]


def test_its_worker_dies(crawl: Run) -> None:
    """The spider is asked how a session goes on in the next worker, and what it does not renew is
    a dead letter. One that is begun again after that is not lost."""
    paths = ("gone", "other", "raises", "renewed")
    settings = {"REDISQ_LEASE_TTL": 3}

    def page(path: str) -> Answer | str:
        if path.startswith("/in-"):
            return Answer("", delay=0 if site.counts()[path] > 1 else 60)
        return f'<a href="/in-{path[1:]}">x</a>'

    with Site(page) as site, crawl.frontier("losing") as frontier:
        frontier.push(
            [{"url": f"{site.url}/{name}", "meta": {"redisq_session": name}} for name in paths]
        )
        first = crawl("losing", site, settings=settings)
        wait_until(lambda: len(site.hits) == 8, 30, "all sessions")
        first.kill()
        finish([crawl("losing", site, settings=settings)])
        began = [(hit.path, hit.headers.get("begun")) for hit in site.hits[8:]]
        assert began == [("/renewed", "anew"), ("/in-renewed", None)]
        letters = {
            letter.detail.partition("\n")[0] for letter in frontier.dead(reason="session_lost")
        }
        assert letters == {
            "session_lost() has given it up",
            "builtins.ValueError: no more accounts",
            f"builtins.ValueError: session_lost() returned <GET {site.url}/other?again>: it takes "
            "the same request (URL, method and body), or None",
        }
        assert frontier.requeue() == 3
        finish([crawl("losing", site, settings=settings)])
    assert set(site.counts().values()) == {2}
