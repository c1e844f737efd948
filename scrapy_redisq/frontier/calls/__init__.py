"""Every script as a `Call`: what goes in and what comes out, typed, without any network.

The shapes of inputs and replies are documented where they are used: in the head of each Lua file.

``run``       ``lua/run/``: how runs begin and end, and who is in them
``requests``  ``lua/push.lua``, and requests as `push` and exchanges carry them; exchanges are made
              by `scrapy_redisq.frontier.exchange`
``dead``      ``lua/dead/``: dead letters
``slots``     ``lua/slots/``: slots, for people and robots.txt
``post``      ``lua/post/``: links to other shards, until those cannot lose them
``workers``   ``lua/workers/``: what workers are told by people
``past``      ``lua/past/``: what the frontier keeps of its past, for people
``robots``    ``lua/robots.lua``: who fetches a robots.txt
``seen``      ``lua/seen/``: dupefilters
``looks``     what people ask of a shard: why it waits, where a request is
``names``     how keys are called; ``parts``: what belongs to what
"""

from __future__ import annotations

from scrapy_redisq.frontier.calls.dead import (
    LettersPage,
    NamedLetters,
    letters,
    named_letters,
    purge,
    requeue,
)
from scrapy_redisq.frontier.calls.looks import (
    PLACES,
    Asked,
    Portion,
    Waits,
    ask_seen,
    find,
    forget_seen,
    waits,
)
from scrapy_redisq.frontier.calls.names import (
    EVERY_META,
    NEVER,
    keys_of,
    meta_key,
    name_in,
    number,
    pairs,
    prefix,
    seen_alone,
    wake_channel,
)
from scrapy_redisq.frontier.calls.past import (
    COUNTED,
    MOST_COUNTED,
    Action,
    Mark,
    Sample,
    actions,
    history,
    marks,
    note,
    series,
)
from scrapy_redisq.frontier.calls.post import (
    take_posts,
)
from scrapy_redisq.frontier.calls.requests import (
    RECENT,
    STARTS,
    EnqueueItem,
    enqueue_item,
    fingerprint_item,
    push,
)
from scrapy_redisq.frontier.calls.robots import (
    robots_txt,
)
from scrapy_redisq.frontier.calls.run import (
    ANY_RUN,
    JUST_NOW,
    NOBODY,
    ClearFirst,
    Conclusion,
    Crawl,
    Follow,
    Intent,
    Joined,
    Look,
    MayComeBack,
    Push,
    Registration,
    Return,
    RunTerms,
    clear,
    clock,
    conclude,
    fill,
    join,
    leave,
    look,
    mend,
    open_run,
    reap,
    status,
)
from scrapy_redisq.frontier.calls.seen import (
    record_seen,
    seen_status,
    sweep,
)
from scrapy_redisq.frontier.calls.slots import (
    SlotRecord,
    crawl_delay,
    drop,
    limit,
    list_slots,
    pause,
    resume,
    slot_queues,
)
from scrapy_redisq.frontier.calls.workers import (
    pause_run,
    tell,
)

__all__ = [
    "ANY_RUN",
    "COUNTED",
    "EVERY_META",
    "JUST_NOW",
    "MOST_COUNTED",
    "NEVER",
    "NOBODY",
    "PLACES",
    "RECENT",
    "STARTS",
    "Action",
    "Asked",
    "ClearFirst",
    "Conclusion",
    "Crawl",
    "EnqueueItem",
    "Follow",
    "Intent",
    "Joined",
    "LettersPage",
    "Look",
    "Mark",
    "MayComeBack",
    "NamedLetters",
    "Portion",
    "Push",
    "Registration",
    "Return",
    "RunTerms",
    "Sample",
    "SlotRecord",
    "Waits",
    "actions",
    "ask_seen",
    "clear",
    "clock",
    "conclude",
    "crawl_delay",
    "drop",
    "enqueue_item",
    "fill",
    "find",
    "fingerprint_item",
    "forget_seen",
    "history",
    "join",
    "keys_of",
    "leave",
    "letters",
    "limit",
    "list_slots",
    "look",
    "marks",
    "mend",
    "meta_key",
    "name_in",
    "named_letters",
    "note",
    "number",
    "open_run",
    "pairs",
    "pause",
    "pause_run",
    "prefix",
    "purge",
    "push",
    "reap",
    "record_seen",
    "requeue",
    "resume",
    "robots_txt",
    "seen_alone",
    "seen_status",
    "series",
    "slot_queues",
    "status",
    "sweep",
    "take_posts",
    "tell",
    "waits",
    "wake_channel",
]
