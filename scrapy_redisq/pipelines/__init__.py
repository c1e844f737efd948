"""Item pipelines: items are written before their page is finished in the frontier.

::

    DatabasePipeline   rows of SQLite, PostgreSQL, MariaDB: each item once
    ParquetPipeline    files, in a folder or an object store: at least once
    DatasetPipeline    one file of JSON Lines or CSV of all workers: each item once
    RedisPipeline      a list or a stream: at least once
    BatchPipeline      the base of all of them, and of your own

``batch`` is the base, which stands on ``row_key``, ``waiting``, ``writer`` and ``doubt``;
``file_batch`` is the base of the two that write files;
``database/`` and ``parquet/`` have rooms of their own and stand on ``annotations`` and ``values``
(what fields hold, and what of it may stand in a column), all three on ``encoding`` (JSON and
msgpack of values).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_redisq.pipelines.batch import BatchPipeline as BatchPipeline
    from scrapy_redisq.pipelines.batch import Row as Row
    from scrapy_redisq.pipelines.database.pipeline import DatabasePipeline as DatabasePipeline
    from scrapy_redisq.pipelines.dataset import DatasetPipeline as DatasetPipeline
    from scrapy_redisq.pipelines.parquet.pipeline import ParquetPipeline as ParquetPipeline
    from scrapy_redisq.pipelines.redis_items import RedisPipeline as RedisPipeline

# Imported when first used: each sink needs libraries that the others do not.
_HOMES = {
    "BatchPipeline": "scrapy_redisq.pipelines.batch",
    "DatabasePipeline": "scrapy_redisq.pipelines.database.pipeline",
    "DatasetPipeline": "scrapy_redisq.pipelines.dataset",
    "ParquetPipeline": "scrapy_redisq.pipelines.parquet.pipeline",
    "RedisPipeline": "scrapy_redisq.pipelines.redis_items",
    "Row": "scrapy_redisq.pipelines.batch",
}

__all__ = [
    "BatchPipeline",
    "DatabasePipeline",
    "DatasetPipeline",
    "ParquetPipeline",
    "RedisPipeline",
    "Row",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
