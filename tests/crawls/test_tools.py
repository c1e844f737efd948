"""Scrapy's tools beside the crawls: `shell`, `parse`, `fetch` and others only look. Scrapy's feeds,
and what a worker shows in its terminal."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scrapy import Spider, cmdline
from scrapy.commands import ScrapyCommand
from scrapy.commands.crawl import Command as CrawlCommand
from scrapy.settings import Settings

from lab.launcher import fork
from lab.servers import RedisServer, free_port
from lab.site import Site, linked_pages
from scrapy_redisq import (
    Addon,
    RedisqBackOffMiddleware,
    RedisqRetryMiddleware,
    RedisqRobotsTxtMiddleware,
    feed_uri_params,
)
from scrapy_redisq.feed_exports import warn_of_shared_feeds
from scrapy_redisq.participation import why_alone
from tests.harness.command import terminal
from tests.harness.crawl import PROJECT, Crawl

TABLES = {"dict": {"table": "pages", "key": ["url"], "columns": {"url": "str", "pid": "int"}}}


def no_redis(folder: Path) -> dict[str, str]:
    """Everything by hand beside the add-on, and no server."""
    return {
        "REDISQ_URL": f"redis://127.0.0.1:{free_port()}/0",
        "REDISQ_CONNECT_TIMEOUT": "0",
        "SCHEDULER": "scrapy_redisq.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redisq.ExactDupeFilter",
        "ITEM_PIPELINES": json.dumps({"scrapy_redisq.pipelines.DatabasePipeline": 1}),
        "REDISQ_DATABASE_URL": f"sqlite:///{folder}/items.sqlite",
        "REDISQ_TABLES": json.dumps(TABLES),
        "LOG_ENABLED": "True",
    }


def test_tools_need_no_redis_and_write_nothing_that_is_not_asked_for(tmp_path: Path) -> None:
    """Nor does a sink open: only `parse --pipelines` writes, as it says."""
    with Site(linked_pages(10)) as site:
        page = f"{site.url}/1"
        tools = {
            "shell": ["shell", page, "-c", "fetch(response.url) or response.status"],
            "fetch": ["fetch", page, "--spider", "follow"],
            "check": ["check", "contracted"],
            "parse": ["parse", page, "--spider", "follow", "--depth", "2"],
            "write": ["parse", page, "--spider", "follow", "--pipelines"],
        }
        processes = {}
        for name, command in tools.items():
            (tmp_path / name).mkdir()
            given = no_redis(tmp_path / name).items()
            options = [part for key, value in given for part in ("-s", f"{key}={value}")]
            output = tmp_path / name / "log"
            arguments = [*command, *options, "-a", f"site={site.url}"]
            if name in {"shell", "check", "fetch"}:
                arguments = arguments[:-2]
            environment = {**os.environ, "SITE": site.url}
            processes[name] = fork("scrapy", arguments, PROJECT, output, environment)
        ended = {name: process.wait(60) for name, process in processes.items()}
    logs = {name: (tmp_path / name / "log").read_text() for name in tools}
    assert ended == dict.fromkeys(tools, 0), logs
    for name, log in logs.items():
        assert f"scrapy {tools[name][0]} has no frontier" in log, log
        assert "Traceback" not in log and "ERROR" not in log, log
        assert (tmp_path / name / "items.sqlite").exists() == (name == "write")
    assert "\n200" in logs["shell"]
    assert "Ran 1 contract" in logs["check"] and "OK" in logs["check"]
    with sqlite3.connect(tmp_path / "write" / "items.sqlite") as database:
        assert database.execute("SELECT url FROM pages").fetchall() == [(page,)]
    database.close()


def test_a_spider_is_tried_without_a_frontier(tmp_path: Path) -> None:
    """REDISQ_ENABLED=False: Scrapy's own scheduler, in memory, whatever the settings name."""
    with Site(linked_pages(10)) as site:
        settings = {**no_redis(tmp_path), "REDISQ_ENABLED": "False", "ITEM_PIPELINES": "{}"}
        crawl = Crawl("follow", tmp_path, settings=settings, arguments={"site": site.url}).wait()
        assert crawl.reason == "finished", crawl.log
        assert len(site.counts()) == 10
    assert crawl.stats["scheduler/enqueued/memory"] == crawl.stats["item_scraped_count"]
    assert crawl.stats["dupefilter/filtered"] > 0


class Own(ScrapyCommand):
    """A command of a project's own, which says whether its crawl would join."""

    requires_crawler_process = False
    joined: bool

    def short_desc(self) -> str:
        return "Say whether its crawl would join"

    def run(self, args: list[str], opts: object) -> None:
        assert self.settings is not None
        type(self).joined = not why_alone(self.settings)
        Addon().update_settings(self.settings)
        assert (self.settings.getpriority("SCHEDULER") == 15) == type(self).joined


class FromCrawl(Own, CrawlCommand):
    requires_crawler_process = False
    requires_project = False


@pytest.mark.parametrize(("kind", "expected"), [(Own, False), (FromCrawl, True)])
def test_a_projects_own_command_joins_if_it_is_a_crawl(
    monkeypatch: pytest.MonkeyPatch, kind: type[Own], expected: bool
) -> None:
    """`crawl` and what is made from it; any other works without a frontier."""
    # Scrapy finds a command in the module that its class says it is of.
    module = ModuleType("own_commands")
    module.__dict__["Command"] = kind
    monkeypatch.setattr(kind, "__module__", "own_commands")
    monkeypatch.setitem(sys.modules, "own_commands", module)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "")
    with pytest.raises(SystemExit) as ended:
        cmdline.execute(["scrapy", "own_commands"], Settings({"COMMANDS_MODULE": "own_commands"}))
    assert ended.value.code == 0
    assert kind.joined is expected


def test_a_crawl_that_is_started_from_python_joins() -> None:
    """Whatever is in sys.argv; unless it is switched off. A wrong value is left to the worker."""
    assert not why_alone(Settings())
    assert why_alone(Settings({"REDISQ_ENABLED": "no"}))
    assert not why_alone(Settings({"REDISQ_ENABLED": "perhaps"}))


def test_the_add_on_beside_a_scheduler_of_scrapy_redis(caplog: pytest.LogCaptureFixture) -> None:
    """The project's scheduler stays, and the add-on says what that means."""
    for scheduler in ("scrapy_redis.scheduler.Scheduler", "shop.Scheduler"):
        settings = Settings({"SCHEDULER": scheduler}, priority="project")
        Addon().update_settings(settings)
        assert settings["SCHEDULER"] == scheduler
    (said,) = caplog.messages
    assert said.startswith("SCHEDULER is scrapy_redis.scheduler.Scheduler: this crawl joins no")


SCRAPYS = "scrapy.downloadermiddlewares."


@pytest.mark.parametrize(
    ("own", "scrapys", "place"),
    [
        (RedisqRetryMiddleware, f"{SCRAPYS}retry.RetryMiddleware", 550),
        (RedisqRobotsTxtMiddleware, f"{SCRAPYS}robotstxt.RobotsTxtMiddleware", 100),
        (RedisqBackOffMiddleware, "", 950),
    ],
)
def test_the_add_on_leaves_middlewares_to_the_project(own: type, scrapys: str, place: int) -> None:
    """One of ours takes the place of Scrapy's, unless the project has said something about it."""

    def placed(chosen: dict[Any, Any]) -> dict[Any, Any]:
        settings = Settings({"DOWNLOADER_MIDDLEWARES": chosen}, priority="project")
        Addon().update_settings(settings)
        merged = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
        ours = (own, f"{own.__module__}.{own.__name__}", f"scrapy_redisq.{own.__name__}", scrapys)
        return {name: merged[name] for name in ours if name in merged}

    scrapys_is_off = {scrapys: None} if scrapys else {}
    assert placed({}) == {f"scrapy_redisq.{own.__name__}": place, **scrapys_is_off}
    for name in (own, f"{own.__module__}.{own.__name__}"):
        assert placed({name: 40})[name] == 40
        assert f"scrapy_redisq.{own.__name__}" not in placed({name: 40})
    if scrapys:
        assert placed({scrapys: None}) == {scrapys: None}
        assert placed({scrapys: 120}) == {scrapys: 120}


# Scrapy's feeds under several workers: a warning where they share one, and a name for each


@pytest.mark.parametrize(
    ("uri", "shared"),
    [
        ("items.json", True),
        (Path("/tmp/items.csv"), True),
        ("file:///tmp/%(name)s.jsonl", True),
        ("items-%(time)s.json", True),  # whole seconds
        ("s3://key:secret@bucket/%(name)s/%(batch_id)d.json", True),
        ("ftp://user:secret@host/items.xml", True),
        ("%(category)s/%(name)s.json", True),  # an attribute of the class
        ("items-%(worker)s.json", False),
        ("s3://bucket/%(batch_time)s-%(batch_id)05d.jsonl", False),
        ("%(shop)s/items.json", False),  # the project's own, which knows
        ("stdout:", False),
        ("file:///dev/null", False),
        ("/dev/stderr", False),
        ("mine://host/items", False),  # an own storage may be able to
    ],
)
def test_a_feed_that_all_workers_write_is_warned_of(
    uri: Any, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to do instead, without passwords; not where the name is each worker's own."""
    spider = type("Books", (Spider,), {"name": "books", "category": "fiction"})
    warn_of_shared_feeds(Settings({"FEEDS": {uri: {"format": "json"}}}), spider)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == shared
    for line in said:
        assert "%(worker)s" in line and "scrapy_redisq.pipelines" in line
        assert "secret" not in line


def test_feeds_of_a_scrapyd_job_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """scrapyd names them by the job's id, of which it tells the spider."""
    uri = "file:///items/shop/books/6487ec79947edab326d6db28a2d86511e8247444.jl"
    settings = Settings({"FEEDS": {uri: {"format": "jsonlines"}}})
    warn_of_shared_feeds(settings, Spider, "6487ec79947edab326d6db28a2d86511e8247444")
    assert not caplog.records
    warn_of_shared_feeds(settings, Spider, "another")
    assert uri in caplog.text


def test_the_projects_own_feed_parameters_stay() -> None:
    """The add-on sets FEED_URI_PARAMS unless the project does, also where there is no frontier."""
    for enabled in (True, False):
        settings = Settings({"REDISQ_ENABLED": enabled})
        Addon().update_settings(settings)
        assert settings["FEED_URI_PARAMS"] == "scrapy_redisq.feed_uri_params"
        own = Settings({"FEED_URI_PARAMS": "shop.feeds.params", "REDISQ_ENABLED": enabled})
        Addon().update_settings(own)
        assert own["FEED_URI_PARAMS"] == "shop.feeds.params"


def test_a_worker_has_one_name_and_no_other_has_it() -> None:
    """Two spiders of one process differ; the batches of one do not. A spider's attribute wins."""
    first, second = Spider("a"), Spider("a")
    names = {feed_uri_params({"batch_id": 1}, spider)["worker"] for spider in (first, second)}
    assert len(names) == 2
    assert feed_uri_params({"batch_id": 2}, first)["worker"] in names
    assert feed_uri_params({"worker": "mine"}, first) == {"worker": "mine"}


# REDISQ_PROGRESS


def test_a_worker_says_how_far_it_is(redis_server: RedisServer) -> None:
    """In its terminal, below what it logs, which is there as ever; the line goes at the end."""
    given = {"REDISQ_URL": redis_server.url, "REDISQ_PROGRESS": "True", "DOWNLOAD_DELAY": "0.05"}
    options = [part for name, value in given.items() for part in ("-s", f"{name}={value}")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "24"}
    with Site(linked_pages(20)) as site, terminal() as (theirs, written):
        command = ["crawl", "follow", "-a", f"site={site.url}", *options]
        process = fork("scrapy", command, PROJECT, Path(os.ttyname(theirs)), environment)
        try:
            assert process.wait(60) == 0, written
        finally:
            process.kill()
    shown = written.decode()
    lines = re.findall(
        r"follow: (\d+) pages \([\d.]+/s\) · (\d+) items · \d+ downloading · all workers: "
        r"(\d+) finished, (\d+) to do",
        shown,
    )
    assert len(lines) > 1, shown
    assert int(lines[-1][0]) > int(lines[0][0])
    assert "Spider closed (finished)" in shown
    assert "Traceback" not in shown
    after = shown[shown.rindex("all workers:") :]
    assert "\x1b[2K" in after, "the line was taken away"
