"""Spiders of all kinds do with this scheduler what they do with Scrapy's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.utils.spider import iter_spider_classes

from lab.servers import RedisServer, any_server
from tests.compatibility.compared import Compared
from tests.compatibility.comparison import Comparison, differences
from tests.compatibility.differences import DIFFERENCES

pytestmark = pytest.mark.skipif(
    scrapy.version_info < (2, 19), reason="is a comparison with the newest Scrapy"
)

PLUGINS = {"spidermon": "monitored", "scrapy_poet": "injected"}


@cache
def every_spider() -> tuple[str, ...]:
    """Their plugins are imported only here: that takes half a second of whoever collects the
    tests."""
    from tests.compatibility.spiders import (  # noqa: PLC0415
        callbacks,
        fetching,
        pipelines,
        plugins,
    )

    modules: list[Any] = [fetching, callbacks, pipelines, plugins]
    spiders = [spider for module in modules for spider in iter_spider_classes(module)]
    return tuple(spider.name for spider in spiders if issubclass(spider, Compared))


@pytest.mark.long(40)
def test_as_with_scrapys_own(tmp_path: Path) -> None:
    """Pages fetched, items, stats and what is logged are the same by one worker and by two, but
    for what `DIFFERENCES` lists."""
    with RedisServer(any_server(), aof=True) as server:  # one without a log is warned of
        comparison = Comparison(every_spider(), tmp_path, server.url)
        comparison.run()
    found = list(differences(comparison))
    wrong = [str(one) for one in found if not any(known.explains(one) for known in DIFFERENCES)]
    wrong += [
        f"no longer different, to be taken from the table: {known}"
        for known in DIFFERENCES
        if known.certain
        and (known.spider == "*" or known.spider in comparison.spiders)
        and not any(known.explains(one) for one in found)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_is_there(plugin: str) -> None:
    """Is skipped to say that a plugin is not installed, and was left out of the comparison."""
    pytest.importorskip(plugin)
    assert PLUGINS[plugin] in every_spider()
