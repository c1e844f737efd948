"""Settings: each has a check, and a wrong value is named with what the setting takes."""

from __future__ import annotations

import json
import logging
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.settings import Settings

from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.arguments import Arguments
from scrapy_redisq.settings.scrapy_redis import kept_lines
from scrapy_redisq.settings.setting import settings_of
from scrapy_redisq.settings.settings import RedisqSettings, check_frontier_name
from scrapy_redisq.settings.start_urls import feeds_of, max_idle_of

SETTINGS = list(settings_of(RedisqSettings))

WRONG: list[tuple[str, Any]] = [
    ("REDISQ_URL", "redus://:s3cret@host"),
    ("REDISQ_FRONTIER", "a{b}"),
    ("REDISQ_FRONTIER", "x" * 101),
    ("REDISQ_FRONTIER", "100%"),
    ("REDISQ_SCHEDULING", "random"),
    ("REDISQ_DUPEFILTER_ERROR_RATE", "nan"),
    ("REDISQ_RESUME", "maybe"),
    ("REDISQ_LEASE_TTL", True),
    ("REDISQ_SEEN_TTL", "7x"),
    ("REDISQ_SEEN_TTL", 7),
    ("REDISQ_SEEN_TTL", True),
    ("REDISQ_SEEN_TTL", "-1d"),
    ("REDISQ_MAX_LEASES", 1.5),
    ("REDISQ_MAX_ENTRY_BYTES", "1M"),
    ("REDISQ_RETRY_DELAYS", "linear"),
    ("REDISQ_RETRY_DELAYS", []),
    ("REDISQ_RETRY_DELAYS", [1, "nan"]),
    ("REDISQ_RETRY_DELAYS", True),
    ("REDISQ_REQUEST_CLASSES", [42]),
    ("REDISQ_BACKOFF_CODES", "503,x"),
    ("REDISQ_BACKOFF_CODES", [99]),
    ("REDISQ_BACKOFF_CODES", 503),
    ("REDISQ_BACKOFF_CODES", [True]),
    ("REDISQ_SLOT_CONCURRENCY", 0.5),
    ("REDISQ_SHARDS", 0),
    ("REDISQ_DATABASE_URL", 7),
    ("REDISQ_TABLES", ["shop.items.Book"]),
    ("REDISQ_TABLES", {"shop.items.Book": "books"}),
    ("REDISQ_TABLES", {7: {}}),
    ("REDISQ_PARQUET_URL", "items/%(crawl)s"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_values(name: str, value: Any) -> None:
    """The error names the setting and what it takes, and shows no password."""
    takes = next(setting.check.takes for setting in SETTINGS if setting.name == name)
    with pytest.raises(SettingError) as caught:
        RedisqSettings.read(Settings({name: value}))
    assert name in str(caught.value)
    assert takes in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_defaults_pass_their_own_checks() -> None:
    """What a setting is when left out, it also takes when written out."""
    settings = RedisqSettings.read({})
    written_out = {setting.name: setting.default for setting in SETTINGS}
    assert RedisqSettings.read(written_out) == settings
    assert all(getattr(settings, one.attribute) == one.default for one in SETTINGS)


def test_text_from_the_command_line() -> None:
    """``-s NAME=value`` gives texts; they are read as numbers, truth values and lists."""
    settings = RedisqSettings.read(
        {
            "REDISQ_LEASE_TTL": "5",
            "REDISQ_MAX_LEASES": "7",
            "REDISQ_RESUME": "False",
            "REDISQ_KEEP_SEEN": "1",
            "REDISQ_SEEN_TTL": "7d",
            "REDISQ_RETRY_DELAYS": "[1, 10, 60]",
            "REDISQ_REQUEST_CLASSES": "shop.requests.Rendered, shop.requests.Api",
            "REDISQ_META_KEYS": '["playwright_page_methods", "impersonate_args"]',
        }
    )
    assert (settings.lease_ttl, settings.max_leases) == (5.0, 7)
    assert (settings.resume, settings.keep_seen) == (False, True)
    assert settings.seen_ttl == 604_800
    assert settings.retry_delays == (1, 10, 60)
    assert RedisqSettings.read({"REDISQ_RETRY_DELAYS": 5}).retry_delays == (5,)
    assert settings.meta_keys == ("playwright_page_methods", "impersonate_args")
    assert settings.request_classes == ("shop.requests.Rendered", "shop.requests.Api")


def test_misspelt_settings(caplog: pytest.LogCaptureFixture) -> None:
    """A name that is no setting is pointed out, with the nearest that is."""
    with caplog.at_level(logging.WARNING):
        RedisqSettings.read(Settings({"REDISQ_LEASE_TLL": 5, "REDISQ_DASHBOARD_TOKEN": "x"}))
    assert "REDISQ_LEASE_TLL is no setting" in caplog.text
    assert "DASHBOARD" not in caplog.text, "comes with all of the environment's"
    assert "did you mean REDISQ_LEASE_TTL?" in caplog.text


def test_settings_that_exclude_each_other() -> None:
    """Strict priority over the whole frontier needs one shard."""
    with pytest.raises(SettingError, match="REDISQ_SHARDS"):
        RedisqSettings.read({"REDISQ_SHARDS": 2, "REDISQ_SCHEDULING": "priority"})


@pytest.mark.parametrize(
    ("given", "shown", "name"),
    [
        ({}, "", "none"),
        ({"site": "uk", "depth": 2, "_job": "17"}, "depth=2 site=uk", "depth=2,site=uk"),
        ({"site": "https://a.example/"}, "site=https://a.example/", "DIGEST"),
        ({"q": "two words"}, "'q=two words'", "DIGEST"),
        ({"api_key": "s3cret"}, "'api_key=***'", "DIGEST"),
        ({"keyword": "shoes"}, "keyword=shoes", "keyword=shoes"),
        ({"shop": "cookies"}, "shop=cookies", "shop=cookies"),
        ({"pw": "s3cret"}, "pw=***", "DIGEST"),
        ({"sessionid": "s3cret"}, "sessionid=***", "DIGEST"),
        ({"options": '{"Password": "s3cret"}'}, "options=***", "DIGEST"),
        ({"headers": "Authorization: Bearer s3cret"}, "headers=***", "DIGEST"),
        ({"url": "https://a.example/?n=1&token=s3cret"}, "url=***", "DIGEST"),
        ({"a\nb\udcff": "1"}, "'a?b?=1'", "DIGEST"),
        ({"n" * 300: "1"}, "n" * 200 + "…=1", "DIGEST"),
        ({"day": date(2026, 11, 24)}, "day=2026-11-24", "day=2026-11-24"),
        ({"db": "redis://me:s3cret@h"}, "'db=redis://me:***@h'", "DIGEST"),
        ({"q": "a\nb\udcff"}, "'q=a?b?'", "DIGEST"),
        ({"urls": "u" * 300}, "urls=" + "u" * 200 + "…", "DIGEST"),
    ],
)
def test_arguments_as_people_see_them(given: dict[str, Any], shown: str, name: str) -> None:
    """The words of a command, without what is secret, long or the launcher's; in a name as they
    are if that can be, else by their digest."""
    arguments = Arguments.of(given)
    assert shlex.split(arguments.shown) == shlex.split(shown)
    settings = RedisqSettings.read({"REDISQ_FRONTIER": "%(spider)s-%(arguments)s"})
    expected = arguments.digest if name == "DIGEST" else name
    assert settings.frontier_name("books", arguments) == f"books-{expected}"


def test_arguments_are_told_apart_by_their_digest() -> None:
    """The same in any order, and from Python as from the command line."""
    secrets = [Arguments.of({"token": token}) for token in ("a", "b")]
    assert secrets[0].shown == secrets[1].shown
    assert secrets[0].digest != secrets[1].digest
    assert Arguments.of({"n": 2, "m": "1"}) == Arguments.of({"m": 1, "n": "2"})
    assert Arguments.of({"urls": {"b", "a"}}) == Arguments.of({"urls": {"a", "b"}})
    assert Arguments.of({"made": object()}) == Arguments.of({"made": object()})
    for one, other in ((date(2026, 1, 1), date(2026, 1, 2)), (Path("a"), Path("b"))):
        for given, others in ((one, other), ([one], [other])):
            assert Arguments.of({"of": given}).digest != Arguments.of({"of": others}).digest
    with pytest.raises(SettingError, match="REDISQ_FRONTIER"):
        RedisqSettings.read({"REDISQ_FRONTIER": "%(arguments)s"}).frontier_name("books")


def test_lines_kept_from_scrapy_redis() -> None:
    """Each is named with the line to write; a class made from such a dupefilter is one, too."""

    class Theirs(BaseDupeFilter):
        """As scrapy-redis has it."""

    class Own(Theirs):
        """The project's."""

    class InMemory(RFPDupeFilter):
        """The project's, made from Scrapy's."""

    def lines(**given: Any) -> list[tuple[str, str]]:
        found = kept_lines(Settings(given, priority="project"))
        return [(one.why, one.write) for one in found]

    assert lines() == lines(REDIS_HOST="h", REDISQ_URL="embedded://") == []
    assert lines(DUPEFILTER_CLASS="scrapy_redisq.ExactDupeFilter") == []
    assert lines(DUPEFILTER_CLASS=Own) == []
    Theirs.__module__ = "scrapy_redis.dupefilter"
    for dupefilter in (Theirs, Own, "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"):
        ((why, write),) = lines(DUPEFILTER_CLASS=dupefilter)
        assert "when one worker stops" in why
        assert write.startswith('DUPEFILTER_CLASS = "scrapy_redisq.BloomDupeFilter"')
    ((why, _),) = lines(DUPEFILTER_CLASS=InMemory)
    assert "fetches again" in why
    ((why, write),) = lines(REDIS_HOST="h", REDIS_PORT=6380)
    assert "embedded" in why
    assert write.startswith('REDISQ_URL = "redis://h:6380/0"')
    ((_, write),) = lines(REDIS_URL="redis://h:6380/0", REDIS_HOST="other")
    assert write.startswith("REDISQ_URL = REDIS_URL")
    ((why, write),) = lines(SCHEDULER_FLUSH_ON_START=True)
    assert "resumed" in why
    assert write.startswith("REDISQ_RESUME = False")
    assert lines(SCHEDULER_FLUSH_ON_START=True, REDISQ_RESUME=True) == []
    ((why, _),) = lines(STATS_CLASS="scrapy_redis.stats.RedisStatsCollector")
    assert "waits for Redis at each count" in why


def test_a_spider_kept_from_scrapy_redis() -> None:
    """It is named after the class that it is made from, and other spiders are not."""

    class RedisSpider(Spider):
        """As scrapy-redis has it."""

    class Books(RedisSpider):
        """The project's."""

    assert list(kept_lines(Settings(), Books)) == []
    RedisSpider.__module__ = "scrapy_redis.spiders"
    (line,) = kept_lines(Settings(), Books)
    assert line.what == "The spider is a RedisSpider of scrapy-redis"
    assert line.write == "from scrapy_redisq import RedisSpider"
    for of, hook in ((RedisSpider, "next_requests"), (Books, "fetch_data"), (Books, "redis_key")):
        setattr(of, hook, print)
    (_, line) = kept_lines(Settings(), Books)
    assert "fetch_data()" in line.what


def test_frontier_names() -> None:
    """The default name is the spider's; a spider whose name cannot be one is told so."""
    settings = RedisqSettings.read({"REDISQ_FRONTIER": "shop-%(spider)s"})
    assert settings.frontier_name("books") == "shop-books"
    assert check_frontier_name("ünïcode : * ok") == "ünïcode : * ok"
    with pytest.raises(SettingError, match="REDISQ_FRONTIER"):
        RedisqSettings.read({}).frontier_name("{books}")


class TestFeeds:
    def test_which_there_are(self) -> None:
        """Those of `redis_key` first; a batch is what the feed says, else the spider, else the
        settings of scrapy-redis, else CONCURRENT_REQUESTS."""

        def feeds(given: dict[str, Any], **attributes: Any) -> list[tuple[str, str, int]]:
            spider = Spider("books", **attributes)
            settings = Settings(given)
            found = feeds_of(spider, RedisqSettings.read(settings), settings)
            return [(feed.key, feed.url, feed.batch) for feed in found]

        far = {"far": {"url": "redis://h", "batch": 3}, "%(spider)s": {}}
        assert feeds({}) == feeds({"REDIS_START_URLS_KEY": "a"}) == []
        assert feeds({}, redis_key=None) == [("books:start_urls", "", 16)]
        assert feeds({"REDIS_START_URLS_KEY": "a"}, redis_key=None) == [("a", "", 16)]
        assert feeds({"REDISQ_FEEDS": json.dumps(far)}, redis_key=["{a}b", "%(name)s"]) == [
            ("{a}b", "", 16),
            ("books", "", 16),
            ("far", "redis://h", 3),
        ]
        size = {"REDIS_START_URLS_BATCH_SIZE": "7", "CONCURRENT_REQUESTS": 2}
        assert feeds(size, redis_key="a") == [("a", "", 7)]
        assert feeds(size, redis_key="a", redis_batch_size="5") == [("a", "", 5)]
        assert feeds({"CONCURRENT_REQUESTS": 2}, redis_key="a") == [("a", "", 2)]
        assert max_idle_of(Spider("books"), Settings({"MAX_IDLE_TIME_BEFORE_CLOSE": 5})) == 5
        assert max_idle_of(Spider("books", max_idle_time="2"), Settings()) == 2

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"REDISQ_FEEDS": ["a"]}, "REDISQ_FEEDS.*a dict of keys"),
            (
                {"REDISQ_FEEDS": {"a": {"batch": 0}}},
                "REDISQ_FEEDS.*'batch' of 'a'.* from 1 to 1,000",
            ),
            ({"REDISQ_FEEDS": {"a": {"url": "http://:secret@h"}}}, "'url' of 'a' redis://"),
            ({"REDISQ_FEEDS": {"a": {"kind": "set"}}}, "'url' and 'batch', not 'kind'"),
            ({"REDISQ_FEEDS": {"": {}}}, "REDISQ_FEEDS.*place of '' the name of a key"),
            ({"REDISQ_FEEDS": {"a{b": {}}}, "one hash tag"),
            ({"redis_key": "%(site)s"}, "redis_key.*the spider's name"),
            ({"redis_key": 5}, "redis_key"),
            ({"redis_key": "a", "redis_batch_size": "many"}, "redis_batch_size.*lines"),
            ({"redis_key": "a", "max_idle_time": "soon"}, "max_idle_time.*seconds"),
        ],
    )
    def test_wrong_values(self, wrong: dict[str, Any], says: str) -> None:
        """Each is named with what it takes; passwords are not shown."""
        spider, settings = Spider("books", **wrong), Settings(wrong)
        with pytest.raises(SettingError, match=says) as raised:
            feeds_of(spider, RedisqSettings.read(settings), settings)
            max_idle_of(spider, settings)
        assert "secret" not in str(raised.value)
