"""Settings of slots: limits, back-off, robots.txt, and the pauses of retries."""

from __future__ import annotations

from scrapy_redisq.frontier.limits import LONGEST, MOST, BackOff
from scrapy_redisq.settings import checks
from scrapy_redisq.settings.setting import Setting


class SlotSettings:
    """Durations are seconds."""

    slot_delay = Setting(
        0.0,
        checks.seconds(0, LONGEST),
        "Between two requests to one slot, of all workers together.",
    )
    slot_concurrency = Setting(
        0,
        checks.whole(0, MOST),
        "Requests to one slot in progress, of all workers together. 0: no limit.",
    )
    slot_rate = Setting(
        "",
        checks.or_empty(checks.rate),
        "Requests to one slot in a time, of all workers together.",
    )
    slot_limits = Setting(
        {},
        checks.slot_limits,
        "Limits of single slots, of all below a domain (`*.example.com`), or of all: `*`. What one "
        "leaves out is as in `*`, and what that leaves out as in the three settings above.",
    )
    fleet_limits = Setting(
        False,
        checks.boolean,
        "Read Scrapy's `DOWNLOAD_DELAY`, `DOWNLOAD_SLOTS` and, if the project sets it, "
        "`CONCURRENT_REQUESTS_PER_DOMAIN` as limits of all workers together, where the settings "
        "above leave something out.",
    )
    autothrottle = Setting(
        False,
        checks.boolean,
        "Scrapy's AutoThrottle by slot over all workers together, with the same "
        "`AUTOTHROTTLE_` settings. Reads Scrapy's limits as `REDISQ_FLEET_LIMITS` does.",
    )
    backoff_codes = Setting(
        (429, 503),
        checks.statuses,
        "Answers after which all workers leave the slot alone for a while, and the request goes "
        "back to its front without losing a retry. Connection errors and time-outs count too. "
        "`[]`: no back-off at all.",
    )
    slot_give_up = Setting(
        BackOff.give_up,
        checks.whole(0, 1_000),
        "Failures in a row after which a slot is set aside: its requests are kept, and one is "
        "tried at growing intervals, up to an hour. 0: never.",
    )
    set_aside_wait = Setting(
        600.0,
        checks.seconds(0, checks.YEAR),
        "Seconds for which a crawl stays open when only slots that are set aside have requests. "
        "Then it closes (`slots_set_aside`) and keeps them for the next start.",
    )
    crawl_delay_max = Setting(
        60.0,
        checks.seconds(0, LONGEST),
        "Longest delay that a host gets by `Crawl-delay` or `Request-rate` of its robots.txt. "
        "0: they are not heeded.",
    )
    retry_delays = Setting(
        checks.EXPONENTIAL,
        checks.delays,
        "Pauses before the first, second… retry, the last one repeated. `exponential`: a random "
        "time up to 2 s, doubled with each retry, at most 300 s.",
    )
