"""Workers that differ, come and go, and pages that lead elsewhere."""

from __future__ import annotations

import itertools
import json
import shutil
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import tldextract

from lab.servers import wait_until
from lab.site import Answer, Hit, Site
from tests.dashboard.browser import FLAGS
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, Page, Rig
from tests.harness.crawl import install


def test_f32_one_closes_early(rig: Rig) -> None:
    """One worker stops at CLOSESPIDER_PAGECOUNT: the others and the keys are not affected."""
    rig.set_up(delay=0.02)
    early, *_ = rig.fleet(first={"settings": {"CLOSESPIDER_PAGECOUNT": 50}})
    early.wait()
    assert (early.process.returncode, early.reason) == (0, "closespider_pagecount")
    assert all(worker.running for worker in rig.workers[1:])
    assert rig.status()["created"] >= 50
    rig.gone.append(early)
    rig.finish()
    assert_survived(rig, refetch=0)


def test_f76_a_crawl_that_shares_limits_dies(rig: Rig) -> None:
    """A crawl is killed for good in a host's only download: one that shares the host goes on."""
    both = {"REDISQ_LIMITS_NAME": "both", "REDISQ_SLOT_CONCURRENCY": 1}
    rig.set_up(pages=int(rig.size.pick(40, 500)), **both)
    quick, hangs = rig.site.page, Answer("", until=rig.released)
    rig.site.page = lambda path: hangs
    sink = rig.make_sink(rig.folder / "other.sqlite")
    other = rig.worker(settings={"REDISQ_FRONTIER": "other", "SINK": sink})
    wait_until(lambda: rig.site.hits, 30, "a download that hangs")
    rig.site.page = quick
    survivor = rig.worker()
    survivor.wait_for("; dupefilter: ")
    rig.kill(other)
    rig.finish()
    assert survivor.reason == "finished"
    assert len(rig.rows()) == rig.pages
    ends = [(hit.ended, -1) for hit in rig.site.hits]
    steps = sorted([*ends, *((hit.at, 1) for hit in rig.site.hits)])
    assert max(itertools.accumulate(step for _, step in steps)) == 1


def in_sessions(sessions: int, pages: int, delay: float) -> Page:
    """A site of as many trees, whose pages have the cookie of the last visit to their root."""
    logins = Counter[int]()

    def page(path: str) -> Answer | None:
        place, session = divmod(int(path[1:]), sessions)
        links = [session + sessions * (2 * place + n) for n in (1, 2)]
        anchors = [f'<a href="/{link}">x</a>' for link in links if link < pages]
        # A browser would ask for an icon.
        head = '<head><link rel="icon" href="data:,"></head>'
        answer = Answer(f"<html>{head}<body>{''.join(anchors)}</body></html>", delay=delay)
        if not place:
            logins[session] += 1
            answer.headers["Set-Cookie"] = f"login={session}-{logins[session]}"
        return answer

    return page


def assert_each_with_its_login(rig: Rig, sessions: int) -> None:
    """Each session was begun as often as the spider was told that it was lost, and pages came with
    the cookie of its last beginning."""
    begun, strangers = Counter[int](), 0
    for hit in sorted(rig.site.hits, key=lambda hit: hit.at):
        place, session = divmod(int(hit.path[1:]), sessions)
        if place:
            strangers += hit.headers.get("cookie") != f"login={session}-{begun[session]}"
        else:
            begun[session] += 1
            # Its first worker may have died with it before.
            assert begun[session] == 1 or "begun" in hit.headers
    assert 0 < sum(begun.values()) - sessions <= times_lost(rig)
    assert strangers == 0 or any("leases are void" in worker.log for worker in rig.workers)


def times_lost(rig: Rig) -> int:
    return sum(worker.log.count("Session lost: ") for worker in rig.workers)


def test_f78_sessions(rig: Rig) -> None:
    """Workers are killed in the middle of their sessions: each begins anew with a login of its own,
    which all its pages come with, and the spider is told."""
    sessions, pages = int(rig.size.pick(20, 100)), int(rig.size.pick(200, 4_000))
    page = in_sessions(sessions, pages, rig.size.pick(0.2, 0.1))
    rig.set_up(pages=pages, page=page, ttl=2, hold=True)
    options = {"spider": "in_sessions", "sessions": sessions}
    every, seconds = rig.size.pick(1, 2), rig.size.pick(4, 30)
    rig.keep_killing(rig.fleet(**options), every, seconds, **options)
    rig.finish()
    assert_survived(rig, refetch=None, more_created=sessions - pages)
    assert_each_with_its_login(rig, sessions)


class ZyteAPI(Site):
    """A stand-in, with the pages of a rig. ``asked``: pages, and the sessions that they are of."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(lambda path: rig.site.page(path))  # noqa: PLW0108
        self.asked: list[tuple[str, str]] = []

    def answer(self, hit: Hit) -> Answer:
        fields = json.loads(hit.body)
        path = urlsplit(fields["url"]).path
        self.asked.append((path, fields["session"]["id"]))
        answer = self.page(path)
        assert isinstance(answer, Answer)
        assert isinstance(answer.body, str)
        told = {"url": fields["url"], "statusCode": 200}
        if "browserHtml" in fields:
            told["browserHtml"] = answer.body
        else:
            told["httpResponseBody"] = b64encode(answer.body.encode()).decode()
            told["httpResponseHeaders"] = [{"name": "Content-Type", "value": "text/html"}]
        return replace(answer, body=json.dumps(told), content_type="application/json")


PLAYWRIGHT = ["scrapy-playwright==0.0.48"]
ZYTE = ["scrapy-zyte-api==0.36.0", "zyte-api", "runstats", "tenacity", "tqdm", "brotli"]
ZYTE += ["zyte-common-items", "clear-html", "html-text", "price-parser", "zyte-parsers"]
ZYTE += ["gtin-validator", "lxml-html-clean", "python-stdnum"]
SESSIONS, PAGES = 3, 60


def lose_a_worker(
    rig: Rig, site: Site | None, packages: list[str], settings: dict[str, Any], **options: Any
) -> None:
    """Two workers with a plugin, of which one is killed in the middle of its sessions. They ask the
    rig's site, or another one."""
    folder = install(rig.folder / "packages", *packages)
    page = in_sessions(SESSIONS, PAGES, 0.1)
    rig.set_up(pages=PAGES, page=page, ttl=2, hold=True, **settings)
    options |= {"spider": "in_sessions", "sessions": SESSIONS, "fresh": True}
    options["environment"] = {"PYTHONPATH": str(folder)}
    fleet = rig.fleet(2, **options)
    wait_until(lambda: len((site or rig.site).hits) > PAGES / 3, 60, "some pages")
    rig.kill(fleet[0])
    rig.worker(**options)
    rig.finish()
    assert_survived(rig, refetch=None, more_created=SESSIONS - PAGES)


def test_f78_sessions_of_browsers(rig: Rig) -> None:
    """The same with a context of scrapy-playwright for each session, and one worker killed."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("NO chromium ON THIS MACHINE: see .ci/run")
    tldextract.extract("")  # asks the internet once: where there is none, it would be in the logs
    handler = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
    settings = {
        "DOWNLOAD_HANDLERS": json.dumps({"http": handler, "https": handler}),
        "PLAYWRIGHT_LAUNCH_OPTIONS": json.dumps({"executable_path": path, "args": FLAGS}),
    }
    keys = {"named": "playwright_context", "on": "playwright"}
    lose_a_worker(rig, None, PLAYWRIGHT, settings, **keys)
    assert_each_with_its_login(rig, SESSIONS)


def test_f78_sessions_of_zyte_api(rig: Rig) -> None:
    """The same with a session of scrapy-zyte-api's for each, against a stand-in for the API."""
    with ZyteAPI(rig) as api:
        settings = {
            "ADDONS": json.dumps({"scrapy_redisq.Addon": 500, "scrapy_zyte_api.Addon": 400}),
            "ZYTE_API_URL": f"{api.url}/",
            "ZYTE_API_KEY": "x",
            "ZYTE_API_TRANSPARENT_MODE": True,
            "ZYTE_API_SESSION_ENABLED": True,
            "ZYTE_API_SESSION_POOL_SIZE": 1,
        }
        lose_a_worker(rig, api, ZYTE, settings, named="zyte_api_session_pool")
    ids: dict[int, list[str]] = {}
    for path, id in api.asked:
        ids.setdefault(int(path[1:]) % SESSIONS, []).append(id)
    blocks = [[id for id, _ in itertools.groupby(of_one)] for of_one in ids.values()]
    assert all(len(set(block)) == len(block) for block in blocks), blocks
    assert 0 < sum(map(len, blocks)) - SESSIONS <= times_lost(rig)


@pytest.mark.parametrize("lost", [0, 1])
def test_f79_stats_of_all_workers(rig: Rig, lost: int) -> None:
    """Workers are killed and so is Redis, with its log or without the last second of it: the stats
    of all workers have what was counted in time, and not more than there was. Monitors run once."""
    pytest.importorskip("spidermon")
    extensions = {"crawls.lateness.Starved": 3, "crawls.monitors.OncePerCrawl": 500}
    rig.set_up(
        pages=int(rig.size.pick(300, 4_000)),
        delay=rig.size.pick(0.5, 0.2),
        aof=True,
        ttl=2,
        hold=True,
        EXTENSIONS=json.dumps(extensions),
        SPIDERMON_ENABLED=True,
        SPIDERMON_ADD_FIELD_COVERAGE=True,
        SPIDERMON_SPIDER_CLOSE_MONITORS="crawls.monitors.Suite",
    )
    fleet, told = rig.fleet(), [0]

    def items() -> int:
        return int(rig.status()["stats"].get("item_scraped_count", 0))

    for place, share in enumerate((0.4, 0.6)):
        rig.wait_for_pages(share)
        told.append(items())
        rig.kill(fleet[place])
        rig.worker()
        told.append(items())
    rig.wait_for_pages(0.7)
    told.append(items())
    assert told == sorted(told), told
    pages_lost = rig.kill_the_server(lost)
    told = [items()] if lost else [*told, items()]
    rig.wait_for_flow(10)
    rig.finish()
    again = len(rig.gone) + lost * len(rig.workers)
    assert_survived(rig, refetch=again * MOST_LEASES + pages_lost)
    (last,) = [one for one in rig.survivors() if one.stats.get("redisq/last_worker")]
    of_all = last.stats["redisq/fleet/item_scraped_count"]
    others = [one for one in rig.survivors() if one is not last]
    assert told == sorted(told), told
    of_others = sum(worker.stats["item_scraped_count"] for worker in others)
    assert max(told[-1], of_others) <= of_all <= len(rig.site.hits)
    monitored = [
        line for worker in rig.workers for line in worker.log.splitlines() if "monitored: " in line
    ]
    assert [f" {of_all} items, 1.0" in line for line in monitored] == [True]
