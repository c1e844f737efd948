"""Settings of crawls: the frontier, its runs, its workers, what may be stored, and the server."""

from __future__ import annotations

from scrapy_redisq.frontier.config import DEAD_MAX, MOST_SHARDS, REWIND, FrontierConfig
from scrapy_redisq.settings import checks
from scrapy_redisq.settings.setting import Setting


class CrawlSettings:
    """Durations are seconds, sizes are bytes."""

    enabled = Setting(
        True,
        checks.boolean,
        "`False`: Scrapy's own scheduler and dupefilter, in memory, without Redis: see "
        "[spiders.md](spiders.md#trying-a-spider).",
    )
    url = Setting(
        "embedded://",
        checks.url,
        "Where the frontier lives. `embedded://` starts a redis-server in the project's "
        "`.scrapy/redisq`, shared by all processes of this machine.",
    )
    frontier = Setting(
        "%(spider)s",
        checks.frontier_pattern,
        "Name of the frontier; all workers of a crawl give the same.",
    )
    scheduling = Setting(
        FrontierConfig.scheduling,
        checks.one_of("slot", "priority"),
        "`slot`: the least recently claimed slot (host) first, within it the highest priority. "
        "`priority`: strict priority over the whole frontier.",
    )
    order = Setting(
        FrontierConfig.order,
        checks.one_of("fifo", "lifo"),
        "Order among requests of the same priority: oldest or newest first.",
    )
    dupefilter_error_rate = Setting(
        FrontierConfig.error_rate,
        checks.number(1e-9, 0.1),
        "Share of new URLs that the Bloom filter may take for seen, and so lose.",
    )
    dupefilter_capacity = Setting(
        FrontierConfig.capacity,
        checks.whole(1_000, 10_000_000_000),
        "URLs for which the dupefilter is designed at first; it grows past them.",
    )
    resume = Setting(
        True,
        checks.boolean,
        "Resume an unfinished run. `False`: begin a new run and forget the unfinished one, "
        "unless other workers are in it.",
    )
    run = Setting(
        "",
        checks.run_pattern,
        "Name of the run, for supervisors that start workers at any time: when the run of this "
        "name is complete they end at once. See [running.md](running.md#supervisors).",
    )
    keep_seen = Setting(
        False,
        checks.boolean,
        "A new run keeps the URLs seen by the runs before, for incremental crawls: of those "
        "only the start requests are fetched again. Dead letters are kept too.",
    )
    keep_alive = Setting(
        False,
        checks.boolean,
        "Stay open when the frontier is empty, for crawls that are fed by `push`.",
    )
    same_start = Setting(
        True,
        checks.boolean,
        "All workers have the same `start()`: each of its requests is fetched once. `False`: "
        "`dont_filter` requests of `start()` are each worker's own, for a `start()` that takes "
        "jobs from a queue or has no end.",
    )
    same_arguments = Setting(
        True,
        checks.boolean,
        "All workers of a run have the same spider arguments (`-a`): one with others is refused. "
        "`False`: workers with different ones share a run.",
    )
    rewind = Setting(
        REWIND,
        checks.seconds(0, 3_600),
        "Seconds for which a worker can send requests without a page again (start requests, those "
        "of `spider_idle`), should Redis lose its last writes. 0: it cannot. In a cluster links "
        "between shards are remembered for as long: set more than a failover takes.",
    )
    wait_replicas = Setting(
        0,
        checks.whole(0, 10),
        "In a cluster: replicas that must have a request before it counts as safe (`WAIT`). 0: it "
        "is safe `REDISQ_REWIND` later, and is remembered until then.",
    )
    lease_ttl = Setting(
        60.0,
        checks.seconds(1, checks.DAY),
        "Seconds without a sign of life after which a worker's requests go to others.",
    )
    max_leases = Setting(
        0,
        checks.whole(0, 10_000),
        "Most requests that one worker holds, waiting and in progress. "
        "0: twice `CONCURRENT_REQUESTS`, or 200 where that is 0.",
    )
    max_deliveries = Setting(
        5,
        checks.whole(1, 250),
        "A request whose worker died this many times becomes a dead letter.",
    )
    max_entry_bytes = Setting(
        1_048_576,
        checks.whole(1_024, 134_217_728, "bytes"),
        "Largest serialised request; larger ones are refused and their page is marked dead.",
    )
    max_outbox = Setting(
        10_000,
        checks.whole(100, 10_000_000),
        "Requests that wait to be sent to Redis before the worker stops starting pages; half as "
        "many, before it stops reading `start()`.",
    )
    max_pending = Setting(
        0,
        checks.whole(0, 10**12),
        "Back-pressure: from so many unfinished requests on `start()` and `push` wait. "
        "0: no limit.",
    )
    max_memory = Setting(
        0.0,
        checks.memory,
        "The frontier is full from so much of the server's memory on, as at its `maxmemory`: "
        "bytes, or up to 1 a share of `maxmemory`. 0: no limit.",
    )
    dead_max = Setting(
        DEAD_MAX,
        checks.whole(0, 10_000_000),
        "Dead letters kept for reading and requeueing; the count goes on past it.",
    )
    history = Setting(
        0,
        checks.whole(0, 100_000_000),
        "Finished requests that are remembered (status, items, when, by whom), about 300 bytes "
        "each; the oldest go. 0: none.",
    )
    schemes = Setting(
        ("http", "https", "data"),
        checks.schemes,
        "Schemes of URLs that are fetched. Requests with others are refused, and stored ones "
        "become dead letters: a user who can write to Redis could name `file:///etc/passwd`.",
    )
    request_classes = Setting(
        (),
        checks.paths("request classes"),
        "Request subclasses, beside Scrapy's own, that may be stored.",
    )
    value_classes = Setting(
        (),
        checks.paths("classes"),
        "Classes whose objects requests may hold, in `meta`, `cb_kwargs` or arguments of a "
        "callback. Items, dataclasses, attrs classes, enums and named tuples in the spider's "
        "module, and in the modules that these come from, are found by themselves.",
    )
    meta_keys = Setting(
        (),
        checks.meta_keys,
        "Keys of `meta` that may be stored though Scrapy or a plugin imports, starts or opens what "
        "they name (`playwright_page_methods`, an import path as `referrer_policy`). A push with "
        "another such key is refused, and a stored request with one is a dead letter: see "
        "[SECURITY.md](../SECURITY.md).",
    )
    shards = Setting(
        None,
        checks.whole_or_none(1, MOST_SHARDS),
        "Parts of the frontier in a cluster, each with a hash tag of its own. None: as many as it "
        "has masters when the run begins. On one server there is one.",
    )
    connect_timeout = Setting(
        30.0,
        checks.seconds(0, checks.DAY),
        "Seconds to wait for a silent server at start before giving up. A server that loads its "
        "data is waited for.",
    )
    close_timeout = Setting(
        10.0,
        checks.seconds(0, 3_600),
        "Most seconds that closing waits for Redis to take what is buffered, and for a sink.",
    )
    progress = Setting(
        False,
        checks.boolean,
        "A line at the lower end of the worker's terminal that says how far it is, and all of "
        "them. Nothing is shown where standard error is no terminal.",
    )
