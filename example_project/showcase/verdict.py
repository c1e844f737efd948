"""Whether the crawl kept its promises, and in plain words what is wrong if not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shop_site.catalogue import Catalogue
from showcase.observation import FrontierView, SiteLog


@dataclass(frozen=True)
class Check:
    """One promise: what was expected, what was found, and the complaint if it was not kept."""

    name: str
    expected: str
    found: str
    complaint: str = ""


@dataclass(frozen=True)
class Killed:
    """The worker that was killed, and the requests that it held at that moment."""

    pid: int
    held: int


@dataclass(frozen=True)
class Outcome:
    """All that is known at the end. ``pages`` and ``books`` are the paths of all rows there,
    ``reasons`` with which each worker that was not killed ended."""

    shop: Catalogue
    site: SiteLog
    frontier: FrontierView
    pages: Sequence[str]
    books: Sequence[str]
    reasons: Sequence[str]
    killed: Killed | None
    kill_wanted: bool


def judge(outcome: Outcome) -> list[Check]:
    """All checks, kept or not."""
    shop, site = outcome.shop, outcome.site
    doubled = sum(len(rows) - len(set(rows)) for rows in (outcome.pages, outcome.books))
    return [
        _complete("rows of pages", set(shop.pages), outcome.pages),
        _complete("rows of books", {book.path for book in shop.books}, outcome.books),
        _none("rows doubled", doubled, "rows are in the database twice"),
        _fetched_twice(site, outcome.killed),
        _none("links left out", site.untried, "redirects or dead links were never tried"),
        _none(
            "unknown URLs",
            len(site.unknown),
            f"URLs were asked for that the site does not link to: {_some(site.unknown)}",
        ),
        _none("left in the frontier", outcome.frontier.left, "requests are left in the frontier"),
        _none("dead letters", outcome.frontier.dead, "requests became dead letters"),
        _endings(outcome),
    ]


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")


def _none(name: str, number: int, complaint: str) -> Check:
    return Check(name, "0", f"{number:,}", f"{number:,} {complaint}" if number else "")


def _complete(name: str, expected: set[str], found: Sequence[str]) -> Check:
    complaint = ""
    if lost := expected.difference(found):
        complaint = f"{name}: {len(lost):,} are missing in the database: {_some(lost)}"
    elif surplus := set(found) - expected:
        complaint = f"{name}: {len(surplus):,} do not belong there: {_some(surplus)}"
    return Check(name, f"{len(expected):,}", f"{len(found):,}", complaint)


def _fetched_twice(site: SiteLog, killed: Killed | None) -> Check:
    """Only what the killed worker held may be fetched again, and only once."""
    held, again = killed.held if killed else 0, len(site.repeated)
    without_need = [
        path
        for path, pids in site.repeated.items()
        if killed is None or len(pids) > 2 or pids[0] != killed.pid
    ]
    complaint = ""
    if without_need:
        complaint = (
            f"{len(without_need):,} URLs were fetched twice that the killed worker did not hold: "
            + _some(without_need)
        )
    elif again > held:
        complaint = f"{again:,} URLs were fetched twice, but the killed worker held {held:,}"
    expected = f"at most {held:,}, held by the killed worker" if killed else "0"
    return Check("fetched twice", expected, f"{again:,}", complaint)


def _endings(outcome: Outcome) -> Check:
    wrong = [reason for reason in outcome.reasons if reason != "finished"]
    complaint = ""
    if wrong:
        complaint = f"{len(wrong)} of the workers did not end with 'finished': {_some(wrong)}"
    elif outcome.kill_wanted and outcome.killed is None:
        complaint = "no worker was killed: the crawl was over before half of the pages were fetched"
    ended = ", ".join(sorted(set(outcome.reasons))) or "none"
    return Check("exit reasons", "finished", ended, complaint)
