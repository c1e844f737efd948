"""All settings: name, default and check of each. docs/reference/settings.md says what for.

Durations are seconds, sizes are bytes. ``lease_ttl`` is REDISQ_LEASE_TTL.
"""

from __future__ import annotations

from scrapy_redisq.frontier.config import DEAD_MAX, MOST_SHARDS, REWIND, FrontierConfig
from scrapy_redisq.frontier.limits import GIVE_UP, LONGEST, MOST, MOST_BUDGET
from scrapy_redisq.settings import checks
from scrapy_redisq.settings.setting import Setting

_CONFIG = FrontierConfig()


class CrawlSettings:
    """The frontier, its runs, its workers, what may be stored, and the server."""

    enabled = Setting(True, checks.boolean)
    url = Setting("embedded://", checks.url)
    frontier = Setting("%(spider)s", checks.frontier_pattern)
    scheduling = Setting(_CONFIG.scheduling, checks.one_of("slot", "priority"))
    order = Setting(_CONFIG.order, checks.one_of("fifo", "lifo"))
    dupefilter_error_rate = Setting(_CONFIG.error_rate, checks.number(1e-9, 0.1))
    dupefilter_capacity = Setting(_CONFIG.capacity, checks.whole(1_000, 10_000_000_000))
    resume = Setting(True, checks.boolean)
    run = Setting("", checks.run_pattern)
    keep_seen = Setting(False, checks.boolean)
    seen_ttl = Setting(0.0, checks.seen_ttl)
    keep_alive = Setting(False, checks.boolean)
    feeds = Setting({}, checks.feeds)
    same_start = Setting(True, checks.boolean)
    same_arguments = Setting(True, checks.boolean)
    rewind = Setting(REWIND, checks.seconds(0, 3_600))
    wait_replicas = Setting(0, checks.whole(0, 10))
    lease_ttl = Setting(60.0, checks.seconds(1, checks.DAY))
    max_leases = Setting(0, checks.whole(0, 10_000))
    max_deliveries = Setting(5, checks.whole(1, 250))
    max_entry_bytes = Setting(1_048_576, checks.whole(1_024, 134_217_728, "bytes"))
    max_outbox = Setting(10_000, checks.whole(100, 10_000_000))
    max_pending = Setting(0, checks.whole(0, 10**12))
    max_memory = Setting(0.0, checks.memory)
    dead_max = Setting(DEAD_MAX, checks.whole(0, 10_000_000))
    history = Setting(0, checks.whole(0, 100_000_000))
    schemes = Setting(("http", "https", "data"), checks.schemes)
    request_classes = Setting((), checks.paths("request classes"))
    value_classes = Setting((), checks.paths("classes"))
    meta_keys = Setting((), checks.meta_keys)
    shards = Setting(None, checks.whole_or_none(1, MOST_SHARDS))
    connect_timeout = Setting(30.0, checks.seconds(0, checks.DAY))
    close_timeout = Setting(10.0, checks.seconds(0, 3_600))
    progress = Setting(False, checks.boolean)


class SlotSettings:
    """Limits of slots, back-off, robots.txt, and the pauses of retries."""

    slot_delay = Setting(0.0, checks.seconds(0, LONGEST))
    slot_concurrency = Setting(0, checks.whole(0, MOST))
    slot_rate = Setting("", checks.or_empty(checks.rate))
    slot_budget = Setting(0, checks.whole(0, MOST_BUDGET))
    page_budget = Setting(0, checks.whole(0, MOST_BUDGET))
    slot_limits = Setting({}, checks.slot_limits)
    limits_name = Setting("", checks.or_empty(checks.frontier_name))
    fleet_limits = Setting(False, checks.boolean)
    autothrottle = Setting(False, checks.boolean)
    backoff_codes = Setting((429, 503), checks.statuses)
    slot_give_up = Setting(GIVE_UP, checks.whole(0, 1_000))
    set_aside_wait = Setting(600.0, checks.seconds(0, checks.YEAR))
    crawl_delay_max = Setting(60.0, checks.seconds(0, LONGEST))
    retry_delays = Setting(checks.EXPONENTIAL, checks.delays)


class SinkSettings:
    """Of the item pipelines."""

    database_url = Setting(
        "", checks.text("an SQLAlchemy URL such as postgresql://user:password@host/shop")
    )
    tables = Setting({}, checks.tables)
    metadata = Setting(
        "",
        checks.text(
            "the import path of a sqlalchemy.MetaData, such as shop.models.metadata, or ''"
        ),
    )
    parquet_url = Setting("items", checks.pattern("a folder or an fsspec URL"))
    dataset = Setting(("%(spider)s.jsonl",), checks.datasets)
    items_url = Setting("", checks.or_empty(checks.url))
    items_key = Setting("%(spider)s:items", checks.pattern("a key's name"))
    items_type = Setting("list", checks.one_of("list", "stream"))
