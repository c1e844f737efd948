"""Scrapy's feeds under several workers: a warning where they share one, and a name for each."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from scrapy_redisq import Addon, feed_uri_params
from scrapy_redisq.feed_exports import warn_of_shared_feeds


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
