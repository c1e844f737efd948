"""Reasons by name, each with its meaning: of dead letters, of closed spiders, of exit codes.

The reason of a dead letter is in its header. The reason of a spider is what Scrapy logs, and keeps
as the stat ``finish_reason``. ``docs/reference/reasons.md`` is made of these tables.
"""

from __future__ import annotations

from typing import Literal

DeadReason = Literal[
    "retries",
    "download",
    "spider_error",
    "item_error",
    "sink",
    "deliveries",
    "session_lost",
    "budget",
    "robots",
    "undecodable",
    "foreign",
    "too_large",
    "scheme",
    "refused",
    "line",
]

DEAD_LETTERS: dict[DeadReason, str] = {
    "retries": "The request failed as often as it may, by status or by exception; or "
    "`get_retry_request()` gave up in its callback or errback.",
    "download": "The download ended with an exception that is not one to retry.",
    "spider_error": "The callback or the errback raised an exception.",
    "item_error": "An item pipeline raised an exception.",
    "sink": "A sink refused an item of the page.",
    "deliveries": "A worker died with the request `REDISQ_MAX_DELIVERIES` times.",
    "session_lost": "A worker died with the session that this request begins, and the spider's "
    "`session_lost()` returned None, or raised.",
    "budget": "The run had taken in as many requests of the slot as `REDISQ_SLOT_BUDGET` allows, "
    "or its page had asked for as many as `REDISQ_PAGE_BUDGET` allows.",
    "robots": "The robots.txt of the host was answered with 5xx, and no slot could wait "
    '(`REDISQ_SCHEDULING = "priority"`).',
    "undecodable": "The stored request is none that this spider can run.",
    "foreign": "Another program than scrapy-redisq wrote this where requests are kept.",
    "too_large": "The request, or one that its page asked for, is larger than "
    "`REDISQ_MAX_ENTRY_BYTES`.",
    "scheme": "The request, or one that its page asked for, has a URL whose scheme "
    "`REDISQ_SCHEMES` does not list.",
    "refused": "The request, or one that its page asked for, could not be taken in: an exception "
    "of a fingerprinter or of `meta` says why.",
    "line": "A line of a feed (`REDISQ_FEEDS`) is no request that can be stored. The detail says "
    "why, and has the line.",
}

CloseReason = Literal[
    "finished",
    "frontier_corrupt",
    "frontier_lost",
    "redisq_failed",
    "sink_failed",
    "slots_set_aside",
]

CLOSES: dict[CloseReason, str] = {
    "finished": "The whole frontier is finished, and so all workers end.",
    "frontier_corrupt": "Something else has overwritten or deleted keys of the frontier: the log "
    "names the key, or says how many requests are missing.",
    "frontier_lost": "The frontier is gone from Redis, or was begun anew by others. The worker's "
    "pages are not recorded.",
    "redisq_failed": "The worker cannot go on: the log names the error. Its pages go back "
    "when its lease TTL is over.",
    "sink_failed": "The sink does not fit the items, and the log says what to do. Pages whose "
    "items are not written stay in the frontier.",
    "slots_set_aside": "For `REDISQ_SET_ASIDE_WAIT` seconds only requests of hosts that do not "
    "answer were left. They are kept for the next start.",
}

OK, FAILED, USAGE, SIGNAL = 0, 1, 2, 128

EXIT_CODES: dict[int, str] = {
    OK: "The command did what it was asked for.",
    FAILED: "It did not, and one line on stderr says why. Of `doctor`: a warning or a problem was "
    "found. Of `scrapy crawl`: the worker could not go on, because of `redisq_failed`, "
    "`frontier_lost`, `sink_failed`, or a damaged key.",
    USAGE: "The arguments are wrong.",
    SIGNAL: "More than this, by the number of a signal: the signal ended it (130 is Ctrl-C).",
}
