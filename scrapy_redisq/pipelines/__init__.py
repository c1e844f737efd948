"""Item pipelines: items are written before their page is finished in the frontier."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_redisq.pipelines.batch import BatchPipeline as BatchPipeline
    from scrapy_redisq.pipelines.batch import Row as Row
    from scrapy_redisq.pipelines.parquet import ParquetPipeline as ParquetPipeline
    from scrapy_redisq.pipelines.redis_items import RedisPipeline as RedisPipeline

# Imported when first used: each needs libraries that the others do not.
_HOMES = {
    "BatchPipeline": "scrapy_redisq.pipelines.batch",
    "ParquetPipeline": "scrapy_redisq.pipelines.parquet",
    "RedisPipeline": "scrapy_redisq.pipelines.redis_items",
    "Row": "scrapy_redisq.pipelines.batch",
}

__all__ = ["BatchPipeline", "ParquetPipeline", "RedisPipeline", "Row"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
