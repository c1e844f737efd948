"""Settings of the item pipelines."""

from __future__ import annotations

from scrapy_redisq.settings import checks
from scrapy_redisq.settings.setting import Setting


class SinkSettings:
    """Durations are seconds."""

    database_url = Setting(
        "",
        checks.text("an SQLAlchemy URL such as postgresql://user:password@host/shop"),
        "Where `DatabasePipeline` writes: `sqlite:///items.sqlite`, `postgresql://…`, "
        "`mysql://…` or `mariadb://…`.",
    )
    tables = Setting(
        {},
        checks.tables,
        "Tables of `DatabasePipeline`: see [sinks.md](sinks.md). Without it one table for each "
        "item class, made from its fields.",
    )
    metadata = Setting(
        "",
        checks.text(
            "the import path of a sqlalchemy.MetaData, such as shop.models.metadata, or ''"
        ),
        "The project's own tables for `DatabasePipeline`, used as they are.",
    )
    parquet_url = Setting(
        "items",
        checks.pattern("a folder or an fsspec URL"),
        "Where `ParquetPipeline` puts its files: `items`, `s3://bucket/%(spider)s`.",
    )
    items_url = Setting(
        "",
        checks.or_empty(checks.url),
        "Where `RedisPipeline` puts items. '': where the frontier is.",
    )
    items_key = Setting(
        "%(spider)s:items",
        checks.pattern("a key's name"),
        "Key of the list or stream of `RedisPipeline`.",
    )
    items_type = Setting(
        "list",
        checks.one_of("list", "stream"),
        "Type of the key that `RedisPipeline` adds items to.",
    )
