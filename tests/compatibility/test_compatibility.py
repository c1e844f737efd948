"""Spiders of all kinds do with this scheduler what they do with Scrapy's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import scrapy

from lab.servers import RedisServer, any_server
from tests.compatibility.comparison import (
    Comparison,
    Group,
    differences,
    spiders_of,
)
from tests.compatibility.differences import DIFFERENCES

pytestmark = pytest.mark.skipif(
    scrapy.version_info < (2, 19), reason="is a comparison with the newest Scrapy"
)

PLUGINS = {"spidermon": "monitored", "scrapy_poet": "injected"}

EVERY = "all"
GROUPS = {
    "twice": Group("CrawlerProcess", ("follow", "generators"), twice="follow", ours=("one",)),
    "async_runner": Group("AsyncCrawlerRunner", ("follow", "rules"), ours=("two",)),
    "no_reactor": Group(
        "asyncio.run",
        ("follow", "robots", "redirects", "retries", "generators", "judged", "idle"),
        {"TWISTED_REACTOR_ENABLED": False, "DOWNLOAD_HANDLERS": {}},
    ),
}


@cache
def group_of(name: str) -> Group:
    """`EVERY` spider, or some. Their plugins are imported only here: that takes half a second of
    whoever collects the tests."""
    if name != EVERY:
        return GROUPS[name]
    from tests.compatibility.spiders import (  # noqa: PLC0415
        callbacks,
        classes,
        fetching,
        pipelines,
        plugins,
    )

    spiders = spiders_of(fetching, classes, callbacks, pipelines, plugins)
    return Group("AsyncCrawlerProcess", spiders)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One with a log on disk: a server without one is warned of."""
    server = RedisServer(any_server(), aof=True)
    yield server
    server.close()


OF_THE_DAY = [*GROUPS][int(time.time()) // 86_400 % len(GROUPS)]
"""The other ways to run a crawl have their turn on the next days."""


@pytest.mark.long(60)
@pytest.mark.parametrize("name", [EVERY, OF_THE_DAY])
def test_as_with_scrapys_own(name: str, server: RedisServer, tmp_path: Path) -> None:
    """Pages fetched, items, stats and what is logged are the same by one worker and by two, but
    for what `DIFFERENCES` lists."""
    group = group_of(name)
    comparison = Comparison(name, group, tmp_path, server.url)
    comparison.run()
    found = list(differences(comparison))
    wrong = [str(one) for one in found if not any(known.explains(one) for known in DIFFERENCES)]
    wrong += [
        f"no longer different, to be taken from the table: {known}"
        for known in DIFFERENCES
        if name == EVERY
        and known.certain
        and (known.spider == "*" or known.spider in group.spiders)
        and not any(known.explains(one) for one in found)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_is_there(plugin: str) -> None:
    """Is skipped to say that a plugin is not installed, and was left out of the comparison."""
    pytest.importorskip(plugin)
    assert PLUGINS[plugin] in group_of(EVERY).spiders
