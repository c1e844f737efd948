"""Item pipelines without a crawl around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from scrapy.utils.test import get_crawler

from scrapy_redisq.pipelines.batch import BatchPipeline
from scrapy_redisq.settings.settings import RedisqSettings

P = TypeVar("P", bound=BatchPipeline)


@asynccontextmanager
async def in_a_crawl(kind: type[P], scheduler: Any = None, **settings: Any) -> AsyncIterator[P]:
    """An open sink in a crawl that has nothing else; it is closed at the end."""
    crawler = get_crawler(settings_dict=settings)
    engine: Any = SimpleNamespace(
        _slot=SimpleNamespace(scheduler=scheduler, closing=None),
        scraper=SimpleNamespace(_redisq_watched=True),
        close_spider_async=_nothing,
    )
    crawler.engine = engine
    crawler.spider = SimpleNamespace(name="spider")  # type: ignore[assignment]
    sink = kind(crawler)
    await sink.open_spider()
    try:
        yield sink
    finally:
        await sink.close_spider()


async def _nothing(**_arguments: Any) -> None:
    pass


@asynccontextmanager
async def opened(kind: type[P], frontier: str = "books", **settings: Any) -> AsyncIterator[P]:
    """An open pipeline of the spider "books"."""
    crawler = get_crawler(settings_dict=settings)
    slot = SimpleNamespace(scheduler=None)
    crawler.engine = SimpleNamespace(_slot=slot)  # type: ignore[assignment]
    pipeline = kind(crawler)
    pipeline.settings = RedisqSettings.read(crawler.settings)
    pipeline.spider_name, pipeline.frontier_name = "books", frontier
    try:
        await pipeline.open()
        yield pipeline
    finally:
        await pipeline.close()


def write_all(kind: type[P], *batches: Sequence[Any] | Mapping[str, Any], **settings: Any) -> P:
    """The batches of a worker that opens and closes the pipeline. The keys of the items are their
    places in the batch, or those of the mapping."""

    async def run() -> P:
        async with opened(kind, **settings) as pipeline:
            for batch in batches:
                items = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
                rows = [pipeline.row(item, f"{int(key):032x}") for key, item in items.items()]
                await pipeline.write(rows)
            return pipeline

    return asyncio.run(run())
